"""Maps that mix the axes, such as rotations: where their samples and outputs read, and the sparse matrices of it.

An image is seen as one long row of pixels, counted row by row, and such a map as that of a single axis (`resampling`).
Coordinates are those of the docstring of `ti_conv2d`, in float64. Sizes may be symbolic wherever `traceable` needs it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import Matrix, PlaneLevel, Reading, is_inside
from .resampling import AxisMap, SparseMap, repeated, settle


def mapped(matrix: Matrix, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product of the matrix with (y, x)."""
    a, b, c, d = matrix
    return a * y + b * x, c * y + d * x


def inverse(matrix: Matrix) -> Matrix:
    a, b, c, d = matrix
    determinant = a * d - b * c
    return d / determinant, -b / determinant, -c / determinant, a / determinant


def neighbours(
    places: tuple[Tensor, Tensor], size: Sequence[int], reading: Reading
) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
    """The pixels that are read at real places (y, x), of one shape, in an image of this size: (place, weight) of each.

    Bilinear reads four, nearest one; a pixel's place is counted row by row. Also whether anything is there to be read,
    or None if there is everywhere.
    """
    there = is_inside(places[0], size[0]) & is_inside(places[1], size[1]) if reading.border == "zeros" else None
    y, x = (settle(place, length, reading) for place, length in zip(places, size, strict=True))
    top, left = y.floor(), x.floor()
    if reading.interpolation == "nearest":
        return [(top * size[1] + left, torch.ones_like(top))], there
    read = []
    for row, high in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, wide in ((left, 1 - (x - left)), (left + 1, x - left)):
            weight = high * wide
            read.append((torch.where(weight > 0, row * size[1] + column, top * size[1] + left), weight))
    return read, there


def plane_sampling(level: PlaneLevel) -> AxisMap:
    """From the pixels of the input to those of the level that the kernel sees, both counted row by row."""
    y, x = (torch.tensor(list(each), dtype=torch.float64, device="cpu") for each in level.sampled)
    within = ((y >= 0) & (y < level.size[0]))[:, None] & ((x >= 0) & (x < level.size[1]))
    return _plane_map(sources(level.matrix, level.image, level.size, y[:, None], x), level.image, level.reading, within)


def plane_alignment(level: PlaneLevel) -> AxisMap:
    """From the responses of the level to the outputs, both counted row by row; none to those that it does not cover."""
    y, x = (torch.arange(length, dtype=torch.float64, device="cpu") for length in level.output)
    places = targets(level.matrix, level.image, level.size, level.stride, level.kernel_centre, y[:, None], x)
    return _plane_map(places, level.response, level.reading)


def sources(matrix: Matrix, image: Sequence[int], level: Sequence[int], y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Where the pixels (y, x) of a level of this size read the image."""
    up, left = mapped(inverse(matrix), y - (level[0] - 1) / 2, x - (level[1] - 1) / 2)
    return up + (image[0] - 1) / 2, left + (image[1] - 1) / 2


def targets(
    matrix: Matrix,
    image: Sequence[int],
    level: Sequence[int],
    stride: Sequence[int],
    kernel_centre: Sequence[float],
    y: Tensor,
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Where the outputs (y, x) read the responses of a level of this size."""
    centred = (
        step * place + centre - (length - 1) / 2
        for step, place, centre, length in zip(stride, (y, x), kernel_centre, image, strict=True)
    )
    down, right = (
        (place + (length - 1) / 2 - centre) / step
        for place, length, centre, step in zip(mapped(matrix, *centred), level, kernel_centre, stride, strict=True)
    )
    return down, right


def _plane_map(
    places: tuple[Tensor, Tensor], size: Sequence[int], reading: Reading, within: Tensor | None = None
) -> AxisMap:
    read, there = neighbours(places, size, reading)
    index, weight = (torch.stack([part.flatten() for part in parts], 1) for parts in zip(*read, strict=True))
    for seen in (there, within):
        if seen is not None:
            weight = torch.where(seen.flatten().unsqueeze(1), weight, 0)
    return AxisMap(index.long(), weight, size[0] * size[1])


def plane_matrix(plane: AxisMap, size: tuple[int, int], dtype: torch.dtype, *, transpose: bool = False) -> SparseMap:
    """The map of a plane as CSR; or its transpose, which gives an image of this size."""
    row, entry = plane.weight.nonzero(as_tuple=True)
    column, weight = plane.index[row, entry], plane.weight[row, entry]
    rows, columns = len(plane), plane.length
    if transpose:
        order = column.argsort(stable=True)
        row, column, weight, rows, columns = column[order], row[order], weight[order], columns, rows
    first = F.pad(row.bincount(minlength=rows).cumsum(0), (1, 0))
    return repeated(size, 1, columns, first, column, weight.to(dtype))
