"""The levels of a call as linear maps: sample the input, convolve, align. Matrices are made once and cached.

Four kinds of level share this one form. The identity convolves the input as it is. A level in the direct order is
sampled by T_s, convolved whole and aligned, as in the paper. A level in the patches order is sampled straight into the
interpolated patches that the kernel meets at the covered outputs, and nothing is left to align. With few channels they
lie side by side, and the convolution's stride is the kernel's size. With many, the taps become channels and the kernel
1×1, whose gradients a CPU computes faster. Where the scale is a whole number, the outputs lie that many responses
apart, and a convolution with a stride meets them alone. All are exact; the cheapest order is chosen.
"""

from dataclasses import dataclass
from types import EllipsisType

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from .cache import BoundedCache
from .cost import prefers_patches
from .geometry import Level
from .resample import SIDE_BY_SIDE, align_matrix, patch_matrix, strided_matrix, transform_matrix
from .signature import Signature


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
        sample: matrices (rows, columns) that sample the input; empty for the identity.
        taps: the kernel's size if its taps become channels of the sampled input and of the weight; empty if not.
        convolution: how the weight is applied to the sampled input.
        align: matrices (rows, columns) that bring the response to the covered positions; empty if it is there already.
    """

    index: int
    wins_ties: bool
    region: tuple[EllipsisType, slice, slice]
    sample: tuple[Tensor, ...]
    taps: tuple[int, ...]
    convolution: Convolution
    align: tuple[Tensor, ...]


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
        LEVEL_MAPS.put(key, levels, sum(matrix.nbytes for level in levels for matrix in (*level.sample, *level.align)))
    return levels


def _level_map(
    signature: Signature, level: Level, antialias: bool, dtype: torch.dtype, device: torch.device
) -> LevelMap:
    height, width = signature.height, signature.width
    vertical, horizontal = (height, level.height), (width, level.width)
    support = max(1.0, 1 / level.scale) if antialias else 1.0

    def constants(*matrices: Tensor) -> tuple[Tensor, ...]:
        placed = tuple(matrix.to(device, dtype) for matrix in matrices)
        for matrix in placed:
            # To a compiler their sizes are constants too. `torch._dynamo.mark_static` sets this, but not in a trace.
            matrix._dynamo_static_indices = {0, 1}  # type: ignore[attr-defined]
        return placed

    taps: tuple[int, ...] = ()
    align: tuple[Tensor, ...] = ()
    if level.regular:
        sample = constants(strided_matrix(*vertical, support), strided_matrix(*horizontal, support))
        convolution = Convolution(
            stride=(height.stride * level.height.step, width.stride * level.width.step),
            dilation=(height.dilation, width.dilation),
            groups=signature.groups,
        )
    elif prefers_patches(signature, level):
        sample = constants(patch_matrix(*vertical, support), patch_matrix(*horizontal, support))
        kernel = (height.kernel, width.kernel)
        if signature.groups == 1 and signature.in_channels >= SIDE_BY_SIDE:
            convolution, taps = Convolution(stride=(1, 1)), kernel
        else:
            convolution = Convolution(stride=kernel, groups=signature.groups)
    else:
        identity = level.scale == 1
        sample = (
            () if identity else constants(transform_matrix(*vertical, support), transform_matrix(*horizontal, support))
        )
        convolution = Convolution(
            stride=(height.stride, width.stride),
            padding=(height.padding[0], width.padding[0]),
            dilation=(height.dilation, width.dilation),
            groups=signature.groups,
            excess=(height.padding[1] - height.padding[0], width.padding[1] - width.padding[0]),
        )
        align = () if identity else constants(align_matrix(level.height), align_matrix(level.width))
    region = (..., slice(*level.height.covered), slice(*level.width.covered))
    return LevelMap(level.index, level.wins_ties, region, sample, taps, convolution, align)
