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

from .convolution import conv2d
from .geometry import (
    BILINEAR,
    Matrix,
    Reading,
    canvas_size,
    competing_order,
    count_responses,
    is_inside,
    scales_of,
    source,
    support_of,
    target,
)
from .planes import neighbours, sources, targets
from .resampling import settle
from .signature import Settings, Signature


def traceable_conv(images: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> tuple[Tensor, Tensor]:
    """Output (N, M, …), and the winner as the place of its level in the order in which the maps compete.

    The images have one, two or three axes.
    """
    one, axes = settings.identity, images.ndim - 2
    convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    before, after = settings.padding[::2], settings.padding[1::2]
    call = (settings.stride, before, settings.dilation, settings.groups)
    # As the convolution of torch pads: only what is more behind than before, as 'same' has it, is not left to it.
    more = [number for axis in reversed(range(axes)) for number in (0, after[axis] - before[axis])]

    careful = axes == 2 and images.is_cpu and not torch.compiler.is_compiling()  # `conv2d` avoids errors of oneDNN

    def respond(level: Tensor) -> Tensor:
        if careful:
            return conv2d(level, weight, bias, Signature.of(level.shape, weight.shape, settings))
        return convolve(F.pad(level, more) if any(more) else level, weight, bias, *call)

    output = respond(images)
    winner = torch.zeros_like(output, dtype=torch.uint8)
    for code, index in enumerate(competing_order(one, len(settings.matrices))):
        if index == one:
            continue
        matrix = settings.matrices[index]
        scales = scales_of(matrix)
        lines = [
            _Axis(
                images.shape[2 + axis],
                size,
                weight.shape[2 + axis],
                settings.stride[axis],
                settings.padding[2 * axis : 2 * axis + 2],
                settings.dilation[axis],
            )
            for axis, size in enumerate(canvas_size(matrix, images.shape[2:]))
        ]
        if any(line.size < 1 or line.responses < 1 for line in lines):
            continue
        if scales:
            aligned, covered = _by_axes(images, respond, lines, scales, settings)
        else:
            aligned, covered = _by_planes(images, respond, lines, matrix, settings.reading)
        wins = find_wins(aligned, output, covered, wins_ties=index < one)
        output, winner = torch.where(wins, aligned, output), torch.where(wins, code, winner)
    return output, winner


def find_wins(aligned: Tensor, best: Tensor, covered: Tensor | None, *, wins_ties: bool) -> Tensor:
    """Where a level beats the best so far: where it covers, and is larger, NaN, or equal and wins ties."""
    wins = (aligned >= best if wins_ties else aligned > best) | aligned.isnan()
    return wins if covered is None else wins & covered


Convolve = Callable[[Tensor], Tensor]


def _by_axes(
    images: Tensor, respond: Convolve, lines: Sequence["_Axis"], scales: Sequence[float], settings: Settings
) -> tuple[Tensor, Tensor | None]:
    """The aligned responses of a level, read along one axis after the other, and the outputs that it covers."""
    level, device = images, images.device
    for dim, (line, scale) in enumerate(zip(lines, scales, strict=True), start=2):
        support = support_of(scale, settings.antialias)
        level = read_axis(level, dim, line.sources(scale, device), support, settings.reading) if scale != 1 else level
    aligned, covered = respond(level), None
    for dim, (line, scale) in enumerate(zip(lines, scales, strict=True), start=2):
        if scale == 1:
            continue
        coordinates = line.targets(scale, device)
        aligned = read_axis(aligned, dim, coordinates, reading=settings.reading)
        if settings.reading.border == "zeros":
            inside = is_inside(coordinates, line.responses).to(device).view(-1, *[1] * (images.ndim - 1 - dim))
            covered = inside if covered is None else covered & inside
    return aligned, covered


def _by_planes(
    images: Tensor, respond: Convolve, lines: Sequence["_Axis"], matrix: Matrix, reading: Reading
) -> tuple[Tensor, Tensor | None]:
    """The same for a map that mixes the axes."""
    device, image, size = images.device, [line.length for line in lines], [line.size for line in lines]
    y, x = (indices(length, device) for length in size)
    level, _ = read_plane(images, sources(matrix, image, size, y[:, None], x), image, reading)
    y, x = (indices(line.outputs, device) for line in lines)
    stride, centre = [line.stride for line in lines], [line.kernel_centre for line in lines]
    places = targets(matrix, image, size, stride, centre, y[:, None], x)
    return read_plane(respond(level), places, [line.responses for line in lines], reading)


class _Axis:
    """Sizes and coordinates along one axis of a level, by the equations in the docstring of `si_conv2d`."""

    def __init__(self, length: int, size: int, kernel: int, stride: int, padding: Sequence[int], dilation: int) -> None:
        self.length, self.size, self.stride = length, size, stride
        convolution = (kernel, stride, dilation, padding[0] + padding[1])
        self.responses, self.outputs = count_responses(size, *convolution), count_responses(length, *convolution)
        self.kernel_centre = dilation * (kernel - 1) / 2 - padding[0]

    def sources(self, scale: float, device: torch.device) -> Tensor:
        """Where each sample reads the input."""
        return source(indices(self.size, device), scale, self.length, self.size)

    def targets(self, scale: float, device: torch.device) -> Tensor:
        """Where each output reads the response."""
        outputs = indices(self.outputs, device)
        return target(outputs, scale, self.length, self.size, self.stride, self.kernel_centre)


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
