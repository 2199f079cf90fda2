"""Controls for a gain of the layer: larger receptive fields and several dilations, without rescaling.

`dilate` and `add_branches` change chosen layers of a network, as `convert` does; `ASPP` is a module of its own.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATES = (2, 4)  # dilations of ASPP


def dilate(layers: Iterable[nn.Conv2d]) -> None:
    """Spread the taps of every filter over twice the extent, around the same centre."""
    for layer in layers:
        layer.padding = _wider(layer)
        layer.dilation = (2 * layer.dilation[0], 2 * layer.dilation[1])


def add_branches(layers: Iterable[nn.Conv2d]) -> None:
    """Let every layer take the larger response of its filters at their own and at twice their extent."""
    for layer in layers:
        layer.__class__ = TwoDilations


class TwoDilations(nn.Conv2d):
    """The maximum of a convolution and of the same weight at twice the dilation: two scales of the filter.

    It differs from `SIConv2d` in that a larger filter has gaps, where there the image is rescaled.
    """

    def forward(self, input: Tensor) -> Tensor:
        dilation = (2 * self.dilation[0], 2 * self.dilation[1])
        wide = F.conv2d(input, self.weight, self.bias, self.stride, _wider(self), dilation, self.groups)
        return torch.maximum(super().forward(input), wide)


def _wider(layer: nn.Conv2d) -> tuple[int, int]:
    """The padding that keeps the outputs where they are at twice the dilation."""
    if isinstance(layer.padding, str) or any(kernel % 2 == 0 for kernel in layer.kernel_size):
        raise ValueError(f"`layers` must have kernels of odd size and padding in numbers, got {layer}")
    pads = zip(layer.padding, layer.dilation, layer.kernel_size, strict=True)
    height, width = (pad + dilation * (kernel - 1) // 2 for pad, dilation, kernel in pads)
    return height, width


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling (Chen et al., 2017): maps at several dilations, and their mean, side by side.

    Shapes: (N, C, H, W) → (N, C, H, W).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = max(1, channels // 4)
        kernels = [nn.Conv2d(channels, part, 3, padding=rate, dilation=rate, bias=False) for rate in RATES]
        self.branches = nn.ModuleList([nn.Conv2d(channels, part, 1, bias=False), *kernels])
        self.mean = nn.Conv2d(channels, part, 1, bias=False)
        self.norm = nn.BatchNorm2d(4 * part)
        self.join = nn.Sequential(nn.ReLU(), nn.Conv2d(4 * part, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, input: Tensor) -> Tensor:
        mean = self.mean(input.mean((2, 3), keepdim=True)).expand(-1, -1, *input.shape[2:])
        output: Tensor = self.join(self.norm(torch.cat([*(branch(input) for branch in self.branches), mean], 1)))
        return F.relu(output)
