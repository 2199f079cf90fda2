"""Depthwise convolution of a canvas: one channel, one filter. Libraries take many times as long for its gradients.

All tensors are in channels_last order, (N, H, W, C); the weight is (taps, C).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..geometry import count_responses
from .lookup import next_power_of_2

BLOCK_C = 32
PROGRAMS = 1056  # that share the sum of a gradient of the weight: eight for each multiprocessor of a large GPU


SIZES = ["source_rows", "source_width", "rows", "width", "channels", "lines", "lines_per_program"]


@triton.jit(do_not_specialize=SIZES)
def _convolve(
    source, weight, result, source_rows, source_width, rows, width, channels,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TRANSPOSED: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The convolution; or its transpose, where a pixel of the result adds up the responses that it took part in."""
    row, image = tl.program_id(0) % rows, tl.cast(tl.program_id(0) // rows, tl.int64)
    x = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X)
    channel = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = channel < channels
    source += image * source_rows * source_width * channels
    total = tl.zeros((BLOCK_X, BLOCK_C), dtype=tl.float32)
    for i in range(HIGH):
        if TRANSPOSED:
            y = (row - i * DILATION_Y) // STRIDE_Y
            hit = (row >= i * DILATION_Y) & ((row - i * DILATION_Y) % STRIDE_Y == 0) & (y < source_rows)
        else:
            y = row * STRIDE_Y + i * DILATION_Y
            hit = y < source_rows
        if hit:
            for j in tl.static_range(WIDE):
                factor = tl.load(weight + (i * WIDE + j) * channels + channel, mask=live, other=0).to(tl.float32)
                if TRANSPOSED:
                    column = (x - j * DILATION_X) // STRIDE_X
                    inside = (x >= j * DILATION_X) & ((x - j * DILATION_X) % STRIDE_X == 0) & (column < source_width)
                else:
                    column = x * STRIDE_X + j * DILATION_X
                    inside = column < source_width
                place = (y * source_width + column)[:, None] * channels + channel[None, :]
                value = tl.load(source + place, mask=inside[:, None] & live[None, :], other=0).to(tl.float32)
                total += value * factor[None, :]
    to = (row * width + x)[:, None] * channels + channel[None, :]
    result += image * rows * width * channels
    tl.store(result + to, total.to(result.dtype.element_ty), mask=(x < width)[:, None] & live[None, :])


@triton.jit(do_not_specialize=SIZES)
def _weight_grad(
    source, grad, sums, lines, lines_per_program, source_rows, source_width, rows, width, channels,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One row of taps, over some rows of responses (lines) of all images."""
    i = tl.program_id(1)
    channel = (tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C))[None, None, :]
    tap, column = tl.arange(0, BLOCK_T)[:, None, None], tl.arange(0, BLOCK_X)[None, :, None]
    live, real = channel < channels, tap < WIDE
    total = tl.zeros((BLOCK_T, BLOCK_X, BLOCK_C), dtype=tl.float32)
    first = tl.program_id(0) * lines_per_program
    for line in range(first, tl.minimum(first + lines_per_program, lines)):
        image, row = tl.cast(line // rows, tl.int64), line % rows
        sent_line = grad + (image * rows + row) * width * channels
        seen_line = source + (image * source_rows + row * STRIDE_Y + i * DILATION_Y) * source_width * channels
        for start in range(0, width, BLOCK_X):
            x = start + column
            inside = (x < width) & live
            sent = tl.load(sent_line + x * channels + channel, mask=inside, other=0).to(tl.float32)
            place = (x * STRIDE_X + tap * DILATION_X) * channels + channel
            total += tl.load(seen_line + place, mask=inside & real, other=0).to(tl.float32) * sent
    taps, out = tl.arange(0, BLOCK_T), tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    to = ((tl.program_id(0) * HIGH + i) * WIDE + taps)[:, None] * channels + out[None, :]
    tl.store(sums + to, tl.sum(total, axis=1), mask=(taps < WIDE)[:, None] & (out < channels)[None, :])


def depthwise(sampled: Tensor, weight: Tensor, stride: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
    """Responses (N, h', w', C) of filters (C, 1, Kh, Kw)."""
    axes = zip(sampled.shape[1:3], weight.shape[2:], stride, dilation, strict=True)
    size = [count_responses(*along) for along in axes]
    response = sampled.new_empty((len(sampled), *size, sampled.shape[3]))
    _launch(sampled, weight, response, stride, dilation, transposed=False)
    return response


def depthwise_input_grad(
    grad: Tensor, weight: Tensor, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    """The gradient of a canvas of this size from that of its responses (N, h', w', C)."""
    to_sampled = grad.new_empty((len(grad), *size, grad.shape[3]))
    _launch(grad, weight, to_sampled, stride, dilation, transposed=True)
    return to_sampled


def depthwise_weight_grad(
    grad: Tensor, sampled: Tensor, weight: Tensor, stride: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    """The gradient of the weight: every program sums over some rows, and the sums are added in a fixed order."""
    high, wide = weight.shape[2:]
    images, rows, width, channels = grad.shape
    blocks = -(-channels // BLOCK_C)
    share = max(1, -(-images * rows * high * blocks // PROGRAMS))
    programs = -(-images * rows // share)
    sums = grad.new_empty((programs, high * wide, channels), dtype=torch.float32)
    if images:
        _weight_grad[programs, high, blocks](
            sampled, grad, sums, images * rows, share, sampled.shape[1], sampled.shape[2], rows, width, channels,
            *stride, *dilation, high, wide, next_power_of_2(wide), BLOCK_X=16, BLOCK_C=BLOCK_C, num_warps=4,
        )  # fmt: skip
    return sums.sum(0).mT.reshape(weight.shape).to(weight.dtype)


def _launch(
    source: Tensor, weight: Tensor, result: Tensor, stride: tuple[int, int], dilation: tuple[int, int], *,
    transposed: bool,
) -> None:  # fmt: skip
    images, rows, width, channels = result.shape
    if images == 0:
        return
    block_x = 16 if width <= 16 else 64
    grid = (images * rows, -(-width // block_x), -(-channels // BLOCK_C))
    _convolve[grid](
        source, weight.flatten(1).mT.contiguous(), result, source.shape[1], source.shape[2], rows, width,
        channels, *stride, *dilation, *weight.shape[2:], TRANSPOSED=transposed, BLOCK_X=block_x, BLOCK_C=BLOCK_C,
        num_warps=4,
    )  # fmt: skip
