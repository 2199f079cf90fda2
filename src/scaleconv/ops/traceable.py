"""The layer in plain, differentiable PyTorch operations, for sizes that may be symbolic.

Nothing here is planned or cached: coordinates are computed from the sizes by the same operations that compute the rest.
So one graph serves all sizes, and exporters, `torch.vmap`, forward-mode and higher derivatives, and devices that have
no kernels of ours can take the layer apart. Every level is dense, as in the paper; `plan` has the faster forms.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import SLACK, competing_order


def traceable_si_conv2d(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    scales: Sequence[float],
    antialias: bool,
) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner as the place of its level in the order in which the scales compete."""
    order = competing_order(tuple(scales))
    output, winner = images, images  # the identity comes first
    for code, index in enumerate(order):
        scale = scales[index]
        rows, columns = (
            _Axis(images.shape[2 + i], weight.shape[2 + i], stride[i], padding[2 * i : 2 * i + 2], dilation[i], scale)
            for i in (0, 1)
        )
        if rows.size < 1 or columns.size < 1 or rows.responses < 1 or columns.responses < 1:
            continue
        level = images
        if code:
            support = max(1.0, 1 / scale) if antialias else 1.0
            level = read_axis(level, 2, rows.sources(images.device), support)
            level = read_axis(level, 3, columns.sources(images.device), support)
        level = F.pad(level, (padding[2], padding[3], padding[0], padding[1])) if any(padding) else level
        response = F.conv2d(level, weight, bias, stride, 0, dilation, groups)
        if code == 0:
            output, winner = response, torch.zeros_like(response, dtype=torch.uint8)
            continue
        targets = (rows.targets(images.device), columns.targets(images.device))
        aligned = read_axis(read_axis(response, 2, targets[0]), 3, targets[1])
        inside = [
            (v >= -0.5 - SLACK) & (v <= axis.responses - 0.5 + SLACK)
            for v, axis in zip(targets, (rows, columns), strict=True)
        ]
        wins = (aligned >= output if index < order[0] else aligned > output) | aligned.isnan()
        wins = wins & inside[0].unsqueeze(1) & inside[1]
        output, winner = torch.where(wins, aligned, output), torch.where(wins, code, winner)
    return output, winner


class _Axis:
    """Sizes and coordinates along one axis at one scale, by the equations in the docstring of `si_conv2d`."""

    def __init__(
        self, length: int, kernel: int, stride: int, padding: Sequence[int], dilation: int, scale: float
    ) -> None:
        self.length, self.stride, self.scale = length, stride, scale
        self.size = length if scale == 1 else math.floor(scale * length + SLACK)
        reach = dilation * (kernel - 1) + 1
        self.responses = (self.size + padding[0] + padding[1] - reach) // stride + 1
        self.outputs = (length + padding[0] + padding[1] - reach) // stride + 1
        self.kernel_centre = dilation * (kernel - 1) / 2 - padding[0]

    def sources(self, device: torch.device) -> Tensor:
        """Where each sample reads the input."""
        return (indices(self.size, device) - (self.size - 1) / 2) / self.scale + (self.length - 1) / 2

    def targets(self, device: torch.device) -> Tensor:
        """Where each output reads the response."""
        place = self.stride * indices(self.outputs, device) + self.kernel_centre - (self.length - 1) / 2
        return (self.scale * place + (self.size - 1) / 2 - self.kernel_centre) / self.stride


def indices(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, dtype=torch.float64, device="cpu" if device.type == "mps" else device)


def read_axis(images: Tensor, dim: int, coordinates: Tensor, support: float = 1.0) -> Tensor:
    """Read one axis at the given coordinates, linear between neighbours, edge pixels clamped."""
    last = images.shape[dim] - 1
    position = coordinates.clamp(min=0).minimum(torch.full_like(coordinates, last))
    before, reach = position.floor(), math.ceil(support)
    taken, total = [], torch.zeros_like(position)
    for offset in range(1 - reach, reach + 1):
        pixel = before + offset
        weight = (1 - (position - pixel).abs() / support).clamp(min=0)
        weight = torch.where((pixel >= 0) & (pixel <= last), weight, 0)
        total = total + weight
        taken.append((torch.where(weight > 0, pixel, before), weight))
    shape = [1] * images.ndim
    shape[dim] = -1
    result = None
    for pixel, weight in taken:
        share = (weight / total).to(images.device, images.dtype).view(shape)
        part = images.index_select(dim, pixel.to(images.device, torch.long)) * share
        result = part if result is None else result + part
    assert result is not None
    return result
