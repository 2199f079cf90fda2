"""The smallest network for photographs: three strided convolutions and the mean over all positions."""

from torch import nn

from .resnet import make_head


def make_tiny(channels: int, classes: int, maps: tuple[int, ...] = (16, 32, 64)) -> nn.Sequential:
    """Takes images of any size.

    Example:
        >>> import torch
        >>> make_tiny(3, 5)(torch.rand(2, 3, 40, 30)).shape
        torch.Size([2, 5])
    """
    layers: list[nn.Module] = []
    for inner, outer in zip((channels, *maps), maps, strict=False):
        layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, *make_head(maps[-1], classes))
