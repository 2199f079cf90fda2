"""The gradient of the input in the order of patches: multiply with the filters, then collect.

The gradient of each patch is the gradient of the outputs that the level won times the filters, a matrix product. A
pixel of the input is part of many patches, and adds up their gradients in a fixed order: no atomics, deterministic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .patch_tables import PatchTables
from .respond import precision
from .sizes import cdiv, next_power_of_2, vector_width


@triton.jit(do_not_specialize=["images"])
def _multiply(
    grad, winner, weight, products, codes, images, positions, filters_per_group, groups, padded_taps, levels,
    SEVERAL: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    block, level = tl.program_id(2) // levels, tl.program_id(2) % levels
    group, part = block % groups, block // groups
    row = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = row < images * positions
    tap = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    image, position = part * images + row // positions, row % positions
    outputs = (image * positions + position) * (groups * filters_per_group) + group * filters_per_group
    code = tl.load(codes + level)
    total = tl.zeros((BLOCK_P, BLOCK_K), dtype=tl.float32)
    for first in range(0, filters_per_group, BLOCK_M):
        within = first + tl.arange(0, BLOCK_M)
        live = within < filters_per_group
        known = valid[:, None] & live[None, :]
        at = outputs[:, None] + within[None, :]
        share = tl.load(grad + at, mask=known, other=0)
        if SEVERAL:
            share = tl.where(tl.load(winner + at, mask=known, other=0) == code, share, 0)
        to = (block * padded_taps + tap)[None, :] * filters_per_group + within[:, None]
        total = tl.dot(share, tl.load(weight + to, mask=live[:, None], other=0), total, input_precision=PRECISION)
    patch = ((image * levels + level) * positions + position) * (groups * TAPS) + group * TAPS
    tl.store(
        products + patch[:, None] + tap[None, :],
        total.to(products.dtype.element_ty),
        mask=valid[:, None] & (tap < TAPS)[None, :],
    )


@triton.jit
def _collect(
    products, result, row_offsets, row_weights, col_offsets, col_weights, row_counts, col_counts, level_stride,
    levels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PER_GROUP: tl.constexpr,
    TAPS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2)
    row = tl.program_id(0) % HEIGHT
    col = tl.program_id(0) // HEIGHT * BLOCK_X + tl.arange(0, BLOCK_X)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = col < WIDTH
    real = (channel < CHANNELS)[None, :]
    within = (channel // PER_GROUP * TAPS + channel % PER_GROUP)[None, :]
    to = result + ((image * HEIGHT + row) * WIDTH + col)[:, None] * CHANNELS + channel[None, :]
    total = tl.load(to, mask=inside[:, None] & real, other=0).to(tl.float32)
    for level in range(0, levels):
        start = (image * levels + level) * level_stride
        row_entry = (level * HEIGHT + row) * ROWS
        rows = tl.load(row_counts + level * HEIGHT + row)
        for j in range(0, tl.load(col_counts + level)):
            col_entry = (level * WIDTH + col) * COLS + j
            col_weight = tl.load(col_weights + col_entry, mask=inside, other=0.0)[:, None]
            from_col = start + tl.load(col_offsets + col_entry, mask=inside, other=0)[:, None]
            taken = (col_weight != 0) & real
            line = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.float32)
            for i in range(0, rows):
                index = tl.multiple_of(from_col + tl.load(row_offsets + row_entry + i) + within, (1, VECTOR))
                value = tl.load(products + tl.max_contiguous(index, (1, VECTOR)), mask=taken, other=0)
                line += value.to(tl.float32) * tl.load(row_weights + row_entry + i)
            total += line * col_weight
    tl.store(to, total.to(result.dtype.element_ty), mask=inside[:, None] & real)


def add_patches_back(
    grad: Tensor, winner: Tensor, weight: Tensor, result: Tensor, tables: PatchTables, groups: int, parts: int,
) -> None:  # fmt: skip
    """Add the gradient of the input that comes by these levels.

    Args:
        grad: (N, positions, M), contiguous.
        winner: the same; without elements if there is one level.
        weight: (parts · groups, padded taps, M / groups), contiguous.
        result: (N, H, W, C), contiguous, added to.
        groups, parts: of the channels, and of the batch.
    """
    images, height, width, channels = result.shape
    positions, filters, levels, taps = grad.shape[1], grad.shape[2] // groups, len(tables), tables.taps
    if images == 0:
        return
    products = grad.new_empty((images, levels, positions, groups * taps))
    narrow = grad.dtype == torch.float32
    block_m = min(max(next_power_of_2(filters), 16), 32 if narrow else 64)
    block_k = min(max(next_power_of_2(taps), 16), 128)
    grid = (
        cdiv(images // parts * positions, 64),
        cdiv(taps, block_k),
        parts * groups * levels,
    )
    _multiply[grid](
        grad, winner, weight, products, tables.codes,
        images // parts, positions, filters, groups, weight.shape[1], levels,
        SEVERAL=winner.numel() > 0, TAPS=taps, PRECISION=precision(),
        BLOCK_P=64, BLOCK_M=block_m, BLOCK_K=block_k, num_warps=4, num_stages=2,
    )  # fmt: skip
    per_group = channels // groups
    vector = vector_width(per_group, grad.dtype)
    block_c = min(next_power_of_2(channels), 64)
    block_x = min(next_power_of_2(width), max(1, 1024 // block_c))
    grid = (cdiv(width, block_x) * height, cdiv(channels, block_c), images)
    _collect[grid](
        products, result, tables.row_offsets, tables.row_weights, tables.col_offsets, tables.col_weights,
        tables.row_counts, tables.col_counts, positions * groups * taps, levels,
        HEIGHT=height, WIDTH=width, CHANNELS=channels, PER_GROUP=per_group, TAPS=taps,
        ROWS=tables.row_offsets.shape[2], COLS=tables.col_offsets.shape[2], VECTOR=vector,
        BLOCK_X=block_x, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
