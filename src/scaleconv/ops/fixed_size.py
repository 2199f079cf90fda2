"""The layer for images of one size, as an exporter writes it down: the plan, with dense matrices as constants.

A graph for all sizes has to compute its coordinates (`levels`). Where height and width are plain numbers, they are
known beforehand, and a level is two matrix products that sample it, a convolution, two products that align its
responses, and a maximum. The batch may be of any size. The forms are those of `plan`, without bands. Where that costs
little, all levels take the form im2col: they have one size then and share every node, which makes an export faster.
Maps that mix the axes are not for here: their matrices would be too large.

A dense product multiplies by the zeros of its matrix, too. So a NaN or an infinity reaches every output of its image,
not only those that see it.
"""

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Call
from .levels import find_wins
from .plan import Budget, Form, Plan, Strip, make_plan
from .resampling import AxisMap
from .torch_private import DisableTorchFunction, mark_constant, without_dispatch_modes

WHOLE = Budget(shared=0, band=2**62)
WORTH = 1.3  # multiplications, for one of the fastest forms, that fewer nodes may cost
Result = TypeVar("Result")
Numbers = tuple[Any, ...]  # what `Call.of` takes: shapes of an image and of the weight, and the arguments


def fixed_size_conv(
    images: Tensor, weight: Tensor, bias: Tensor | None, call: Call, return_winner: bool
) -> tuple[Tensor, Tensor | None]:
    """Output (N, M, H0, W0), and the winner as the place of its level in the order in which the maps compete."""
    stride, (above, below, left, right), dilation = call.arguments[:3]
    more = (0, right - left, 0, below - above)  # behind than before, as 'same' has it
    padded = F.pad(images, more) if any(more) else images
    inner = None if return_winner else bias  # the products round a bias, and levels that are all zeros would not tie
    output = F.conv2d(padded, weight, inner, stride, (above, left), dilation, call.groups)
    numbers = (tuple(images.shape[1:]), tuple(weight.shape), call.arguments)
    levels, covered = count_alike(numbers)
    if levels and not return_winner:
        return torch.maximum(output, _strongest(images, weight, bias, levels, covered, numbers)), None
    winner = torch.zeros_like(output, dtype=torch.uint8) if return_winner else None
    for level, (code, wins_ties, stride, dilation, beyond, needed) in enumerate(find_levels(numbers)):
        sampled = _resample(images, needed[0], numbers, level, "sample")
        response = F.conv2d(sampled, weight, inner, stride, 0, dilation, call.groups)
        aligned = _resample(response, needed[1], numbers, level, "align")
        if any(beyond):
            aligned = F.pad(aligned, beyond, value=-torch.inf)
        if winner is not None:
            winner = torch.where(find_wins(aligned, output, None, wins_ties=wins_ties), code, winner)
        output = torch.maximum(output, aligned)
    if return_winner and bias is not None:
        output = output + bias[:, None, None]
    return output, winner


def _resample(images: Tensor, needed: tuple[bool, bool], numbers: Numbers, level: int, step: str) -> Tensor:
    """(N, C, H, W) → (N, C, h, w) by the maps of a level; those that are the identity are not needed."""
    if needed[1]:
        images = images @ find_matrix(numbers, level, step, 1, images.dtype, str(images.device))
    if needed[0]:
        images = find_matrix(numbers, level, step, 0, images.dtype, str(images.device)) @ images
    return images


