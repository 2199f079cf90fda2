"""How many multiply-accumulate operations a call takes: in the paper's order, and as it is planned.

Paper, appendix B counts the convolution of every enlarged image. Resampling is counted too: a number that is resampled
from n others takes n operations. The same count answers the FLOP counters of PyTorch (`custom_op`). Numbers only;
nothing is computed here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .checks import check_count, check_flag
from .plan import Canvas, Plan, PlaneStrip, Strip, make_plan
from .signature import DEFAULT_SCALES, Padding, Signature, Size, make_signature


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
    signature = make_signature(input_shape, weight_shape, stride, padding, dilation, groups, scales)
    images = input_shape[0] if len(input_shape) == 4 else 1
    outputs = signature.height.output_size * signature.width.output_size
    conv2d = Macs(_convolution(signature, outputs))
    direct = Macs()
    for level in signature.geometry.levels:
        direct += Macs(_convolution(signature, level.response[0] * level.response[1]))
    for canvas in make_plan(signature, False, images, False, "dense").canvases:
        direct += _resampling(signature, canvas)
    planned = count_planned(make_plan(signature, False, images, gpu))
    return Cost(*(each.times(images) for each in (conv2d, direct, planned)))


def count_planned(plan: Plan) -> Macs:
    """Operations of a plan, for one image."""
    signature, planned = plan.signature, Macs()
    if plan.identity is not None:
        planned += Macs(_convolution(signature, signature.height.output_size * signature.width.output_size))
    for canvas in plan.canvases:
        planned += Macs(_convolution(signature, canvas.response[0] * canvas.response[1]))
        planned += _resampling(signature, canvas)
    return planned


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"`{name}` must be a sequence of integers, got {shape!r}")
    return tuple(check_count(name, size, least=0) for size in shape)


def _convolution(signature: Signature, positions: int) -> int:
    taps = signature.in_channels // signature.groups * signature.height.kernel * signature.width.kernel
    return positions * signature.out_channels * taps


def _resampling(signature: Signature, canvas: Canvas) -> Macs:
    total = Macs()
    for strip in canvas.strips:
        total += _reads(signature, strip)
    return total


def _reads(signature: Signature, strip: Strip | PlaneStrip) -> Macs:
    """Pixels that are read, and responses, unless they are taken as they are."""
    (rows, columns), (down, across) = (
        [int((axis.weight != 0).sum()) for axis in maps] for maps in (strip.sample, strip.align)
    )
    aligned = 0 if strip.align[0].is_identity and strip.align[1].is_identity else down * across
    return Macs(0, signature.in_channels * rows * columns, signature.out_channels * aligned)
