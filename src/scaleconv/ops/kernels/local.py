"""The layer by local filters: a matrix product for each position, forward and for the gradient of the input.

First the filters of all positions are made, column by column. Then a program owns some images at one place, which all
meet the same filters. Forward it goes through the levels, keeps the strongest, and writes the output and one winner
byte. Backward it owns some pixels of one row of the input and adds up what comes from the outputs around them, always
in the same order: no atomics, nothing in between is written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import trial
from .local_tables import MOST_CHANNELS, LocalTables
from .resample import resample
from .respond import precision
from .sizes import cdiv, next_power_of_2, vector_width

ELEMENTS = 512  # of a cell that a program makes
Blocks = tuple[int, int, int, int, int]  # images, filters or columns, taps or filters, warps, stages


@triton.jit
def _make_cells(
    lines, row_lines, kernels, first_cells, pitches, first_lines, line_counts, line_levels, line_places,
    cells, elements, KERNEL: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, line, columns = tl.program_id(2), tl.program_id(0), tl.num_programs(0)
    level = tl.load(line_levels + line)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, PADDED)
    inside = element < elements
    at = ((part * KERNEL + tap) * columns + line)[:, None] * elements + element[None, :]
    column = tl.load(lines + at, mask=(tap < KERNEL)[:, None] & inside[None, :], other=0)
    cell = part * cells + tl.load(first_cells + level) + tl.load(line_places + line)
    first, pitch = tl.load(first_lines + level), tl.load(pitches + level)
    for row in range(0, tl.load(line_counts + level)):
        weight = tl.load(row_lines + (first + row) * PADDED + tap)
        value = tl.sum(weight[:, None] * column, axis=0)
        tl.store(kernels + (cell + row * pitch) * elements + element, value.to(kernels.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["images"])
def _respond(
    pixels, kernels, bias, output, winner, codes, first_cells, pitches,
    row_low, row_span, row_start, col_low, col_span, col_start,
    images, out_height, out_width, filters, cells, image_stride, width,
    output_stride_n, output_stride_m, output_stride_p,
    CHANNELS: tl.constexpr, LEVELS: tl.constexpr, STARTS_ANEW: tl.constexpr, SEVERAL: tl.constexpr,
    HAS_BIAS: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    positions, part = out_height * out_width, tl.program_id(2)
    position = tl.program_id(0) % positions
    out_row, out_col = position // out_width, position % out_width
    within = tl.program_id(0) // positions * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = within < images
    image = part * images + tl.where(valid, within, 0)
    filter = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = filter < filters
    added = tl.zeros((BLOCK_M,), dtype=tl.float32)
    if HAS_BIAS:
        added += tl.load(bias + part * filters + filter, mask=live, other=0).to(tl.float32)
    written = valid[:, None] & live[None, :]
    at = (image * positions + position)[:, None] * filters + filter[None, :]
    to = (image * output_stride_n + position * output_stride_p)[:, None] + filter[None, :] * output_stride_m
    best = tl.full((BLOCK_N, BLOCK_M), float("-inf"), tl.float32)
    won = tl.full((BLOCK_N, BLOCK_M), 256, tl.int32)
    if not STARTS_ANEW:
        best = tl.load(output + to, mask=written, other=0).to(tl.float32)
        won = tl.load(winner + at, mask=written, other=0).to(tl.int32)
    for level in range(0, LEVELS):
        row, col = level * out_height + out_row, level * out_width + out_col
        across = tl.load(col_span + col)
        taps = tl.load(row_span + row) * across * CHANNELS
        pitch = tl.load(pitches + level)
        start = image * image_stride + (tl.load(row_low + row) * width + tl.load(col_low + col)) * CHANNELS
        cell = part * cells + tl.load(first_cells + level) + tl.load(row_start + row) * pitch + tl.load(col_start + col)
        total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for first in range(0, taps, BLOCK_K):
            tap = first + tl.arange(0, BLOCK_K)
            used = tap < taps
            if VECTOR > 1:
                used = tl.max_constancy(used, VECTOR)
            channel, place = tap % CHANNELS, tap // CHANNELS
            down = place // across
            right = place - down * across
            offset = (down * width + right) * CHANNELS + channel
            index = tl.max_contiguous(tl.multiple_of(start[:, None] + offset[None, :], (1, VECTOR)), (1, VECTOR))
            seen = tl.load(pixels + index, mask=used[None, :], other=0)
            index = ((cell + down * pitch + right) * filters * CHANNELS + channel)[:, None] + filter[None, :] * CHANNELS
            index = tl.max_contiguous(tl.multiple_of(index, (VECTOR, 1)), (VECTOR, 1))
            kernel = tl.load(kernels + index, mask=used[:, None] & live[None, :], other=0)
            total = tl.dot(seen, kernel, total, input_precision=PRECISION)
        aligned = total + added[None, :]
        code = tl.load(codes + level)
        wins = (aligned > best) | ((aligned == best) & (code < won)) | ((aligned != aligned) & (best == best))
        wins = wins & (taps > 0)
        best = tl.where(wins, aligned, best)
        won = tl.where(wins, code, won)
    if SEVERAL:
        tl.store(winner + at, won.to(tl.uint8), mask=written)
    tl.store(output + to, best.to(output.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["images"])
def _back(
    grad, winner, kernels, result, codes, first_cells, pitches,
    row_low, row_span, row_start, col_low, col_span, col_start, row_first, row_last, col_first, col_last,
    images, out_height, out_width, filters, cells, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    LEVELS: tl.constexpr, SEVERAL: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr, PIXELS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    positions, part = out_height * out_width, tl.program_id(2)
    row = tl.program_id(0) % HEIGHT
    within = tl.program_id(0) // HEIGHT * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = within < images
    image = part * images + tl.where(valid, within, 0)
    left = tl.program_id(1) * PIXELS
    right = tl.minimum(left + PIXELS, WIDTH) - 1
    column = left * CHANNELS + tl.arange(0, BLOCK_X)  # of the row, its pixels' channels side by side
    total = tl.zeros((BLOCK_N, BLOCK_X), dtype=tl.float32)
    for out_row in range(tl.load(row_first + row), tl.load(row_last + row)):
        for out_col in range(tl.load(col_first + left), tl.load(col_last + right)):
            outputs = (image * positions + out_row * out_width + out_col) * filters
            for first in range(0, filters, BLOCK_M):
                filter = first + tl.arange(0, BLOCK_M)
                live = filter < filters
                at = outputs[:, None] + filter[None, :]
                known = valid[:, None] & live[None, :]
                slope = tl.load(grad + at, mask=known, other=0)
                won = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.uint8)
                if SEVERAL:
                    won = tl.load(winner + at, mask=known, other=0)
                for level in range(0, LEVELS):
                    y, x = level * out_height + out_row, level * out_width + out_col
                    down = row - tl.load(row_low + y)
                    low, across = tl.load(col_low + x), tl.load(col_span + x)
                    taken = (down >= 0) & (down < tl.load(row_span + y)) & (low <= right) & (low + across > left)
                    if taken:
                        share = slope
                        if SEVERAL:
                            share = tl.where(won == tl.load(codes + level), slope, 0)
                        line = (tl.load(row_start + y) + down) * tl.load(pitches + level)
                        cell = part * cells + tl.load(first_cells + level) + line + tl.load(col_start + x) - low
                        inside = (column >= low * CHANNELS) & (column < tl.minimum(low + across, right + 1) * CHANNELS)
                        index = filter[:, None] + (cell * CHANNELS + column)[None, :] * filters
                        index = tl.max_contiguous(tl.multiple_of(index, (VECTOR, 1)), (VECTOR, 1))
                        kernel = tl.load(kernels + index, mask=live[:, None] & inside[None, :], other=0)
                        total = tl.dot(share, kernel, total, input_precision=PRECISION)
    to = result + ((image * HEIGHT + row) * WIDTH * CHANNELS)[:, None] + column[None, :]
    mask = valid[:, None] & (column < (right + 1) * CHANNELS)[None, :]
    total += tl.load(to, mask=mask, other=0).to(tl.float32)
    tl.store(to, total.to(result.dtype.element_ty), mask=mask)


def respond_locally(
    pixels: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
    winner: Tensor,
    tables: LocalTables,
    parts: int,
    blocks: Blocks | None = None,
) -> None:
    """Fill output and winner; without the identity among the levels, what is in them already competes as well.

    Args:
        pixels: (N, H, W, C), contiguous.
        weight: (parts · M, C, Kh, Kw); part i of the batch is convolved with the i-th M filters.
        bias: (parts · M) or None.
        output: (N, M, H0, W0), of any strides whose last two dimensions can be seen as one.
        winner: (N, positions, M), contiguous; without elements if there is one level.
        parts: of the batch.
        blocks: images, filters and taps at a time, warps and stages; chosen if None.
    """
    total, height, width, channels = pixels.shape
    filters = output.shape[1]
    if total == 0:
        return
    kernels = _local_filters(weight.unflatten(0, (parts, filters)).permute(0, 3, 4, 1, 2), tables)
    images, (out_height, out_width) = total // parts, output.shape[2:]

    def launch(blocks: Blocks, pixels: Tensor, kernels: Tensor, output: Tensor, winner: Tensor) -> None:
        block_n, block_m, block_k, warps, stages = blocks
        grid = (cdiv(images, block_n) * out_height * out_width, cdiv(filters, block_m), parts)
        _respond[grid](
            pixels, kernels, weight if bias is None else bias, output, winner, tables.codes, tables.first_cells,
            tables.pitches, tables.row_low, tables.row_span, tables.row_start, tables.col_low, tables.col_span,
            tables.col_start, images, out_height, out_width, filters, tables.cells, height * width * channels, width,
            output.stride(0), output.stride(1), output.stride(3), CHANNELS=channels, LEVELS=len(tables),
            STARTS_ANEW=tables.starts_anew, SEVERAL=winner.numel() > 0, HAS_BIAS=bias is not None,
            VECTOR=vector_width(channels, pixels.dtype), PRECISION=precision(),
            BLOCK_N=block_n, BLOCK_M=block_m, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    if blocks is None:
        table = choose_blocks(filters)
        layer = _layer(weight, tables, parts, pixels)
        blocks = trial.choose(
            "respond_locally", layer, pixels.device, table, other_blocks,
            lambda: trial.on_random_numbers(launch, tables.codes, (pixels, kernels), (output, winner)),
        )  # fmt: skip
    launch(blocks, pixels, kernels, output, winner)


def add_back_locally(
    grad: Tensor,
    winner: Tensor,
    weight: Tensor,
    result: Tensor,
    tables: LocalTables,
    parts: int,
    blocks: Blocks | None = None,
) -> None:
    """Add the gradient of the input that comes by these levels.

    Args:
        grad: (N, H0, W0, M), contiguous.
        winner: the same; without elements if there is one level.
        weight: (parts · M, C, Kh, Kw)
        result: (N, H, W, C), contiguous, added to.
        parts: of the batch.
        blocks: images, columns and filters at a time, warps and stages; chosen if None.
    """
    total, height, width, channels = result.shape
    _, out_height, out_width, filters = grad.shape
    if total == 0:
        return
    kernels = _local_filters(weight.unflatten(0, (parts, filters)).permute(0, 3, 4, 2, 1), tables)
    images = total // parts

    def launch(blocks: Blocks, grad: Tensor, winner: Tensor, kernels: Tensor, result: Tensor) -> None:
        block_n, block_x, block_m, warps, stages = blocks
        together = max(1, min(block_x // channels, width))
        grid = (cdiv(images, block_n) * height, cdiv(width, together), parts)
        _back[grid](
            grad, winner, kernels, result, tables.codes, tables.first_cells, tables.pitches,
            tables.row_low, tables.row_span, tables.row_start, tables.col_low, tables.col_span, tables.col_start,
            tables.row_first, tables.row_last, tables.col_first, tables.col_last,
            images, out_height, out_width, filters, tables.cells, HEIGHT=height, WIDTH=width, CHANNELS=channels,
            LEVELS=len(tables), SEVERAL=winner.numel() > 0, VECTOR=vector_width(filters, grad.dtype),
            PRECISION=precision(), PIXELS=together, BLOCK_N=block_n, BLOCK_X=block_x, BLOCK_M=block_m,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    if blocks is None:
        table = choose_back_blocks(filters, len(tables), height * width)
        layer = _layer(weight, tables, parts, grad)
        blocks = trial.choose(
            "add_back_locally", layer, grad.device, table, other_back_blocks,
            lambda: trial.on_random_numbers(launch, tables.codes, (grad, winner, kernels), (result,)),
        )  # fmt: skip
    launch(blocks, grad, winner, kernels, result)


def _local_filters(filters: Tensor, tables: LocalTables) -> Tensor:
    """All local filters of (parts, Kh, Kw, …): (parts, cells, …), flattened behind the cells."""
    source = filters.flatten(3).contiguous()
    parts, height, _, elements = source.shape
    columns = len(tables.line_levels)
    lines = source.new_empty((parts, height * columns, elements), dtype=torch.float32)
    resample(source, tables.lines, lines)
    kernels = source.new_empty((parts, tables.cells, elements))
    _make_cells[columns, cdiv(elements, ELEMENTS), parts](
        lines, tables.row_lines, kernels, tables.first_cells, tables.pitches, tables.first_lines, tables.line_counts,
        tables.line_levels, tables.line_places, tables.cells, elements,
        KERNEL=height, PADDED=tables.row_lines.shape[1], BLOCK=ELEMENTS, num_warps=4,
    )  # fmt: skip
    return kernels


def _layer(weight: Tensor, tables: LocalTables, parts: int, pixels: Tensor) -> tuple[object, ...]:
    """All that the speed of a kernel depends on but the batch size."""
    return (*weight.shape, *pixels.shape[1:3], parts, len(tables), tables.cells, pixels.dtype, precision())


def choose_blocks(filters: int) -> Blocks:
    """The fastest on an H200 for the second layer of the paper's network, in float32 and bfloat16."""
    block_m = min(max(next_power_of_2(filters), 16), 128)
    return 128 if block_m <= 64 else 64, block_m, 32, 4, 3


def choose_back_blocks(filters: int, levels: int, pixels: int) -> Blocks:
    block_m = min(max(next_power_of_2(filters), 16), 64)
    return (128, MOST_CHANNELS, block_m, 4, 1) if levels == 1 and pixels > 256 else (64, MOST_CHANNELS, block_m, 4, 2)


def other_blocks(table: Blocks) -> list[Blocks]:
    """What else may be fast, for as many filters at a time."""
    sizes = ((64, 32, 4, 3), (64, 64, 4, 2), (128, 32, 4, 2), (128, 32, 8, 3), (128, 64, 4, 2), (128, 64, 8, 2))
    return [(images, table[1], taps, warps, stages) for images, taps, warps, stages in sizes]


def other_back_blocks(table: Blocks) -> list[Blocks]:
    sizes = ((64, 4, 2), (64, 4, 3), (64, 8, 1), (128, 4, 1), (128, 4, 2), (128, 8, 1), (128, 8, 2))
    return [(images, *table[1:3], warps, stages) for images, warps, stages in sizes]
