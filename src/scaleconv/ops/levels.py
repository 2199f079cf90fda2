"""The levels of a call as linear maps: sample the input, convolve, align. Matrices are made once and cached.

Five kinds of level share this one form. The identity convolves the input as it is. A level in the direct order is
sampled by T_s, convolved whole and aligned, as in the paper. A level in the patches order is sampled straight into the
interpolated patches that the kernel meets at the covered outputs, and nothing is left to align. With few channels they
lie side by side, and the convolution's stride is the kernel's size. With many, the taps become channels and the kernel
1×1, whose gradients a CPU computes faster. Where the scale is a whole number, all outputs meet the input alike: the
filter is resampled instead, and a convolution of the input as it is gives the outputs. If padding or the edge makes a
difference to some, they lie that many responses apart, and a convolution with a stride meets them alone. All are exact;
the cheapest order is chosen.

Numbers on a CPU that nothing traces or transforms are resampled by bags in place of matrices. That costs so little that
more levels go in the patches order, so each level comes in both ways.
"""

import math
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from .bags import Bags, make_bags
from .cache import BoundedCache
from .cost import prefers_filter, prefers_patches, prefers_patches_by_bags
from .geometry import Axis, AxisLevel, Level
from .resample import SIDE_BY_SIDE, align_matrix, filter_matrix, patch_matrix, strided_matrix, transform_matrix
from .signature import Signature

BAG_TYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST_PIXELS = (48 * 48, 10 * 10)  # of an image with few channels, and with many, from which bags are the faster
MOST_PIXELS = 384 * 384  # of an image, up to which bags are worth their memory, and of what is gathered of one


@dataclass(frozen=True)
class Convolution:
    """How the weight is applied to a sampled input; `excess` zeros go below and to the right if padding is uneven."""

    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    excess: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class LevelMap:
    """One level, ready to be applied.

    Attributes:
        index, wins_ties: as in `geometry.Level`.
        region: where on the output the covered positions lie.
        convolution: how the weight is applied to the sampled input.
        sample: matrices (rows, columns) that sample the input; empty if it is convolved as it is.
        margin: rows above and below, columns left and right, that no output meets and that are left out; or empty.
        taps: the kernel's size if its taps become channels of the sampled input and of the weight; empty if not.
        filter: matrices (rows, columns) that resample the weight; empty if it is taken as it is.
        align: matrices (rows, columns) that bring the response to the covered positions; empty if it is there already.
        bags, align_bags: in place of `sample` and `align`, there and back.
        by_bags: the same level with bags, if they are the faster for numbers on a CPU.
        gathered: that in the patches order with the taps as channels, if it can be.
    """

    index: int
    wins_ties: bool
    region: tuple[EllipsisType, slice, slice]
    convolution: Convolution
    sample: tuple[Tensor, ...] = ()
    margin: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    filter: tuple[Tensor, ...] = ()
    align: tuple[Tensor, ...] = ()
    bags: tuple[Bags, ...] = ()
    align_bags: tuple[Bags, ...] = ()
    by_bags: "LevelMap | None" = None
    gathered: "LevelMap | None" = None

    @property
    def sampled(self) -> int:
        """Numbers that are sampled of one channel of an image; 0 if it is taken as it is."""
        if self.bags:
            return self.bags[0].count
        return len(self.sample[0]) * len(self.sample[1]) if self.sample else 0

    @property
    def nbytes(self) -> int:
        own = sum(matrix.nbytes for matrix in (*self.sample, *self.filter, *self.align))
        bags = sum(bags.nbytes for bags in (*self.bags, *self.align_bags))
        shared = bool(self.bags) and self.gathered is not None and self.gathered.bags is self.bags
        others = (self.by_bags, None if shared else self.gathered)
        return own + bags + sum(level.nbytes for level in others if level)


LEVEL_MAPS: BoundedCache[tuple[LevelMap, ...]] = BoundedCache(entries=128, nbytes=256 * 2**20)


def level_maps(signature: Signature, antialias: bool, dtype: torch.dtype, device: torch.device) -> tuple[LevelMap, ...]:
    """The levels of a call in the order in which they compete.

    The matrices outlive the call that asked for them, so they are made as ordinary tensors even where that call is
    being traced or transformed by `torch.func`, or runs in inference mode.
    """
    key = (signature, antialias, dtype, device)
    levels = LEVEL_MAPS.get(key)
    if levels is None:
        with temporarily_clear_interpreter_stack(), _disable_current_modes(), torch.inference_mode(False):
            levels = tuple(_level_map(signature, level, antialias, dtype, device) for level in signature.plan.levels)
            if _suits_bags(signature, dtype, device):
                levels = tuple(
                    replace(level, by_bags=_level_by_bags(signature, planned, antialias, dtype, device))
                    for level, planned in zip(levels, signature.plan.levels, strict=True)
                )
        LEVEL_MAPS.put(key, levels, sum(level.nbytes for level in levels))
    return levels


