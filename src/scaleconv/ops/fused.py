"""The layer by fused kernels: what is launched, for how many images at a time, forward and backward.

Only the input, the weight and one winner byte per output live from the forward to the backward pass. The pyramid is
made anew for some images at a time, so that the memory it takes is bounded by that of input and output.

A batch may consist of equal parts, each with filters of its own: that is how several networks train as one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import Axis
from .kernels.resample import resample
from .kernels.respond import respond
from .kernels.tables import LevelBands, Tables, make_tables
from .kernels.weight_grad import weight_grad
from .pool import is_channels_last
from .signature import Signature

# What is made for a chunk of images takes at most so many times the memory of input and output, unless that is little.
WORKSPACE = 2.0
LITTLE = 16 * 2**20
LARGEST = 2**31 - 1  # the kernels count elements in 32 bits


def fused_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, signature: Signature, parts: int, antialias: bool
) -> tuple[Tensor, Tensor]:
    """Output and winner, both (N, M, H0, W0), the latter in channels_last and without elements for a single level."""
    tables = make_tables(signature, antialias, input.device)
    images, channels = input.shape[:2]
    shape = (signature.height.output_size, signature.width.output_size)
    layout = torch.channels_last if is_channels_last(input) or is_channels_last(weight) else torch.contiguous_format
    output = torch.empty(
        (images, signature.out_channels, *shape), dtype=input.dtype, device=input.device, memory_format=layout
    )
    several = len(tables.levels) > 1
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
            winner[some] if several else None,
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
    tables = make_tables(signature, antialias, input.device)
    won = winner.permute(0, 2, 3, 1).contiguous()  # (N, H0, W0, M)
    return (
        _input_grad(grad, input, weight, won, signature, tables, parts) if needed[0] else None,
        _weight_grad(grad, input, weight, won, signature, tables, parts) if needed[1] else None,
    )


def _weight_grad(
    grad: Tensor, input: Tensor, weight: Tensor, won: Tensor, signature: Signature, tables: Tables, parts: int
) -> Tensor:
    total = weight.new_empty((weight.shape[0], tables.taps), dtype=torch.float32)
    for number, (some, filters, count) in enumerate(
        _chunks(input, signature, tables.pyramid.pixels * input.shape[1], parts)
    ):
        share = weight_grad(
            _pyramid(input[some], tables),
            _pixels(grad[some]).flatten(1, 2),
            won[some].flatten(1, 2) if len(tables.levels) > 1 else None,
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
    grad: Tensor, input: Tensor, weight: Tensor, won: Tensor, signature: Signature, tables: Tables, parts: int
) -> Tensor:
    """Level by level: the gradient that the level won, spread over its responses, convolved back, and collected."""
    result = torch.empty_like(input)
    per_image = max(
        level.response[0] * level.response[1] * signature.out_channels + level.size[0] * level.size[1] * input.shape[1]
        for level in tables.levels
    )
    for some, filters, count in _chunks(input, signature, per_image, parts):
        slope = _pixels(grad[some])
        total = slope
        for level in tables.levels:
            share = slope
            if len(tables.levels) > 1:
                share = slope.new_empty((len(slope), *level.response, slope.shape[3]))
                resample(slope, level.spread, share, winner=won[some], place=level.place)
            back = _convolve_back(share, weight[filters], signature, level, count)
            if level.place == 0:  # the identity lies on the input already
                total = back
            else:
                resample(back, level.collect, total, add=True)
        result[some] = total.permute(0, 3, 1, 2)
    return result


def _convolve_back(grad: Tensor, weight: Tensor, signature: Signature, level: LevelBands, parts: int) -> Tensor:
    """The transposed convolution, from a level's responses (N, h', w', M) to its pixels (N, h, w, C)."""
    axes, groups = (signature.height, signature.width), signature.groups
    if parts == 1:
        missing = [
            length - ((response - 1) * axis.stride - 2 * axis.padding[0] + axis.dilation * (axis.kernel - 1) + 1)
            for axis, length, response in zip(axes, level.size, level.response, strict=True)
        ]
        back = F.conv_transpose2d(
            grad.permute(0, 3, 1, 2),
            weight.contiguous(memory_format=torch.channels_last),
            stride=[axis.stride for axis in axes],
            padding=[axis.padding[0] for axis in axes],
            output_padding=[max(rows, 0) for rows in missing],
            groups=groups,
            dilation=[axis.dilation for axis in axes],
        )
        return _pixels(back[:, :, : level.size[0], : level.size[1]])  # uneven padding makes one too many
    reach = [axis.dilation * (axis.kernel - 1) for axis in axes]
    if any(axis.stride > 1 or max(axis.padding) > far for axis, far in zip(axes, reach, strict=True)):
        pieces = zip(grad.chunk(parts), weight.chunk(parts), strict=True)
        return torch.cat([_convolve_back(piece, filters, signature, level, 1) for piece, filters in pieces])
    # With a stride of 1 it is a convolution with the flipped filters, which the forward kernel does for all parts.
    height, width = (
        Axis(response, axis.kernel, 1, (far - axis.padding[0], far - axis.padding[1]), axis.dilation)
        for axis, response, far in zip(axes, level.response, reach, strict=True)
    )
    back_signature = Signature(height, width, (1.0,), signature.out_channels, signature.in_channels, groups)
    flipped = weight.unflatten(0, (parts * groups, -1)).transpose(1, 2).flip(-1, -2).flatten(0, 1)
    back, _ = fused_forward(grad.permute(0, 3, 1, 2), flipped, None, back_signature, parts, antialias=False)
    return _pixels(back)


def _chunks(input: Tensor, signature: Signature, per_image: int, parts: int) -> Iterator[tuple[slice, slice, int]]:
    """Images to take at a time, the filters they meet, and how many parts of the batch they are."""
    images, filters = len(input), signature.out_channels
    outputs = images * filters * signature.height.output_size * signature.width.output_size
    allowed = max(int(WORKSPACE * (input.numel() + outputs)), LITTLE // input.element_size())
    pieces = -(-images * per_image // min(allowed, LARGEST))
    if parts == 1:
        step = max(1, images // max(pieces, 1))
        for start in range(0, images, step):
            yield slice(start, start + step), slice(None), 1
        return
    size, step = images // parts, max(1, parts // max(pieces, 1))
    for start in range(0, parts, step):
        count = min(step, parts - start)
        yield slice(start * size, (start + count) * size), slice(start * filters, (start + count) * filters), count


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
