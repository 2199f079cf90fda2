"""A network of the shape of ResNet-18 (He et al., 2016), to see what the layer costs inside a network of that size."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STAGES = (64, 128, 256, 512)
CLASSES = 1000


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the size changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(input)))))
        return F.relu(output + self.shortcut(input))


def make_resnet18() -> nn.Sequential:
    """The network, always with the same weights.

    Example:
        >>> sum(parameter.numel() for parameter in make_resnet18().parameters())
        11689512
    """
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, STAGES[0], 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(STAGES[0]), nn.ReLU()]
    blocks = []
    before = STAGES[0]
    for channels in STAGES:
        blocks += [Block(before, channels, 1 if channels == before else 2), Block(channels, channels, 1)]
        before = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1), *blocks, *head)
