"""The layers that are compared, all made with the arguments of `Conv2d`."""

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn import SIConv2d
from .settings import LayerShape


class DirectConv2d(nn.Conv2d):
    """Rescale, convolve, rescale back, take the maximum: the layer written plainly with `F.interpolate`.

    It shows what the layer costs when written so, and does not compute the same numbers: its grids are not aligned, and
    every level covers every position. A level too small for the kernel is left out.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        scales: Iterable[float],
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, padding=padding, groups=groups)
        self.scales = tuple(scales)

    def forward(self, input: Tensor) -> Tensor:
        least = self.kernel_size[0] - 2 * int(self.padding[0])  # the smallest level that has an output
        target = [(length - least) // self.stride[0] + 1 for length in input.shape[2:]]
        responses = []
        for scale in self.scales:
            size = [int(scale * length) for length in input.shape[2:]]
            if min(size) >= max(least, 1):
                level = F.interpolate(input, size=size, mode="bilinear", align_corners=False)
                response = super().forward(level)
                responses.append(F.interpolate(response, size=target, mode="bilinear", align_corners=False))
        return torch.stack(responses).max(dim=0).values  # (S, N, M, H0, W0) → (N, M, H0, W0)


def make_layer(name: str, shape: LayerShape, scales: tuple[float, ...]) -> nn.Module:
    """Make one of `COMPARED`, or the class MODULE:CLASS; layers with equally many weights get the same ones."""
    torch.manual_seed(0)
    sizes = (shape.in_channels, shape.out_channels, shape.kernel)
    options: dict[str, Any] = {"stride": shape.stride, "padding": shape.padding, "groups": shape.groups}
    if name == "conv2d":
        return nn.Conv2d(*sizes, **options)
    if name == "conv2d_wide":
        return nn.Conv2d(shape.in_channels, len(scales) * shape.out_channels, shape.kernel, **options)
    if name == "direct":
        return DirectConv2d(*sizes, **options, scales=scales)
    if name == "si":
        return SIConv2d(*sizes, **options, scales=scales)
    peer = load_peer(name)
    try:
        return peer(*sizes, **options)
    except TypeError as error:
        raise ValueError(
            f"`peer` (={name}) must take the arguments of Conv2d "
            f"(in_channels, out_channels, kernel_size, stride=…, padding=…, groups=…), but says: {error}"
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
    """Refuse a peer whose output does not have the shape of `Conv2d`'s, before anything is measured."""
    images = torch.zeros(2, shape.in_channels, shape.size, shape.size, device=device)
    with torch.no_grad():
        output = make_layer(peer, shape, ()).to(device)(images)
    expected = (2, shape.out_channels, shape.output_size, shape.output_size)
    got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if got != expected:
        raise ValueError(f"`peer` (={peer}) must return the shape of Conv2d, {expected}, got {got}")
