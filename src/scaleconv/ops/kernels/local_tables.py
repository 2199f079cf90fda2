"""Tables of the levels that are evaluated with filters of each position: the filters are resampled, not the images.

At one output position a level is a linear function of the pixels around it, E_p x E_p'ᵀ under the filter W, so the
pixels themselves under E_pᵀ W E_p', the local filter of that position. A filter is resampled like an image, of Kh × Kw
pixels, into the cells of its local filters. Where a batch has many images for each position that costs little, and
then no image is ever interpolated, forward or backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import Axis, AxisLevel, Level
from ..resample import patch_matrix
from ..signature import Signature
from .bands import Bands, level_support, make_bands

MOST_CHANNELS = 128  # those of one pixel are taken together


@dataclass(frozen=True)
class LocalTables:
    """All tables of these levels, on one device.

    Along an axis, the local filter of a position at one level takes in `span` pixels from `low` on, and its cells are
    `span` lines of the resampled filters from `start` on. The span is 0 where the level does not cover the position.

    Attributes:
        codes: the index in `scales` of each level, which is its value in the winner map.
        starts_anew: whether the first level is the identity, which covers every position.
        cells: of all local filters.
        lines: makes of a filter, row by row, the columns of all levels, each of which its rows are made of.
        first_cells, pitches: for each level, its first cell, and the cells from one line to the next.
        row_low, row_span, row_start: (levels, H0)
        col_low, col_span, col_start: (levels, W0)
        row_first, row_last: (H), the range of output rows whose local filters take in this row of the input.
        col_first, col_last: (W)
        row_lines: (lines of all levels, Kh padded to a power of two), which make the rows of cells from a filter.
        first_lines, line_counts: for each level, its rows among `row_lines`.
        line_levels, line_places: for each column of cells, its level and its place there.
    """

    codes: Tensor
    starts_anew: bool
    cells: int
    lines: Bands
    first_cells: Tensor
    pitches: Tensor
    row_low: Tensor
    row_span: Tensor
    row_start: Tensor
    col_low: Tensor
    col_span: Tensor
    col_start: Tensor
    row_first: Tensor
    row_last: Tensor
    col_first: Tensor
    col_last: Tensor
    row_lines: Tensor
    first_lines: Tensor
    line_counts: Tensor
    line_levels: Tensor
    line_places: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        own = sum(table.nbytes for table in vars(self).values() if isinstance(table, Tensor))
        return own + self.lines.nbytes


@dataclass(frozen=True)
class _LocalAxis:
    """One axis of one level: see `LocalTables`; `lines` (lines, kernel) make the cells."""

    low: Tensor
    span: Tensor
    start: Tensor
    lines: Tensor


def count_cells(signature: Signature, level: Level, antialias: bool) -> int:
    """Cells of the local filters of one level."""
    support = level_support(level, antialias)
    axes = ((signature.height, level.height), (signature.width, level.width))
    rows, cols = (len(_local_axis(axis, on, level.scale == 1, support).lines) for axis, on in axes)
    return rows * cols


def make_local_tables(
    signature: Signature, levels: Sequence[Level], antialias: bool, device: torch.device
) -> LocalTables:
    """The tables of at least one level."""
    rows, cols = [], []
    for level in levels:
        support, same = level_support(level, antialias), level.scale == 1
        rows.append(_local_axis(signature.height, level.height, same, support))
        cols.append(_local_axis(signature.width, level.width, same, support))
    row_counts, col_counts = ([len(axis.lines) for axis in axes] for axes in (rows, cols))
    row_lines, col_lines = (torch.cat([axis.lines for axis in axes]) for axes in (rows, cols))
    sizes = [len(row.lines) * len(col.lines) for row, col in zip(rows, cols, strict=True)]

    def integers(values: list[int] | list[Tensor]) -> Tensor:
        whole = torch.stack(values) if isinstance(values[0], Tensor) else torch.tensor(values)
        return whole.to(device, torch.int32).contiguous()

    row_first, row_last = _ranges(rows, signature.height.length)
    col_first, col_last = _ranges(cols, signature.width.length)
    return LocalTables(
        codes=integers([level.index for level in levels]),
        starts_anew=levels[0].scale == 1,
        cells=sum(sizes),
        lines=make_bands([torch.eye(signature.height.kernel, dtype=torch.float64)], [col_lines], device),
        first_cells=integers(list(accumulate(sizes, initial=0))[:-1]),
        pitches=integers([len(col.lines) for col in cols]),
        row_low=integers([row.low for row in rows]),
        row_span=integers([row.span for row in rows]),
        row_start=integers([row.start for row in rows]),
        col_low=integers([col.low for col in cols]),
        col_span=integers([col.span for col in cols]),
        col_start=integers([col.start for col in cols]),
        row_first=row_first.to(device, torch.int32),
        row_last=row_last.to(device, torch.int32),
        col_first=col_first.to(device, torch.int32),
        col_last=col_last.to(device, torch.int32),
        row_lines=F.pad(row_lines, (0, _power_of_two(row_lines.shape[1]))).to(device, torch.float32),
        first_lines=integers(list(accumulate(row_counts, initial=0))[:-1]),
        line_counts=integers(row_counts),
        line_levels=integers([level for level, count in enumerate(col_counts) for _ in range(count)]),
        line_places=integers([place for count in col_counts for place in range(count)]),
    )


def _power_of_two(count: int) -> int:
    """What is missing to the next one."""
    return (1 << (count - 1).bit_length()) - count


def _local_axis(axis: Axis, level: AxisLevel, same: bool, support: float) -> _LocalAxis:
    """The local filters along one axis; those of the identity are all the same, cut at the edges of the image."""
    covered = slice(*level.covered)
    met = patch_matrix(axis, level, support).unflatten(0, (-1, axis.kernel)).mT  # (covered, length, kernel)
    used = (met != 0).any(2)
    first = used.int().argmax(1)
    count = torch.where(used.any(1), axis.length - used.int().flip(1).argmax(1) - first, 0)
    low, span, start = (torch.zeros(axis.output_size, dtype=torch.long) for _ in range(3))
    low[covered], span[covered] = first, count
    if same:
        start[covered] = low[covered] + axis.padding[0] - axis.stride * torch.arange(*level.covered)
        return _LocalAxis(low, span, start, torch.eye(axis.kernel, dtype=torch.float64))
    start[covered] = count.cumsum(0) - count
    lines = [met[p, i : i + n] for p, (i, n) in enumerate(zip(first.tolist(), count.tolist(), strict=True))]
    return _LocalAxis(low, span, start, torch.cat(lines))


def _ranges(axes: Sequence[_LocalAxis], length: int) -> tuple[Tensor, Tensor]:
    """For each pixel of an axis the first output position at which any level takes it in, and one past the last."""
    pixel = torch.arange(length)[:, None]
    first, last = torch.full((length,), len(axes[0].low)), torch.zeros(length, dtype=torch.long)
    for axis in axes:
        there = (axis.span > 0) & (axis.low <= pixel) & (pixel < axis.low + axis.span)  # (length, positions)
        position = torch.arange(there.shape[1])
        first = torch.minimum(first, torch.where(there, position, there.shape[1]).amin(1))
        last = torch.maximum(last, torch.where(there, position + 1, 0).amax(1))
    return first, last
