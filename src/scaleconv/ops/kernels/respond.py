"""The forward kernel: interpolate patches, multiply with the filters on the tensor cores, keep the strongest level.

One program owns a block of output positions and a block of filters and goes through all levels. It writes the output
and one winner byte per output, and nothing else.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .patch_tables import PatchTables

Blocks = tuple[int, int, int, int, int, int | None]  # positions, filters, taps, warps, stages, registers


@triton.jit
def taps_at(pyramid, base, offset, VECTOR: tl.constexpr, FLIP: tl.constexpr):
    """The taps at `offset` from the positions `base`, `VECTOR` at a time: (P, K), or (K, P) if flipped.

    Threads next to each other read along the last dimension.
    """
    if FLIP:
        return tl.load(pyramid + (offset[:, None] + base[None, :]))
    else:
        index = base[:, None] + offset[None, :]
        return tl.load(pyramid + tl.max_contiguous(tl.multiple_of(index, (1, VECTOR)), (1, VECTOR)))


@triton.jit
def _weigh(taps, weight, FLIP: tl.constexpr):
    if FLIP:
        return taps * weight[None, :]
    else:
        return taps * weight[:, None]


@triton.jit
def patches(pyramid, base, down, right, weight_down, weight_right, offset, VECTOR: tl.constexpr, FLIP: tl.constexpr):
    """What the taps meet at the positions, between the four responses around each: (P, K), or (K, P) if flipped."""
    here = taps_at(pyramid, base, offset, VECTOR, FLIP)
    seen = _weigh(here, (1 - weight_down) * (1 - weight_right), FLIP)
    seen += _weigh(taps_at(pyramid, base + right, offset, VECTOR, FLIP), (1 - weight_down) * weight_right, FLIP)
    seen += _weigh(taps_at(pyramid, base + down, offset, VECTOR, FLIP), weight_down * (1 - weight_right), FLIP)
    seen += _weigh(taps_at(pyramid, base + down + right, offset, VECTOR, FLIP), weight_down * weight_right, FLIP)
    return seen.to(here.dtype)


@triton.jit
def tap_offsets(offsets, first, ALIGNED: tl.constexpr, BLOCK_K: tl.constexpr):
    """Elements from the first tap of a patch to a block of its taps, which `ALIGNED` says are of one pixel."""
    if ALIGNED:
        return tl.load(offsets + first) + tl.arange(0, BLOCK_K)
    else:
        return tl.load(offsets + first + tl.arange(0, BLOCK_K))


@triton.jit
def find(where, right_weights, below_weights, row_steps, level, position, valid, positions, col_step, pixel_stride):
    """Where a level's patches lie in the pyramid: offset of the first tap, steps and weights of the neighbours."""
    entry = level * positions + position
    packed = tl.load(where + entry, mask=valid, other=-1)
    covered = packed >= 0
    packed = tl.maximum(packed, 0)
    down = (packed & 1) * tl.load(row_steps + level) * pixel_stride
    right = ((packed >> 1) & 1) * col_step * pixel_stride
    weight_right = tl.load(right_weights + entry, mask=valid, other=0.0)
    weight_down = tl.load(below_weights + entry, mask=valid, other=0.0)
    return (packed >> 2) * pixel_stride, down, right, weight_down, weight_right, covered


