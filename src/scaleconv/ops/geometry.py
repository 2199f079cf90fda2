"""Where each level samples the input and where its responses land on the output.

Plain numbers, computed once for a call; tensor code decides no sizes. A map that treats each axis alone, such as a
scale, is placed axis by axis, by the equations in the docstring of `si_conv2d`; one that mixes them, such as a
rotation, by those of `ti_conv2d`. No tensors are made here, but the equations take tensors as well as numbers.
Paper, section 3.1: the operators T_i and their inverses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    from torch import Tensor

SLACK = 1e-6  # forgives rounding where s·H meets an integer, or a position the edge of its coverage
Matrix = tuple[float, ...]  # the rows of a square matrix, one after the other
Pair = tuple[int, int]
Place = TypeVar("Place", float, "Tensor")


class Reading(NamedTuple):
    """How a level, and its responses, are read between pixels (`interpolation`) and beyond the last one (`border`)."""

    interpolation: str = "bilinear"
    border: str = "zeros"


BILINEAR = Reading()


def identity(axes: int) -> Matrix:
    """
    Example:
        >>> identity(2)
        (1.0, 0.0, 0.0, 1.0)
    """
    return scaled(1.0, axes)


def scaled(scale: float, axes: int) -> Matrix:
    """The matrix that rescales every axis by the same factor."""
    return tuple(float(scale) if place % (axes + 1) == 0 else 0.0 for place in range(axes * axes))


def scales_of(matrix: Matrix) -> tuple[float, ...] | None:
    """The scale of each axis, negative if it is mirrored; None if the map mixes the axes."""
    axes = math.isqrt(len(matrix))
    alone = all(value == 0 or place % (axes + 1) == 0 for place, value in enumerate(matrix))
    return matrix[:: axes + 1] if alone else None


def count_responses(length: int, kernel: int, stride: int = 1, dilation: int = 1, padding: int = 0) -> int:
    """How many responses a convolution has along an axis; below 1 if the kernel does not fit. Sizes may be symbolic.

    `padding` is that of both ends together.

    Example:
        >>> count_responses(9, kernel=3, stride=2, padding=2)
        5
    """
    return (length + padding - dilation * (kernel - 1) - 1) // stride + 1


def source(q: Place, scale: float, length: int, size: int) -> Place:
    """Where sample q of a level of this size reads an axis of this length: u of `si_conv2d`."""
    return (q - (size - 1) / 2) / scale + (length - 1) / 2


def target(p: Place, scale: float, length: int, size: int, stride: float, kernel_centre: float) -> Place:
    """Where output p reads the responses of a level of this size: v of `si_conv2d`."""
    return (scale * (stride * p + kernel_centre - (length - 1) / 2) + (size - 1) / 2 - kernel_centre) / stride


def plane_sources(
    matrix: Matrix, image: Sequence[int], level: Sequence[int], y: "Tensor", x: "Tensor"
) -> tuple["Tensor", "Tensor"]:
    """Where the pixels (y, x) of a level of this size read the image: u of `ti_conv2d`."""
    a, b, c, d = matrix
    determinant = a * d - b * c
    inverse = (d / determinant, -b / determinant, -c / determinant, a / determinant)
    up, left = _mapped(inverse, y - (level[0] - 1) / 2, x - (level[1] - 1) / 2)
    return up + (image[0] - 1) / 2, left + (image[1] - 1) / 2


def plane_targets(
    matrix: Matrix,
    image: Sequence[int],
    level: Sequence[int],
    stride: Sequence[int],
    kernel_centre: Sequence[float],
    y: "Tensor",
    x: "Tensor",
) -> tuple["Tensor", "Tensor"]:
    """Where the outputs (y, x) read the responses of a level of this size: v of `ti_conv2d`."""
    centred = (
        step * place + centre - (length - 1) / 2
        for step, place, centre, length in zip(stride, (y, x), kernel_centre, image, strict=True)
    )
    down, right = (
        (place + (length - 1) / 2 - centre) / step
        for place, length, centre, step in zip(_mapped(matrix, *centred), level, kernel_centre, stride, strict=True)
    )
    return down, right


def _mapped(matrix: Matrix, y: "Tensor", x: "Tensor") -> tuple["Tensor", "Tensor"]:
    """The product of the matrix with (y, x)."""
    a, b, c, d = matrix
    return a * y + b * x, c * y + d * x


@overload
def is_inside(place: float, length: int) -> bool: ...
@overload
def is_inside(place: "Tensor", length: int) -> "Tensor": ...
def is_inside(place: "float | Tensor", length: int) -> "bool | Tensor":
    """Whether a line reaches so far: half a pixel beyond its first and its last."""
    return (place >= -0.5 - SLACK) & (place <= length - 0.5 + SLACK)


def support_of(scale: float, antialias: bool) -> float:
    """Pixels on either side that a sample of a level reads: more than one if a shrunk level averages them."""
    return max(1.0, 1 / abs(scale)) if antialias else 1.0


@dataclass(frozen=True)
class AxisLevel:
    """One axis of one level.

    Attributes:
        size: samples of the rescaled input.
        response_size: responses of the convolution at this level.
        sources: for each sample, where it reads the input.
        covered: the first covered output position, and one past the last.
        targets: for each covered output position, where it reads the response.
    """

    size: int
    response_size: int
    sources: tuple[float, ...]
    covered: tuple[int, int]
    targets: tuple[float, ...]

    @property
    def step(self) -> int:
        """How many responses lie between the targets of neighbours; 0 if no whole number, or one reads past the edge.

        It is the scale where that is a whole number.
        """
        first, last = self.targets[0], self.targets[-1]
        step = round((last - first) / (len(self.targets) - 1)) if len(self.targets) > 1 else 1
        even = all(abs(v - first - step * place) < SLACK for place, v in enumerate(self.targets))
        return step if even and first >= 0 and last <= self.response_size - 1 else 0


@dataclass(frozen=True)
class Axis:
    """What a convolution does along one axis; `padding` is (leading, trailing)."""

    length: int
    kernel: int
    stride: int
    padding: tuple[int, int]
    dilation: int

    def response_size(self, size: int) -> int:
        """Responses of the convolution to an input of this size; below 1 if the kernel does not fit."""
        return count_responses(size, self.kernel, self.stride, self.dilation, sum(self.padding))

    @property
    def reach(self) -> int:
        """Pixels from the first tap of the kernel to the last."""
        return self.dilation * (self.kernel - 1)

    def stride_matters(self, outputs: int) -> bool:
        """Whether a convolution needs a stride to give so many outputs: with one tap, its pixels can be picked."""
        return self.kernel > 1 and outputs > 1

    @property
    def output_size(self) -> int:
        return self.response_size(self.length)

    @property
    def has_blind_taps(self) -> bool:
        """Whether a tap of the kernel reads padding for all outputs."""
        starts = [self.dilation * tap - self.padding[0] for tap in range(self.kernel)]
        outputs = [max(0, -(start // self.stride)) for start in starts]  # the first at which it is not before the image
        places = zip(starts, outputs, strict=True)
        return any(n >= self.output_size or start + self.stride * n >= self.length for start, n in places)

    def cropped(self, scale: float) -> "Axis":
        """Without the outer taps at both ends that read padding alone at every scale up to this one.

        As many go at either end, with the padding that they read, so the centre of the kernel stays.
        """
        size = math.floor(scale * self.length + SLACK)
        last, taps = self.stride * (self.response_size(size) - 1), 0
        while (
            self.dilation * (taps + 1) <= min(self.padding)
            and last + self.dilation * taps < self.padding[0]
            and self.dilation * (self.kernel - 1 - taps) - self.padding[0] >= size
        ):
            taps += 1
        before, after = (each - self.dilation * taps for each in self.padding)
        return Axis(self.length, self.kernel - 2 * taps, self.stride, (before, after), self.dilation)

    @property
    def kernel_centre(self) -> float:
        """Where the centre of the kernel stands for the first response."""
        return self.reach / 2 - self.padding[0]

    def level(self, scale: float, border: str = "zeros") -> AxisLevel | None:
        """Place one level on this axis; None if it is too small to respond or covers no position."""
        size = math.floor(abs(scale) * self.length + SLACK)
        response_size = self.response_size(size)
        if size < 1 or response_size < 1:
            return None
        sources = tuple(source(q, scale, self.length, size) for q in range(size))
        sizes, stride, kernel_centre = (self.length, size), self.stride, self.kernel_centre
        targets = [target(p, scale, *sizes, stride, kernel_centre) for p in range(self.output_size)]
        inside = [p for p, v in enumerate(targets) if border != "zeros" or is_inside(v, response_size)]
        if not inside:
            return None
        covered = (inside[0], inside[-1] + 1)
        return AxisLevel(size, response_size, sources, covered, tuple(targets[slice(*covered)]))


@dataclass(frozen=True)
class Level:
    """One entry of the pyramid whose map treats each axis alone.

    Attributes:
        code: its place in the order in which all maps compete, and so its value in the winner map.
        wins_ties: whether it also wins where it only equals the levels before it in that order.
        scales: of the height and of the width.
    """

    code: int
    wins_ties: bool
    scales: tuple[float, float]
    height: AxisLevel
    width: AxisLevel

    @property
    def size(self) -> Pair:
        return self.height.size, self.width.size

    @property
    def response(self) -> Pair:
        return self.height.response_size, self.width.response_size

    @property
    def regular(self) -> bool:
        """Whether every output samples the responses at the same sub-pixel phase, a whole number of them apart."""
        return max(self.scales) > 1 and self.height.step > 0 and self.width.step > 0


@dataclass(frozen=True)
class PlaneLevel:
    """One entry of the pyramid whose map mixes the axes. Pairs are (height, width).

    Attributes:
        code, wins_ties: as in `Level`.
        matrix: the map, from the input to the level.
        image, size, response, output: sizes of the input, of the level, of its responses and of the output.
        sampled: rows and columns of the level that the kernel sees; those outside of it are zeros of the padding.
        stride, kernel_centre: of the convolution.
        reading: of the input and of the responses.
    """

    code: int
    wins_ties: bool
    matrix: Matrix
    image: Pair
    size: Pair
    response: Pair
    output: Pair
    sampled: tuple[range, range]
    stride: Pair
    kernel_centre: tuple[float, float]
    reading: Reading


def competing_order(identity: int, count: int) -> tuple[int, ...]:
    """The indices of so many maps in the order in which they compete.

    The identity covers every position, so it comes first and starts the maximum. Then come the levels listed before it,
    last one first, which win ties; then those listed after it, which lose them. So a tie goes to the map listed first.

    Example:
        >>> competing_order(identity=2, count=4)
        (2, 1, 0, 3)
    """
    return (identity, *reversed(range(identity)), *range(identity + 1, count))


def canvas_size(matrix: Matrix, image: Sequence[int]) -> list[int]:
    """The bounding box of the mapped image, in whole pixels; sizes may be symbolic.

    Of a symbolic size that a stride has divided, `math.floor` would demand a remainder.
    """
    axes = len(image)
    rows = [matrix[axes * row : axes * row + axes] for row in range(axes)]
    return [
        math.trunc(sum(abs(value) * length for value, length in zip(row, image, strict=True) if value) + SLACK)
        for row in rows
    ]


def place_levels(
    height: Axis, width: Axis, matrices: Sequence[Matrix], reading: Reading = BILINEAR
) -> tuple[Level | PlaneLevel, ...]:
    """The levels in the order in which they compete, without those that are too small to respond or cover nothing."""
    one = matrices.index(identity(2))
    order = enumerate(competing_order(one, len(matrices)))
    placed = [_place(height, width, matrices[index], reading, (code, index < one)) for code, index in order]
    return tuple([level for level in placed if level is not None])


def _place(
    height: Axis, width: Axis, matrix: Matrix, reading: Reading, place: tuple[int, bool]
) -> Level | PlaneLevel | None:
    if scales := scales_of(matrix):
        vertical, horizontal = (
            axis.level(scale, reading.border) for axis, scale in zip((height, width), scales, strict=True)
        )
        return Level(*place, (scales[0], scales[1]), vertical, horizontal) if vertical and horizontal else None
    image = (height.length, width.length)
    size = canvas_size(matrix, image)
    response = [axis.response_size(length) for axis, length in zip((height, width), size, strict=True)]
    if min(size) < 1 or min(response) < 1:
        return None
    return PlaneLevel(
        *place,
        matrix,
        image,
        (size[0], size[1]),
        (response[0], response[1]),
        (height.output_size, width.output_size),
        (_sampled(height, response[0]), _sampled(width, response[1])),
        (height.stride, width.stride),
        (height.kernel_centre, width.kernel_centre),
        reading,
    )


def _sampled(axis: Axis, responses: int) -> range:
    """The pixels that so many responses see; a kernel of one tap sees only those that they lie at."""
    first = -axis.padding[0]
    last = first + axis.stride * (responses - 1) + axis.reach
    return range(first, last + 1, axis.stride if axis.kernel == 1 else 1)
