"""The arguments of a call: their types, their rules, and the messages for those that break one.

Every check that needs only shapes and numbers is here, those of single values in `checks`; an error names the argument,
the rule and the value.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checks import as_integer, as_number, check_choice, check_count, check_flag
from .geometry import Axis, Geometry, Matrix, Reading, count_responses, identity, make_geometry, scaled, scales_of
from .transforms import LARGEST_SCALE, Transform

Size = int | Sequence[int]
Padding = int | Sequence[int] | str

DEFAULT_SCALES: tuple[float, ...] = tuple(2 ** (k / 3) for k in range(-2, 4))
LARGEST_NUMBER = 2**31 - 1  # of a stride, a padding or a dilation
WIDE = 2**12  # a padding beyond this may ask for more outputs than any memory holds
LONG = 2**6  # a stride beyond this may be longer than every level, and than what memory holds
MOST_OUTPUTS = 2**40  # of an image


@dataclass(frozen=True)
class Settings:
    """Checked arguments, one number per axis; `padding` has two: before and after the first axis, then the next."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    matrices: tuple[Matrix, ...]
    reading: Reading
    antialias: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the operator takes them: the matrices one after the other."""
        numbers = [value for matrix in self.matrices for value in matrix]
        reading = (self.reading.interpolation, self.reading.border)
        return self.stride, self.padding, self.dilation, self.groups, numbers, *reading, self.antialias

    @classmethod
    def of_arguments(
        cls,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        numbers: Sequence[float],
        interpolation: str,
        border: str,
        antialias: bool,
    ) -> "Settings":
        """The inverse of `arguments`."""
        matrices = tuple(tuple(numbers[first : first + 4]) for first in range(0, len(numbers), 4))
        reading = Reading(interpolation, border)
        return cls(tuple(stride), tuple(padding), tuple(dilation), groups, matrices, reading, antialias)

    @property
    def identity(self) -> int:
        """The place of the identity among the maps."""
        return self.matrices.index(identity(len(self.stride)))

    @property
    def mixes_axes(self) -> bool:
        return any(scales_of(matrix) is None for matrix in self.matrices)


@dataclass(frozen=True)
class Signature:
    """A checked call: small, hashable, and all that its plan depends on."""

    height: Axis
    width: Axis
    matrices: tuple[Matrix, ...]
    reading: Reading
    in_channels: int
    out_channels: int
    groups: int

    @classmethod
    def of(cls, image_shape: Sequence[int], weight_shape: Sequence[int], settings: Settings) -> "Signature":
        """The signature of a call with images (C, H, W) or (N, C, H, W)."""
        height, width = (
            Axis(
                int(image_shape[axis - 2]),
                int(weight_shape[axis + 2]),
                settings.stride[axis],
                (settings.padding[2 * axis], settings.padding[2 * axis + 1]),
                settings.dilation[axis],
            )
            for axis in (0, 1)
        )
        channels = (int(image_shape[-3]), int(weight_shape[0]))
        return cls(height, width, settings.matrices, settings.reading, *channels, settings.groups)

    @property
    def depthwise(self) -> bool:
        """Whether every channel has one filter of its own."""
        return self.groups == self.in_channels == self.out_channels > 1

    @property
    def geometry(self) -> Geometry:
        return make_geometry(self.height, self.width, self.matrices, self.reading)


def make_signature(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    scales: Iterable[float] = DEFAULT_SCALES,
) -> Signature:
    """Check the arguments of `si_conv2d`, and put them together."""
    settings = check_si_call(image_shape, weight_shape, stride, padding, dilation, groups, scales)
    return Signature.of(image_shape, weight_shape, settings)


def check_si_call(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    scales: Iterable[float],
    antialias: bool = False,
    axes: int = 2,
) -> Settings:
    """Check the arguments of `si_conv1d`, `si_conv2d` or `si_conv3d`; sizes may be symbolic, and are only compared.

    One axis becomes two, with a height of one that is not rescaled.
    """
    checked, antialias = check_scales(scales), check_flag("antialias", antialias)
    call = _check_convolution(image_shape, weight_shape, stride, padding, dilation, groups, axes)
    if axes > 1:
        settings = Settings(*call, tuple(scaled(scale, axes) for scale in checked), Reading(), antialias)
    else:
        (strides, pads, dilations, groups), along = call, tuple((1.0, 0.0, 0.0, scale) for scale in checked)
        settings = Settings((1, *strides), (0, 0, *pads), (1, *dilations), groups, along, Reading(), antialias)
    return _with_short_strides(image_shape, weight_shape, settings)


def check_ti_call(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    transforms: Iterable[Transform],
    interpolation: str,
    border: str,
) -> Settings:
    """Check the arguments of `ti_conv2d`; sizes may be symbolic, and are only compared."""
    checked, reading = check_transforms(transforms), check_reading(interpolation, border)
    call = _check_convolution(image_shape, weight_shape, stride, padding, dilation, groups, 2)
    settings = Settings(*call, tuple(transform.numbers for transform in checked), reading, False)
    return _with_short_strides(image_shape, weight_shape, settings)


def _with_short_strides(image_shape: Sequence[int], weight_shape: Sequence[int], settings: Settings) -> Settings:
    """The same call with strides of which no level takes a second step, nor half of one, for longer ones."""
    if max(settings.stride) <= LONG:
        return settings
    scale = 1 + max(sum(map(abs, matrix)) for matrix in settings.matrices)
    sizes, kernel = (tuple(map(int, shape[2 - len(weight_shape) :])) for shape in (image_shape, weight_shape))
    reach = max(settings.dilation) * sum(kernel)
    enough = math.ceil(scale * (sum(sizes) + sum(settings.padding) + reach)) + 2
    return replace(settings, stride=tuple(min(stride, enough) for stride in settings.stride))


AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
SEVERAL = {1: "a sequence of one integer", 2: "a pair of integers", 3: "a triple of integers"}
LETTERS = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}


def _check_convolution(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    axes: int,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Stride, padding, dilation and groups of a convolution over so many axes."""
    groups = as_integer(groups, f"`groups` must be an integer, got {groups!r}")
    _check_channels(image_shape, weight_shape, groups, axes)
    strides = _numbers("stride", stride, 1, axes)
    dilations = _numbers("dilation", dilation, 1, axes)
    kernel = tuple(weight_shape[2:])
    pads = _padding(padding, strides, dilations, kernel)
    for axis, name in enumerate(AXES[axes]):
        length, total = image_shape[axis - axes], pads[2 * axis] + pads[2 * axis + 1]
        if length < 1:
            raise ValueError(f"`input` {name} must be at least 1, got {length}")
        kernel_extent = dilations[axis] * (kernel[axis] - 1) + 1
        if length + total < kernel_extent:
            raise ValueError(
                f"`input` {name} (={length}) plus padding (={total}) "
                f"must be at least the extent of the kernel (={kernel_extent})"
            )
    if max(pads) > WIDE:
        totals = [before + after for before, after in zip(pads[::2], pads[1::2], strict=True)]
        lengths = zip(image_shape[-axes:], kernel, strides, dilations, totals, strict=True)
        outputs = [count_responses(*along) for along in lengths]
        if math.prod(outputs) * weight_shape[0] >= MOST_OUTPUTS:
            raise ValueError(f"`padding` must leave fewer than 2^40 outputs of an image, got {padding!r}")
    return strides, pads, dilations, groups


