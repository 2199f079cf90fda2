"""The layer by fused kernels: what is launched, forward and backward.

Only the input, the weight and one winner byte per output live from the forward to the backward pass. What is made of
the levels is made anew for some images at a time, so that the memory it takes is bounded by that of input and output.

A batch may consist of equal parts, each with filters of its own: that is how several networks train as one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import chunks
from .backends import on_its_device
from .kernels.call import Call, make_call, make_pooled, output_size
from .kernels.column_sum import column_sum
from .kernels.compete import compete
from .kernels.direct_tables import DirectLevel
from .kernels.local import add_back_locally, respond_locally
from .kernels.patch_tables import PatchTables
from .kernels.patches_back import add_patches_back
from .kernels.resample import resample
from .kernels.respond import respond
from .kernels.turn import turn
from .kernels.weight_grad import weight_grad
from .pool import is_channels_last
from .signature import Signature


@on_its_device
def fused_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, signature: Signature, parts: int, antialias: bool
) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner's index in `scales`, in channels_last; none for a single level."""
    call = make_call(signature, len(input), parts, antialias, input.device)
    filters, shape = signature.out_channels, (signature.height.output_size, signature.width.output_size)
    last = parts > 1 or is_channels_last(input) or is_channels_last(weight)
    layout = torch.channels_last if last else torch.contiguous_format
    winner = input.new_empty((len(input) if call.several else 0, shape[0] * shape[1], filters), dtype=torch.uint8)
    if call.direct:
        output = _respond_whole(_pixels(input), weight, bias, winner, call.direct, signature)
    else:
        output = torch.empty(
            (len(input), filters, *shape), dtype=input.dtype, device=input.device, memory_format=layout
        )
    if call.local and call.several:
        for some, rows, count in chunks.chunk_for_local_filters(input, signature, call, parts):
            pixels, biases = _pixels(input[some]), None if bias is None else bias[rows]
            for tables in call.local:
                respond_locally(pixels, weight[rows], biases, output[some], winner[some], tables, count)
    elif call.patches:
        flat = _flat_weight(weight, call.patches)
        for some, rows, count in chunks.chunk_pyramids(input, signature, call.patches, parts):
            pyramid, biases = _pyramid(_pixels(input[some]), call.patches, count), None if bias is None else bias[rows]
            respond(pyramid, flat[rows], biases, output[some], winner[some], call.patches, signature.groups, count)
    return output.contiguous(memory_format=layout), winner.unflatten(1, shape).permute(0, 3, 1, 2)


@on_its_device
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
    call = make_call(signature, len(input), parts, antialias, input.device)
    pixels, slope, won = _pixels(input), _pixels(grad), _pixels(winner)  # (N, H, W, C) and twice (N, H0, W0, M)
    to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needed[1] else None
    if call.patches and to_weight is not None:
        _add_to_weight(to_weight, slope, won, pixels, signature, call.patches, parts)
    to_input = torch.zeros_like(pixels) if needed[0] else None
    if call.direct:
        _add_back_whole(slope, won, pixels, weight, to_input, to_weight, call, signature)
    del pixels  # what follows needs their memory, but not them
    if call.local and to_input is not None:
        for some, rows, count in chunks.chunk_for_local_filters(input, signature, call, parts):
            for tables in call.local:
                add_back_locally(slope[some], won[some], weight[rows], to_input[some], tables, count)
    elif call.patches and to_input is not None:
        _add_patches_back(to_input, slope, won, weight, signature, call.patches, parts)
    grad_input = None if to_input is None else _like(_images(to_input), input)
    return grad_input, None if to_weight is None else to_weight.to(weight.dtype)


