"""The arguments of a call, checked, as one hashable value, and the messages for those that break a rule.

Every check that needs only shapes and numbers is here, those of single values in `checks`; an error names the argument,
the rule and the value.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import index
from typing import Any

import torch

from .checks import as_integer, as_number, check_choice, check_count, check_flag
from .geometry import (
    Axis,
    Level,
    Matrix,
    PlaneLevel,
    Reading,
    count_responses,
    identity,
    place_levels,
    scaled,
    scales_of,
)
from .transforms import LARGEST_SCALE, Transform

Size = int | Sequence[int]
Padding = int | Sequence[int] | str

DEFAULT_SCALES: tuple[float, ...] = tuple(2 ** (k / 3) for k in range(-2, 4))
LARGEST_NUMBER = 2**31 - 1  # of a stride, a padding or a dilation
WIDE = 2**12  # a padding beyond this may ask for more outputs than any memory holds
LONG = 2**6  # a stride beyond this may be longer than every level, and than what memory holds
MOST_OUTPUTS = 2**40  # of an image


@dataclass(frozen=True)
class Call:
    """A checked call on any number of images; its plan depends on nothing else but their number and the device.

    Attributes:
        axes: (depth,) height and width. A signal has a height of one, which is not rescaled.
        in_channels, out_channels, groups: of the convolution.
        matrices: the map of each level, in the order of the scales or transforms.
        reading: how pixels are read.
        antialias: whether a level that shrinks the input averages pixels.

    While a compiler traces, lengths may be symbolic.
    """

    axes: tuple[Axis, ...]
    in_channels: int
    out_channels: int
    groups: int
    matrices: tuple[Matrix, ...]
    reading: Reading
    antialias: bool

    @classmethod
    def of(cls, image_shape: Sequence[int], weight_shape: Sequence[int], *arguments: Any) -> "Call":
        """From the shapes of the images, (N,) C, (D,) H, W, and of the weight, and `arguments`."""
        stride, padding, dilation, groups, numbers, interpolation, border, antialias = arguments
        count = len(stride)
        pads = zip(padding[::2], padding[1::2], strict=True)
        along = zip(image_shape[-count:], weight_shape[2:], stride, pads, dilation, strict=True)
        step = count * count
        matrices = tuple([tuple(numbers[first : first + step]) for first in range(0, len(numbers), step)])
        channels = (image_shape[-count - 1], weight_shape[0])
        axes = tuple([Axis(*each) for each in along])
        return cls(axes, *channels, groups, matrices, Reading(interpolation, border), antialias)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the operator takes them: padding before and after each axis, the matrices one after the other."""
        stride, dilation = [axis.stride for axis in self.axes], [axis.dilation for axis in self.axes]
        padding = [number for axis in self.axes for number in axis.padding]
        numbers = [value for matrix in self.matrices for value in matrix]
        return stride, padding, dilation, self.groups, numbers, *self.reading, self.antialias

    def resized(self, size: Sequence[int]) -> "Call":
        """The same call on images of another size."""
        axes = [replace(axis, length=int(length)) for axis, length in zip(self.axes, size, strict=True)]
        return replace(self, axes=tuple(axes))

    @cached_property
    def cropped(self) -> "Call":
        """The same call without the outer taps of the kernel that read padding alone at every level."""
        scales = [scales_of(matrix) for matrix in self.matrices]
        if self.mixes_axes:
            return self
        most = [max(map(abs, along)) for along in zip(*[each for each in scales if each], strict=True)]
        axes = [axis.cropped(scale) for axis, scale in zip(self.axes, most, strict=True)]
        return replace(self, axes=tuple(axes))

    @property
    def height(self) -> Axis:
        return self.axes[-2]

    @property
    def width(self) -> Axis:
        return self.axes[-1]

    @cached_property
    def output_size(self) -> tuple[int, int]:
        return self.height.output_size, self.width.output_size

    @property
    def identity(self) -> int:
        """The place of the identity among the maps."""
        return self.matrices.index(identity(len(self.axes)))

    @property
    def mixes_axes(self) -> bool:
        return any(scales_of(matrix) is None for matrix in self.matrices)

    @property
    def depthwise(self) -> bool:
        """Whether every channel has one filter of its own."""
        return self.groups == self.in_channels == self.out_channels > 1

    @cached_property
    def levels(self) -> tuple[Level | PlaneLevel, ...]:
        """The levels that take part, in the order in which they compete."""
        return place_levels(self.height, self.width, self.matrices, self.reading)