def check_layer(
    in_channels: int,
    out_channels: int,
    kernel_size: Size,
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    axes: int,
) -> None:
    """Say what is wrong with the arguments of a layer over so many axes, if anything is."""
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
        check_count(name, value)
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        if value % groups:
            raise ValueError(f"`{name}` (={value}) must be divisible by `groups` (={groups})")
    strides, dilations = _numbers("stride", stride, 1, axes), _numbers("dilation", dilation, 1, axes)
    _padding(padding, strides, dilations, _numbers("kernel_size", kernel_size, 1, axes))


def check_transforms(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """Return the transforms as a tuple, or say what is wrong with them."""
    if isinstance(transforms, (str, set, frozenset)) or not isinstance(transforms, Iterable):  # a set has no order
        raise TypeError(f"`transforms` must be a sequence of transforms, got {transforms!r}")
    checked = tuple(transforms)
    for transform in checked:
        if not isinstance(transform, Transform):
            raise TypeError(f"`transforms` must hold transforms, such as rotation(90), got {transform!r}")
    numbers = [transform.numbers for transform in checked]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"`transforms` must not repeat, got {checked}")
    if identity(2) not in numbers:
        raise ValueError(f"`transforms` must contain the identity, such as rotation(0), got {checked}")
    if len(checked) > 256:
        raise ValueError(f"`transforms` must hold at most 256 (a winner is one byte), got {len(checked)}")
    return checked


