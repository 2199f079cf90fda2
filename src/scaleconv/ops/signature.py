"""The arguments of a call: their types, their rules, and the messages for those that break one.

Every check that needs only shapes and numbers is here; an error names the argument, the rule and the value.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any

from .geometry import Axis, Geometry, make_geometry

Size = int | Sequence[int]
Padding = int | Sequence[int] | str

DEFAULT_SCALES: tuple[float, ...] = tuple(2 ** (k / 3) for k in range(-2, 4))
LARGEST_SCALE = 1000  # a slip of the pen beyond, and a plan that does not fit into memory


@dataclass(frozen=True)
class Settings:
    """Checked arguments; `padding` is above, below, left, right."""

    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    scales: tuple[float, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of `si_conv2d`."""
        return self.stride, self.padding, self.dilation, self.groups, self.scales


@dataclass(frozen=True)
class Signature:
    """A checked call: small, hashable, and all that its plan depends on."""

    height: Axis
    width: Axis
    scales: tuple[float, ...]
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
        return cls(height, width, settings.scales, int(image_shape[-3]), int(weight_shape[0]), settings.groups)

    @property
    def depthwise(self) -> bool:
        """Whether every channel has one filter of its own."""
        return self.groups == self.in_channels == self.out_channels > 1

    @property
    def geometry(self) -> Geometry:
        return make_geometry(self.height, self.width, self.scales)


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
    settings = check_call(image_shape, weight_shape, stride, padding, dilation, groups, scales)
    return Signature.of(image_shape, weight_shape, settings)


def check_call(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    scales: Iterable[float],
) -> Settings:
    """Check the arguments of `si_conv2d`; sizes may be symbolic, and are only compared."""
    scales = check_scales(scales)
    groups = _integer(groups, f"`groups` must be an integer, got {groups!r}")
    _check_channels(image_shape, weight_shape, groups)
    strides = _pair("stride", stride, least=1)
    dilations = _pair("dilation", dilation, least=1)
    kernel = (weight_shape[2], weight_shape[3])
    pads = _padding(padding, strides, dilations, kernel)
    for axis, name in enumerate(("height", "width")):
        length, total = image_shape[axis - 2], pads[2 * axis] + pads[2 * axis + 1]
        if length < 1:
            raise ValueError(f"`input` {name} must be at least 1, got {length}")
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if length + total < reach:
            raise ValueError(
                f"`input` {name} (={length}) plus padding (={total}) "
                f"must be at least the reach of the kernel (={reach})"
            )
    return Settings(strides, pads, dilations, groups, scales)


def check_scales(scales: Iterable[float]) -> tuple[float, ...]:
    """Return the scales as floats, or say what is wrong with them."""
    if isinstance(scales, (str, set, frozenset)) or not isinstance(scales, Iterable):  # a set has no order
        raise TypeError(f"`scales` must be a sequence of numbers, got {scales!r}")
    values = tuple(scales)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"`scales` must hold numbers, got {value!r}")
        if not 0 < value <= LARGEST_SCALE:
            raise ValueError(f"`scales` must be positive and at most {LARGEST_SCALE}, got {value!r}")
    checked = tuple(float(value) for value in values)
    if len(set(checked)) < len(checked):
        raise ValueError(f"`scales` must not repeat, got {checked}")
    if 1 not in checked:
        raise ValueError(f"`scales` must contain 1, got {checked}")
    if len(checked) > 256:
        raise ValueError(f"`scales` must hold at most 256 numbers (a winner is one byte), got {len(checked)}")
    return checked


def _check_channels(input_shape: Sequence[int], weight_shape: Sequence[int], groups: int) -> None:
    if len(input_shape) not in (3, 4):
        raise ValueError(f"`input` must be (N, C, H, W) or (C, H, W), got shape {tuple(input_shape)}")
    if len(weight_shape) != 4 or min(weight_shape) < 1:
        raise ValueError(f"`weight` must be (M, C / groups, Kh, Kw), none of them 0, got shape {tuple(weight_shape)}")
    if groups < 1:
        raise ValueError(f"`groups` must be at least 1, got {groups}")
    out_channels, group_channels = weight_shape[:2]
    if out_channels % groups:
        raise ValueError(f"`weight` output channels (={out_channels}) must be divisible by `groups` (={groups})")
    if input_shape[-3] != group_channels * groups:
        raise ValueError(
            f"`input` channels (={input_shape[-3]}) must equal "
            f"`weight` channels (={group_channels}) times `groups` (={groups})"
        )


def _pair(name: str, value: Size, least: int) -> tuple[int, int]:
    rule = f"`{name}` must be an integer or a pair of integers"
    items = value if isinstance(value, Sequence) else (value,)
    numbers = [_integer(item, f"{rule}, got {value!r}") for item in items]
    if len(numbers) not in (1, 2):
        raise ValueError(f"{rule}, got {len(numbers)} of them")
    if min(numbers) < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value!r}")
    return numbers[0], numbers[-1]


def _integer(value: Any, refusal: str) -> int:
    """A plain integer for an integer of any kind, NumPy's too; a bool is none."""
    if not isinstance(value, bool):
        with suppress(TypeError):
            return index(value)
    raise TypeError(refusal)


def _padding(
    padding: Padding, stride: tuple[int, int], dilation: tuple[int, int], kernel: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Above, below, left, right; 'same' puts the odd pixel behind, as `Conv2d` does."""
    if not isinstance(padding, str):
        vertical, horizontal = _pair("padding", padding, least=0)
        return vertical, vertical, horizontal, horizontal
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        raise ValueError(f"`padding` must be integers, 'same' or 'valid', got {padding!r}")
    if stride != (1, 1):
        raise ValueError(f"`padding` 'same' needs a `stride` of 1, got {stride}")
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    above, left = (total // 2 for total in totals)
    return above, totals[0] - above, left, totals[1] - left