def _strongest(
    images: Tensor, weight: Tensor, bias: Tensor | None, levels: int, covered: bool, numbers: Numbers
) -> Tensor:
    """The maximum over all levels but the identity, whose patches lie one below the other on one canvas."""
    (channels, _, width), (filters, _, high, wide), kind = *numbers[:2], (images.dtype, str(images.device))
    rows, columns = find_stack(numbers, 0, *kind), find_stack(numbers, 1, *kind)
    height, across = rows.shape[0] // levels, columns.shape[2]
    sampled = (rows @ images).reshape(-1, channels, levels, height, width) @ columns  # (N, C, S, Kh · H0, Kw · W0)
    canvas = sampled.reshape(-1, channels, levels * height, across)
    stride = (high if height * levels > high else 1, wide if across > wide else 1)  # as in `Axis.stride_matters`
    response = F.conv2d(canvas, weight, bias, stride, 0, 1, channels // weight.shape[1])
    aligned = response.reshape(-1, filters, levels, height // high, across // wide)  # (N, M, S, H0, W0)
    if not covered:
        aligned = torch.where(find_coverage(numbers, kind[1]), aligned, -torch.inf)
    return aligned.amax(2)


def _constant(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function of plain numbers that a tracer calls and does not look into: what it returns is part of the graph."""

    @wraps(function)
    def unseen(*arguments: Any) -> Result:
        with without_dispatch_modes(), DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            return function(*arguments)

    return mark_constant(unseen)


@_constant
def count_alike(numbers: Numbers) -> tuple[int, bool]:
    """How many levels share every node, 0 if that costs too many multiplications; and whether all cover everything."""
    plan = _plan(numbers, "im2col")
    levels = len(plan.canvases)
    worth = levels > 1 and _count(numbers, "im2col") <= WORTH * _count(numbers, None)
    return levels if worth else 0, bool(_coverage(plan, "cpu").all())


@_constant
def find_levels(numbers: Numbers) -> tuple[tuple[Any, ...], ...]:
    """Of each level: code, who wins ties, stride, dilation, uncovered outputs on four sides, the maps it needs."""
    plan, levels = _plan(numbers, None), []
    for canvas in plan.canvases:
        (strip,) = canvas.strips
        rows, columns = strip.outputs
        height, width = plan.call.output_size
        beyond = (columns.start, width - columns.stop, rows.start, height - rows.stop)
        needed = tuple(tuple(not axis.is_identity for axis in maps) for maps in (strip.sample, strip.align))
        levels.append((strip.code, strip.wins_ties, canvas.stride, canvas.dilation, beyond, needed))
    return tuple(levels)


@_constant
def find_matrix(numbers: Numbers, level: int, step: str, axis: int, dtype: torch.dtype, device: str) -> Tensor:
    """The matrix that multiplies rows from the left, or columns from the right."""
    (strip,) = _plan(numbers, None).canvases[level].strips
    return _dense((strip.sample if step == "sample" else strip.align)[axis], axis, dtype, device)


@_constant
def find_stack(numbers: Numbers, axis: int, dtype: torch.dtype, device: str) -> Tensor:
    """The matrices that sample all levels: of rows, one below the other; of columns, (S, W, Kw · W0)."""
    plan = _plan(numbers, "im2col")
    along = (plan.call.height, plan.call.width)[axis]
    placed = tuple(
        (strip.sample[axis], along.kernel * strip.outputs[axis].start, along.kernel * along.output_size)
        for strip in _strips(plan)
    )
    return _stack(placed, axis, dtype, device)


@_constant
def find_coverage(numbers: Numbers, device: str) -> Tensor:
    """Which outputs each level covers: (S, H0, W0)."""
    return _coverage(_plan(numbers, "im2col"), device)


def _plan(numbers: Numbers, form: Form | None) -> Plan:
    image, weight, arguments = numbers
    return make_plan(Call.of(image, weight, *arguments), 1, False, form, WHOLE)


def _strips(plan: Plan) -> list[Strip]:
    return [strip for canvas in plan.canvases for strip in canvas.strips if isinstance(strip, Strip)]


def _count(numbers: Numbers, form: Form | None) -> int:
    """Multiplications of all levels but the identity, on one image."""
    plan = _plan(numbers, form)
    channels, filters = plan.call.in_channels, plan.call.out_channels
    total = sum(math.prod(canvas.response) for canvas in plan.canvases) * math.prod(numbers[1])
    for strip in _strips(plan):
        for planes, (rows, columns) in ((channels, strip.sample), (filters, strip.align)):
            total += 0 if columns.is_identity else planes * rows.length * columns.length * len(columns)
            total += 0 if rows.is_identity else planes * len(rows) * rows.length * len(columns)
    return total


# Equal layers share these tensors, so that a graph has each of them once.


@lru_cache(maxsize=64)
def _dense(matrix: AxisMap, axis: int, dtype: torch.dtype, device: str) -> Tensor:
    dense = matrix.dense()
    return (dense.mT if axis else dense).contiguous().to(device, dtype)


@lru_cache(maxsize=16)
def _stack(placed: tuple[tuple[AxisMap, int, int], ...], axis: int, dtype: torch.dtype, device: str) -> Tensor:
    """Maps, each with the first of its rows and how many there are in all; those of uncovered outputs are zeros."""
    framed = [matrix.framed(first, count - first - len(matrix)).dense() for matrix, first, count in placed]
    whole = torch.stack([each.mT for each in framed]) if axis else torch.cat(framed)
    return whole.contiguous().to(device, dtype)


@lru_cache(maxsize=16)
def _coverage(plan: Plan, device: str) -> Tensor:
    covered = torch.zeros(len(plan.canvases), *plan.call.output_size, dtype=torch.bool, device="cpu")
    for level, strip in enumerate(_strips(plan)):
        covered[level][strip.outputs] = True
    return covered.to(device)
