"""The gradient of the weight: patches of every level times the gradient of the outputs that the level won.

It is a sum over images and positions. They are divided among programs, each of which writes its own sum; the sums are
added afterwards, always in the same order, so the result is deterministic. Where there are enough images, those of one
position are summed over together, and lie innermost in memory, as the tensor cores want it.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import trial
from .patch_tables import PatchTables
from .respond import Blocks, find, other_blocks, patches, precision, tap_offsets, taps_at
from .sizes import cdiv, next_power_of_2, vector_width

PROGRAMS = 264  # two for each of about 130 multiprocessors
SIZES = (
    (32, 128, 4, 1),
    (64, 64, 4, 1),
    (64, 64, 4, 3),
    (64, 128, 4, 1),
    (64, 128, 8, 2),
    (128, 64, 4, 1),
    (128, 64, 8, 1),
)


@triton.jit
def _product(
    total, share, pyramid, base, down, right, weight_down, weight_right, offset,
    INTERPOLATE: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr, BY_IMAGE: tl.constexpr,
):  # fmt: skip
    if INTERPOLATE:
        seen = patches(pyramid, base, down, right, weight_down, weight_right, offset, VECTOR, BY_IMAGE, BY_IMAGE)
    else:
        seen = taps_at(pyramid, base, offset, VECTOR, BY_IMAGE)
    if BY_IMAGE:
        share = tl.trans(share)
    else:
        seen = tl.trans(seen)
    return tl.dot(seen, share, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=["images", "units", "units_per_split"])
def _weight_grad(
    pyramid, grad, winner, sums, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels, codes,
    images, positions, filters_per_group, channels_per_group, groups, col_step, image_stride, pixel_stride,
    channel_stride, grad_image_stride, grad_position_stride, grad_filter_stride, padded_taps, units, units_per_split,
    splits, TAPS: tl.constexpr, LEVELS: tl.constexpr, SEVERAL: tl.constexpr, INTERPOLATE: tl.constexpr,
    VECTOR: tl.constexpr, PRECISION: tl.constexpr, BY_IMAGE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    block, split = tl.program_id(2) // splits, tl.program_id(2) % splits
    group, part = block % groups, block // groups
    first_tap = tl.program_id(0) * BLOCK_K
    tap = first_tap + tl.arange(0, BLOCK_K)
    within = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = within < filters_per_group
    place = group * filters_per_group + within
    total = tl.zeros((BLOCK_K, BLOCK_M), dtype=tl.float32)
    begin = split * units_per_split
    for unit in range(begin, tl.minimum(begin + units_per_split, units)):  # a unit is a block of rows
        if BY_IMAGE:
            position = unit % positions
            within_part = unit // positions * BLOCK_P + tl.arange(0, BLOCK_P)
            valid = within_part < images
            image = part * images + tl.where(valid, within_part, 0)
        else:
            row = unit * BLOCK_P + tl.arange(0, BLOCK_P)
            valid = row < images * positions
            image, position = part * images + tl.where(valid, row // positions, 0), row % positions
        start = image * image_stride + group * channels_per_group * channel_stride
        outputs = image * grad_image_stride + position * grad_position_stride
        if BY_IMAGE:  # (filters, images)
            if VECTOR > 1:
                valid = tl.max_constancy(valid, VECTOR)
            at = (place * grad_filter_stride)[:, None] + outputs[None, :]
            at = tl.max_contiguous(tl.multiple_of(at, (1, VECTOR)), (1, VECTOR))
            known = live[:, None] & valid[None, :]
        else:  # (rows, filters)
            at = outputs[:, None] + (place * grad_filter_stride)[None, :]
            known = valid[:, None] & live[None, :]
        slope = tl.load(grad + at, mask=known, other=0)
        won = tl.zeros(slope.shape, dtype=tl.uint8)
        if SEVERAL:
            won = tl.load(winner + at, mask=known, other=0)
        for level in range(0, LEVELS):
            base, down, right, weight_down, weight_right, covered = find(
                where, right_weights, below_weights, row_steps, level, position, valid, positions, col_step,
                pixel_stride, BY_IMAGE,
            )  # fmt: skip
            offset = tap_offsets(
                tap_pixels, tap_channels, level, first_tap, padded_taps, pixel_stride, channel_stride, BLOCK_K
            )
            base = start + base
            share = slope
            if SEVERAL:
                share = tl.where(won == tl.load(codes + level), slope, 0)
            if BY_IMAGE and (INTERPOLATE or LEVELS > 1):  # the identity alone covers everything
                if covered:
                    total = _product(
                        total, share, pyramid, base, down, right, weight_down, weight_right, offset,
                        INTERPOLATE, VECTOR, PRECISION, BY_IMAGE,
                    )  # fmt: skip
            else:
                total = _product(
                    total, share, pyramid, base, down, right, weight_down, weight_right, offset,
                    INTERPOLATE, VECTOR, PRECISION, BY_IMAGE,
                )  # fmt: skip
    filters = block * filters_per_group + within
    to = sums + split * (tl.num_programs(2) // splits * filters_per_group * padded_taps).to(tl.int64)
    tl.store(to + filters[None, :] * padded_taps + tap[:, None], total, mask=live[None, :] & (tap < TAPS)[:, None])


def weight_grad(
    pyramid: Tensor,
    grad: Tensor,
    winner: Tensor,
    tables: PatchTables,
    groups: int,
    parts: int,
    blocks: Blocks | None = None,
    splits: int | None = None,
) -> Tensor:
    """Gradient of the weight, in float32: (parts · M, taps).

    Args:
        pyramid: (N, pixels, C), either contiguous, or with the images innermost.
        grad: (N, positions, M), of the same kind.
        winner: the same; without elements if there is one level.
        groups, parts: of the channels, and of the batch.
        blocks: positions, filters and taps at a time, warps, stages and registers; chosen if None.
        splits: programs that share the positions.
    """
    total, _, channels = pyramid.shape
    filters, per_group = grad.shape[2] // groups, channels // groups
    by_image = pyramid.stride(0) == grad.stride(0) == 1 < total
    padded_taps = tables.tap_pixels.shape[1]
    images = total // parts
    if total == 0:
        return pyramid.new_zeros((parts * groups * filters, tables.taps), dtype=torch.float32)

    def launch(blocks: Blocks, pyramid: Tensor, grad: Tensor, winner: Tensor) -> Tensor:
        block_p, block_m, block_k, warps, stages, registers = blocks
        units = cdiv(images, block_p) * tables.positions if by_image else cdiv(images * tables.positions, block_p)
        tiles = cdiv(tables.taps, block_k) * cdiv(filters, block_m) * groups * parts
        shares = splits or choose_splits(units, tiles)
        sums = pyramid.new_empty((shares, parts * groups * filters, padded_taps), dtype=torch.float32)
        grid = (cdiv(tables.taps, block_k), cdiv(filters, block_m), groups * parts * shares)
        _weight_grad[grid](
            pyramid, grad, winner, sums, tables.where, tables.right, tables.below, tables.row_steps,
            tables.tap_pixels, tables.tap_channels, tables.codes, images, tables.positions, filters, per_group,
            groups, tables.col_step, *pyramid.stride(), *grad.stride(), padded_taps,
            units, cdiv(units, shares), shares, TAPS=tables.taps, LEVELS=len(tables), SEVERAL=winner.numel() > 0,
            INTERPOLATE=tables.interpolates, VECTOR=vector_width(images if by_image else per_group, pyramid.dtype),
            PRECISION=precision(), BY_IMAGE=by_image, BLOCK_P=block_p, BLOCK_M=block_m, BLOCK_K=block_k,
            num_warps=warps, num_stages=stages, maxnreg=registers,
        )  # fmt: skip
        return sums[:, :, : tables.taps].sum(0)

    if blocks is None:
        layer = (
            filters, per_group, groups, parts, tables.taps, len(tables), tables.plain, tables.positions, by_image,
            pyramid.dtype, precision(),
        )  # fmt: skip
        table = choose_blocks(filters, per_group, pyramid.dtype, tables)
        blocks = trial.choose(
            "weight_grad", layer, pyramid.device, table, partial(other_blocks, sizes=SIZES),
            lambda: trial.on_random_numbers(launch, tables.codes, (pyramid, grad, winner)),
        )  # fmt: skip
    return launch(blocks, pyramid, grad, winner)


def choose_blocks(filters: int, channels: int, dtype: torch.dtype, tables: PatchTables) -> Blocks:
    """The fastest on an H200 for the shapes of `scaleconv bench`, and for the layers of the paper's networks."""
    block_m = min(max(next_power_of_2(filters), 16), 256)
    if block_m > 64:
        return 64, block_m, 128, 8, 1, None
    if block_m == 16:  # narrow ones of a single channel go wrong in 16 bits by Triton 3.6
        return 32, block_m, 128, 4, 1, None
    if dtype != torch.float32:
        stages = 1 if len(tables) > 1 else 2  # loads that need no interpolation come in advance
        return (64, block_m, 128, 4, stages, None) if channels > 1 else (64, block_m, 64, 8, stages, None)
    if channels > 1:
        return 32, block_m, 128, 4, 3, None
    if tables.taps > 64:
        return 64, block_m, 128, 4, 1, None
    return (64, block_m, 64, 8, 2, None) if tables.interpolates else (64, block_m, 64, 4, 1, None)


def choose_splits(units: int, tiles: int) -> int:
    """Enough programs to fill a GPU, none of them nearly empty."""
    return max(1, min(-(-PROGRAMS // tiles), -(-units // 4)))
