"""Resampling by bags: for each pixel of the result, the pixels that it takes and their weights.

A product with a matrix grows with the length of the image; a bag reads only what counts. On a CPU that is several times
as fast, by the operator that sums word embeddings. Compilers and transforms do not know it. A matrix that is nearly
all zeros is multiplied the same way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .resample import SIDE_BY_SIDE

ENTRIES = 2**16  # of the bags of all images that one call takes, unless one image has more
MOST_IMAGES = 16
SUM = 0  # what `torch.embedding_bag` makes of a bag


@dataclass(frozen=True)
class Bags:
    """A resampling of both axes in one.

    Attributes:
        size: of the result, (height, width).
        count: bags of one image; a multiple of the pixels of the result if patches are gathered.
        source: pixels of one image that is read.
        images: how many images the bags below are of, one after the other.
        first: where each bag begins, and where the last one ends.
        pixels, weights: what the bags hold.
    """

    size: tuple[int, int]
    count: int
    source: int
    images: int
    first: Tensor
    pixels: Tensor
    weights: Tensor

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.pixels.nbytes + self.weights.nbytes


def make_bags(rows: Tensor, columns: Tensor, taps: tuple[int, ...], dtype: torch.dtype) -> tuple[Bags, Bags]:
    """There and back, for matrices rows (h, H) and columns (w, W).

    With taps (Kh, Kw) they are those of `patch_matrix`, and the bags of an output lie in the order of `gather_patches`.
    """
    (row, above), (column, left) = rows.nonzero(as_tuple=True), columns.nonzero(as_tuple=True)
    high, wide = taps or (1, 1)
    size = (len(rows) // high, len(columns) // wide)
    made = _outer(row // high * size[1] * wide * high + row % high, column // wide * wide * high + column % wide * high)
    read = _outer(above * columns.shape[1], left)
    weights = (rows[row, above, None] * columns[column, left]).flatten().to(dtype)
    count, source = len(rows) * len(columns), rows.shape[1] * columns.shape[1]
    there = _bags(made, read, weights, count, source, size)
    return there, _bags(read, made, weights, source, count, (rows.shape[1], columns.shape[1]))


def _outer(by_row: Tensor, by_column: Tensor) -> Tensor:
    return (by_row[:, None] + by_column).flatten()


def _bags(made: Tensor, read: Tensor, weights: Tensor, count: int, source: int, size: tuple[int, int]) -> Bags:
    order = made.argsort(stable=True)
    images = max(1, min(ENTRIES // max(1, len(order)), MOST_IMAGES))
    each = torch.arange(images, device=made.device)[:, None]
    first = torch.cat([made.new_zeros(1), made.bincount(minlength=count).cumsum(0)])
    return Bags(
        size=size,
        count=count,
        source=source,
        images=images,
        first=torch.cat([(first[:-1] + each * len(order)).flatten(), first[-1:] * images]).int(),
        pixels=(read[order] + each * source).flatten().int(),
        weights=weights[order].repeat(images),
    )


def resample_by_bags(images: Tensor, bags: Bags, channels: int) -> Tensor:
    """Resample images (N, C, H, W) in channels_last, N > 0; `channels` are those of an image that is not in patches."""
    pixels = images.permute(0, 2, 3, 1)  # (N, H, W, C)
    if channels < SIDE_BY_SIDE:  # too few to be worth a bag: all images take part in it
        together = pixels.permute(1, 2, 0, 3).reshape(bags.source, -1)
        result = _sum(together, bags, 1).view(*bags.size, len(images), -1).permute(2, 0, 1, 3).contiguous()
    else:
        some = pixels.reshape(len(images), bags.source, channels).split(bags.images)
        sums = [_sum(pixels.flatten(0, 1), bags, len(pixels)) for pixels in some]
        result = (sums[0] if len(sums) == 1 else torch.cat(sums)).view(len(images), *bags.size, -1)
    return result.permute(0, 3, 1, 2)


def _sum(pixels: Tensor, bags: Bags, images: int) -> Tensor:
    entries = len(bags.pixels) // bags.images * images
    first, held, weights = bags.first[: images * bags.count + 1], bags.pixels[:entries], bags.weights[:entries]
    sums: Tensor = torch.embedding_bag(pixels, held, first, False, SUM, False, weights, True)[0]
    return sums


def sparse_product(matrix: Tensor, table: Tensor) -> Tensor:
    """The product of a matrix (n, m), nearly all zeros, with a table (m, k)."""
    row, column = matrix.nonzero(as_tuple=True)
    first = torch.cat([row.new_zeros(1), row.bincount(minlength=len(matrix)).cumsum(0)])
    sums: Tensor = torch.embedding_bag(table, column, first, False, SUM, False, matrix[row, column], True)[0]
    return sums
