"""The gradient of the weight by local filters: first of the filters of each position, then of what they were made of.

The gradient of a local filter is one matrix product over the images. A filter is part of all its local filters, and
adds up their gradients with the weights by which it was resampled: along the rows, then along the columns. Everything
is added in a fixed order, so the result is deterministic.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .local_tables import TAPS, LocalTables
from .resample import vector_width
from .respond import precision

COLUMNS = 512  # elements of a cell that a program adds up
Blocks = tuple[int, int, int, int]  # images, filters, warps, stages


@triton.jit(do_not_specialize=["images", "total_images"])
def _multiply(
    pixels, grad, winner, products, blocks, codes, first_cells, pitches,
    row_low, row_span, row_start, col_low, col_span, col_start,
    images, total_images, out_height, out_width, filters, cells, width, CHANNELS: tl.constexpr, VECTOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    positions, part = out_height * out_width, tl.program_id(2)
    number = tl.load(blocks + 2 * tl.program_id(0))
    level, position = number // positions, number % positions
    row, col = level * out_height + position // out_width, level * out_width + position % out_width
    across = tl.load(col_span + col)
    taps = tl.load(row_span + row) * across * CHANNELS
    tap = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK_K)
    used = tap < taps
    channel, place = tap % CHANNELS, tap // CHANNELS
    down = place // across
    right = place - down * across
    start = tl.load(row_low + row) * width + tl.load(col_low + col)
    from_tap = (start + down * width + right) * CHANNELS + channel
    filter = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = filter < filters
    from_filter = position * filters + filter
    code = tl.load(codes + level)
    total = tl.zeros((BLOCK_K, BLOCK_M), dtype=tl.float32)
    for first in range(0, images, BLOCK_N):
        image = first + tl.arange(0, BLOCK_N)
        valid = image < images
        if VECTOR > 1:
            valid = tl.max_constancy(valid, VECTOR)
        image = tl.max_contiguous(tl.multiple_of(part * images + image, VECTOR), VECTOR)
        at = tl.multiple_of(from_tap[:, None] * total_images + image[None, :], (1, VECTOR))
        seen = tl.load(pixels + at, mask=used[:, None] & valid[None, :], other=0)
        at = tl.multiple_of(from_filter[:, None] * total_images + image[None, :], (1, VECTOR))
        known = live[:, None] & valid[None, :]
        slope = tl.load(grad + at, mask=known, other=0)
        share = tl.where(tl.load(winner + at, mask=known, other=0) == code, slope, 0)
        total = tl.dot(seen, tl.trans(share), total, input_precision=PRECISION)
    cell = part * cells + tl.load(first_cells + level) + tl.load(row_start + row) * tl.load(pitches + level)
    to = ((cell + tl.load(col_start + col) + down * tl.load(pitches + level) + right) * CHANNELS + channel) * filters
    tl.store(products + to[:, None] + filter[None, :], total, mask=used[:, None] & live[None, :])


@triton.jit
def _add_rows(
    products, row_lines, result, first_cells, pitches, first_lines, line_counts, line_levels, line_places,
    cells, elements, KERNEL: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, line = tl.program_id(2), tl.program_id(0)
    level = tl.load(line_levels + line)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, PADDED)
    inside = element < elements
    cell = part * cells + tl.load(first_cells + level) + tl.load(line_places + line)
    first, pitch = tl.load(first_lines + level), tl.load(pitches + level)
    total = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for row in range(0, tl.load(line_counts + level)):
        weight = tl.load(row_lines + (first + row) * PADDED + tap)
        value = tl.load(products + (cell + row * pitch) * elements + element, mask=inside, other=0)
        total += weight[:, None] * value[None, :]
    to = ((part * tl.num_programs(0) + line) * KERNEL + tap)[:, None] * elements + element[None, :]
    tl.store(result + to, total, mask=(tap < KERNEL)[:, None] & inside[None, :])


def local_weight_grad(
    pixels: Tensor,
    grad: Tensor,
    winner: Tensor,
    groups: Sequence[LocalTables],
    kernel: Sequence[int],
    parts: int,
    blocks: Blocks | None = None,
) -> Tensor:
    """Gradient of the weight, in float32: (parts · M, C, Kh, Kw).

    Args:
        pixels: (N, H, W, C)
        grad: (N, H0, W0, M)
        winner: the same.
        groups: tables of the levels that are taken at once, each position with cells of its own.
        kernel: Kh, Kw.
        parts: of the batch.
        blocks: images and filters at a time, warps and stages; chosen by the sizes if None.
    """
    total, _, width, channels = pixels.shape
    _, out_height, out_width, filters = grad.shape
    elements, images = channels * filters, total // parts
    result = grad.new_zeros((parts, kernel[1], kernel[0], channels, filters), dtype=torch.float32)
    pixels, grad, winner = (tensor.permute(1, 2, 3, 0).contiguous() for tensor in (pixels, grad, winner))
    block_n, block_m, warps, stages = blocks or choose_blocks(filters)
    for tables in groups:
        products = result.new_empty((parts, tables.cells, elements))
        _multiply[len(tables.blocks), triton.cdiv(filters, block_m), parts](
            pixels, grad, winner, products, tables.blocks, tables.codes, tables.first_cells, tables.pitches,
            tables.row_low, tables.row_span, tables.row_start, tables.col_low, tables.col_span, tables.col_start,
            images, total, out_height, out_width, filters, tables.cells, width, CHANNELS=channels,
            VECTOR=vector_width(images, grad.dtype), PRECISION=precision(),
            BLOCK_N=block_n, BLOCK_M=block_m, BLOCK_K=TAPS, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        lines = result.new_empty((parts, len(tables.col_lines), kernel[0] * elements))
        _add_rows[len(tables.col_lines), triton.cdiv(elements, COLUMNS), parts](
            products, tables.row_lines, lines, tables.first_cells, tables.pitches, tables.first_lines,
            tables.line_counts, tables.line_levels, tables.line_places, tables.cells, elements,
            KERNEL=kernel[0], PADDED=tables.row_lines.shape[1], BLOCK=COLUMNS, num_warps=4,
        )  # fmt: skip
        result += (tables.col_lines.mT @ lines).view_as(result)
    return result.permute(0, 4, 3, 2, 1).flatten(0, 1)


def choose_blocks(filters: int) -> Blocks:
    return 64, min(max(triton.next_power_of_2(filters), 16), 64), 4, 2
