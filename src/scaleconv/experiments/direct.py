"""The layer in the order of the paper, every level convolved whole, in plain PyTorch; and a stopwatch for layers.

For comparison only: what `SIConv2d` computes, at the cost the paper counts (appendix B).
"""

import math
import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.resampling import linear_map
from ..ops.signature import make_signature
from .sgd import captured

WARM_UP = 2  # calls that make plans and choose algorithms


class DirectSIConv2d(nn.Conv2d):
    """The layer in the direct order: rescale, convolve whole, align, maximum; autograd does the rest.

    For square images of one size, so that its matrices are made once, as `SIConv2d` keeps its own.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, size: int, scales: Sequence[float]) -> None:
        super().__init__(in_channels, out_channels, kernel)
        signature = make_signature((in_channels, size, size), self.weight.shape, 1, 0, 1, 1, scales)
        axis = signature.height
        self.margins: list[tuple[int, int]] = []  # around what a level covers, before and after
        for level in signature.geometry.levels[1:]:  # the first is the identity, and covers everything
            first, end = level.height.covered
            index = len(self.margins)
            self.margins.append((first, axis.output_size - end))
            transform = linear_map(level.height.sources, axis.length)
            align = linear_map(level.height.targets, level.height.response_size)
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


def milliseconds(module: nn.Module, images: Tensor, calls: int) -> float:
    """Median time of a forward and backward pass, to all that requires a gradient; on a GPU that of the device."""
    gradient = torch.rand_like(module(images))
    leaves = [*module.parameters(), *([images] if images.requires_grad else [])]

    def both() -> object:
        return torch.autograd.grad(module(images), leaves, gradient)

    run = captured(both) if images.is_cuda else both
    times = []
    for call in range(calls + WARM_UP):
        _wait(images.device)
        start = time.perf_counter()
        run()
        _wait(images.device)
        if call >= WARM_UP:
            times.append(1000 * (time.perf_counter() - start))
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
