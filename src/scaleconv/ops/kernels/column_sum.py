"""Sums over the rows of matrices: the gradient of a bias.

The rows are divided among programs, each of which writes its own sums; these are added afterwards, always in the same
order, so the result is deterministic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .respond import NOBODY
from .sizes import cdiv, next_power_of_2

ELEMENTS = 4096  # that a program reads at a time
PROGRAMS = 528  # as many as a GPU of about 130 multiprocessors runs at once


@triton.jit(do_not_specialize=["rows", "rows_per_split"])
def _column_sum(
    source, winner, sums, rows, rows_per_split, MASKED: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    split, part = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = split * rows_per_split
    end = tl.minimum(first + rows_per_split, rows)
    total = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(first, end, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        at = (part * rows.to(tl.int64) + row)[:, None] * COLUMNS + column[None, :]
        here = (row < end)[:, None] & (column < COLUMNS)[None, :]
        if MASKED:
            here = here & (tl.load(winner + at, mask=here, other=NOBODY) != NOBODY)
        total += tl.load(source + at, mask=here, other=0).to(tl.float32)
    to = (split * tl.num_programs(2) + part) * COLUMNS + column
    tl.store(sums + to, tl.sum(total, axis=0), mask=column < COLUMNS)


def column_sum(source: Tensor, winner: Tensor | None = None) -> Tensor:
    """The sums over the rows of contiguous matrices (parts, rows, columns), in float32: (parts, columns).

    Where there is a `winner`, of the same shape, what `NOBODY` won is left out.
    """
    parts, rows, columns = source.shape
    if rows == 0:
        return source.new_zeros((parts, columns), dtype=torch.float32)
    block_c = min(next_power_of_2(columns), 64)
    block_r = ELEMENTS // block_c
    splits, rows_per_split = choose_splits(rows, block_r, cdiv(columns, block_c) * parts)
    sums = source.new_empty((splits, parts, columns), dtype=torch.float32)
    _column_sum[(splits, cdiv(columns, block_c), parts)](
        source, source if winner is None else winner, sums, rows, rows_per_split,
        MASKED=winner is not None, COLUMNS=columns, BLOCK_R=block_r, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return sums.sum(0)


def choose_splits(rows: int, block_r: int, tiles: int) -> tuple[int, int]:
    """How many programs share the rows of a matrix, and how many rows each takes: whole blocks."""
    blocks = cdiv(rows, block_r)
    each = cdiv(blocks, max(1, PROGRAMS // tiles))
    return cdiv(blocks, each), each * block_r