def check_reading(interpolation: str, border: str) -> Reading:
    """Return how pixels are read, or say which argument is wrong."""
    check_choice("interpolation", interpolation, ("bilinear", "nearest"))
    check_choice("border", border, ("zeros", "clamp", "reflect"))
    return Reading(interpolation, border)


def check_factors(scales: Iterable[float], name: str = "scales") -> tuple[float, ...]:
    """Return the factors as floats, or say what is wrong with them."""
    if isinstance(scales, (str, set, frozenset)) or not isinstance(scales, Iterable):  # a set has no order
        raise TypeError(f"`{name}` must be a sequence of numbers, got {scales!r}")
    checked = []
    for value in scales:
        scale = as_number(value, f"`{name}` must hold numbers, got {value!r}")
        if not 0 < scale <= LARGEST_SCALE:
            raise ValueError(f"`{name}` must be positive and at most {LARGEST_SCALE}, got {value!r}")
        checked.append(scale)
    return tuple(checked)


def check_scales(scales: Iterable[float], name: str = "scales") -> tuple[float, ...]:
    """Return the scales of a layer as floats, or say what is wrong with them."""
    checked = check_factors(scales, name)
    if len(set(checked)) < len(checked):
        raise ValueError(f"`{name}` must not repeat, got {checked}")
    if 1 not in checked:
        raise ValueError(f"`{name}` must contain 1, got {checked}")
    if len(checked) > 256:
        raise ValueError(f"`{name}` must hold at most 256 numbers (a winner is one byte), got {len(checked)}")
    return checked


def _check_channels(input_shape: Sequence[int], weight_shape: Sequence[int], groups: int, axes: int) -> None:
    letters = ", ".join(LETTERS[axes])
    if len(input_shape) not in (axes + 1, axes + 2):
        raise ValueError(f"`input` must be (N, C, {letters}) or (C, {letters}), got shape {tuple(input_shape)}")
    if len(weight_shape) != axes + 2 or min(weight_shape) < 1:
        kernel = ", ".join(f"K{letter.lower()}" for letter in LETTERS[axes])
        raise ValueError(f"`weight` must be (M, C / groups, {kernel}), none of them 0, got shape {tuple(weight_shape)}")
    if groups < 1:
        raise ValueError(f"`groups` must be at least 1, got {groups}")
    out_channels, group_channels = weight_shape[:2]
    if out_channels % groups:
        raise ValueError(f"`weight` output channels (={out_channels}) must be divisible by `groups` (={groups})")
    if input_shape[-axes - 1] != group_channels * groups:
        raise ValueError(
            f"`input` channels (={input_shape[-axes - 1]}) must equal "
            f"`weight` channels (={group_channels}) times `groups` (={groups})"
        )


def _numbers(name: str, value: Size, least: int, axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    rule = f"`{name}` must be an integer or {SEVERAL[axes]}"
    items = value if isinstance(value, Sequence) else (value,)
    numbers = [as_integer(item, f"{rule}, got {value!r}") for item in items]
    if len(numbers) not in (1, axes):
        raise ValueError(f"{rule}, got {len(numbers)} of them")
    if min(numbers) < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value!r}")
    if max(numbers) > LARGEST_NUMBER:
        raise ValueError(f"`{name}` must be at most {LARGEST_NUMBER}, got {value!r}")
    return tuple(numbers) if len(numbers) == axes else (numbers[0],) * axes


def _padding(
    padding: Padding, stride: tuple[int, ...], dilation: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[int, ...]:
    """Before and after, for each axis; 'same' puts the odd pixel behind, as `Conv2d` does."""
    if not isinstance(padding, str):
        pads = [(before, before) for before in _numbers("padding", padding, 0, len(stride))]
    elif padding == "valid":
        pads = [(0, 0)] * len(stride)
    elif padding != "same":
        raise ValueError(f"`padding` must be integers, 'same' or 'valid', got {padding!r}")
    elif any(step != 1 for step in stride):
        raise ValueError(f"`padding` 'same' needs a `stride` of 1, got {stride}")
    else:
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    return tuple(number for both in pads for number in both)
