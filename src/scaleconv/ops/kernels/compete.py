"""Pooling over scale for levels taken whole: align a level's responses and keep what is stronger."""

import triton
import triton.language as tl
from torch import Tensor

from .bands import Bands
from .resample import choose_blocks
from .sizes import cdiv


@triton.jit(do_not_specialize=["images", "code"])
def _compete(
    response, output, winner, row_first, row_weights, col_first, col_weights, pixel_rows, pixel_cols,
    images, pixels, code, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROW_TAPS: tl.constexpr, COL_TAPS: tl.constexpr, IMAGES: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = pixel < pixels
    row = tl.load(pixel_rows + pixel, mask=inside, other=0)
    col = tl.load(pixel_cols + pixel, mask=inside, other=0)
    corner = tl.load(row_first + row) * WIDTH + tl.load(col_first + col)
    row_total, col_total = tl.zeros((BLOCK_X,), dtype=tl.float32), tl.zeros((BLOCK_X,), dtype=tl.float32)
    for i in tl.static_range(ROW_TAPS):
        row_total += tl.load(row_weights + row * ROW_TAPS + i)
    for j in tl.static_range(COL_TAPS):
        col_total += tl.load(col_weights + col * COL_TAPS + j)
    covered = (inside & (row_total * col_total > 0))[:, None] & (channel < CHANNELS)
    first_image = tl.program_id(2) * IMAGES
    for image in range(first_image, tl.minimum(first_image + IMAGES, images)):
        start = image * (HEIGHT * WIDTH * CHANNELS)
        aligned = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.float32)
        for i in tl.static_range(ROW_TAPS):
            row_weight = tl.load(row_weights + row * ROW_TAPS + i)
            for j in tl.static_range(COL_TAPS):
                weight = (row_weight * tl.load(col_weights + col * COL_TAPS + j))[:, None]
                index = start + (corner + i * WIDTH + j)[:, None] * CHANNELS + channel
                aligned += tl.load(response + index, mask=covered & (weight != 0), other=0).to(tl.float32) * weight
        at = (image * pixels + pixel)[:, None] * CHANNELS + channel
        best = tl.load(output + at, mask=covered, other=0).to(tl.float32)
        won = tl.load(winner + at, mask=covered, other=0)
        aligned = aligned.to(output.dtype.element_ty).to(tl.float32)
        wins = (aligned > best) | ((aligned == best) & (code < won)) | ((aligned != aligned) & (best == best))
        tl.store(output + at, aligned.to(output.dtype.element_ty), mask=wins & covered)
        tl.store(winner + at, tl.full((BLOCK_X, BLOCK_C), 0, tl.uint8) + code.to(tl.uint8), mask=wins & covered)


def compete(response: Tensor, align: Bands, output: Tensor, winner: Tensor, code: int) -> None:
    """Let the responses (N, h', w', M) of the level `code` compete for output and winner, both (N, …, M)."""
    images, height, width, channels = response.shape
    if images == 0:
        return
    block_x, block_c, together = choose_blocks(channels, response.dtype)
    grid = (cdiv(align.pixels, block_x), cdiv(channels, block_c), cdiv(images, together))
    _compete[grid](
        response, output, winner,
        align.row_first, align.row_weights, align.col_first, align.col_weights, align.pixel_rows, align.pixel_cols,
        images, align.pixels, code, HEIGHT=height, WIDTH=width, CHANNELS=channels,
        ROW_TAPS=align.row_weights.shape[1], COL_TAPS=align.col_weights.shape[1], IMAGES=together,
        BLOCK_X=block_x, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
