"""The grids of a module with map output, their total strides and the centres of their first outputs, from sizes."""

import copy
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.torch_private import tree_leaves, without_dispatch_modes

Pair = tuple[float, float]
Grid = tuple[Pair, Pair]  # stride and offset, each (height, width)
PROBED = 1024  # pixels of the first image that a module is asked about; more than most receptive fields
LARGEST_STRIDE = 256  # of the coarsest maps of a feature pyramid it is 128


def find_grids(module: nn.Module, channels: int) -> list[Grid]:
    """Total stride t and offset o of every map that a module returns, from sizes alone.

    A convolution of H pixels has n = floor((H − 2·o − 1)/t) + 1 outputs, and so has a chain of them. So t is
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
    def sizes(length: int) -> list[tuple[int, int]]:
        try:
            return _map_sizes(blank, channels, length)
        except Exception as error:
            raise ValueError(f"{cannot} the module takes no image of {length}×{length} pixels ({error})") from error

    def along(map: int, axis: int) -> Pair:
        def outputs(length: int) -> int:
            return sizes(length)[map][axis]

        def after(length: int) -> int:
            """The next length with more outputs; the last that is asked about if there is none."""
            lengths = range(length, length + LARGEST_STRIDE)
            return length + bisect_right(lengths, outputs(length), key=outputs)

        first = after(PROBED)
        second = after(first)
        grown = outputs(second) - outputs(first)
        stride = Fraction(second - first, grown) if grown else Fraction(0)
        last = first + 4 * (second - first)
        even = outputs(last) == outputs(first) + 4 * grown and 1 in (stride.numerator, stride.denominator)
        if not stride or not even:
            raise ValueError(
                f"{cannot} to {PROBED} and {last} pixels the module answers by {outputs(PROBED)} and {outputs(last)}, "
                f"which is not one for every whole number of pixels up to {LARGEST_STRIDE}"
            )
        return float(stride), float(first - 1 - stride * (outputs(first) - 1)) / 2

    grids = []
    for map in range(len(sizes(PROBED))):
        (down, top), (right, left) = along(map, 0), along(map, 1)
        grids.append(((down, right), (top, left)))
    return grids


def _map_sizes(module: nn.Module, channels: int, length: int) -> list[tuple[int, int]]:
    """(height, width) of the maps that a module without data makes of a square image."""
    with without_dispatch_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not what the user runs
        answer = module(torch.empty((1, channels, length, length), device="meta"))
    shapes = [leaf.shape for leaf in tree_leaves(answer) if isinstance(leaf, Tensor) and leaf.ndim == 4]
    return [(int(shape[2]), int(shape[3])) for shape in shapes]


def without_data(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose tensors have shapes and no data, so that a call computes nothing.

    Of one floating-point type, for autocast does not reach such tensors.
    """
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor)]
    with without_dispatch_modes():
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