@on_its_device
def first_layer_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, signature: Signature, parts: int, pool: int
) -> tuple[Tensor, Tensor]:
    """Output (N, M, ⌈H0 / pool⌉, ⌈W0 / pool⌉) behind ReLU and max-pooling, and its winners, in channels_last.

    Winners are counted place by place of a window, and there by scale; or `NOBODY` won.
    """
    tables = make_pooled(signature, pool, input.device)
    filters, shape = signature.out_channels, tuple(-(-length // pool) for length in output_size(signature))
    output = input.new_empty((len(input), *shape, filters)).permute(0, 3, 1, 2)
    winner = input.new_empty((len(input), shape[0] * shape[1], filters), dtype=torch.uint8)
    flat = _flat_weight(weight, tables)
    for some, rows, count in chunks.chunk_pyramids(input, signature, tables, parts):
        pyramid, biases = _pyramid(_pixels(input[some]), tables, count), None if bias is None else bias[rows]
        respond(pyramid, flat[rows], biases, output[some], winner[some], tables, 1, count, relu=True)
    return output, winner.unflatten(1, shape).permute(0, 3, 1, 2)


@on_its_device
def first_layer_backward(
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, signature: Signature, parts: int, pool: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and of the bias."""
    tables = make_pooled(signature, pool, input.device)
    slope, won = _pixels(grad), _pixels(winner)
    to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    _add_to_weight(to_weight, slope, won, _pixels(input), signature, tables, parts)
    to_bias = column_sum(*(tensor.flatten(0, 2).unflatten(0, (parts, -1)) for tensor in (slope, won)))
    return to_weight.to(weight.dtype), to_bias.flatten().to(weight.dtype)


def _respond_whole(
    pixels: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    winner: Tensor,
    levels: Sequence[DirectLevel],
    signature: Signature,
) -> Tensor:
    """Output of the levels that a library convolves, in channels_last; fills in the winner."""
    weight = weight.contiguous(memory_format=torch.channels_last)
    for level in levels:
        filters = _filters(weight, level)
        if level.plain:  # comes first, and starts the maximum
            strongest = _pixels(F.conv2d(_images(_rescaled(pixels, level)), filters, bias, *level.convolution))
            winner.fill_(level.code)
            continue
        need = level.elements(signature)
        for some, _, _ in chunks.chunk_images(_images(pixels), signature, need, parts=1):
            response = F.conv2d(_images(_rescaled(pixels[some], level)), filters, bias, *level.convolution)
            compete(_pixels(response), level.align, strongest[some], winner[some], level.code)
    return _images(strongest)


def _add_back_whole(
    slope: Tensor,
    won: Tensor,
    pixels: Tensor,
    weight: Tensor,
    to_input: Tensor | None,
    to_weight: Tensor | None,
    call: Call,
    signature: Signature,
) -> None:
    """Add to both gradients what comes by the levels that a library convolves."""
    weight = weight.contiguous(memory_format=torch.channels_last)
    needed = [to_input is not None, to_weight is not None, False]
    for level in call.direct:
        filters = _filters(weight, level)
        need = level.elements(signature, back=True)
        for some, _, _ in chunks.chunk_images(_images(pixels), signature, need, parts=1):
            share = slope[some]
            if call.several:
                share = slope.new_empty((len(share), *level.response, slope.shape[3]))
                resample(slope[some], level.spread, share, winner=won[some], code=level.code)
            to_level, by_weight, _ = torch.ops.aten.convolution_backward(
                _images(share),
                _images(_rescaled(pixels[some], level)),
                filters,
                None,
                *level.convolution,
                False,
                [0, 0],
                1,
                needed,
            )
            if to_weight is not None:
                to_weight += _pixels(by_weight).view(to_weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
            if to_input is not None:
                taken = _pixels(to_level).view(len(share), level.size[0], -1, pixels.shape[3])
                resample(taken, level.collect, to_input[some], add=True)


def _add_patches_back(
    total: Tensor, grad: Tensor, won: Tensor, weight: Tensor, signature: Signature, tables: PatchTables, parts: int
) -> None:
    groups = signature.groups
    flat = _flat_weight(weight, tables)
    columns = flat.unflatten(0, (parts, groups, -1)).mT.contiguous()  # (parts, groups, padded taps, M / groups)
    need = len(tables) * tables.positions * tables.taps * groups
    for some, rows, count in chunks.chunk_images(_images(total), signature, need, parts):
        first = rows.start // signature.out_channels
        add_patches_back(
            grad[some].flatten(1, 2),
            won[some].flatten(1, 2),
            columns[first : first + count].flatten(0, 1),
            total[some],
            tables,
            groups,
            count,
        )


def _add_to_weight(
    total: Tensor, grad: Tensor, won: Tensor, pixels: Tensor, signature: Signature, tables: PatchTables, parts: int
) -> None:
    kernel = (signature.height.kernel, signature.width.kernel, total.shape[1])
    for some, rows, count in chunks.chunk_pyramids(_images(pixels), signature, tables, parts):
        pyramid = _pyramid(pixels[some], tables, count, innermost=True)
        sent, by = (tensor[some].flatten(1, 2) for tensor in (grad, won))
        if len(sent) // count >= chunks.SIDE_BY_SIDE:
            sent, by = _images_innermost(sent), _images_innermost(by)
        flat = weight_grad(pyramid, sent, by, tables, signature.groups, count)
        total[rows] += flat.unflatten(1, kernel).permute(0, 3, 1, 2)


def _rescaled(pixels: Tensor, level: DirectLevel) -> Tensor:
    """The images at the size of a level: (N, h, w, C)."""
    if level.size == pixels.shape[1:3] and level.plain:
        return pixels
    rescaled = pixels.new_empty((len(pixels), *level.size, level.taps * pixels.shape[3]))
    resample(pixels, level.rescale, rescaled)
    return rescaled


def _filters(weight: Tensor, level: DirectLevel) -> Tensor:
    """(M, C, Kh, Kw) in channels_last as it is, or, where taps are channels, as (M, Kh · Kw · C, 1, 1)."""
    return weight if level.taps == 1 else weight.permute(0, 2, 3, 1).flatten(1)[:, :, None, None]


def _pyramid(pixels: Tensor, tables: PatchTables, parts: int, *, innermost: bool = False) -> Tensor:
    """All levels of every image, one after the other: (N, pixels, C).

    Many images lie side by side, pixel by pixel, or even channel by channel if they are to be innermost. The identity
    alone has nothing to interpolate: without padding its pyramid is the image, which stays where it is if it can.
    """
    images, height, width, channels = pixels.shape
    same = not tables.interpolates and tables.pyramid.pixels == height * width
    if images // parts < chunks.SIDE_BY_SIDE or (channels > 1 and not tables.interpolates and not innermost):
        return pixels.flatten(1, 2) if same else _resampled(pixels, tables)
    turned = turn(pixels.flatten(1)) if innermost else pixels.permute(1, 2, 0, 3).contiguous()
    turned = turned.view(1, height, width, -1)
    pyramid = turned.flatten(1, 2) if same else _resampled(turned, tables)
    if innermost:
        return pyramid.view(-1, channels, images).permute(2, 0, 1)
    return pyramid.view(-1, images, channels).transpose(0, 1)


def _resampled(images: Tensor, tables: PatchTables) -> Tensor:
    pyramid = images.new_empty((len(images), tables.pyramid.pixels, images.shape[3]))
    resample(images, tables.pyramid, pyramid)
    return pyramid


def _images_innermost(tensor: Tensor) -> Tensor:
    """The same numbers (N, P, M), the first dimension the innermost in memory."""
    return turn(tensor.flatten(1)).view(*tensor.shape[1:], len(tensor)).permute(2, 0, 1)


def _pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return images.permute(0, 2, 3, 1).contiguous()


def _images(pixels: Tensor) -> Tensor:
    """(N, H, W, C) as (N, C, H, W) in channels_last."""
    return pixels.permute(0, 3, 1, 2)


def _like(images: Tensor, input: Tensor) -> Tensor:
    """The same numbers, laid out as the input would be copied."""
    copy = torch.empty_like(input)
    return images if images.stride() == copy.stride() else copy.copy_(images)


def _flat_weight(weight: Tensor, tables: PatchTables) -> Tensor:
    """(M, C, Kh, Kw) as contiguous (M, padded taps), channels last."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(flat, (0, tables.tap_pixels.shape[1] - flat.shape[1])).contiguous()
