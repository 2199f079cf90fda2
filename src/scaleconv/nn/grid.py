"""The grid of a module with map output, its total stride and the centre of its first output, found from sizes."""

import copy
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

Pair = tuple[float, float]
PROBED = 1024  # pixels of the first image that a module is asked about; more than most receptive fields
LARGEST_STRIDE = 64
FAR = 2**20  # pixels more, at which strides up to the largest can be told apart


def find_grid(module: nn.Module, channels: int) -> tuple[Pair, Pair]:
    """Total stride t and offset o of a module with map output, as pairs (height, width), from sizes alone.

    A convolution answers to H pixels by n = floor((H − 2·o − 1)/t) + 1 numbers, and so does a chain of them. So t is
    how far H has to grow for one more, and o is (H−1)/2 − t(n−1)/2 at a size that has just brought one more, where no
    pixel is left over. An upsampling has a t of 1/2, 1/3, ….

    Raises:
        ValueError: the module cannot be asked, its answers do not grow with the input, or it pads one side more than
            the other, which sizes do not show.
    """
    module = getattr(module, "_orig_mod", module)  # one that is compiled would be compiled for every size
    cannot = "`stride` and `offset` must be given, as they cannot be found from sizes:"
    for name, layer in module.named_modules():
        if _is_uneven(layer):
            raise ValueError(f"{cannot} {name or 'module'} (={layer}) does not treat both sides of the image alike")

    blank = without_data(module)

    @cache
    def outputs(length: int) -> tuple[int, int]:
        try:
            return _map_size(blank, channels, length)
        except Exception as error:
            raise ValueError(f"{cannot} the module takes no image of {length}×{length} pixels ({error})") from error

    def along(axis: int) -> Pair:
        least, most = outputs(PROBED)[axis], outputs(PROBED + FAR)[axis]
        stride = Fraction(FAR, max(1, most - least)).limit_denominator(LARGEST_STRIDE)
        if stride > LARGEST_STRIDE or (stride.numerator > 1 and stride.denominator > 1):
            raise ValueError(
                f"{cannot} to {PROBED} and {PROBED + FAR} pixels the module answers by {least} and {most}, "
                f"which is not one for every whole number of pixels up to {LARGEST_STRIDE}"
            )
        lengths = range(PROBED, PROBED + 2 * LARGEST_STRIDE)
        length = lengths[bisect_right(lengths, least, key=lambda length: outputs(length)[axis])]
        return float(stride), float(length - 1 - stride * (outputs(length)[axis] - 1)) / 2

    (down, top), (right, left) = along(0), along(1)
    return (down, right), (top, left)


def _map_size(module: nn.Module, channels: int, length: int) -> tuple[int, int]:
    """(height, width) of what a module without data answers to a square image."""
    with _disable_current_modes(), torch.no_grad():
        height, width = module(torch.empty((1, channels, length, length), device="meta")).shape[2:]
    return int(height), int(width)


def without_data(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose tensors have shapes and no data, so that a call computes nothing.

    Of one floating-point type, for autocast does not reach such tensors.
    """
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor)]
    with _disable_current_modes():
        empty: dict[int, Any] = {}
        for tensor in tensors:
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            blank = torch.empty(tensor.shape, dtype=dtype, device="meta")
            empty[id(tensor)] = nn.Parameter(blank, False) if isinstance(tensor, nn.Parameter) else blank
        return copy.deepcopy(module, empty).eval()


def _is_uneven(layer: nn.Module) -> bool:
    """Whether one side of the image is padded more than the other."""
    if getattr(layer, "ceil_mode", False):
        return True
    of_convolution = getattr(layer, "_reversed_padding_repeated_twice", None)
    pads: Any = of_convolution if of_convolution is not None else getattr(layer, "padding", 0)
    more = getattr(layer, "output_padding", 0)
    return any(more if isinstance(more, Iterable) else (more,)) or (
        isinstance(pads, Sequence) and len(pads) == 4 and (pads[0] != pads[1] or pads[2] != pads[3])
    )
