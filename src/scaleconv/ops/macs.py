"""How many multiply-accumulate operations a call takes: in the paper's order, and as it is planned.

Paper, appendix B counts the convolution of every enlarged image. Resampling is counted too: a number that is resampled
from n others takes n operations. Numbers only; nothing is computed here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .checks import check_count, check_flag
from .plan import Canvas, PlaneStrip, Strip, make_plan
from .signature import DEFAULT_SCALES, Padding, Signature, Size, make_signature


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulate operations: those of the convolution, and those that resample images and responses."""

    convolution: int = 0
    resampling: int = 0

    @property
    def total(self) -> int:
        return self.convolution + self.resampling

    def __add__(self, other: "Macs") -> "Macs":
        return Macs(self.convolution + other.convolution, self.resampling + other.resampling)

    def times(self, count: int) -> "Macs":
        return Macs(self.convolution * count, self.resampling * count)


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
    signature = make_signature(input_shape, weight_shape, stride, padding, dilation, groups, scales)
    images = input_shape[0] if len(input_shape) == 4 else 1
    outputs = signature.height.output_size * signature.width.output_size
    conv2d = Macs(_convolution(signature, outputs))
    plan = make_plan(signature, False, images, gpu)
    direct = planned = Macs()
    for level in signature.geometry.levels:
        direct += Macs(_convolution(signature, level.response[0] * level.response[1]))
    for canvas in make_plan(signature, False, images, False, "dense").canvases:
        direct += Macs(0, _resampling(signature, canvas))
    if plan.identity is not None:
        planned += conv2d
    for canvas in plan.canvases:
        responses = canvas.response[0] * canvas.response[1]
        planned += Macs(_convolution(signature, responses), _resampling(signature, canvas))
    return Cost(*(each.times(images) for each in (conv2d, direct, planned)))


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"`{name}` must be a sequence of integers, got {shape!r}")
    return tuple(check_count(name, size, least=0) for size in shape)


def _convolution(signature: Signature, positions: int) -> int:
    taps = signature.in_channels // signature.groups * signature.height.kernel * signature.width.kernel
    return positions * signature.out_channels * taps


def _resampling(signature: Signature, canvas: Canvas) -> int:
    return sum(_reads(signature, strip) for strip in canvas.strips)


def _reads(signature: Signature, strip: Strip | PlaneStrip) -> int:
    """Pixels that are read, and responses, unless they are taken as they are."""
    (rows, columns), (down, across) = (
        [int((axis.weight != 0).sum()) for axis in maps] for maps in (strip.sample, strip.align)
    )
    aligned = 0 if strip.align[0].is_identity and strip.align[1].is_identity else down * across
    return signature.in_channels * rows * columns + signature.out_channels * aligned