@triton.jit
def _response(
    pyramid, weight, where, right_weights, below_weights, row_steps, offsets, start, position, valid, level,
    filters, live, positions, col_step, pixel_stride, padded_taps, TAPS: tl.constexpr,
    INTERPOLATE: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The response of one level at a block of positions, and which of them it covers."""
    base, down, right, weight_down, weight_right, covered = find(
        where, right_weights, below_weights, row_steps, level, position, valid, positions, col_step, pixel_stride
    )
    base += start
    total = tl.zeros((BLOCK_P, BLOCK_M), dtype=tl.float32)
    for first_tap in range(0, TAPS, BLOCK_K):
        offset = tap_offsets(offsets, level * padded_taps + first_tap, ALIGNED, BLOCK_K)
        if INTERPOLATE:
            seen = patches(pyramid, base, down, right, weight_down, weight_right, offset, VECTOR, VECTOR == 1)
        else:
            seen = taps_at(pyramid, base, offset, VECTOR, VECTOR == 1)
        if VECTOR == 1:  # the threads went along the positions
            seen = tl.trans(seen)
        tap = first_tap + tl.arange(0, BLOCK_K)
        part = tl.load(weight + filters[None, :] * padded_taps + tap[:, None], mask=live[None, :], other=0)
        total = tl.dot(seen, part, total, input_precision=PRECISION)
    return total, covered


@triton.jit(do_not_specialize=["images"])
def _respond(
    pyramid, weight, bias, output, winner, where, right_weights, below_weights, row_steps, offsets, codes,
    images, positions, filters_per_group, channels_per_group, groups, col_step, pixel_stride, image_stride,
    padded_taps, output_stride_n, output_stride_m, output_stride_p, TAPS: tl.constexpr, LEVELS: tl.constexpr,
    PLAIN: tl.constexpr, HAS_BIAS: tl.constexpr, VECTOR: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(2)
    group, part = block % groups, block // groups  # a part of the batch has weights of its own
    row = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = row < images * positions
    image, position = part * images + tl.where(valid, row // positions, 0), row % positions
    start = image * image_stride + group * channels_per_group
    within = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = within < filters_per_group
    filters = block * filters_per_group + within
    added = tl.zeros((BLOCK_M,), dtype=tl.float32)
    if HAS_BIAS:
        added += tl.load(bias + filters, mask=live, other=0).to(tl.float32)
    place = (group * filters_per_group + within)[None, :]
    written = valid[:, None] & live[None, :]
    at = (image[:, None] * positions + position[:, None]) * (groups * filters_per_group) + place
    to = image[:, None] * output_stride_n + position[:, None] * output_stride_p + place * output_stride_m
    if PLAIN:  # the identity is here and starts the maximum
        best, _ = _response(
            pyramid, weight, where, right_weights, below_weights, row_steps, offsets, start, position, valid, 0,
            filters, live, positions, col_step, pixel_stride, padded_taps, TAPS,
            False, VECTOR, ALIGNED, PRECISION, BLOCK_P, BLOCK_M, BLOCK_K,
        )  # fmt: skip
        best += added[None, :]
        won = tl.zeros((BLOCK_P, BLOCK_M), dtype=tl.int32) + tl.load(codes)
    else:
        best = tl.load(output + to, mask=written, other=0).to(tl.float32)
        won = tl.load(winner + at, mask=written, other=0).to(tl.int32)
    for level in range(PLAIN, LEVELS):
        aligned, covered = _response(
            pyramid, weight, where, right_weights, below_weights, row_steps, offsets, start, position, valid, level,
            filters, live, positions, col_step, pixel_stride, padded_taps, TAPS,
            True, VECTOR, ALIGNED, PRECISION, BLOCK_P, BLOCK_M, BLOCK_K,
        )  # fmt: skip
        aligned += added[None, :]
        code = tl.load(codes + level)
        wins = (aligned > best) | ((aligned == best) & (code < won)) | ((aligned != aligned) & (best == best))
        wins = wins & covered[:, None]
        best = tl.where(wins, aligned, best)
        won = tl.where(wins, code, won)
    if LEVELS > PLAIN:
        tl.store(winner + at, won.to(tl.uint8), mask=written)
    tl.store(output + to, best.to(output.dtype.element_ty), mask=written)


def respond(
    pyramid: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
    winner: Tensor,
    tables: PatchTables,
    groups: int,
    parts: int,
    blocks: Blocks | None = None,
) -> None:
    """Fill output and winner from the pyramids; without the identity, what is in them already competes as well.

    Args:
        pyramid: (N, pixels, C), contiguous.
        weight: (parts · M, padded taps), contiguous; part i of the batch is convolved with the i-th M filters.
        bias: (parts · M) or None.
        output: (N, M, H0, W0), of any strides whose last two dimensions can be seen as one.
        winner: (N, positions, M), contiguous; not used by the identity alone.
        groups, parts: of the channels, and of the batch.
        blocks: positions, filters and taps at a time, warps and stages; chosen by the sizes if None.
    """
    total, pixels, channels = pyramid.shape
    if total == 0:
        return
    filters = output.shape[1] // groups
    per_group = channels // groups
    block_p, block_m, block_k, warps, stages, registers = blocks or choose_blocks(filters, per_group, pyramid.dtype)
    images = total // parts
    grid = (
        triton.cdiv(images * tables.positions, block_p),
        triton.cdiv(filters, block_m),
        groups * parts,
    )
    _respond[grid](
        pyramid, weight, weight if bias is None else bias, output, winner,
        tables.where, tables.right, tables.below, tables.row_steps, tables.offsets, tables.codes,
        images, tables.positions, filters, per_group, groups, tables.col_step, channels, pixels * channels,
        weight.shape[1], output.stride(0), output.stride(1), output.stride(3),
        TAPS=tables.taps, LEVELS=len(tables), PLAIN=int(tables.plain), HAS_BIAS=bias is not None,
        VECTOR=vector_width(per_group, pyramid.dtype), ALIGNED=per_group % block_k == 0, PRECISION=precision(),
        BLOCK_P=block_p, BLOCK_M=block_m, BLOCK_K=block_k,
        num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip


def precision() -> str:
    """How products of float32 are taken: as torch's convolutions do."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def choose_blocks(filters: int, channels: int, dtype: torch.dtype) -> Blocks:
    """The fastest of those tried on an H200, with the shapes of `scaleconv bench`."""
    if filters > 64:
        return 64, 256 if filters > 128 else 128, 64, 8, 2, None
    block_m = max(triton.next_power_of_2(filters), 16)
    if dtype == torch.float32 and channels > 1:
        return (64, block_m, 32, 4, 1, 168) if channels % 32 else (128, block_m, 32, 4, 1, None)
    if channels % 64:
        return 64, block_m, 64, 4, 1, 168
    return 64, block_m, 64, 4, 2, None


def vector_width(channels: int, dtype: torch.dtype) -> int:
    """How many neighbouring channels one access of 16 bytes takes, all of the same pixel."""
    width = 16 // dtype.itemsize
    while channels % width:
        width //= 2
    return width
