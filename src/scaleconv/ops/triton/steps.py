"""The four steps around a convolution on a GPU: sample, compete, and their transposes, spread and collect.

There are two kernels. One writes a canvas: each of its pixels reads a few pixels of an image. It samples the input, and
spreads the gradient of the outputs over the responses that won them. The other reads a canvas: each pixel of its result
reads a few pixels of every strip. It aligns the responses and keeps the strongest, and it collects the gradient of the
input. A program owns some columns of one row, of some images. No atomics: results are deterministic.

All tensors are (images, H, W, channels) as in `ops.cpu`; in the layout CHWN the roles of images and channels change.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..plan import Canvas
from .lookup import Tables, find_tables, next_power_of_2

NBYTES = 4096  # of the result that a program makes: 32 for each thread
MOST_BLOCKS = 2**16 - 1  # along the second axis of a grid, by CUDA
# Sizes change from layer to layer: a kernel compiled for each would take longer than it saves.
SIZES = ["rows", "width", "channels", "strips", "row_entries", "col_entries"]
STRIDES = ["source_image", "result_image", "canvas_image"]


@triton.jit
def _read_pixels(
    total, source, winner, code, line, weight_y, col_index, col_weight, entry, inside, live, channel,
    MASKED: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Add one pixel of a line for every column, times its weight."""
    weight = weight_y * tl.load(col_weight + entry, mask=inside, other=0)
    pixel = tl.load(col_index + entry, mask=inside, other=0)
    taken = (weight != 0)[:, None] & live  # what has no weight may be NaN
    index = tl.multiple_of(line + pixel[:, None] + channel, (1, VECTOR))
    value = tl.load(source + index, mask=taken, other=0).to(tl.float32)
    if MASKED:
        value = tl.where(tl.load(winner + index, mask=taken, other=0) == code, value, 0)
    return total + value * weight[:, None]


