"""The layer by fused kernels: what is launched, for how many images at a time, forward and backward.

Only the input, the weight and one winner byte per output live from the forward to the backward pass. The pyramid is
made anew for some images at a time, so that the memory it takes is bounded by that of input and output.

A batch may consist of equal parts, each with filters of its own: that is how several networks train as one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .kernels.patches_back import add_patches_back
from .kernels.resample import resample
from .kernels.respond import respond
from .kernels.tables import Tables, make_tables
from .kernels.way_back import DirectLevel, make_way_back
from .kernels.weight_grad import weight_grad
from .pool import is_channels_last
from .signature import Signature

# What is made for a chunk of images takes at most so many times the memory of input and output, unless that is little.
WORKSPACE = 1.8
LITTLE = 16 * 2**20
LARGEST = 2**31 - 1  # the kernels count elements in 32 bits


def fused_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, signature: Signature, parts: int, antialias: bool
) -> tuple[Tensor, Tensor]:
    """Output and winner, both (N, M, H0, W0), the latter in channels_last and without elements for a single level."""
    tables = make_tables(signature, antialias, input.device)
    images, channels = input.shape[:2]
    shape = (signature.height.output_size, signature.width.output_size)
    last = parts > 1 or is_channels_last(input) or is_channels_last(weight)
    layout = torch.channels_last if last else torch.contiguous_format
    output = torch.empty(
        (images, signature.out_channels, *shape), dtype=input.dtype, device=input.device, memory_format=layout
    )
    several = tables.levels > 1
    winner = torch.empty(
        (images if several else 0, tables.positions, signature.out_channels), dtype=torch.uint8, device=input.device
    )
    flat = _flat_weight(weight, tables.offsets.shape[1])
    for some, filters, count in _chunks(input, signature, tables.pyramid.pixels * channels, parts):
        respond(
            _pyramid(input[some], tables),
            flat[filters],
            None if bias is None else bias[filters],
            output[some],
            winner[some],
            tables,
            signature.groups,
            count,
        )
    return output, winner.unflatten(1, shape).permute(0, 3, 1, 2)


def fused_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    winner: Tensor,
    signature: Signature,
    parts: int,
    antialias: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the input and of the weight, each None if it is not needed."""
    won = winner.permute(0, 2, 3, 1).contiguous()  # (N, H0, W0, M)
    return (
        _input_grad(grad, input, weight, won, signature, antialias, parts) if needed[0] else None,
        _weight_grad(grad, input, weight, won, signature, antialias, parts) if needed[1] else None,
    )


def _weight_grad(
    grad: Tensor, input: Tensor, weight: Tensor, won: Tensor, signature: Signature, antialias: bool, parts: int
) -> Tensor:
    tables = make_tables(signature, antialias, input.device)
    total = weight.new_empty((weight.shape[0], tables.taps), dtype=torch.float32)
    for number, (some, filters, count) in enumerate(
        _chunks(input, signature, tables.pyramid.pixels * input.shape[1], parts)
    ):
        share = weight_grad(
            _pyramid(input[some], tables),
            _pixels(grad[some]).flatten(1, 2),
            won[some].flatten(1, 2),
            tables,
            signature.groups,
            count,
        )
        if parts == 1 and number > 0:
            total += share
        else:
            total[filters] = share
    if len(input) == 0:
        total.zero_()
    kernel = (signature.height.kernel, signature.width.kernel)
    filters_last: Tensor = total.unflatten(1, (*kernel, weight.shape[1]))
    return filters_last.permute(0, 3, 1, 2).to(weight.dtype)


