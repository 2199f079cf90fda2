"""Tables of the levels that are taken whole: rescaled, convolved by a library, aligned; and the way back."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import Axis, AxisLevel, Level
from ..resample import align_matrix, transform_matrix
from ..signature import Signature
from .bands import Bands, level_support, make_bands


@dataclass(frozen=True)
class DirectLevel:
    """One level.

    Attributes:
        code: its index in `scales`, which is its value in the winner map.
        plain: whether it is the identity, which is neither rescaled nor aligned.
        size: of the rescaled image, with the zeros that uneven padding puts behind it, (height, width).
        response: of the convolution, (height, width).
        rescale: makes it from the input.
        align: takes its responses to the output; nothing where they do not cover it.
        spread, collect: the transposed maps, from the output to the responses, and from its pixels to the input.
    """

    code: int
    plain: bool
    size: tuple[int, int]
    response: tuple[int, int]
    rescale: Bands
    align: Bands
    spread: Bands
    collect: Bands

    @property
    def nbytes(self) -> int:
        return self.rescale.nbytes + self.align.nbytes + self.spread.nbytes + self.collect.nbytes

    def elements(self, signature: Signature, *, back: bool = False) -> int:
        """Of its pixels and its responses for one image; on the way back, of the gradient of its pixels as well."""
        responses, pixels = self.response[0] * self.response[1], self.size[0] * self.size[1]
        return responses * signature.out_channels + (2 if back else 1) * pixels * signature.in_channels


def make_direct_level(signature: Signature, level: Level, antialias: bool, device: torch.device) -> DirectLevel:
    """The tables of one level."""
    axes = ((signature.height, level.height), (signature.width, level.width))
    support = level_support(level, antialias)
    rescale = [_rescale(axis, on, support) for axis, on in axes]
    align = [_align(axis, on) for axis, on in axes]
    return DirectLevel(
        code=level.index,
        plain=level.scale == 1,
        size=(len(rescale[0]), len(rescale[1])),
        response=(level.height.response_size, level.width.response_size),
        rescale=make_bands(rescale[:1], rescale[1:], device),
        align=make_bands(align[:1], align[1:], device),
        spread=make_bands([align[0].mT], [align[1].mT], device),
        collect=make_bands([rescale[0].mT], [rescale[1].mT], device),
    )


def _rescale(axis: Axis, level: AxisLevel, support: float) -> Tensor:
    return F.pad(transform_matrix(axis, level, support), (0, 0, 0, axis.padding[1] - axis.padding[0]))


def _align(axis: Axis, level: AxisLevel) -> Tensor:
    """(outputs, responses), rows of zeros where the level does not cover."""
    return F.pad(align_matrix(level), (0, 0, level.covered[0], axis.output_size - level.covered[1]))
