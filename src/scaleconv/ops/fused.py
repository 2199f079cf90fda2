"""The layer by fused kernels: what is launched, for how many images at a time, forward and backward.

Only the input, the weight and one winner byte per output live from the forward to the backward pass. What is made of
the levels is made anew for some images at a time, so that the memory it takes is bounded by that of input and output.

A batch may consist of equal parts, each with filters of its own: that is how several networks train as one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .kernels.call import Call, make_call
from .kernels.compete import compete
from .kernels.direct_tables import DirectLevel
from .kernels.local import add_back_locally, respond_locally
from .kernels.local_weight_grad import local_weight_grad
from .kernels.patch_tables import PatchTables
from .kernels.patches_back import add_patches_back
from .kernels.resample import resample
from .kernels.respond import respond
from .kernels.weight_grad import weight_grad
from .pool import is_channels_last
from .signature import Signature

# What is made for a chunk of images takes at most so many times the memory of input and output, unless that is little.
WORKSPACE = 1.8
LITTLE = 16 * 2**20
SIDE_BY_SIDE = 64  # images from which the kernels take those of one position together
LARGEST = 2**31 - 1  # the kernels count elements in 32 bits


def fused_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, signature: Signature, parts: int, antialias: bool
) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner's index in `scales`, in channels_last; none for a single level."""
    call = make_call(signature, len(input), parts, antialias, input.device)
    images, filters = len(input), signature.out_channels
    shape = (signature.height.output_size, signature.width.output_size)
    last = parts > 1 or is_channels_last(input) or is_channels_last(weight)
    layout = torch.channels_last if last else torch.contiguous_format
    output = torch.empty((images, filters, *shape), dtype=input.dtype, device=input.device, memory_format=layout)
    winner = input.new_empty((images if call.several else 0, shape[0] * shape[1], filters), dtype=torch.uint8)
    if call.local_grads:
        for some, rows, count in _local_chunks(input, signature, call, parts):
            pixels, biases = _pixels(input[some]), None if bias is None else bias[rows]
            for tables in call.local:
                respond_locally(pixels, weight[rows], biases, output[some], winner[some], tables, count)
        return output, winner.unflatten(1, shape).permute(0, 3, 1, 2)
    weight_last = weight.contiguous(memory_format=torch.channels_last)
    for some, rows, count in _chunks(input, signature, _need(call, signature), parts):
        pixels, best, won = _pixels(input[some]), output[some], winner[some]
        for level in call.direct:
            sampled = _images(_rescaled(pixels, level))
            response = _pixels(F.conv2d(sampled, weight_last, bias, *_convolution(signature)))
            if level.plain:  # comes first, and starts the maximum
                strongest, best = response, _images(response)
                won.fill_(level.code)
            else:
                compete(response, level.align, strongest, won, level.code)
        if call.patches:
            flat = _flat_weight(weight[rows], call.patches)
            biases = None if bias is None else bias[rows]
            respond(
                _pyramid(pixels, call.patches, count), flat, biases, best, won, call.patches, signature.groups, count
            )
        if call.direct:
            output[some] = best
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
    call = make_call(signature, len(input), parts, antialias, input.device)
    won_last = _pixels(winner)  # (N, H0, W0, M)
    grad_input = torch.empty_like(input) if needed[0] else None
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needed[1] else None
    if call.local:
        for some, rows, count in _local_chunks(input, signature, call, parts):
            pixels, slope, won = _pixels(input[some]), _pixels(grad[some]), won_last[some]
            if grad_input is not None:
                back = torch.zeros_like(pixels)
                for tables in call.local:
                    add_back_locally(slope, won, weight[rows], back, tables, count)
                grad_input[some] = _images(back)
            if grad_weight is not None and call.local_grads:
                grad_weight[rows] += local_weight_grad(pixels, slope, won, call.local_grads, weight.shape[2:], count)
        needed = (False, needed[1] and not call.local_grads)
    if not any(needed):
        return grad_input, None if grad_weight is None else grad_weight.to(weight.dtype)
    weight_last = weight.contiguous(memory_format=torch.channels_last)
    for some, rows, count in _chunks(input, signature, _need(call, signature), parts):
        pixels, slope, won = _pixels(input[some]), _pixels(grad[some]), won_last[some]
        total = torch.zeros_like(pixels) if needed[0] else None
        for level in call.direct:
            share = slope
            if call.several:
                share = slope.new_empty((len(slope), *level.response, slope.shape[3]))
                resample(slope, level.spread, share, winner=won, code=level.code)
            from_level, by_weight, _ = torch.ops.aten.convolution_backward(
                _images(share),
                _images(_rescaled(pixels, level)),
                weight_last,
                None,
                *_convolution(signature),
                False,
                [0, 0],
                1,
                [*needed, False],
            )
            if grad_weight is not None:
                grad_weight += by_weight
            if total is not None:
                resample(_pixels(from_level), level.collect, total, add=True)
        if call.patches and grad_weight is not None:
            by_weight = weight_grad(
                _pyramid(pixels, call.patches, count),
                slope.flatten(1, 2),
                won.flatten(1, 2),
                call.patches,
                signature.groups,
                count,
            )
            kernel = (signature.height.kernel, signature.width.kernel, weight.shape[1])
            grad_weight[rows] += by_weight.unflatten(1, kernel).permute(0, 3, 1, 2)
        if call.patches and total is not None:
            _add_patches_back(total, slope, won, weight[rows], signature, call.patches, count)
        if grad_input is not None and total is not None:
            grad_input[some] = _images(total)
    return grad_input, None if grad_weight is None else grad_weight.to(weight.dtype)


