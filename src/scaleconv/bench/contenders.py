"""The layers that are compared, all made by the arguments of `Conv2d`."""

import importlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn import SIConv2d
from ..ops.backends import backend
from .settings import LayerShape


class DirectConv2d(nn.Conv2d):
    """Rescale, convolve, rescale back, take the maximum, as one would write it down.

    It is not the layer, only what the layer costs when written so: its grids are not aligned and its levels cover
    everything. A level too small for the kernel is left out.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int, scales: Iterable[float]
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=padding)
        self.scales = tuple(scales)

    def forward(self, input: Tensor) -> Tensor:
        least = self.kernel_size[0] - 2 * int(self.padding[0])
        sizes = [(math.floor(scale * input.shape[2]), math.floor(scale * input.shape[3])) for scale in self.scales]
        target = [length - least + 1 for length in input.shape[2:]]
        responses = []
        for size in sizes:
            if min(size) >= max(least, 1):
                level = F.interpolate(input, size=size, mode="bilinear", align_corners=False)
                response = F.conv2d(level, self.weight, self.bias, padding=self.padding)
                responses.append(F.interpolate(response, size=target, mode="bilinear", align_corners=False))
        return torch.stack(responses).max(dim=0).values  # (S, N, M, H0, W0) → (N, M, H0, W0)


class TorchSIConv2d(SIConv2d):
    """The layer without its fused kernels."""

    def forward(self, input: Tensor) -> Tensor:
        with backend("torch"):
            return super().forward(input)


def make_layer(contender: str, shape: LayerShape, scales: tuple[float, ...]) -> nn.Module:
    """Make a contender, or a peer named MODULE:CLASS; the same seed gives the same weights to all of one size."""
    torch.manual_seed(0)
    channels, maps, kernel, padding = shape.in_channels, shape.out_channels, shape.kernel, shape.padding
    if contender == "conv2d":
        return nn.Conv2d(channels, maps, kernel, padding=padding)
    if contender == "conv2d_wide":
        return nn.Conv2d(channels, len(scales) * maps, kernel, padding=padding)
    if contender == "direct":
        return DirectConv2d(channels, maps, kernel, padding=padding, scales=scales)
    if contender == "si_torch":
        return TorchSIConv2d(channels, maps, kernel, padding=padding, scales=scales)
    if contender == "si":
        return SIConv2d(channels, maps, kernel, padding=padding, scales=scales)
    peer = load_peer(contender)
    try:
        return peer(channels, maps, kernel, padding=padding)
    except TypeError as error:
        raise ValueError(
            f"`peer` (={contender}) must take the arguments of Conv2d "
            f"(in_channels, out_channels, kernel_size, padding=…), but says: {error}"
        ) from None


def load_peer(peer: str) -> type[nn.Module]:
    """The class that MODULE:CLASS names."""
    module, _, name = peer.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"`peer` (={peer}) must name a module that can be imported: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"`peer` must name a torch.nn.Module of `{module}`, got {name!r}")
    return kind


def check_peer(peer: str, shape: LayerShape, device: str) -> None:
    """Refuse a peer whose output has not the shape of `Conv2d`'s, before anything is measured."""
    images = torch.zeros(2, shape.in_channels, shape.size, shape.size, device=device)
    with torch.no_grad():
        output = make_layer(peer, shape, ()).to(device)(images)
    side = shape.size + 2 * shape.padding - shape.kernel + 1
    expected = (2, shape.out_channels, side, side)
    got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if got != expected:
        raise ValueError(f"`peer` (={peer}) must return the shape of Conv2d, {expected}, got {got}")
