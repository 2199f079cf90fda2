"""The levels of a call as linear maps: sample the input, convolve, align. Matrices are made once and cached.

Three kinds of level share this one form. The identity convolves the input as it is. A level in the direct order is
sampled by T_s, convolved whole and aligned, as in the paper. A level in the patches order is sampled straight into the
interpolated patches that the kernel meets at the covered outputs, laid side by side, so that a convolution whose stride
is the kernel's size lands on the output and nothing is left to align. All are exact; the cheaper order is chosen.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .cost import prefers_patches
from .geometry import Level
from .resample import align_matrix, patch_matrix, transform_matrix
from .signature import Signature


@dataclass(frozen=True)
class Convolution:
    """How the weight is applied to a sampled input; `excess` zeros go below and to the right if padding is uneven."""

    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    excess: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class LevelMap:
    """One level, ready to be applied.

    Attributes:
        index, wins_ties: as in `geometry.Level`.
        rows, columns: the covered output positions.
        sample: matrices (rows, columns) that sample the input; empty for the identity.
        convolution: how the weight is applied to the sampled input.
        align: matrices (rows, columns) that bring the response to the covered positions; empty if it is there already.
    """

    index: int
    wins_ties: bool
    rows: slice
    columns: slice
    sample: tuple[Tensor, ...]
    convolution: Convolution
    align: tuple[Tensor, ...]


@lru_cache(maxsize=128)
def level_maps(signature: Signature, antialias: bool, dtype: torch.dtype, device: torch.device) -> tuple[LevelMap, ...]:
    """The levels of a call in the order in which they compete.

    The matrices outlive the call that asked for them, so they are made as ordinary tensors even where that call is
    being traced, or runs in inference mode.
    """
    with _disable_current_modes(), torch.inference_mode(False):
        return tuple(_level_map(signature, level, antialias, dtype, device) for level in signature.plan.levels)


def _level_map(
    signature: Signature, level: Level, antialias: bool, dtype: torch.dtype, device: torch.device
) -> LevelMap:
    rows, columns = (signature.height, level.height), (signature.width, level.width)
    vertical, horizontal = signature.height, signature.width
    support = max(1.0, 1 / level.scale) if antialias else 1.0

    def as_tensors(*matrices: Tensor) -> tuple[Tensor, ...]:
        return tuple(matrix.to(device, dtype) for matrix in matrices)

    if prefers_patches(signature, level):
        sample = as_tensors(patch_matrix(*rows, support), patch_matrix(*columns, support))
        convolution = Convolution(stride=(vertical.kernel, horizontal.kernel))
        align: tuple[Tensor, ...] = ()
    else:
        identity = level.scale == 1
        sample = () if identity else as_tensors(transform_matrix(*rows, support), transform_matrix(*columns, support))
        convolution = Convolution(
            stride=(vertical.stride, horizontal.stride),
            padding=(vertical.padding[0], horizontal.padding[0]),
            dilation=(vertical.dilation, horizontal.dilation),
            excess=(vertical.padding[1] - vertical.padding[0], horizontal.padding[1] - horizontal.padding[0]),
        )
        align = () if identity else as_tensors(align_matrix(level.height), align_matrix(level.width))
    return LevelMap(
        level.index,
        level.wins_ties,
        slice(*level.height.covered),
        slice(*level.width.covered),
        sample,
        convolution,
        align,
    )
