"""ReLU and max-pooling in one pass, forward and backward, where the windows lie side by side.

A lane of a program takes one window for as many channels as one access holds. Pixels are numbered across images, so
small images fill a program as well as large ones. That an access is aligned follows from the sizes: nothing is assumed.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..backends import on_its_device
from .respond import NOBODY
from .sizes import cdiv, vector_width

ACCESSES = 128  # of a program, each a window
LARGEST = 2**31 - 1  # accesses are counted in 32 bits, elements in 64


@triton.jit
def _locate(
    accesses, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
    VECTOR: tl.constexpr, ACCESSES: tl.constexpr,
):  # fmt: skip
    """Which windows are real, their rows and columns, and the elements of their corners and of their results."""
    access = tl.program_id(0) * ACCESSES + tl.arange(0, ACCESSES)
    window, first = access // (CHANNELS // VECTOR), access % (CHANNELS // VECTOR) * VECTOR
    across: tl.constexpr = (WIDTH + KERNEL - 1) // KERNEL
    down: tl.constexpr = (HEIGHT + KERNEL - 1) // KERNEL
    row, col = window // across % down * KERNEL, window % across * KERNEL
    image = (window // (across * down)).to(tl.int64)
    corner = ((image * HEIGHT + row) * WIDTH + col) * CHANNELS + first
    lane = tl.arange(0, VECTOR)[None, :]
    return access < accesses, row, col, corner[:, None] + lane, (access.to(tl.int64) * VECTOR)[:, None] + lane


@triton.jit(do_not_specialize=["accesses"])
def _forward(
    source, result, winner, accesses, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, VECTOR: tl.constexpr, ACCESSES: tl.constexpr,
):  # fmt: skip
    real, row, col, corner, to = _locate(accesses, HEIGHT, WIDTH, CHANNELS, KERNEL, VECTOR, ACCESSES)
    best = tl.zeros((ACCESSES, VECTOR), dtype=tl.float32)  # what a ReLU lets nothing fall below
    won = tl.full((ACCESSES, VECTOR), NOBODY, tl.int32)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            inside = (real & (row + i < HEIGHT) & (col + j < WIDTH))[:, None]
            value = tl.load(source + corner + (i * WIDTH + j) * CHANNELS, mask=inside, other=0).to(tl.float32)
            wins = (value > best) | (value != value)  # as in torch: the first of equals, the last NaN
            best, won = tl.where(wins, value, best), tl.where(wins, i * KERNEL + j, won)
    tl.store(result + to, best.to(result.dtype.element_ty), mask=real[:, None])
    tl.store(winner + to, won.to(tl.uint8), mask=real[:, None])


@triton.jit(do_not_specialize=["accesses"])
def _backward(
    grad, winner, result, accesses, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, VECTOR: tl.constexpr, ACCESSES: tl.constexpr,
):  # fmt: skip
    real, row, col, corner, at = _locate(accesses, HEIGHT, WIDTH, CHANNELS, KERNEL, VECTOR, ACCESSES)
    slope = tl.load(grad + at, mask=real[:, None], other=0)
    won = tl.load(winner + at, mask=real[:, None], other=0).to(tl.int32)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            inside = (real & (row + i < HEIGHT) & (col + j < WIDTH))[:, None]
            share = tl.where(won == i * KERNEL + j, slope, 0)
            tl.store(result + corner + (i * WIDTH + j) * CHANNELS, share.to(result.dtype.element_ty), mask=inside)


@on_its_device
def pool(source: Tensor, result: Tensor, winner: Tensor, kernel: int) -> None:
    """Pool images (N, H, W, C) into `result`, and the place of each winner within its window into `winner`.

    Args:
        source, result, winner: contiguous; the latter (N, ⌈H / kernel⌉, ⌈W / kernel⌉, C), `winner` of bytes.
        kernel: side of a window, which is cut where it reaches over the edge.
    """
    _launch(_forward, (source, result, winner), source, result, kernel)


@on_its_device
def spread(grad: Tensor, winner: Tensor, result: Tensor, kernel: int) -> None:
    """Send the gradient of each window to its winner: `result` (N, H, W, C), every element of which is written."""
    _launch(_backward, (grad, winner, result), result, grad, kernel)


def _launch(program, tensors: tuple[Tensor, ...], images: Tensor, windows: Tensor, kernel: int) -> None:
    _, height, width, channels = images.shape
    if windows.numel() == 0:
        return
    vector = vector_width(channels, images.dtype)
    accesses = windows.numel() // vector
    if accesses > LARGEST - ACCESSES:
        raise ValueError(f"`input` must have at most {LARGEST - ACCESSES} windows, {vector} channels at a time")
    program[(cdiv(accesses, ACCESSES),)](
        *tensors, accesses, HEIGHT=height, WIDTH=width, CHANNELS=channels, KERNEL=kernel,
        VECTOR=vector, ACCESSES=ACCESSES, num_warps=4,
    )  # fmt: skip
