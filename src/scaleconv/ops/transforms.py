"""Linear maps of the plane about the centre of an image: what `ti_conv2d` and `TIConv2d` apply their filters under.

A map acts on (y, x), in the order of (height, width): y grows downwards, x to the right, and the centre of the image is
(0, 0). It says where a point of the image goes on the canvas. Plain numbers; no tensors here. Paper, section 3.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .checks import check_number

LARGEST_SCALE = 1000  # a slip of the pen beyond, and a plan that does not fit into memory
Rows = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Transform:
    """An invertible 2×2 matrix ((yy, yx), (xy, xx)): (y, x) goes to (yy·y + yx·x, xy·y + xx·x).

    Made by `rotation`, `scaling`, `shear` or `affine`, and combined by `@`: `(a @ b)` applies b first, then a.

    Raises:
        TypeError: `matrix` does not hold two pairs of numbers.
        ValueError: a number is not finite or above 1000, or the matrix is not invertible.

    Example:
        >>> rotation(90) @ rotation(-90) == scaling(1)
        True
        >>> rotation(90) @ scaling(2)
        Transform(matrix=((0.0, -2.0), (2.0, 0.0)))
    """

    matrix: Rows

    def __post_init__(self) -> None:
        rows = self.matrix
        pairs = isinstance(rows, Sequence) and all(isinstance(row, Sequence) and len(row) == 2 for row in rows)
        if not pairs or len(rows) != 2:
            raise TypeError(f"`matrix` must be two pairs of numbers, got {rows!r}")
        numbers = [
            _number(f"matrix[{place}][{column}]", value)
            for place, row in enumerate(rows)
            for column, value in enumerate(row)
        ]
        if max(map(abs, numbers)) > LARGEST_SCALE:
            raise ValueError(f"`matrix` must hold numbers of at most {LARGEST_SCALE}, got {rows!r}")
        yy, yx, xy, xx = numbers
        if abs(yy * xx - yx * xy) <= 1e-9 * max(map(abs, numbers)) ** 2:
            raise ValueError(f"`matrix` must be invertible, got {rows!r}")
        object.__setattr__(self, "matrix", ((yy, yx), (xy, xx)))

    @property
    def numbers(self) -> tuple[float, ...]:
        """The rows one after the other."""
        return self.matrix[0] + self.matrix[1]

    def __matmul__(self, other: "Transform") -> "Transform":
        if not isinstance(other, Transform):
            return NotImplemented
        (yy, yx), (xy, xx) = self.matrix
        (a, b), (c, d) = other.matrix
        return Transform(((yy * a + yx * c, yy * b + yx * d), (xy * a + xx * c, xy * b + xx * d)))


def rotation(degrees: float) -> Transform:
    """Turn the image; a positive angle turns it counter-clockwise as seen on the screen, as `torch.rot90` does.

    Quarter turns are exact: they only permute pixels.

    Example:
        >>> rotation(90)
        Transform(matrix=((0.0, -1.0), (1.0, 0.0)))
    """
    quarters, rest = divmod(_number("degrees", degrees), 90)
    cosine, sine = math.cos(math.radians(rest)), math.sin(math.radians(rest))
    for _ in range(int(quarters) % 4):
        cosine, sine = -sine, cosine
    return Transform(((cosine, -sine), (sine, cosine)))


def scaling(sx: float, sy: float | None = None) -> Transform:
    """Enlarge the image by `sx` along its width and `sy` along its height, by default alike; below 1 shrinks.

    Example:
        >>> scaling(2, 0.5)
        Transform(matrix=((0.5, 0.0), (0.0, 2.0)))
    """
    factors = [_number(name, value) for name, value in (("sx", sx), ("sy", sx if sy is None else sy))]
    for name, factor in zip(("sx", "sy"), factors, strict=True):
        if not 0 < factor <= LARGEST_SCALE:
            raise ValueError(f"`{name}` must be positive and at most {LARGEST_SCALE}, got {factor!r}")
    return Transform(((factors[1], 0.0), (0.0, factors[0])))


def shear(x: float = 0.0, y: float = 0.0) -> Transform:
    """Slide rows and columns: a row moves to the right by `x` pixels for each row that it lies below the centre, and a
    column downwards by `y` pixels for each column that it lies to the right of it.

    Example:
        >>> shear(x=0.5)
        Transform(matrix=((1.0, 0.0), (0.5, 1.0)))
    """
    return Transform(((1.0, _number("y", y)), (_number("x", x), 1.0)))


def affine(matrix: Sequence[Sequence[float]]) -> Transform:
    """Any invertible map, by its matrix ((yy, yx), (xy, xx)) on (y, x).

    Example:
        >>> affine([[1, 0], [0, -1]])  # mirrored: left becomes right
        Transform(matrix=((1.0, 0.0), (0.0, -1.0)))
    """
    return Transform(matrix)  # type: ignore[arg-type]  # it is checked there


def _number(name: str, value: Any) -> float:
    return check_number(name, value, least=-math.inf) + 0.0  # which is no negative zero
