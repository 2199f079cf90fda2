"""Levels by plain, differentiable operations, for sizes that may be symbolic: rescaled, aligned, pooled.

`ScaleInvariant` uses them for the levels of any function. `traceable_conv` is the layer made of them, by the equations
in the docstrings of `si_conv2d` and `ti_conv2d`. Nothing here is planned or cached: coordinates are computed from the
sizes by the same operations that compute the rest. So one graph serves all sizes, and exporters, `torch.vmap`,
forward-mode and higher derivatives, and devices that have no kernels of ours can take the layer apart. Every level is
dense, as in the paper; `plan` has the faster forms. No Modules here. Paper, section 3.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Call
from .convolution import conv2d
from .geometry import (
    BILINEAR,
    SLACK,
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

POOLS = ("max", "logsumexp", "mean")


@dataclass(frozen=True, eq=False)
class Aligned:
    """The aligned response to one level.

    Attributes:
        index: the level's place in the list of scales.
        values: (N, D), or (N, D, H0, W0) on the grid of scale 1.
        covered: where the level takes part, to be broadcast to `values`.
    """

    index: int
    values: Tensor
    covered: Tensor


def level_size(size: Sequence[int], scale: float) -> tuple[int, int]:
    """(height, width) of an image of this size at a scale; may be 0."""
    height, width = (length if scale == 1 else math.trunc(scale * length + SLACK) for length in size)
    return height, width


def rescale(images: Tensor, scale: float, size: Sequence[int], antialias: bool = False) -> Tensor:
    """Images (N, C, H, W) at one scale, as the level (N, C, h, w) of the given size.

    Along an axis, sample q reads at u = (q − (h−1)/2)/s + (H−1)/2, linear between the two neighbours, edge pixels
    clamped. With the size of `level_size` that is T_s of `si_conv2d`. A smaller one crops the level about its centre, a
    larger one repeats its edge.

    Example:
        >>> images = torch.rand(2, 3, 20, 30)
        >>> rescale(images, 0.5, level_size((20, 30), 0.5)).shape
        torch.Size([2, 3, 10, 15])
    """
    for axis, samples in enumerate(size):
        images = _rescale_axis(images, axis, scale, samples, antialias)
    return images


def _rescale_axis(
    images: Tensor, axis: int, scale: float, size: int, antialias: bool, reading: Reading = BILINEAR
) -> Tensor:
    sources = source(indices(size, images.device), scale, images.shape[2 + axis], size)
    return read_axis(images, 2 + axis, sources, support_of(scale, antialias), reading)


def align(
    response: Tensor,
    scale: float,
    output_size: Sequence[int],
    image_size: Sequence[int],
    size: Sequence[int],
    stride: Sequence[float],
    offset: Sequence[float],
) -> tuple[Tensor, Tensor]:
    """Bring the response to one level back to the grid of scale 1, and say where the level covers it.

    Along an axis, output p reads at v = (s·(t·p + o − (H−1)/2) + (h−1)/2 − o)/t, linear, edges clamped. It is covered
    if −½ ≤ v ≤ h' − ½, h' being the length of the response.

    Args:
        response: (N, D, h', w').
        scale: s.
        output_size: of the response to scale 1.
        image_size: H, of the image.
        size: h, of the level.
        stride: t, pixels of an image between neighbours of its response.
        offset: o, the pixel at which the first of them is centred.

    Returns:
        The aligned response (N, D, H0, W0), and a mask (H0, W0).
    """
    inside = []
    for axis, grid in enumerate(zip(output_size, image_size, size, stride, offset, strict=True)):
        response, covered = _align_axis(response, axis, scale, *grid)
        inside.append(covered)
    return response, inside[0] & inside[1]


def _align_axis(
    response: Tensor,
    axis: int,
    scale: float,
    outputs: int,
    length: int,
    size: int,
    stride: float,
    offset: float,
    reading: Reading = BILINEAR,
) -> tuple[Tensor, Tensor]:
    """The response on the grid of scale 1 along one axis, and the places there that the level covers."""
    targets = target(indices(outputs, response.device), scale, length, size, stride, offset)
    covered = is_inside(targets, response.shape[2 + axis]).to(response.device)
    return read_axis(response, 2 + axis, targets, reading=reading), covered.view(-1, *[1] * (response.ndim - 3 - axis))


def pool_levels(responses: Sequence[Aligned], pool: str, levels: int) -> tuple[Tensor, Tensor]:
    """Pool over the levels that cover a position, and say which of them responded most.

    'max' is the largest response, 'mean' the average of the n that cover the position, 'logsumexp' the logarithm of
    their summed exponentials, times levels / n: a position that fewer levels cover is not the weaker for it. A tie goes
    to the scale listed first.

    Args:
        responses: that of scale 1 first, which covers every position; then as in `competing_order`.
        pool: one of `POOLS`.
        levels: how many there would be if none were too small.

    Returns:
        The pooled response, and a uint8 tensor of its shape: the index of the scale with the largest response.
    """
    first = responses[0]
    largest, winner = first.values, torch.full_like(first.values, first.index, dtype=torch.uint8)
    for response in responses[1:]:
        values = response.values
        wins = find_wins(values, largest, response.covered, wins_ties=response.index < first.index)
        largest, winner = torch.where(wins, values, largest), torch.where(wins, response.index, winner)
    if pool == "max":
        return largest, winner
    outside = 0 if pool == "mean" else -math.inf
    every = torch.stack([torch.where(each.covered, each.values, outside) for each in responses])
    covering = torch.stack([torch.broadcast_to(each.covered, first.values.shape[2:]) for each in responses])
    count = covering.sum(0).to(every.dtype)
    if pool == "mean":
        return every.sum(0) / count, winner
    return every.logsumexp(0) + (levels / count).log(), winner


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
            aligned, covered = _by_axes(images, respond, call, size, scales)
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
    images: Tensor, respond: Convolve, call: Call, size: Sequence[int], scales: Matrix
) -> tuple[Tensor, Tensor | None]:
    """The aligned responses of a level of this size, read along one axis after the other, and what it covers."""
    level, covered = images, None
    rescaled = [(axis, scale) for axis, scale in enumerate(scales) if scale != 1]
    for axis, scale in rescaled:
        level = _rescale_axis(level, axis, scale, size[axis], call.antialias, call.reading)
    aligned = respond(level)
    for axis, scale in rescaled:
        on = call.axes[axis]
        grid = (on.output_size, on.length, size[axis], on.stride, on.kernel_centre)
        aligned, inside = _align_axis(aligned, axis, scale, *grid, call.reading)
        if call.reading.border == "zeros":
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
