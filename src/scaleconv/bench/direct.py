"""The layer in the direct order of the paper (rescale, convolve, align, maximum), to be compared with `SIConv2d`.

`InterpolatedConv2d` is how one would write it with `F.interpolate`; `DirectSIConv2d` computes what `SIConv2d` computes.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.call import make_call
from ..ops.resampling import linear_map


class InterpolatedConv2d(nn.Conv2d):
    """Rescale, convolve, rescale back, take the maximum: the layer written with `F.interpolate`.

    It shows what the layer costs when written so. It does not compute the same numbers: its grids are not aligned, and
    every level covers every position. A level that is smaller than the kernel is left out.
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


class DirectSIConv2d(nn.Conv2d):
    """The layer in the order of the paper: rescale, convolve the whole level, align, maximum; autograd does the rest.

    For square images of one size, so that its matrices are made once, as `SIConv2d` keeps its own.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, size: int, scales: Sequence[float]) -> None:
        super().__init__(in_channels, out_channels, kernel)
        axis = make_call((in_channels, size, size), self.weight.shape, 1, 0, 1, 1, scales).height
        self.margins: list[tuple[int, int]] = []  # around what a level covers, before and after
        for level in filter(None, (axis.level(scale) for scale in scales if scale != 1)):
            first, end = level.covered
            index = len(self.margins)
            self.margins.append((first, axis.output_size - end))
            transform = linear_map(level.sources, axis.length)
            align = linear_map(level.targets, level.response_size)
            self.register_buffer(f"transform_{index}", transform.dense().float(), persistent=False)
            self.register_buffer(f"align_{index}", align.dense().float(), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        result = super().forward(input)
        for index, margins in enumerate(self.margins):
            transform, align = (getattr(self, f"{name}_{index}").to(input) for name in ("transform", "align"))
            response = super().forward(transform @ input @ transform.mT)
            aligned = align @ response @ align.mT
            result = torch.maximum(result, F.pad(aligned, (*margins, *margins), value=-math.inf))
        return result
