"""The forward kernel: interpolate patches, multiply with the filters on the tensor cores, keep the strongest level.

One program owns a block of outputs and a block of filters and goes through all levels. It writes the output and one
winner byte per output, and nothing else. The rows of its block are images at one position where there are enough of
them: then all rows take the same pixels with the same weights, and a level that does not cover the position is left
out. Otherwise they are positions, one image after the other.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import trial
from .patch_tables import PatchTables
from .sizes import cdiv, next_power_of_2, vector_width

Blocks = tuple[int, int, int, int, int, int | None]  # rows, filters, taps, warps, stages, registers
SIZES = (
    (64, 32, 4, 1),
    (64, 64, 4, 1),
    (64, 64, 8, 1),
    (64, 32, 4, 3),
    (128, 32, 4, 3),
    (128, 64, 8, 2),
    (256, 32, 8, 3),
)
NOBODY = tl.constexpr(255)  # wins where a ReLU lets nothing through


@triton.jit
def find(
    where, right_weights, below_weights, row_steps, level, position, valid, positions, col_step, pixel_stride,
    BY_IMAGE: tl.constexpr,
):  # fmt: skip
    """Where a level's patches lie in the pyramid: offset of the first tap, steps and weights of the neighbours.

    For one position, or for a row of them.
    """
    entry = level * positions + position
    if BY_IMAGE:
        packed = tl.load(where + entry)
        weight_right, weight_down = tl.load(right_weights + entry), tl.load(below_weights + entry)
    else:
        packed = tl.load(where + entry, mask=valid, other=-1)
        weight_right = tl.load(right_weights + entry, mask=valid, other=0.0)
        weight_down = tl.load(below_weights + entry, mask=valid, other=0.0)
    covered = packed >= 0
    packed = tl.maximum(packed, 0)
    down = (packed & 1) * tl.load(row_steps + level) * pixel_stride
    right = ((packed >> 1) & 1) * col_step * pixel_stride
    return (packed >> 2) * pixel_stride, down, right, weight_down, weight_right, covered


@triton.jit
def tap_offsets(
    tap_pixels, tap_channels, level, first, padded_taps, pixel_stride, channel_stride, BLOCK_K: tl.constexpr
):
    """Elements from the first tap of a patch to a block of its taps."""
    tap = first + tl.arange(0, BLOCK_K)
    channel = tl.load(tap_channels + tap) * channel_stride
    return tl.load(tap_pixels + level * padded_taps + tap) * pixel_stride + channel


@triton.jit
def taps_at(pyramid, base, offset, VECTOR: tl.constexpr, FLIP: tl.constexpr):
    """The taps at `offset` from `base`: (rows, taps), or (taps, rows) if flipped.

    Threads next to each other read along the last dimension, of which `VECTOR` elements lie together.
    """
    index = offset[:, None] + base[None, :] if FLIP else base[:, None] + offset[None, :]
    return tl.load(pyramid + tl.max_contiguous(tl.multiple_of(index, (1, VECTOR)), (1, VECTOR)))


@triton.jit
def _weigh(taps, weight, FLIP: tl.constexpr, BY_IMAGE: tl.constexpr):
    if BY_IMAGE:
        return taps * weight
    elif FLIP:
        return taps * weight[None, :]
    else:
        return taps * weight[:, None]


@triton.jit
def patches(
    pyramid, base, down, right, weight_down, weight_right, offset,
    VECTOR: tl.constexpr, FLIP: tl.constexpr, BY_IMAGE: tl.constexpr,
):  # fmt: skip
    """What the taps meet, between the four responses around a position; laid out as by `taps_at`."""
    here = taps_at(pyramid, base, offset, VECTOR, FLIP)
    beside = taps_at(pyramid, base + right, offset, VECTOR, FLIP)
    under = taps_at(pyramid, base + down, offset, VECTOR, FLIP)
    across = taps_at(pyramid, base + down + right, offset, VECTOR, FLIP)
    seen = _weigh(here, (1 - weight_down) * (1 - weight_right), FLIP, BY_IMAGE)
    seen += _weigh(beside, (1 - weight_down) * weight_right, FLIP, BY_IMAGE)
    seen += _weigh(under, weight_down * (1 - weight_right), FLIP, BY_IMAGE)
    seen += _weigh(across, weight_down * weight_right, FLIP, BY_IMAGE)
    return seen.to(here.dtype)


@triton.jit
def _response(
    pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels, start, position, valid,
    level, filters, live, positions, col_step, pixel_stride, padded_taps, TAPS: tl.constexpr,
    INTERPOLATE: tl.constexpr, VECTOR: tl.constexpr, FLIP: tl.constexpr, PRECISION: tl.constexpr,
    BY_IMAGE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The response of one level to a block of rows, and which of them it covers."""
    base, down, right, weight_down, weight_right, covered = find(
        where, right_weights, below_weights, row_steps, level, position, valid, positions, col_step, pixel_stride,
        BY_IMAGE,
    )  # fmt: skip
    base = start + base
    total = tl.zeros((BLOCK_P, BLOCK_M), dtype=tl.float32)
    taps = TAPS
    if BY_IMAGE:
        taps = tl.where(covered, TAPS, 0)
    for first_tap in range(0, taps, BLOCK_K):
        offset = tap_offsets(tap_pixels, tap_channels, level, first_tap, padded_taps, pixel_stride, 1, BLOCK_K)
        if INTERPOLATE:
            seen = patches(pyramid, base, down, right, weight_down, weight_right, offset, VECTOR, FLIP, BY_IMAGE)
        else:
            seen = taps_at(pyramid, base, offset, VECTOR, FLIP)
        if FLIP:  # the threads went along the rows
            seen = tl.trans(seen)
        tap = first_tap + tl.arange(0, BLOCK_K)
        part = tl.load(weight + filters[None, :] * padded_taps + tap[:, None], mask=live[None, :], other=0)
        total = tl.dot(seen, part, total, input_precision=PRECISION)
    return total, covered