@triton.jit
def _read(
    source, winner, code, row_index, row_weight, row, row_entries, col_index, col_weight, column, col_entries,
    inside, live, channel, MASKED: tl.constexpr, UNROLLED: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Σ of the pixels that a row of the result reads, times their weights.

    UNROLLED entries of a column are read without a loop, and as many of a row if they are at most 2; 0: all in loops.
    """
    total = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.float32)
    if (UNROLLED == 1) | (UNROLLED == 2):
        for i in tl.static_range(UNROLLED):
            weight_y = tl.load(row_weight + row * UNROLLED + i)
            line = tl.load(row_index + row * UNROLLED + i)
            for j in tl.static_range(UNROLLED):
                total = _read_pixels(
                    total, source, winner, code, line, weight_y, col_index, col_weight, column * UNROLLED + j, inside,
                    live, channel, MASKED, VECTOR,
                )  # fmt: skip
    else:
        for i in range(row_entries):
            weight_y = tl.load(row_weight + row * row_entries + i)
            if weight_y != 0:
                line = tl.load(row_index + row * row_entries + i)
                if UNROLLED > 0:
                    for j in tl.static_range(UNROLLED):
                        total = _read_pixels(
                            total, source, winner, code, line, weight_y, col_index, col_weight, column * UNROLLED + j,
                            inside, live, channel, MASKED, VECTOR,
                        )  # fmt: skip
                else:
                    for j in range(col_entries):
                        total = _read_pixels(
                            total, source, winner, code, line, weight_y, col_index, col_weight,
                            column * col_entries + j, inside, live, channel, MASKED, VECTOR,
                        )  # fmt: skip
    return total


@triton.jit
def _block(rows, width, channels, VECTOR: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr):
    """Image, row, columns and channels of this program, and which of them there are."""
    blocks = tl.cdiv(channels, BLOCK_C)
    x = tl.program_id(1) // blocks * BLOCK_X + tl.arange(0, BLOCK_X)
    channel = (tl.program_id(1) % blocks * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    live = channel < channels
    if VECTOR > 1:
        live = tl.max_constancy(live, (1, VECTOR))
    return tl.cast(tl.program_id(0) // rows, tl.int64), tl.program_id(0) % rows, x, channel, x < width, live


@triton.jit(do_not_specialize=[*SIZES, *STRIDES])
def _write_canvas(
    source, winner, result, row_index, row_weight, col_index, col_weight, row_at, col_at, row_strip, codes,
    rows, width, channels, row_entries, col_entries, source_image, result_image,
    MASKED: tl.constexpr, UNROLLED: tl.constexpr, VECTOR: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    image, row, x, channel, inside, live = _block(rows, width, channels, VECTOR, BLOCK_X, BLOCK_C)
    start, begin = tl.multiple_of(image * source_image, VECTOR), tl.multiple_of(image * result_image, VECTOR)
    source, winner, result = source + start, winner + start, result + begin
    strip = tl.load(row_strip + row)
    code = tl.load(codes + strip) // 2
    at = tl.load(row_at + row) + tl.load(col_at + x, mask=inside, other=0)
    total = _read(
        source, winner, code, row_index, row_weight, row, row_entries, col_index, col_weight, strip * width + x,
        col_entries, inside, live, channel, MASKED, UNROLLED, VECTOR, BLOCK_X, BLOCK_C,
    )  # fmt: skip
    to = tl.multiple_of(at[:, None] + channel, (1, VECTOR))
    tl.store(result + to, total.to(result.dtype.element_ty), mask=inside[:, None] & live)


@triton.jit(do_not_specialize=[*SIZES, *STRIDES])
def _read_canvas(
    canvas, result, winner, row_index, row_weight, col_index, col_weight, row_at, col_at, codes,
    strips, rows, width, channels, row_entries, col_entries, canvas_image, result_image,
    COMPETE: tl.constexpr, START: tl.constexpr, UNROLLED: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    image, row, x, channel, inside, live = _block(rows, width, channels, VECTOR, BLOCK_X, BLOCK_C)
    start, begin = tl.multiple_of(image * canvas_image, VECTOR), tl.multiple_of(image * result_image, VECTOR)
    canvas, result, winner = canvas + start, result + begin, winner + begin
    at = tl.load(row_at + row) + tl.load(col_at + x, mask=inside, other=0)
    to = tl.multiple_of(at[:, None] + channel, (1, VECTOR))
    written = inside[:, None] & live
    won = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.int32)
    if START:
        best = tl.full((BLOCK_X, BLOCK_C), float("-inf") if COMPETE else 0.0, dtype=tl.float32)
    else:
        best = tl.load(result + to, mask=written, other=0).to(tl.float32)
        if COMPETE:
            won = tl.load(winner + to, mask=written, other=0).to(tl.int32)
    for strip in range(strips):
        line = strip * rows + row
        if tl.load(row_weight + line * row_entries) != 0:  # the strip covers this row
            column = strip * width + x
            aligned = _read(
                canvas, canvas, 0, row_index, row_weight, line, row_entries, col_index,
                col_weight, column, col_entries, inside, live, channel, False, UNROLLED, VECTOR, BLOCK_X, BLOCK_C,
            )  # fmt: skip
            if COMPETE:
                code = tl.load(codes + strip)
                covered = (tl.load(col_weight + column * col_entries, mask=inside, other=0) != 0)[:, None]
                aligned = aligned.to(result.dtype.element_ty).to(tl.float32)
                wins = (aligned > best) | ((aligned == best) & (code % 2 == 1))
                wins = (wins | ((aligned != aligned) & (best == best))) & covered
                best = tl.where(wins, aligned, best)
                won = tl.where(wins, code // 2, won)
            else:
                best += aligned
    if COMPETE:
        tl.store(winner + to, won.to(tl.uint8), mask=written)
    tl.store(result + to, best.to(result.dtype.element_ty), mask=written)


def sample(pixels: Tensor, canvas: Canvas) -> Tensor:
    """Put the rescaled images on the canvas: (N, H, W, C) → `canvas.shape`."""
    sampled = pixels.new_empty(canvas.shape(*pixels.shape[::3]))
    _write(pixels, None, sampled, find_tables(canvas, "sample", pixels), canvas)
    return sampled


def spread(grad: Tensor, winner: Tensor, canvas: Canvas) -> Tensor:
    """The transpose of `compete`: the gradient (N, H0, W0, M) of each response, from the outputs that it won."""
    share = grad.new_empty((len(grad), *canvas.response, grad.shape[3]))
    _write(grad, winner, share, find_tables(canvas, "spread", grad), canvas)
    return share


def compete(response: Tensor, canvas: Canvas, output: Tensor, winner: Tensor) -> None:
    """Align the responses (N, h', w', M); where one is stronger than the output so far, it becomes the output.

    Before scale 1 there is no output.
    """
    start = canvas.strips[0].code == 0
    _read_back(response, output, winner, find_tables(canvas, "compete", output), canvas, start)


def collect(sampled: Tensor, canvas: Canvas, total: Tensor, *, start: bool) -> None:
    """Add the transpose of `sample` to the gradient of the images, of which at the `start` there is none."""
    _read_back(sampled, total, None, find_tables(canvas, "collect", total, start), canvas, start)


def mask_by_winner(grad: Tensor, winner: Tensor, code: int) -> Tensor:
    """The gradient where this level won, 0 elsewhere."""
    return torch.where(winner == code, grad, 0)


def to_compare(winner: Tensor, grad: Tensor) -> Tensor:
    """The winner as `mask_by_winner` and `spread` take it."""
    return winner


def _write(source: Tensor, winner: Tensor | None, result: Tensor, tables: Tables, canvas: Canvas) -> None:
    images, channels = len(source), source.shape[3]
    if images * channels == 0:
        return
    grid, blocks = _blocks(tables.size, images, channels, source.dtype)
    _write_canvas[grid](
        source, source if winner is None else winner, result, tables.row_index, tables.row_weight, tables.col_index,
        tables.col_weight, tables.row_at, tables.col_at, tables.row_strip, tables.codes, *tables.size, channels,
        *tables.entries, source.stride(0), result.stride(0), winner is not None, tables.unrolled, *blocks,
        num_warps=4,
    )  # fmt: skip


def _read_back(
    data: Tensor,
    result: Tensor,
    winner: Tensor | None,
    tables: Tables,
    canvas: Canvas,
    start: bool,
) -> None:
    images, channels = len(result), result.shape[3]
    if images * channels == 0:
        return
    grid, blocks = _blocks(tables.size, images, channels, result.dtype)
    _read_canvas[grid](
        data, result, result if winner is None else winner, tables.row_index, tables.row_weight, tables.col_index,
        tables.col_weight, tables.row_at, tables.col_at, tables.codes, len(canvas.strips), *tables.size, channels,
        *tables.entries, data.stride(0), result.stride(0), winner is not None, start, tables.unrolled, *blocks,
        num_warps=4,
    )  # fmt: skip


def _blocks(
    size: tuple[int, int], images: int, channels: int, dtype: torch.dtype
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The grid of programs; and of one, channels in an access, columns and channels."""
    block_c = min(next_power_of_2(channels), 64)
    block_x = 8 if size[1] <= 8 else min(NBYTES // dtype.itemsize // block_c, 256)
    while -(-size[1] // block_x) * -(-channels // block_c) > MOST_BLOCKS:  # a large image that is one long row
        block_x *= 2
    grid = (images * size[0], -(-size[1] // block_x) * -(-channels // block_c))
    return grid, (_vector(channels, dtype), block_x, block_c)


def _vector(channels: int, dtype: torch.dtype) -> int:
    """How many neighbouring channels one access of 16 bytes takes, all of the same pixel."""
    width = 16 // dtype.itemsize
    while channels % width:
        width //= 2
    return width
