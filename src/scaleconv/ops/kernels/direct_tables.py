"""Tables of the levels that a library convolves, and of the way back. A level has one of three forms:

- whole: rescaled, convolved and aligned, as the paper has it;
- strided: a regular level is moved by the fraction at which the outputs read it while it is rescaled; a convolution
  with a stride then gives the outputs;
- apart: the patches that the outputs meet lie one after the other, none shares a pixel with another, and their taps are
  channels; the convolution is a matrix product.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import Axis, AxisLevel, Level
from ..resample import align_matrix, patch_matrix, strided_matrix, transform_matrix
from ..signature import Signature
from .bands import Bands, level_support, make_bands

Form = Literal["whole", "strided", "apart"]
Convolution = tuple[list[int], list[int], list[int]]


@dataclass(frozen=True)
class DirectLevel:
    """One level.

    Attributes:
        code: its index in `scales`, which is its value in the winner map.
        plain: whether it is the identity, which is neither rescaled nor aligned.
        size: of the rescaled image, with the zeros that uneven padding puts behind it, (height, width); patches apart
            have one pixel for each.
        taps: of a filter that are channels.
        response: of the convolution, (height, width).
        convolution: its stride, padding and dilation.
        rescale: makes it from the input.
        align: takes its responses to the output; nothing where they do not cover it.
        spread, collect: the transposed maps, from the output to the responses, and from its pixels to the input.
    """

    code: int
    plain: bool
    size: tuple[int, int]
    taps: int
    response: tuple[int, int]
    convolution: Convolution
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
        return responses * signature.out_channels + (2 if back else 1) * pixels * self.taps * signature.in_channels


def make_direct_level(
    signature: Signature, level: Level, form: Form, antialias: bool, device: torch.device
) -> DirectLevel:
    """The tables of one level."""
    axes = ((signature.height, level.height), (signature.width, level.width))
    support = level_support(level, antialias)
    if form == "whole":
        rescale = [_rescale(axis, on, support) for axis, on in axes]
        align = [_placed(axis, on, align_matrix(on)) for axis, on in axes]
    else:
        make = strided_matrix if form == "strided" else patch_matrix
        rescale = [make(axis, on, support) for axis, on in axes]
        align = [_placed(axis, on, torch.eye(len(on.targets), dtype=torch.float64)) for axis, on in axes]
    response = (align[0].shape[1], align[1].shape[1])
    to_level = make_bands(rescale[:1], rescale[1:], device)
    to_input = make_bands([rescale[0].mT], [rescale[1].mT], device)
    apart = form == "apart"
    if apart:
        to_level, to_input = _lay_apart(to_level, to_input, signature, response)
    return DirectLevel(
        code=level.index,
        plain=level.scale == 1,
        size=response if apart else (len(rescale[0]), len(rescale[1])),
        taps=signature.height.kernel * signature.width.kernel if apart else 1,
        response=response,
        convolution=_convolution(signature, level, form),
        rescale=to_level,
        align=make_bands(align[:1], align[1:], device),
        spread=make_bands([align[0].mT], [align[1].mT], device),
        collect=to_input,
    )


def _lay_apart(to_level: Bands, to_input: Bands, signature: Signature, outputs: tuple[int, int]) -> tuple[Bands, Bands]:
    """The bands between the input and rows (p, k) by columns (p', k'), which lie in the order p, p', k, k'."""
    kernel = (signature.height.kernel, signature.width.kernel)
    device = to_level.row_first.device
    places = torch.arange(to_level.pixels, device=device).view(outputs[0], kernel[0], outputs[1], kernel[1])
    order = places.transpose(1, 2).flatten()
    taps = kernel[0] * kernel[1]
    offsets = (
        _offsets(outputs[0], outputs[1] * taps, kernel[0], kernel[1]).to(device),
        _offsets(outputs[1], taps, kernel[1], 1).to(device),
    )
    moved = replace(to_level, pixel_rows=to_level.pixel_rows[order], pixel_cols=to_level.pixel_cols[order])
    return moved, replace(to_input, offsets=offsets)


def _offsets(outputs: int, apart: int, taps: int, beside: int) -> Tensor:
    """Where (p, k) lies if neighbours in p are so many places apart, and those in k."""
    return (torch.arange(outputs)[:, None] * apart + torch.arange(taps) * beside).flatten().to(torch.int32)


def _convolution(signature: Signature, level: Level, form: Form) -> Convolution:
    """Stride, padding and dilation."""
    axes = (signature.height, signature.width)
    stride, dilation = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    if form == "whole":
        return stride, [axis.padding[0] for axis in axes], dilation
    if form == "strided":
        return [stride[0] * level.height.step, stride[1] * level.width.step], [0, 0], dilation
    return [1, 1], [0, 0], [1, 1]


def _rescale(axis: Axis, level: AxisLevel, support: float) -> Tensor:
    return F.pad(transform_matrix(axis, level, support), (0, 0, 0, axis.padding[1] - axis.padding[0]))


def _placed(axis: Axis, level: AxisLevel, align: Tensor) -> Tensor:
    """(outputs, responses) from (covered outputs, responses), rows of zeros where the level does not cover."""
    return F.pad(align, (0, 0, level.covered[0], axis.output_size - level.covered[1]))
