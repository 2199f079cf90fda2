"""How many multiply-accumulate operations a call takes, and which of the exact orders is the cheapest.

Paper, appendix B counts the convolution of every enlarged image. Resampling and convolution are linear and commute, so
a level can instead be evaluated at the output positions only: at most one convolution, and the gathering of patches,
whatever the scale. Where the scale is a whole number, no patches are needed, or not even a rescaled image: the filter
is rescaled, once for all images, which is not counted. Numbers only; no tensors here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .geometry import Level
from .signature import DEFAULT_SCALES, Padding, Signature, Size, make_signature

# Products of a convolution on a CPU that take as long as one of a bag, and as one of patches whose taps are channels.
BAG_TIME = 3
PATCHES_TIME = 1.6


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
        patches: with every level but the identity evaluated at the output positions only.
        chosen: with the cheapest order at each level, which is what a compiled call does on a CPU.
    """

    conv2d: Macs
    direct: Macs
    patches: Macs
    chosen: Macs


def direct_macs(signature: Signature, level: Level) -> Macs:
    """One image at one level: rescale, convolve whole, align."""
    responses = (level.height.response_size, level.width.response_size)
    convolution = _convolution(signature, responses)
    if level.scale == 1:
        return Macs(convolution)
    input_size = (signature.height.length, signature.width.length)
    scaled = (level.height.size, level.width.size)
    covered = (len(level.height.targets), len(level.width.targets))
    transform = _product(scaled, input_size, signature.in_channels)
    return Macs(convolution, transform + _product(covered, responses, signature.out_channels))


def patches_macs(signature: Signature, level: Level) -> Macs:
    """One image at one level: gather interpolated patches at the covered positions, convolve there."""
    if level.scale == 1:
        return direct_macs(signature, level)
    input_size = (signature.height.length, signature.width.length)
    covered = (len(level.height.targets), len(level.width.targets))
    gathered = (covered[0] * signature.height.kernel, covered[1] * signature.width.kernel)
    return Macs(_convolution(signature, covered), _product(gathered, input_size, signature.in_channels))


def strided_macs(signature: Signature, level: Level) -> Macs:
    """One image at a regular level: sample what the outputs meet, convolve with a stride."""
    covered = (len(level.height.targets), len(level.width.targets))
    input_size = (signature.height.length, signature.width.length)
    sampled = strided_size(signature, level)
    return Macs(_convolution(signature, covered), _product(sampled, input_size, signature.in_channels))


def strided_size(signature: Signature, level: Level) -> tuple[int, int]:
    """Rows and columns that the outputs meet at a regular level."""
    axes = ((signature.height, level.height), (signature.width, level.width))
    rows, columns = (
        axis.stride * on.step * (len(on.targets) - 1) + axis.dilation * (axis.kernel - 1) + 1 for axis, on in axes
    )
    return rows, columns


def filter_macs(signature: Signature, level: Level) -> Macs:
    """One image at a regular level whose outputs all meet the input alike: convolve it with the resampled filter."""
    covered = (len(level.height.targets), len(level.width.targets))
    kernel = (signature.height.meets(level.height)[1], signature.width.meets(level.width)[1])
    return Macs(_convolution(signature, covered, kernel))


def prefers_filter(signature: Signature, level: Level) -> bool:
    """Whether a regular level can be met by a resampled filter, with fewer operations than by a stride."""
    return 0 < filter_macs(signature, level).total <= strided_macs(signature, level).total


def prefers_patches(signature: Signature, level: Level) -> bool:
    """Whether gathering patches costs fewer operations than convolving the level whole."""
    return patches_macs(signature, level).total < direct_macs(signature, level).total


def prefers_patches_by_bags(signature: Signature, level: Level) -> bool:
    """Whether the patches order takes less time where both resample by bags.

    A number of a bag reads 2 pixels along each axis, or about 5/2 in a patch, whatever the length of the image.
    """
    covered = len(level.height.targets) * len(level.width.targets)
    taps = signature.height.kernel * signature.width.kernel * signature.in_channels
    whole = level.height.size * level.width.size * signature.in_channels + covered * signature.out_channels
    patches = PATCHES_TIME * patches_macs(signature, level).convolution + BAG_TIME * 25 / 4 * covered * taps
    return patches < direct_macs(signature, level).convolution + BAG_TIME * 4 * whole


def _convolution(signature: Signature, positions: tuple[int, int], kernel: tuple[int, int] | None = None) -> int:
    rows, columns = kernel or (signature.height.kernel, signature.width.kernel)
    taps = signature.in_channels // signature.groups * rows * columns
    return positions[0] * positions[1] * signature.out_channels * taps


def _product(sampled: tuple[int, int], size: tuple[int, int], channels: int) -> int:
    """Operations that resample `channels` maps of the given size, rows first."""
    return channels * sampled[0] * size[1] * (size[0] + sampled[1])


def macs(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    scales: Iterable[float] = DEFAULT_SCALES,
) -> Cost:
    """Count the multiply-accumulate operations of `si_conv2d` on these shapes, in both orders.

    Args:
        input_shape: (N, C, H, W) or (C, H, W).
        weight_shape: (M, C / groups, Kh, Kw).
        stride, padding, dilation, groups, scales: as for `si_conv2d`.

    Example:
        >>> cost = macs((1, 1, 28, 28), (36, 1, 7, 7))
        >>> round(cost.direct.convolution / cost.conv2d.total, 1), round(cost.direct.total / cost.conv2d.total, 1)
        (11.7, 19.6)
        >>> round(cost.chosen.convolution / cost.conv2d.total, 1), round(cost.chosen.total / cost.conv2d.total, 1)
        (4.3, 6.9)
    """
    signature = make_signature(input_shape, weight_shape, stride, padding, dilation, groups, scales)
    images = input_shape[0] if len(input_shape) == 4 else 1
    conv2d = direct = patches = chosen = Macs()
    for level in signature.plan.levels:
        whole, gathered = direct_macs(signature, level), patches_macs(signature, level)
        conv2d = whole if level.scale == 1 else conv2d
        direct, patches = direct + whole, patches + gathered
        if level.regular:
            chosen += (filter_macs if prefers_filter(signature, level) else strided_macs)(signature, level)
        else:
            chosen += gathered if prefers_patches(signature, level) else whole
    return Cost(conv2d.times(images), direct.times(images), patches.times(images), chosen.times(images))