def _add_patches_back(
    total: Tensor, grad: Tensor, won: Tensor, weight: Tensor, signature: Signature, tables: PatchTables, parts: int
) -> None:
    groups = signature.groups
    flat = _flat_weight(weight, tables)
    columns = flat.unflatten(0, (parts, groups, -1)).mT.contiguous()  # (parts, groups, padded taps, M / groups)
    need = len(tables) * tables.positions * tables.taps * groups
    for some, rows, count in _chunks(_images(total), signature, need, parts):
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


def _need(call: Call, signature: Signature) -> int:
    """Elements that are made of one image at a time."""
    pyramid = call.patches.pyramid.pixels * signature.in_channels if call.patches else 0
    return max(pyramid, *(level.elements(signature) for level in call.direct), 0)


def _chunks(input: Tensor, signature: Signature, per_image: int, parts: int) -> Iterator[tuple[slice, slice, int]]:
    """Images to take at a time, the filters they meet, and how many parts of the batch they are."""
    outputs = len(input) * signature.out_channels * signature.height.output_size * signature.width.output_size
    allowed = max(int(WORKSPACE * (input.numel() + outputs)), LITTLE // input.element_size())
    pieces = max(-(-len(input) * per_image // min(allowed, LARGEST)), -(-outputs // LARGEST))
    return _pieces(len(input), signature.out_channels, pieces, parts)


def _local_chunks(input: Tensor, signature: Signature, call: Call, parts: int) -> Iterator[tuple[slice, slice, int]]:
    """The same for local filters, which are made anew for each chunk: as few as can be counted."""
    outputs = len(input) * signature.out_channels * signature.height.output_size * signature.width.output_size
    filters = (
        parts
        * signature.out_channels
        * signature.in_channels
        * max(tables.cells for tables in (*call.local, *call.local_grads))
    )
    pieces = max(-(-count // LARGEST) for count in (outputs, input.numel(), filters))
    return _pieces(len(input), signature.out_channels, pieces, parts)


def _pieces(images: int, filters: int, pieces: int, parts: int) -> Iterator[tuple[slice, slice, int]]:
    """A batch in about so many pieces; those of several parts are whole parts."""
    units = images if parts == 1 else parts
    step = max(1, -(-units // max(pieces, 1)))
    for start in range(0, units, step):
        count = min(step, units - start)
        size = images // units
        rows = slice(0, filters) if parts == 1 else slice(start * filters, (start + count) * filters)
        yield slice(start * size, (start + count) * size), rows, 1 if parts == 1 else count


def _convolution(signature: Signature) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation; what uneven padding puts behind a level is part of the level."""
    axes = (signature.height, signature.width)
    return [axis.stride for axis in axes], [axis.padding[0] for axis in axes], [axis.dilation for axis in axes]


def _rescaled(pixels: Tensor, level: DirectLevel) -> Tensor:
    """The images at the size of a level: (N, h, w, C)."""
    if level.size == pixels.shape[1:3] and level.plain:
        return pixels
    rescaled = pixels.new_empty((len(pixels), *level.size, pixels.shape[3]))
    resample(pixels, level.rescale, rescaled)
    return rescaled


def _pyramid(pixels: Tensor, tables: PatchTables, parts: int) -> Tensor:
    """All levels of every image, one after the other: (N, pixels, C). Many images lie side by side, pixel by pixel."""
    images, height, width, channels = pixels.shape
    if images // parts < SIDE_BY_SIDE:
        pyramid = pixels.new_empty((images, tables.pyramid.pixels, channels))
        resample(pixels, tables.pyramid, pyramid)
        return pyramid
    pyramid = pixels.new_empty((tables.pyramid.pixels, images, channels))
    side_by_side = pixels.permute(1, 2, 0, 3).reshape(1, height, width, images * channels)
    resample(side_by_side.contiguous(), tables.pyramid, pyramid)
    return pyramid.transpose(0, 1)


def _pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return images.permute(0, 2, 3, 1).contiguous()


def _images(pixels: Tensor) -> Tensor:
    """(N, H, W, C) as (N, C, H, W) in channels_last."""
    return pixels.permute(0, 3, 1, 2)


def _flat_weight(weight: Tensor, tables: PatchTables) -> Tensor:
    """(M, C, Kh, Kw) as contiguous (M, padded taps), channels last."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(flat, (0, tables.tap_pixels.shape[1] - flat.shape[1])).contiguous()
