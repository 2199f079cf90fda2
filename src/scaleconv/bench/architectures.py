"""The shapes of well-known networks, at any width: what `convert` has to cope with. Weights are random.

Each has the connections of its model and fewer layers of a kind: bottlenecks (He et al., 2016), no shortcut at all
(Simonyan and Zisserman, 2015), transposed convolutions and concatenation (Ronneberger et al., 2015), depthwise 3×3
(Sandler et al., 2018) and 7×7 (Liu et al., 2022), dense concatenation (Huang et al., 2017), and the pyramid of features
of a detector (Lin et al., 2017).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.resnet import ResidualBlock
from .network_costs import InvertedResidual

CLASSES = 10


class Bottleneck(nn.Module):
    """1×1 to fewer channels, 3×3, 1×1 to more, and a shortcut: the block of ResNet-50."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        inner = channels // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(in_channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(self.body(input) + self.shortcut(input))


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, LayerNorm over the channels, two linear layers, a learned factor, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.linear = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.factor = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, input: Tensor) -> Tensor:
        channels_last = self.depthwise(input).permute(0, 2, 3, 1)  # (N, H, W, C)
        changed: Tensor = self.factor * self.linear(self.norm(channels_last))
        return input + changed.permute(0, 3, 1, 2)


class DenseLayer(nn.Module):
    """BatchNorm, ReLU and a 3×3 convolution, whose output joins its input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.conv = nn.Conv2d(in_channels, growth, 3, padding=1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([input, self.conv(F.relu(self.norm(input)))], 1)


class UNet(nn.Module):
    """Two levels down and up again, each joined with what was there before; a map of classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_pair(3, width), _pair(width, 2 * width)])
        self.bottom = _pair(2 * width, 4 * width)
        self.widen = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([_pair(4 * width, 2 * width), _pair(2 * width, width)])
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, input: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            kept.append(block(input))
            input = F.max_pool2d(kept[-1], 2)
        input = self.bottom(input)
        for widen, block in zip(self.widen, self.up, strict=True):
            input = block(torch.cat([kept.pop(), widen(input)], 1))
        output: Tensor = self.head(input)
        return output


class FeaturePyramid(nn.Module):
    """A residual backbone and, from the top down, a map of features at each of its sizes; the first head of a detector.

    The answers of all sizes are joined: (N, positions, classes).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = [width, 2 * width, 4 * width]
        before = [width, *widths[:-1]]
        self.stages = nn.ModuleList(
            [ResidualBlock(a, b, 1 if a == b else 2) for a, b in zip(before, widths, strict=True)]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(each, width, 1) for each in widths])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in widths])
        self.head = nn.Conv2d(width, CLASSES, 3, padding=1)  # shared by all sizes

    def forward(self, input: Tensor) -> Tensor:
        input = self.stem(input)
        maps = []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            input = stage(input)
            maps.append(lateral(input))
        for k in range(len(maps) - 1, 0, -1):
            maps[k - 1] = maps[k - 1] + F.interpolate(maps[k], size=maps[k - 1].shape[-2:], mode="nearest")
        answers = [self.head(smooth(each)) for smooth, each in zip(self.smooth, maps, strict=True)]
        return torch.cat([each.flatten(2) for each in answers], 2).transpose(1, 2)


def make_resnet18(width: int) -> nn.Sequential:
    return _residual(width, ResidualBlock, (2, 2, 2, 2), 1)


def make_resnet50(width: int) -> nn.Sequential:
    return _residual(width, Bottleneck, (3, 4, 6, 3), 4)


def make_vgg(width: int) -> nn.Sequential:
    """VGG-11: eight convolutions with biases, and no shortcut."""
    layers: list[nn.Module] = []
    before = 3
    for factor, count in ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(before, factor * width, 3, padding=1), nn.ReLU()]
            before = factor * width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(before))


def make_mobilenet(width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()),
        *(InvertedResidual(width, width, 1), InvertedResidual(width, 2 * width, 2)),
        *(InvertedResidual(2 * width, 2 * width, 1), InvertedResidual(2 * width, 4 * width, 2)),
        *_head(4 * width),
    )


def make_convnext(width: int) -> nn.Sequential:
    """A patch of 4×4 for each position, then two stages, between which the size is halved."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 4, stride=4), ConvNeXtBlock(width), ConvNeXtBlock(width)),
        *(nn.Conv2d(width, 2 * width, 2, stride=2), ConvNeXtBlock(2 * width), ConvNeXtBlock(2 * width)),
        *_head(2 * width),
    )


def make_densenet(width: int) -> nn.Sequential:
    """Two dense blocks of three layers, between them a 1×1 convolution and the mean of 2×2."""
    layers: list[nn.Module] = [nn.Conv2d(3, 2 * width, 3, stride=2, padding=1, bias=False)]
    channels = 2 * width
    for _ in range(2):
        for _ in range(3):
            layers.append(DenseLayer(channels, width))
            channels += width
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    return nn.Sequential(*layers, *_head(channels))


def _residual(
    width: int, block: Callable[[int, int, int], nn.Module], counts: tuple[int, ...], wider: int
) -> nn.Sequential:
    """A 7×7 convolution, a maximum, four stages that double the channels and halve the size, and the classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    before = width
    for stage, count in enumerate(counts):
        channels = wider * width * 2**stage
        for k in range(count):
            layers.append(block(before, channels, 2 if stage and not k else 1))
            before = channels
    return nn.Sequential(*layers, *_head(before))


def _pair(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
        *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
    )


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


ARCHITECTURES: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18": make_resnet18,
    "ResNet-50": make_resnet50,
    "VGG-11": make_vgg,
    "U-Net": UNet,
    "MobileNetV2": make_mobilenet,
    "ConvNeXt": make_convnext,
    "DenseNet": make_densenet,
    "FPN": FeaturePyramid,
}
