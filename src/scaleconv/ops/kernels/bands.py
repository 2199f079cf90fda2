"""Resampling matrices as the kernels read them: where the non-zeros of each row begin, and what they are."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import Level


@dataclass(frozen=True)
class Bands:
    """A separable resampling whose matrices have few, neighbouring non-zeros in each row.

    The result can be several images of different sizes, one after the other.

    Attributes:
        row_first, col_first: the first pixel that a row (column) of the matrices reads.
        row_weights, col_weights: (rows, taps), what it takes of that pixel and those after it.
        pixel_rows, pixel_cols: for each pixel of the result, its row of the row and of the column matrices.
        offsets: for each row and each column of the images that are read, what they add to the place of a pixel in
            memory; None if the rows lie one after the other.
    """

    row_first: Tensor
    row_weights: Tensor
    col_first: Tensor
    col_weights: Tensor
    pixel_rows: Tensor
    pixel_cols: Tensor
    offsets: tuple[Tensor, Tensor] | None = None

    @property
    def pixels(self) -> int:
        return len(self.pixel_rows)

    @property
    def nbytes(self) -> int:
        return sum(
            tensor.nbytes for tensor in (*vars(self).values(), *(self.offsets or ())) if isinstance(tensor, Tensor)
        )


def level_support(level: Level, antialias: bool) -> float:
    """Pixels to each side that a sample of the level takes in."""
    return max(1.0, 1 / level.scale) if antialias else 1.0


def make_bands(rows: list[Tensor], cols: list[Tensor], device: torch.device) -> Bands:
    """Bands of the images that these matrices make, one after the other."""
    row_first, row_weights = _concatenate(rows)
    col_first, col_weights = _concatenate(cols)
    pixel_rows, pixel_cols = [], []
    row_start = col_start = 0
    for row, col in zip(rows, cols, strict=True):
        pixel_rows.append((row_start + torch.arange(len(row))).repeat_interleave(len(col)))
        pixel_cols.append((col_start + torch.arange(len(col))).repeat(len(row)))
        row_start, col_start = row_start + len(row), col_start + len(col)
    return Bands(
        row_first=row_first.to(device, torch.int32),
        row_weights=row_weights.to(device, torch.float32).contiguous(),
        col_first=col_first.to(device, torch.int32),
        col_weights=col_weights.to(device, torch.float32).contiguous(),
        pixel_rows=torch.cat(pixel_rows).to(device, torch.int32),
        pixel_cols=torch.cat(pixel_cols).to(device, torch.int32),
    )


def _concatenate(matrices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """First column and weights of the band in every row; bands are as wide as the widest and stay inside the matrix."""
    spans = []
    for matrix in matrices:
        filled = matrix != 0
        first = torch.where(filled.any(1), filled.int().argmax(1), 0)
        last = torch.where(filled.any(1), matrix.shape[1] - 1 - filled.int().flip(1).argmax(1), 0)
        spans.append((first, last))
    taps = max(int((last - first).max()) + 1 for first, last in spans)
    firsts, weights = [], []
    for matrix, (first, _) in zip(matrices, spans, strict=True):
        first = first.clamp(max=max(matrix.shape[1] - taps, 0))
        band = first[:, None] + torch.arange(taps)
        inside = F.pad(matrix, (0, max(taps - matrix.shape[1], 0)))
        firsts.append(first)
        weights.append(inside.gather(1, band))
    return torch.cat(firsts), torch.cat(weights)
