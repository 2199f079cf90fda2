"""Networks in the shape of well-known ones, to see what the layer costs inside them. Random weights, no training.

ResNet-18 (He et al., 2016) has dense 3×3 convolutions; the other one has the depthwise convolutions of MobileNetV2
(Sandler et al., 2018; 3×3, strides 1 and 2) and of ConvNeXt (Liu et al., 2022; 7×7).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STAGES = (64, 128, 256, 512)
CLASSES = 1000
EXPANSION = 4  # of the channels inside a depthwise block


class ResidualBlock(nn.Module):
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


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1×1 to more channels, depthwise 3×3, 1×1 to fewer; a shortcut where the shape stays."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        inner = EXPANSION * in_channels
        self.body = nn.Sequential(
            *(nn.Conv2d(in_channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False),
            *(nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )
        self.shortcut = stride == 1 and in_channels == channels

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.body(input)
        return input + output if self.shortcut else output


class LargeKernelBlock(nn.Module):
    """ConvNeXt's block, with BatchNorm: depthwise 7×7, then 1×1 to more channels and back, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = EXPANSION * channels
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.BatchNorm2d(channels)),
            *(nn.Conv2d(channels, inner, 1), nn.GELU(), nn.Conv2d(inner, channels, 1)),
        )

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.body(input)
        return input + output


def make_resnet18() -> nn.Sequential:
    """The shape of ResNet-18, always with the same weights.

    Example:
        >>> sum(parameter.numel() for parameter in make_resnet18().parameters())
        11689512
    """
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, STAGES[0], 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(STAGES[0]), nn.ReLU()]
    blocks = []
    before = STAGES[0]
    for channels in STAGES:
        stride = 1 if channels == before else 2
        blocks += [ResidualBlock(before, channels, stride), ResidualBlock(channels, channels, 1)]
        before = channels
    return nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1), *blocks, *_head(before))


def make_depthwise_network() -> nn.Sequential:
    """Inverted residuals with depthwise 3×3 and, at an eighth of the image's size, three blocks of depthwise 7×7.

    Always with the same weights.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
        *(InvertedResidual(32, 24, 2), InvertedResidual(24, 24, 1)),
        *(InvertedResidual(24, 96, 2), LargeKernelBlock(96), LargeKernelBlock(96), LargeKernelBlock(96)),
        *(InvertedResidual(96, 160, 2), InvertedResidual(160, 160, 1)),
        *(InvertedResidual(160, 192, 2), InvertedResidual(192, 192, 1)),
        *_head(192),
    )


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


NETWORKS = {"resnet18": make_resnet18, "depthwise": make_depthwise_network}