def _level_by_bags(
    signature: Signature, level: Level, antialias: bool, dtype: torch.dtype, device: torch.device
) -> LevelMap:
    made = _level_map(signature, level, antialias, dtype, device, by_bags=True)
    if made.taps:
        return replace(made, gathered=made)
    taps = signature.height.kernel * signature.width.kernel
    if signature.groups > 1 or signature.in_channels < SIDE_BY_SIDE or taps * _covered(level) > MOST_PIXELS:
        return made
    return replace(made, gathered=_level_map(signature, level, antialias, dtype, device, by_bags=True, gather=True))


def _covered(level: Level) -> int:
    return len(level.height.targets) * len(level.width.targets)


def _suits_bags(signature: Signature, dtype: torch.dtype, device: torch.device) -> bool:
    pixels = signature.height.length * signature.width.length
    least = LEAST_PIXELS[signature.in_channels >= SIDE_BY_SIDE]
    return device.type == "cpu" and dtype in BAG_TYPES and least <= pixels <= MOST_PIXELS


def _level_map(
    signature: Signature,
    level: Level,
    antialias: bool,
    dtype: torch.dtype,
    device: torch.device,
    by_bags: bool = False,
    gather: bool = False,
) -> LevelMap:
    axes = ((signature.height, level.height), (signature.width, level.width))
    support = max(1.0, 1 / level.scale) if antialias else 1.0
    groups = signature.groups
    kernel, stride, dilation = (
        tuple(getattr(axis, name) for axis, _ in axes) for name in ("kernel", "stride", "dilation")
    )

    def constants(*matrices: Tensor) -> tuple[Tensor, ...]:
        placed = tuple(matrix.to(device, dtype) for matrix in matrices)
        for matrix in placed:
            # To a compiler their sizes are constants too. `torch._dynamo.mark_static` sets this, but not in a trace.
            matrix._dynamo_static_indices = {0, 1}  # type: ignore[attr-defined]
        return placed

    def sampling(rows: Tensor, columns: Tensor, taps: tuple[int, ...] = ()) -> dict[str, Any]:
        if by_bags:
            return {"bags": make_bags(rows, columns, taps, dtype), "taps": taps}
        return {"sample": constants(rows, columns), "taps": taps}

    def aligning(rows: Tensor, columns: Tensor) -> dict[str, Any]:
        return {"align_bags": make_bags(rows, columns, (), dtype)} if by_bags else {"align": constants(rows, columns)}

    def level_map(convolution: Convolution, **parts: Any) -> LevelMap:
        region = (..., slice(*level.height.covered), slice(*level.width.covered))
        return LevelMap(level.index, level.wins_ties, region, convolution, **parts)

    many = signature.in_channels >= SIDE_BY_SIDE
    patches = (prefers_patches_by_bags if by_bags and many else prefers_patches)(signature, level)
    if by_bags and math.prod(kernel) * _covered(level) > MOST_PIXELS:
        patches = False
    if not gather and (level.scale == 1 or not (level.regular or patches)):
        padding, behind = zip(*((axis.padding[0], axis.padding[1] - axis.padding[0]) for axis, _ in axes), strict=True)
        convolution = Convolution(stride, padding, dilation, groups, excess=behind)
        if level.scale == 1:
            return level_map(convolution)
        rows, columns = (transform_matrix(*axis, support) for axis in axes)
        back = aligning(align_matrix(level.height), align_matrix(level.width))
        return level_map(convolution, **sampling(rows, columns), **back)
    if gather or not level.regular:
        rows, columns = (patch_matrix(*axis, support) for axis in axes)
        if groups == 1 and many:
            return level_map(Convolution(stride=(1, 1)), **sampling(rows, columns, kernel))
        return level_map(Convolution(stride=kernel, groups=groups), **sampling(rows, columns))
    if prefers_filter(signature, level):
        filter = constants(*(filter_matrix(*axis) for axis in axes))
        margin = (*_margin(*axes[0]), *_margin(*axes[1]))
        return level_map(Convolution(stride, groups=groups), margin=margin, filter=filter)
    steps = (stride[0] * level.height.step, stride[1] * level.width.step)
    rows, columns = (strided_matrix(*axis, support) for axis in axes)
    return level_map(Convolution(steps, dilation=dilation, groups=groups), **sampling(rows, columns))


def _margin(axis: Axis, level: AxisLevel) -> tuple[int, int]:
    """How many pixels lie before the first and behind the last that an output meets."""
    first, pixels = axis.meets(level)
    return first, axis.length - first - axis.stride * (len(level.targets) - 1) - pixels
