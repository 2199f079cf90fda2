"""Linear maps along an axis as sparse matrices, and images resampled by two of them.

A linear sampling reads at most a few neighbours, so a map keeps for each row of its matrix the few columns that are not
zero. Bilinear resampling, the alignment of responses and the gathering of patches are all such maps, and so are their
transposes, which carry gradients back. Unlike `F.interpolate`, both are deterministic. A map that mixes the axes, such
as a rotation, is that of a single axis: its image is one long row of pixels, counted row by row. No sizes or
coordinates are decided here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import BILINEAR, SLACK, PlaneLevel, Reading, is_inside, plane_sources, plane_targets


@dataclass(frozen=True, eq=False)
class AxisMap:
    """A sparse matrix (n, length): row i reads Σ_j weight[i, j] · line[index[i, j]]. Spare entries have weight 0."""

    index: Tensor  # (n, entries), int64
    weight: Tensor  # (n, entries), float64
    length: int

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, rows: slice | Tensor) -> "AxisMap":
        """Some of the rows."""
        return AxisMap(self.index[rows], self.weight[rows], self.length)

    def framed(self, before: int, after: int) -> "AxisMap":
        """With rows of zeros around: the padding of a convolution."""
        around = (0, 0, before, after)
        return AxisMap(F.pad(self.index, around), F.pad(self.weight, around), self.length)

    def shifted(self, offset: int, length: int) -> "AxisMap":
        """The same reading of a line that begins `offset` places later."""
        return AxisMap((self.index - offset).clamp(0, length - 1), self.weight, length)

    def blend(self, first: Tensor, second: Tensor, fraction: Tensor) -> "AxisMap":
        """Rows between two rows of this map: (1 − fraction) · first + fraction · second."""
        weight = torch.cat([self.weight[first] * (1 - fraction), self.weight[second] * fraction], 1)
        return AxisMap(torch.cat([self.index[first], self.index[second]], 1), weight, self.length).compact()

    def compact(self) -> "AxisMap":
        """The same matrix with each column named once in a row, and as few entries as can be."""
        row, entry = self.weight.nonzero(as_tuple=True)
        return _gathered(row, self.index[row, entry], self.weight[row, entry], len(self), self.length)

    @cached_property
    def transposed(self) -> "AxisMap":
        row, entry = self.weight.nonzero(as_tuple=True)
        return _gathered(self.index[row, entry], row, self.weight[row, entry], self.length, len(self))

    @cached_property
    def is_identity(self) -> bool:
        if len(self) != self.length or int((self.weight != 0).sum()) != self.length:
            return False
        same = torch.arange(len(self), device="cpu").unsqueeze(1)
        return bool(((self.index == same) & (self.weight == 1)).any(1).all())

    def dense(self) -> Tensor:
        """The matrix itself, in float64."""
        empty = torch.zeros(len(self), self.length, dtype=torch.float64, device="cpu")
        return empty.scatter_add_(1, self.index, self.weight)


def _gathered(row: Tensor, column: Tensor, value: Tensor, rows: int, columns: int) -> AxisMap:
    """The map of a sparse matrix whose entries come in any order; those of one place are added."""
    place, entry = (row * columns + column).unique(return_inverse=True)
    value = value.new_zeros(len(place)).index_add_(0, entry, value)
    row, column = place // max(columns, 1), place % max(columns, 1)
    count = row.bincount(minlength=rows)
    entries = max(1, int(count.max())) if rows else 1
    slot = torch.arange(len(place), device="cpu") - (count.cumsum(0) - count)[row]
    index = torch.zeros(rows, entries, dtype=torch.long, device="cpu")
    weight = torch.zeros(rows, entries, dtype=torch.float64, device="cpu")
    index[row] = column.unsqueeze(1)  # spare entries of a row name a pixel that it reads
    index[row, slot], weight[row, slot] = column, value
    return AxisMap(index, weight, columns)


def settle(coordinates: Tensor, length: int, reading: Reading) -> Tensor:
    """Where a line is read in fact: between its first pixel and its last, on one of them if the nearest is read."""
    if reading.interpolation == "nearest":  # half away from zero
        coordinates = coordinates.sign() * (coordinates.abs() + (0.5 + SLACK)).floor()
    last = torch.full_like(coordinates, length - 1)
    if reading.border == "reflect":
        period = (2 * last).clamp(min=1)
        coordinates = coordinates.abs() % period
        coordinates = coordinates.minimum(period - coordinates)
    return coordinates.clamp(min=0).minimum(last)


def linear_map(coordinates: Sequence[float], length: int, support: float = 1.0, reading: Reading = BILINEAR) -> AxisMap:
    """Read a line at the given coordinates, linear between neighbours, edge pixels clamped.

    A `support` above 1 widens the triangle to that many pixels a side, which averages pixels instead of skipping them
    where the line is shrunk (antialiasing).
    """
    position = settle(torch.tensor(coordinates, dtype=torch.float64, device="cpu"), length, reading).unsqueeze(1)
    radius = math.ceil(support)
    index = position.floor().long() + torch.arange(1 - radius, radius + 1, device="cpu")  # (n, 2 · radius)
    weight = (1 - (position - index).abs() / support).clamp(min=0)
    weight = torch.where((index >= 0) & (index < length), weight, 0)
    if support > 1:
        weight = weight / weight.sum(1, keepdim=True)
    return AxisMap(index.clamp(0, length - 1), weight, length)


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
    return _plane_map(
        plane_sources(level.matrix, level.image, level.size, y[:, None], x), level.image, level.reading, within
    )


def plane_alignment(level: PlaneLevel) -> AxisMap:
    """From the responses of the level to the outputs, both counted row by row; none to those that it does not cover."""
    y, x = (torch.arange(length, dtype=torch.float64, device="cpu") for length in level.output)
    places = plane_targets(level.matrix, level.image, level.size, level.stride, level.kernel_centre, y[:, None], x)
    return _plane_map(places, level.response, level.reading)


def _plane_map(
    places: tuple[Tensor, Tensor], size: Sequence[int], reading: Reading, within: Tensor | None = None
) -> AxisMap:
    read, there = neighbours(places, size, reading)
    index, weight = (torch.stack([part.flatten() for part in parts], 1) for parts in zip(*read, strict=True))
    for seen in (there, within):
        if seen is not None:
            weight = torch.where(seen.flatten().unsqueeze(1), weight, 0)
    return AxisMap(index.long(), weight, size[0] * size[1])


def _weighted_sums(table: Tensor, first: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """The product of a sparse matrix (CSR) with a table.

    That is what `torch.embedding_bag` computes for the embeddings of words, and it is the fastest that PyTorch has for
    it on a CPU, provided that the rows of the table are not too short.
    """
    result: Tensor = torch.embedding_bag(table, index, first, False, 0, False, weight, True)[0]
    return result


ENTRIES = 2**16  # that are repeated for several images at the most
MOST_IMAGES = 128  # of which both axes are taken at once


@dataclass(frozen=True, eq=False)
class SparseMap:
    """A resampling as a sparse matrix (CSR) on the pixels of an image: of both axes in one, or of one axis alone.

    To that of one axis, each line across it is a pixel.

    Attributes:
        size: (height, width) of the result.
        source: pixels of the image that is read.
        images: how many images the entries below are of, one after the other.
        first: where the entries of each row begin, and where the last ones end.
        index, weight: the entries.
    """

    size: tuple[int, int]
    source: int
    images: int
    first: Tensor
    index: Tensor
    weight: Tensor

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.index.nbytes + self.weight.nbytes

    @cached_property
    def read(self) -> Tensor | None:
        """Which pixels of the result, (h, w, 1), read any of the image; None if all do."""
        count = self.first[: self.size[0] * self.size[1] + 1].diff().view(*self.size, 1)
        return None if bool(count.all()) else count > 0

    def __call__(self, pixels: Tensor) -> Tensor:
        """Resample images (N, …, C), contiguous: (N, h, w, C)."""
        images, channels = pixels.shape[0], pixels.numel() // max(1, pixels.shape[0] * self.source)
        if images == 0:
            return pixels.new_zeros((0, *self.size, pixels.shape[-1]))
        table = pixels.reshape(images * self.source, channels)
        if images <= self.images:
            sums = self._multiply(table, images)
        else:
            parts = table.split(self.images * self.source)
            sums = torch.cat([self._multiply(some, some.shape[0] // self.source) for some in parts])
        return sums.view(images, *self.size, -1)

    def _multiply(self, table: Tensor, images: int) -> Tensor:
        """The product with the pixels of so many images."""
        rows, entries = images * self.size[0] * self.size[1], images * (self.index.shape[0] // self.images)
        return _weighted_sums(table, self.first[: rows + 1], self.index[:entries], self.weight[:entries])


Entries = tuple[Tensor, Tensor, Tensor]  # of a sparse matrix: rows, columns, values


def axis_entries(axis: AxisMap) -> Entries:
    """The entries of a map that are not zero."""
    row, entry = axis.weight.nonzero(as_tuple=True)
    return row, axis.index[row, entry], axis.weight[row, entry]


def plane_entries(rows: AxisMap, columns: AxisMap, place: tuple[Tensor, Tensor] | None = None) -> Entries:
    """The entries of the resampling of both axes as one; pixels are counted row by row.

    Args:
        rows, columns: the maps.
        place: what each row and each column of the result adds to the place of its pixel, if not row by row.
    """
    (down, y, high), (across, x, wide) = (axis_entries(axis.compact()) for axis in (rows, columns))
    if place is None:
        place = torch.arange(len(rows), device="cpu") * len(columns), torch.arange(len(columns), device="cpu")
    row = place[0][down].unsqueeze(1) + place[1][across]
    column = (y * columns.length).unsqueeze(1) + x
    return row.flatten(), column.flatten(), (high.unsqueeze(1) * wide).flatten()


def sparse_map(
    entries: Entries, size: tuple[int, int], source: int, dtype: torch.dtype, most: int = MOST_IMAGES
) -> SparseMap:
    """The matrix with these entries, in any order, for at `most` so many images at a time."""
    row, column, weight = entries
    order = row.argsort(stable=True)
    first = F.pad(row.bincount(minlength=size[0] * size[1]).cumsum(0), (1, 0))
    index, weight = column[order], weight[order].to(dtype)
    images = max(1, min(ENTRIES // max(1, len(index)), most))
    each = torch.arange(images, dtype=torch.int32, device="cpu").unsqueeze(1)
    firsts = torch.cat([(first[:-1] + each * len(index)).flatten(), first[-1:] * images]).int()
    repeated = (index + each * source).flatten().int()
    return SparseMap(size, source, images, firsts, repeated, weight.repeat(images))