def _input_grad(
    grad: Tensor, input: Tensor, weight: Tensor, won: Tensor, signature: Signature, antialias: bool, parts: int
) -> Tensor:
    tables = make_tables(signature, antialias, input.device)
    way = make_way_back(signature, antialias, parts, input.device)
    result = torch.empty_like(input)
    weight_last = weight.contiguous(memory_format=torch.channels_last)
    flat = _flat_weight(weight, tables.offsets.shape[1])
    columns = flat.unflatten(0, (parts, signature.groups, -1)).mT.contiguous()  # (parts, groups, taps, M / groups)
    levels_need = max((level.elements(signature) for level in way.direct), default=0)
    patches_need = len(way.patches) * tables.positions * tables.taps * signature.groups
    for some, _, _ in _chunks(input, signature, levels_need, parts):
        slope, won_here = _pixels(grad[some]), won[some]
        total = slope.new_zeros((len(slope), *input.shape[2:], input.shape[1]))
        for level in way.direct:
            total = _add_level_back(total, slope, won_here, weight_last, signature, level)
        for few, filters, count in _chunks(input[some], signature, patches_need, parts):
            add_patches_back(
                slope[few].flatten(1, 2),
                won_here[few].flatten(1, 2),
                columns[filters.start // signature.out_channels :][:count].flatten(0, 1),
                total[few],
                way.patches,
                tables.taps,
                signature.groups,
                count,
            )
        result[some] = total.permute(0, 3, 1, 2)
    return result


def _add_level_back(
    total: Tensor, grad: Tensor, won: Tensor, weight: Tensor, signature: Signature, level: DirectLevel
) -> Tensor:
    """Add the gradient that one level carries back, by a library's convolution; the identity starts the sum."""
    share = grad
    if len(won):
        share = grad.new_empty((len(grad), *level.response, grad.shape[3]))
        resample(grad, level.spread, share, winner=won, place=level.place)
    axes = (signature.height, signature.width)
    missing = [
        length - ((response - 1) * axis.stride - 2 * axis.padding[0] + axis.dilation * (axis.kernel - 1) + 1)
        for axis, length, response in zip(axes, level.size, level.response, strict=True)
    ]
    back = F.conv_transpose2d(
        share.permute(0, 3, 1, 2),
        weight,
        stride=[axis.stride for axis in axes],
        padding=[axis.padding[0] for axis in axes],
        output_padding=[max(rows, 0) for rows in missing],
        dilation=[axis.dilation for axis in axes],
    )
    pixels = _pixels(back[:, :, : level.size[0], : level.size[1]])  # uneven padding makes one too many
    if level.place == 0:
        return pixels
    resample(pixels, level.collect, total, add=True)
    return total


def _chunks(input: Tensor, signature: Signature, per_image: int, parts: int) -> Iterator[tuple[slice, slice, int]]:
    """Images to take at a time, the filters they meet, and how many parts of the batch they are."""
    images, filters = len(input), signature.out_channels
    outputs = images * filters * signature.height.output_size * signature.width.output_size
    allowed = max(int(WORKSPACE * (input.numel() + outputs)), LITTLE // input.element_size())
    pieces = max(1, -(-images * per_image // min(allowed, LARGEST)), -(-outputs // LARGEST))
    units = images if parts == 1 else parts
    step = max(1, -(-units // pieces))
    for start in range(0, units, step):
        count = min(step, units - start)
        size = images // units
        one = slice(0, filters) if parts == 1 else slice(start * filters, (start + count) * filters)
        yield slice(start * size, (start + count) * size), one, 1 if parts == 1 else count


def _pyramid(images: Tensor, tables: Tables) -> Tensor:
    """All levels of every image, one after the other: (N, pixels, C)."""
    pixels = _pixels(images)
    pyramid = pixels.new_empty((len(pixels), tables.pyramid.pixels, pixels.shape[3]))
    resample(pixels, tables.pyramid, pyramid)
    return pyramid


def _pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return images.permute(0, 2, 3, 1).contiguous()


def _flat_weight(weight: Tensor, padded_taps: int) -> Tensor:
    """(M, C, Kh, Kw) as contiguous (M, padded taps), channels last."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(flat, (0, padded_taps - flat.shape[1])).contiguous()
