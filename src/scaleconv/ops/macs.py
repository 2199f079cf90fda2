"""How many multiply-accumulate operations a call takes: in the paper's order, and as it is planned.

Paper, appendix B counts the convolution of every enlarged image. Resampling is counted too: a number that is resampled
from n others takes n operations. The FLOP counters of PyTorch get the same count (`custom_op`). Numbers only;
nothing is computed here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .call import DEFAULT_SCALES, Call, Padding, Size, make_call
from .checks import check_count, check_flag
from .plan import Canvas, Plan, make_plan

MANY = 2**32  # images: those of a few may be evaluated in another form on a CPU


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulate operations: of the convolution, and those that sample images and align responses."""

    convolution: int = 0
    sampling: int = 0
    alignment: int = 0

    @property
    def resampling(self) -> int:
        return self.sampling + self.alignment

    @property
    def total(self) -> int:
        return self.convolution + self.resampling

    def backward(self, to_input: bool, to_weight: bool) -> int:
        """Operations of the gradients: each convolves once, what was sampled is sampled again for that of the weight,
        and gradients are resampled by the transposes.
        """
        wanted = to_input + to_weight
        return wanted * (self.convolution + self.sampling) + min(wanted, 1) * self.alignment

    def __add__(self, other: "Macs") -> "Macs":
        return Macs(
            self.convolution + other.convolution, self.sampling + other.sampling, self.alignment + other.alignment
        )

    def times(self, count: int) -> "Macs":
        return Macs(self.convolution * count, self.sampling * count, self.alignment * count)


@dataclass(frozen=True)
class Cost:
    """Operations of one call.

    Attributes:
        conv2d: of the plain convolution with the same weight.
        direct: with every level rescaled, convolved whole and aligned, as in the paper.
        planned: as the layer does it on the device that was asked for.
    """

    conv2d: Macs
    direct: Macs
    planned: Macs


def macs(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    scales: Iterable[float] = DEFAULT_SCALES,
    gpu: bool = False,
) -> Cost:
    """Count the multiply-accumulate operations of `si_conv2d` on these shapes.

    Args:
        input_shape: (N, C, H, W) or (C, H, W).
        weight_shape: (M, C / groups, Kh, Kw).
        stride, padding, dilation, groups, scales: as for `si_conv2d`.
        gpu: whether a GPU is to evaluate it, which takes some levels in another form.

    Example:
        >>> cost = macs((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
        >>> [round(each.convolution / cost.conv2d.total, 1) for each in (cost.direct, cost.planned)]
        [10.0, 5.6]
    """
    check_flag("gpu", gpu)
    input_shape, weight_shape = _shape("input_shape", input_shape), _shape("weight_shape", weight_shape)
    call = make_call(input_shape, weight_shape, stride, padding, dilation, groups, scales=scales)
    images = input_shape[0] if len(input_shape) == 4 else 1
    conv2d = Macs(_convolution(call, call.output_size))
    direct = Macs(sum(_convolution(call, level.response) for level in call.levels))
    for canvas in make_plan(call, images, False, "dense").canvases:
        direct += _resampling(call, canvas)
    planned = count_planned(call, images, gpu)
    return Cost(*(each.times(images) for each in (conv2d, direct, planned)))


def count_planned(call: Call, images: int, gpu: bool) -> Macs:
    """Operations for one image: on a GPU by the plan for so many images, on a CPU by that for many."""
    return _count(make_plan(call, images, True) if gpu else make_plan(call.cropped, MANY, False))


@lru_cache(maxsize=1024)
def _count(plan: Plan) -> Macs:
    planned = Macs() if plan.identity is None else Macs(_convolution(plan.call, plan.call.output_size))
    for canvas in plan.canvases:
        planned += Macs(_convolution(plan.call, canvas.response)) + _resampling(plan.call, canvas)
    return planned


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"`{name}` must be a sequence of integers, got {shape!r}")
    return tuple(check_count(name, size, least=0) for size in shape)


def _convolution(call: Call, size: tuple[int, int]) -> int:
    """Of so many rows and columns of responses."""
    taps = call.in_channels // call.groups * call.height.kernel * call.width.kernel
    return size[0] * size[1] * call.out_channels * taps


def _resampling(call: Call, canvas: Canvas) -> Macs:
    """Pixels that are read, and responses, unless they are taken as they are."""
    total = Macs()
    for strip in canvas.strips:
        sample, align = strip.sample, strip.align
        (rows, columns), (down, across) = ([int((axis.weight != 0).sum()) for axis in maps] for maps in (sample, align))
        aligned = 0 if all(axis.is_identity for axis in align) else down * across
        total += Macs(0, call.in_channels * rows * columns, call.out_channels * aligned)
    return total
