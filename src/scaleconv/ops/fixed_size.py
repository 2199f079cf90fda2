"""The layer for images of one size, as an exporter writes it down: the plan, with dense matrices as constants.

An exported graph that serves all sizes has to compute its coordinates (`traceable`). Where height and width are plain
numbers, they are known beforehand: a level is two matrix products that sample it, a convolution, two products that
align its responses, and a maximum. Only a batch may be of any size. The forms are those of `plan`; nothing is cut into
bands, and no code of ours runs when the graph does. Maps that mix the axes are not for here: their matrices would be
too large.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from .plan import Budget, Canvas, Strip, make_plan
from .resampling import AxisMap
from .signature import Settings, Signature
from .traceable import find_wins

WHOLE = Budget(shared=0, band=2**62)
Call = tuple[Any, ...]  # the shapes of an image and of the weight, and the arguments of the operator: plain numbers


class Step(NamedTuple):
    """One level, in plain numbers; whether its maps along an axis are more than the identity."""

    code: int
    wins_ties: bool
    stride: tuple[int, int]
    dilation: tuple[int, int]
    sampled: tuple[bool, bool]
    aligned: tuple[bool, bool]
    beyond: tuple[int, int, int, int]  # outputs that are not covered: left, right, above, below


def has_fixed_size(images: Tensor, settings: Settings) -> bool:
    """Whether this file has an answer: two axes of which the lengths are known, and maps that do not mix them."""
    return images.ndim == 4 and not settings.mixes_axes and all(has_static_value(size) for size in images.shape[2:])


def fixed_size_conv(
    images: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, return_winner: bool
) -> tuple[Tensor, Tensor | None]:
    """Output (N, M, H0, W0), and the winner as the place of its level in the order in which the maps compete."""
    above, below, left, right = settings.padding
    more = (0, right - left, 0, below - above)  # behind than before, as 'same' has it
    padded = F.pad(images, more) if any(more) else images
    output = F.conv2d(padded, weight, bias, settings.stride, (above, left), settings.dilation, settings.groups)
    winner = torch.zeros_like(output, dtype=torch.uint8) if return_winner else None
    call = (tuple(images.shape[1:]), tuple(weight.shape), settings.arguments)
    for level, step in enumerate(find_steps(call)):
        code, wins_ties, stride, dilation, sampled, aligned, beyond = step
        pixels = _resample(images, call, level, "sample", sampled)
        response = F.conv2d(pixels, weight, bias, stride, 0, dilation, settings.groups)
        response = _resample(response, call, level, "align", aligned)
        if any(beyond):
            response = F.pad(response, beyond, value=-torch.inf)
        if winner is not None:
            wins = find_wins(response, output, None, wins_ties=wins_ties)
            winner = torch.where(wins, code, winner)
        output = torch.maximum(output, response)
    return output, winner


def _resample(images: Tensor, call: Call, level: int, which: str, needed: tuple[bool, bool]) -> Tensor:
    """(N, C, H, W) → (N, C, h, w)."""
    like = (images.dtype, str(images.device))
    if needed[1]:
        images = images @ find_matrix(call, level, which, 1, *like)
    return find_matrix(call, level, which, 0, *like) @ images if needed[0] else images


@torch.compiler.assume_constant_result
def find_steps(call: Call) -> tuple[tuple[Any, ...], ...]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return tuple(tuple(_step(canvas, call)) for canvas in _canvases(call))


@torch.compiler.assume_constant_result
def find_matrix(call: Call, level: int, which: str, axis: int, dtype: torch.dtype, device: str) -> Tensor:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        strip: Strip = _canvases(call)[level].strips[0]
        return _dense((strip.sample if which == "sample" else strip.align)[axis], axis == 1, dtype, device)


def _canvases(call: Call) -> tuple[Canvas, ...]:
    image, weight, arguments = call
    settings = Settings.of_arguments(*arguments)
    return make_plan(Signature.of(image, weight, settings), settings.antialias, 1, False, FORM, WHOLE).canvases
FORM = None


def _step(canvas: Canvas, call: Call) -> Step:
    (strip,) = canvas.strips
    image, weight, arguments = call
    axes = Signature.of(image, weight, Settings.of_arguments(*arguments))
    (above, below), (left, right) = (
        (covered.start, axis.output_size - covered.stop)
        for axis, covered in zip((axes.height, axes.width), strip.outputs, strict=True)
    )
    sampled, aligned = (
        (not maps[0].is_identity, not maps[1].is_identity) for maps in (strip.sample, strip.align)
    )
    return Step(strip.code, strip.wins_ties, canvas.stride, canvas.dilation, sampled, aligned, (left, right, above, below))


@lru_cache(maxsize=64)
def _dense(axis: AxisMap, transpose: bool, dtype: torch.dtype, device: str) -> Tensor:
    """The matrix, the same tensor for layers that are alike, so that a graph has it once."""
    matrix = axis.dense()
    return (matrix.mT if transpose else matrix).contiguous().to(device, dtype)
