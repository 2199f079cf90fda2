"""Separable resampling with narrow bands: rescales images into the pyramid, and carries gradients the other way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .bands import Bands
from .sizes import cdiv, next_power_of_2, vector_width

NBYTES = 2048  # of the result that a program makes of one image: 16 for each thread


@triton.jit(do_not_specialize=["images", "code"])
def _resample(
    source, winner, result, row_first, row_weights, col_first, col_weights, pixel_rows, pixel_cols,
    row_offsets, col_offsets, images, pixels, channels, code, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    VECTOR: tl.constexpr, ROW_TAPS: tl.constexpr, COL_TAPS: tl.constexpr, MASKED: tl.constexpr, ADD: tl.constexpr,
    OFFSETS: tl.constexpr, IMAGES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = pixel < pixels
    real = channel < channels
    if VECTOR > 1:
        real = tl.max_constancy(real, (1, VECTOR))
    here = inside[:, None] & real
    row = tl.load(pixel_rows + pixel, mask=inside, other=0)
    col = tl.load(pixel_cols + pixel, mask=inside, other=0)
    above, left = tl.load(row_first + row), tl.load(col_first + col)
    first_image = tl.program_id(2) * IMAGES
    for image in range(first_image, tl.minimum(first_image + IMAGES, images)):
        start = image * (HEIGHT * WIDTH) * channels
        total = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.float32)
        for i in range(ROW_TAPS):
            row_weight = tl.load(row_weights + row * ROW_TAPS + i)
            line = tl.load(row_offsets + above + i) if OFFSETS else (above + i) * WIDTH
            for j in tl.static_range(COL_TAPS):
                place = line + (tl.load(col_offsets + left + j) if OFFSETS else left + j)
                weight = (row_weight * tl.load(col_weights + col * COL_TAPS + j))[:, None]
                taken = here & (weight != 0)  # what has no weight may lie outside, or be NaN
                index = tl.multiple_of(start + place[:, None] * channels + channel, (1, VECTOR))
                value = tl.load(source + index, mask=taken, other=0).to(tl.float32)
                if MASKED:
                    value = tl.where(tl.load(winner + index, mask=taken, other=0) == code, value, 0)
                total += value * weight
        to = result + tl.multiple_of((image * pixels + pixel)[:, None] * channels + channel, (1, VECTOR))
        if ADD:
            total += tl.load(to, mask=here, other=0).to(tl.float32)
        tl.store(to, total.to(result.dtype.element_ty), mask=here)


def resample(
    source: Tensor,
    bands: Bands,
    result: Tensor,
    *,
    winner: Tensor | None = None,
    code: int = 0,
    add: bool = False,
) -> None:
    """Resample images (N, H, W, C) into `result` (N, pixels, C); both contiguous, or the images as the bands have it.

    With `winner`, of the shape of the images, only what the level `code` won is taken. With `add`, it is added.
    """
    images, height, width, channels = source.shape
    if images == 0:
        return
    block_x, block_c, together = choose_blocks(channels, source.dtype)
    grid = (cdiv(bands.pixels, block_x), cdiv(channels, block_c), cdiv(images, together))
    _resample[grid](
        source, source if winner is None else winner, result,
        bands.row_first, bands.row_weights, bands.col_first, bands.col_weights, bands.pixel_rows, bands.pixel_cols,
        *(bands.offsets or (bands.row_first, bands.col_first)), images, bands.pixels, channels, code,
        HEIGHT=height, WIDTH=width, VECTOR=vector_width(channels, source.dtype),
        ROW_TAPS=bands.row_weights.shape[1], COL_TAPS=bands.col_weights.shape[1], MASKED=winner is not None, ADD=add,
        OFFSETS=bands.offsets is not None, IMAGES=together, BLOCK_X=block_x, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip


def choose_blocks(channels: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Pixels and channels at a time, and images that share what was read of the tables."""
    block_c = min(next_power_of_2(channels), 64)
    block_x = NBYTES // dtype.itemsize // block_c
    return (256, 1, 8) if channels == 1 else (block_x, block_c, 1 if channels >= 16 else 8)
