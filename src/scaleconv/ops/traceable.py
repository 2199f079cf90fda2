"""The layer in plain, differentiable PyTorch operations, for sizes that may be symbolic.

Nothing here is planned or cached: coordinates are computed from the sizes by the same operations that compute the rest.
So one graph serves all sizes, and exporters, `torch.vmap`, forward-mode and higher derivatives, and devices that have
no kernels of ours can take the layer apart. Every level is dense, as in the paper; `plan` has the faster forms.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Call
from .convolution import conv2d
from .geometry import (
    BILINEAR,
    Matrix,
    Reading,
    canvas_size,
    competing_order,
    is_inside,
    plane_sources,
    plane_targets,
    scales_of,
    source,
    support_of,
    target,
)
from .resampling import neighbours, settle


def traceable_conv(images: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
    """Output (N, M, …), and the winner as the place of its level in the order in which the maps compete.

    The images have two or three axes.
    """
    axes, one = call.axes, call.identity
    convolve = F.conv2d if len(axes) == 2 else F.conv3d
    stride, dilation = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    arguments = (stride, [axis.padding[0] for axis in axes], dilation, call.groups)
    # As the convolution of torch pads: only what is more behind than before, as 'same' has it, is not left to it.
    more = [number for axis in reversed(axes) for number in (0, axis.padding[1] - axis.padding[0])]
    careful = len(axes) == 2 and images.is_cpu and not torch.compiler.is_compiling()  # `conv2d` avoids oneDNN's errors

    def respond(level: Tensor) -> Tensor:
        if careful:
            return conv2d(level, weight, bias, call.resized(level.shape[2:]))
        return convolve(F.pad(level, more) if any(more) else level, weight, bias, *arguments)

    output = respond(images)
    winner = torch.zeros_like(output, dtype=torch.uint8)
    for code, index in enumerate(competing_order(one, len(call.matrices))):
        size = canvas_size(call.matrices[index], images.shape[2:])
        responses = [axis.response_size(length) for axis, length in zip(axes, size, strict=True)]
        if index == one or any(length < 1 for length in (*size, *responses)):
            continue
        if scales := scales_of(call.matrices[index]):
            aligned, covered = _by_axes(images, respond, call, size, responses, scales)
        else:
            aligned, covered = _by_planes(images, respond, call, size, responses, call.matrices[index])
        wins = find_wins(aligned, output, covered, wins_ties=index < one)
        output, winner = torch.where(wins, aligned, output), torch.where(wins, code, winner)
    return output, winner


def find_wins(aligned: Tensor, best: Tensor, covered: Tensor | None, *, wins_ties: bool) -> Tensor:
    """Where a level beats the best so far: where it covers, and is larger, NaN, or equal and wins ties."""
    wins = (aligned >= best if wins_ties else aligned > best) | aligned.isnan()
    return wins if covered is None else wins & covered


Convolve = Callable[[Tensor], Tensor]


def _by_axes(
    images: Tensor, respond: Convolve, call: Call, size: Sequence[int], responses: Sequence[int], scales: Matrix
) -> tuple[Tensor, Tensor | None]:
    """The aligned responses of a level of this size, read along one axis after the other, and what it covers."""
    device, level, covered = images.device, images, None
    rescaled = [(dim, scale) for dim, scale in enumerate(scales) if scale != 1]
    for dim, scale in rescaled:
        places = source(indices(size[dim], device), scale, call.axes[dim].length, size[dim])
        level = read_axis(level, 2 + dim, places, support_of(scale, call.antialias), call.reading)
    aligned = respond(level)
    for dim, scale in rescaled:
        axis = call.axes[dim]
        outputs = indices(axis.output_size, device)
        places = target(outputs, scale, axis.length, size[dim], axis.stride, axis.kernel_centre)
        aligned = read_axis(aligned, 2 + dim, places, reading=call.reading)
        if call.reading.border == "zeros":
            inside = is_inside(places, responses[dim]).to(device).view(-1, *[1] * (len(scales) - 1 - dim))
            covered = inside if covered is None else covered & inside
    return aligned, covered


def _by_planes(
    images: Tensor, respond: Convolve, call: Call, size: Sequence[int], responses: Sequence[int], matrix: Matrix
) -> tuple[Tensor, Tensor | None]:
    """The same for a map that mixes the axes."""
    device, image = images.device, [axis.length for axis in call.axes]
    y, x = (indices(length, device) for length in size)
    level, _ = read_plane(images, plane_sources(matrix, image, size, y[:, None], x), image, call.reading)
    y, x = (indices(axis.output_size, device) for axis in call.axes)
    stride, centre = [axis.stride for axis in call.axes], [axis.kernel_centre for axis in call.axes]
    places = plane_targets(matrix, image, size, stride, centre, y[:, None], x)
    return read_plane(respond(level), places, responses, call.reading)


def indices(length: int, device: torch.device) -> Tensor:
    """0, 1, … in float64, on the device where it has that."""
    return torch.arange(length, dtype=torch.float64, device="cpu" if device.type == "mps" else device)


def read_plane(
    images: Tensor, places: tuple[Tensor, Tensor], size: Sequence[int], reading: Reading
) -> tuple[Tensor, Tensor | None]:
    """Read images of this size at places (y, x); and where there was anything to be read, None if everywhere."""
    read, there = neighbours(places, size, reading)
    pixels = images.flatten(2)

    def weighted(place: Tensor, weight: Tensor) -> Tensor:
        read_at = place.flatten().to(images.device, torch.long)
        taken: Tensor = pixels.index_select(2, read_at).unflatten(2, place.shape)
        return taken * weight.to(images.device, images.dtype) if len(read) > 1 else taken

    result = weighted(*read[0])
    for neighbour in read[1:]:
        result = result + weighted(*neighbour)
    there = None if there is None else there.to(images.device)
    return result if there is None else torch.where(there, result, 0), there


def read_axis(
    images: Tensor, dim: int, coordinates: Tensor, support: float = 1.0, reading: Reading = BILINEAR
) -> Tensor:
    """Read one axis at the given coordinates, linear between neighbours."""
    last = images.shape[dim] - 1
    position = settle(coordinates, images.shape[dim], reading)
    before, radius = position.floor(), math.ceil(support)
    taken, total = [], torch.zeros_like(position)
    for offset in range(1 - radius, radius + 1):
        pixel = before + offset
        weight = (1 - (position - pixel).abs() / support).clamp(min=0)
        weight = torch.where((pixel >= 0) & (pixel <= last), weight, 0)
        total = total + weight
        taken.append((torch.where(weight > 0, pixel, before), weight))
    shape = [1] * images.ndim
    shape[dim] = -1

    def weighted(pixel: Tensor, weight: Tensor) -> Tensor:
        share = (weight / total).to(images.device, images.dtype).view(shape)
        return images.index_select(dim, pixel.to(images.device, torch.long)) * share

    result = weighted(*taken[0])
    for neighbour in taken[1:]:
        result = result + weighted(*neighbour)
    return result