def make_call(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    scales: Iterable[float] = DEFAULT_SCALES,
    antialias: bool = False,
    *,
    axes: int = 2,
    transforms: Iterable[Transform] | None = None,
    interpolation: str = "bilinear",
    border: str = "zeros",
) -> Call:
    """Check the arguments of a call over one, two or three axes, with `scales` or else `transforms`.

    Sizes may be symbolic, and are only compared.
    """
    if transforms is None:
        matrices = [scaled(scale, axes) if axes > 1 else (1.0, 0.0, 0.0, scale) for scale in check_scales(scales)]
    else:
        matrices = [transform.numbers for transform in check_transforms(transforms)]
    check_flag("antialias", antialias)
    reading = check_reading(interpolation, border)
    stride, padding, dilation, groups = _check_convolution(
        input_shape, weight_shape, stride, padding, dilation, groups, axes
    )
    if axes == 1:  # which becomes two
        input_shape, weight_shape = (*input_shape[:-1], 1, input_shape[-1]), (*weight_shape[:2], 1, weight_shape[2])
        stride, padding, dilation = (1, *stride), (0, 0, *padding), (1, *dilation)
    if max(stride) > LONG:  # beyond `enough`, no level takes a second step, nor half of one; the kernel fits the image
        scale = 1 + max(sum(map(abs, matrix)) for matrix in matrices)
        enough = math.ceil(scale * (sum(map(int, input_shape[-len(stride) :])) + sum(padding))) + 2
        stride = tuple(min(step, enough) for step in stride)
    numbers = [value for matrix in matrices for value in matrix]
    return Call.of(input_shape, weight_shape, stride, padding, dilation, groups, numbers, *reading, antialias)


def find_call(*arguments: Any, **levels: Any) -> Call:
    """`make_call`, from a cache of equal arguments."""
    arguments = tuple([_listed(value) for value in arguments])
    levels = {name: _listed(value) for name, value in levels.items()}
    if torch.compiler.is_compiling():  # the sizes may be symbolic, but all else is part of the graph
        plain = {name: _plain(value) for name, value in levels.items()}
        return make_call(*arguments[:2], *map(_plain, arguments[2:]), **plain)
    inside = [tuple(map(type, value)) for value in (*arguments[2:], *levels.values()) if isinstance(value, tuple)]
    try:
        return _make_call_once(tuple(inside), *arguments, **levels)
    except TypeError:  # a list has no hash; and an argument of a wrong type is to be named
        return make_call(*arguments, **levels)


@lru_cache(maxsize=1024, typed=True)
def _make_call_once(inside: tuple[tuple[type, ...], ...], *arguments: Any, **levels: Any) -> Call:
    """The key of the cache holds the types of the arguments and of what is `inside` tuples: (1, 1) == (True, 1.0)."""
    return make_call(*arguments, **levels)


def _listed(value: Any) -> Any:
    """The items of an iterator, which can be read but once; anything else as it is."""
    return tuple(value) if isinstance(value, Iterator) else value


def _plain(value: Any) -> Any:
    """Plain numbers, alone, in a sequence or in a transform, for the symbolic ones of a compiler."""
    if isinstance(value, Transform):
        return Transform(_plain(value.matrix))
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return index(value)
    return value.__float__() if isinstance(value, float) else value  # float(value) would stay symbolic


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
