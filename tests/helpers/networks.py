"""Networks as package.module:factory, for tests that name them so."""

from torch import nn


def make_normed(num_classes):
    """Small, with BatchNorm, also one with a plain mean of all batches and without weights."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6, momentum=None, affine=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, num_classes)),
    )
