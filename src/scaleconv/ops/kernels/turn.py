"""Transposition in tiles: memory is read and written in whole lines, as PyTorch's copy of a transpose does not."""

import triton
import triton.language as tl
from torch import Tensor

from .sizes import cdiv

TILE = 64


@triton.jit(do_not_specialize=["rows", "columns"])
def _turn(source, target, rows, columns, TILE: tl.constexpr):
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    here = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(source + row.to(tl.int64)[:, None] * columns + column[None, :], mask=here)
    tl.store(target + column.to(tl.int64)[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(here))


def turn(source: Tensor) -> Tensor:
    """The transpose of a contiguous matrix, contiguous."""
    rows, columns = source.shape
    target = source.new_empty((columns, rows))
    if target.numel():
        _turn[cdiv(columns, TILE), cdiv(rows, TILE)](source, target, rows, columns, TILE=TILE, num_warps=4)
    return target
