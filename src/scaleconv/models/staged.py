"""Small networks for photographs of 32 to 64 pixels: a first convolution, three stages of blocks, a linear classifier.

The blocks are those of ResNet-18 and ResNet-50 (He et al., 2016), MobileNetV2 (Sandler et al., 2018) and ConvNeXt (Liu
et al., 2022). The second and the third stage begin by halving the map. A network takes images of any size.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .controls import ASPP
from .resnet import ResidualBlock, make_head

EXPANSION = 4  # of the channels inside a block that narrows or widens them

Block = Callable[[int, int, int], nn.Module]  # of the channels before and after, and a stride


class Residual(nn.Module):
    """The input, or a projection of it where the size changes, plus what a body makes of it."""

    def __init__(self, body: nn.Module, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            self.shortcut = _conv_norm(in_channels, channels, 1, stride)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.shortcut(input) + self.body(input)
        return output


def _conv_norm(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(channels)))


def bottleneck(in_channels: int, channels: int, stride: int) -> nn.Module:
    """1×1 to a quarter of the channels, 3×3, 1×1, as in ResNet-50."""
    inner = max(1, channels // EXPANSION)
    body = OrderedDict(
        narrow=_conv_norm(in_channels, inner, 1),
        relu1=nn.ReLU(),
        spatial=_conv_norm(inner, inner, 3, stride),
        relu2=nn.ReLU(),
        widen=_conv_norm(inner, channels, 1),
    )
    return nn.Sequential(Residual(nn.Sequential(body), in_channels, channels, stride), nn.ReLU())


def inverted(in_channels: int, channels: int, stride: int) -> nn.Module:
    """1×1 to four times the channels, depthwise 3×3, 1×1, as in MobileNetV2; no shortcut where the size changes."""
    inner = EXPANSION * in_channels
    body = nn.Sequential(
        OrderedDict(
            widen=_conv_norm(in_channels, inner, 1),
            relu1=nn.ReLU6(),
            spatial=_conv_norm(inner, inner, 3, stride, groups=inner),
            relu2=nn.ReLU6(),
            narrow=_conv_norm(inner, channels, 1),
        )
    )
    return body if stride > 1 or in_channels != channels else Residual(body, in_channels, channels, stride)


def convnext(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Depthwise 7×7, 1×1 to four times the channels and back, as in ConvNeXt; where the map is halved, by 2×2 first."""
    inner = EXPANSION * channels
    body = nn.Sequential(
        OrderedDict(
            spatial=nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            norm=nn.GroupNorm(1, channels),
            widen=nn.Conv2d(channels, inner, 1),
            gelu=nn.GELU(),
            narrow=nn.Conv2d(inner, channels, 1),
        )
    )
    block = Residual(body, channels, channels, 1)
    if stride == 1 and in_channels == channels:
        return block
    return nn.Sequential(nn.GroupNorm(1, in_channels), nn.Conv2d(in_channels, channels, stride, stride), block)


BLOCKS: dict[str, Block] = {
    "resnet": ResidualBlock,
    "bottleneck": bottleneck,
    "mobilenet": inverted,
    "convnext": convnext,
}


def make_staged(
    block: Block,
    maps: Sequence[int],
    blocks: Sequence[int],
    *,
    channels: int = 3,
    classes: int = 10,
    aspp: bool = False,
) -> nn.Sequential:
    """The network.

    Args:
        block: makes a block; one of `BLOCKS`.
        maps, blocks: of the three stages; the first convolution has the maps of the first stage.
        channels: of the images.
        classes: outputs.
        aspp: whether an `ASPP` follows the last stage.

    Example:
        >>> import torch
        >>> network = make_staged(ResidualBlock, (8, 16, 32), (1, 1, 2))
        >>> network(torch.rand(2, 3, 32, 40)).shape
        torch.Size([2, 10])
    """
    stages, before = [], maps[0]
    for number, (width, count) in enumerate(zip(maps, blocks, strict=True)):
        strides = [2 if number else 1] + [1] * (count - 1)
        stages.append(nn.Sequential(*(block(width if at else before, width, s) for at, s in enumerate(strides))))
        before = width
    stem = [nn.Conv2d(channels, maps[0], 3, padding=1, bias=False), nn.BatchNorm2d(maps[0]), nn.ReLU()]
    parts: dict[str, nn.Module] = {"stem": nn.Sequential(*stem), "stages": nn.Sequential(*stages)}
    if aspp:
        parts["context"] = ASPP(before)
    return nn.Sequential(OrderedDict(parts, head=nn.Sequential(*make_head(before, classes))))