@triton.jit
def _take_in(
    best, won, pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels, codes, added,
    start, position, valid, level, filters, live, positions, col_step, pixel_stride, padded_taps, TAPS: tl.constexpr,
    INTERPOLATE: tl.constexpr, VECTOR: tl.constexpr, FLIP: tl.constexpr, PRECISION: tl.constexpr,
    BY_IMAGE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The strongest responses and whose they are, one more level taken in."""
    aligned, covered = _response(
        pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels, start, position,
        valid, level, filters, live, positions, col_step, pixel_stride, padded_taps, TAPS,
        INTERPOLATE, VECTOR, FLIP, PRECISION, BY_IMAGE, BLOCK_P, BLOCK_M, BLOCK_K,
    )  # fmt: skip
    aligned += added[None, :]
    code = tl.load(codes + level)
    wins = (aligned > best) | ((aligned == best) & (code < won)) | ((aligned != aligned) & (best == best))
    wins = wins & (covered if BY_IMAGE else covered[:, None])
    return tl.where(wins, aligned, best), tl.where(wins, code, won)


@triton.jit(do_not_specialize=["images"])
def _respond(
    pyramid, weight, bias, output, winner, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels,
    codes, images, positions, filters_per_group, channels_per_group, groups, col_step, pixel_stride, image_stride,
    padded_taps, output_stride_n, output_stride_m, output_stride_p, TAPS: tl.constexpr, LEVELS: tl.constexpr,
    PLAIN: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr, VECTOR: tl.constexpr, FLIP: tl.constexpr,
    PRECISION: tl.constexpr, BY_IMAGE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(2)
    group, part = block % groups, block // groups  # a part of the batch has weights of its own
    if BY_IMAGE:
        position = tl.program_id(0) % positions
        within_part = tl.program_id(0) // positions * BLOCK_P + tl.arange(0, BLOCK_P)
        valid = within_part < images
        image = part * images + tl.where(valid, within_part, 0)
    else:
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
    at = (image * positions + position)[:, None] * (groups * filters_per_group) + place
    to = (image * output_stride_n + position * output_stride_p)[:, None] + place * output_stride_m
    if PLAIN:  # the identity is here and starts the maximum
        best, _ = _response(
            pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels, start, position,
            valid, 0, filters, live, positions, col_step, pixel_stride, padded_taps, TAPS,
            False, VECTOR, FLIP, PRECISION, BY_IMAGE, BLOCK_P, BLOCK_M, BLOCK_K,
        )  # fmt: skip
        best += added[None, :]
        won = tl.zeros((BLOCK_P, BLOCK_M), dtype=tl.int32) + tl.load(codes)
        for level in range(1, PLAIN):
            best, won = _take_in(
                best, won, pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels,
                codes, added, start, position, valid, level, filters, live, positions, col_step, pixel_stride,
                padded_taps, TAPS, False, VECTOR, FLIP, PRECISION, BY_IMAGE, BLOCK_P, BLOCK_M, BLOCK_K,
            )  # fmt: skip
    else:
        best = tl.load(output + to, mask=written, other=0).to(tl.float32)
        won = tl.load(winner + at, mask=written, other=0).to(tl.int32)
    for level in range(PLAIN, LEVELS):
        best, won = _take_in(
            best, won, pyramid, weight, where, right_weights, below_weights, row_steps, tap_pixels, tap_channels,
            codes, added, start, position, valid, level, filters, live, positions, col_step, pixel_stride,
            padded_taps, TAPS, True, VECTOR, FLIP, PRECISION, BY_IMAGE, BLOCK_P, BLOCK_M, BLOCK_K,
        )  # fmt: skip
    if RELU:
        won = tl.where(best <= 0, NOBODY, won)
        best = tl.where(best <= 0, 0, best)
    if LEVELS > 1 or PLAIN == 0:
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
    *,
    relu: bool = False,
) -> None:
    """Fill output and winner from the pyramids; without the identity, what is in them already competes as well.

    Args:
        pyramid: (N, pixels, C), either contiguous, or of images side by side, their pixels slowest.
        weight: (parts · M, padded taps), contiguous; part i of the batch is convolved with the i-th M filters.
        bias: (parts · M) or None.
        output: (N, M, H0, W0), of any strides whose last two dimensions can be seen as one.
        winner: (N, positions, M), contiguous; not used by the identity alone.
        groups, parts: of the channels, and of the batch.
        blocks: rows, filters and taps at a time, warps, stages and registers; chosen if None.
        relu: put out nothing below 0; where nothing is above, `NOBODY` wins.
    """
    total, _, channels = pyramid.shape
    if total == 0:
        return
    filters, per_group = output.shape[1] // groups, channels // groups
    by_image = is_by_image(pyramid)
    images = total // parts

    def launch(blocks: Blocks, pyramid: Tensor, weight: Tensor, output: Tensor, winner: Tensor) -> None:
        block_p, block_m, block_k, warps, stages, registers = blocks
        rows = cdiv(images, block_p) * tables.positions if by_image else cdiv(images * tables.positions, block_p)
        _respond[rows, cdiv(filters, block_m), groups * parts](
            pyramid, weight, weight if bias is None else bias, output, winner,
            tables.where, tables.right, tables.below, tables.row_steps, tables.tap_pixels, tables.tap_channels,
            tables.codes, images, tables.positions, filters, per_group, groups, tables.col_step, pyramid.stride(1),
            pyramid.stride(0), weight.shape[1], output.stride(0), output.stride(1), output.stride(3),
            TAPS=tables.taps, LEVELS=len(tables), PLAIN=tables.plain, RELU=relu, HAS_BIAS=bias is not None,
            VECTOR=access_width(pyramid, per_group, parts), FLIP=per_group == 1, PRECISION=precision(),
            BY_IMAGE=by_image, BLOCK_P=block_p, BLOCK_M=block_m, BLOCK_K=block_k,
            num_warps=warps, num_stages=stages, maxnreg=registers,
        )  # fmt: skip

    if blocks is None:
        layer = (
            filters, per_group, groups, parts, tables.taps, len(tables), tables.plain, tables.positions, relu, by_image,
            pyramid.dtype, precision(),
        )  # fmt: skip
        table = choose_blocks(filters, per_group, pyramid.dtype, tables, relu)
        blocks = trial.choose(
            "respond", layer, pyramid.device, table, other_blocks,
            lambda: trial.on_random_numbers(launch, tables.codes, (pyramid, weight), (output, winner), tables.taps),
        )  # fmt: skip
    launch(blocks, pyramid, weight, output, winner)


def is_by_image(pyramid: Tensor) -> bool:
    """Whether the images of the pyramids lie side by side."""
    return pyramid.stride(1) > pyramid.stride(0)


def access_width(pyramid: Tensor, per_group: int, parts: int) -> int:
    """How many elements that lie together one access takes: channels, or else images of a single channel."""
    if per_group == 1 and is_by_image(pyramid) and pyramid.shape[2] == 1:
        return vector_width(len(pyramid) // parts, pyramid.dtype)
    return vector_width(per_group, pyramid.dtype)


def precision() -> str:
    """How products of float32 are taken: as torch's convolutions do."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def choose_blocks(filters: int, channels: int, dtype: torch.dtype, tables: PatchTables, relu: bool) -> Blocks:
    """The fastest on an H200 for the shapes of `scaleconv bench`, and for the plain layers of the paper's networks."""
    if filters > 64:
        return 64, 256 if filters > 128 else 128, 64, 8, 2, None
    block_m = max(next_power_of_2(filters), 16)
    if channels > 1 and not tables.interpolates:  # few positions make too few blocks to fill the GPU
        return (128, block_m, 32, 4, 4, None) if tables.positions > 64 else (64, block_m, 32, 4, 3, None)
    if dtype == torch.float32 and channels > 1:
        return 64, block_m, 32, 4, 1, 168
    if dtype == torch.float32:
        block_k = 32 if 0 < tables.taps % 64 <= 32 else 64  # few taps beyond the last block
        return 64, block_m, block_k, 8 if relu and block_k == 64 and not tables.interpolates else 4, 1, None
    return 64, block_m, 64, 4, 1, 168


def other_blocks(table: Blocks, sizes: Sequence[tuple[int, int, int, int]] = SIZES) -> list[Blocks]:
    """What else may be fast, for as many filters at a time: rows, taps, warps and stages."""
    return [(rows, table[1], taps, warps, stages, None) for rows, taps, warps, stages in sizes]
