"""Images rescaled about their centre onto a canvas: the only rescaling of the suite.

Scaled digits, augmentation, test images at scale s and rescaled features are all made by `rescale`. Its callers state
interpolation, averaging and border. Functions of tensors on any device: no files, no randomness, torch alone. Floats
are rescaled without waiting for the device, so that a CUDA graph can capture it.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Polynomials of the distance, lowest power first, added up to these distances. Bicubic is PyTorch's, a = −0.75.
KERNELS: dict[str, tuple[tuple[int, tuple[float, ...]], ...]] = {
    "bilinear": ((1, (1, -1)),),
    "bicubic": ((1, (-2, 6, -6, 2)), (2, (3, -6, 3.75, -0.75))),
}
INTERPOLATIONS = tuple(KERNELS)
BORDERS = ("zeros", "edge")
TRUNCATIONS = ("error", "allow")
IGNORE = 255  # in a mask: a pixel without a label
STEP = 2.0**-22  # weights for images of integers are multiples of this
SLACK = 1e-6  # forgives rounding where a scaled pixel meets the edge of the canvas
CHUNK = 4096  # digits at a time: bounds the memory, and does not change the result

Size = int | tuple[int, int]


def rescale(
    images: Tensor,
    scales: Tensor | float,
    size: Size | None = None,
    *,
    shift: Tensor | None = None,
    flip: Tensor | None = None,
    interpolation: str = "bilinear",
    antialias: bool,
    border: str,
) -> Tensor:
    """Rescale each image about its centre, onto a canvas of the given size.

    Shapes: images (N, C, H, W) or (N, H, W), scales (N,) or one number → the same with the size of the canvas.

    Along each axis, with canvas length S, image length H, scale s and shift t, canvas pixel q reads the image at

        u = (q − (S−1)/2 − t·S) / s + (H−1)/2,    flipped: H − 1 − u

    Convention: pixel centres at whole coordinates; centre goes to centre, on odd and even lengths alike. With border
    `zeros` all pixels outside of the image are 0. With `edge`, u is clamped to the image, and the weights are
    normalised over its pixels. Scale 1 on a canvas of the same size returns the image exactly.

    Images of integers give the same bits in every order and batch and on every device: weights are rounded to multiples
    of 2⁻²², so each product with a pixel and each partial sum is a multiple of 2⁻⁴⁴ below 2⁹, which float64 holds
    exactly. Only the division by 255 and the final float32 round. The rounded weights move a pixel by less than 1e-6.

    Args:
        images: integers 0 … 255, or floats.
        scales: factor of each image, above 0; above 1 enlarges. The values of a tensor are checked for integers only.
        size: of the canvas, one number or (height, width); None for that of the images.
        shift: (N, 2) down and to the right, as a share of the side of the canvas.
        flip: (N,) bool, left and right exchanged.
        interpolation: `bilinear` or `bicubic`.
        antialias: widen the kernel by 1/s where s < 1, so that pixels are averaged and not skipped.
        border: `zeros` or `edge`.

    Returns:
        Of floats, the same type. Of integers, float32 in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> line = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand(1, 5, 5)
        >>> rescale(line, 2.0, antialias=False, border="zeros")[0, 2]
        tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    _check_images(images)
    for name, value, known in (("interpolation", interpolation, INTERPOLATIONS), ("border", border, BORDERS)):
        if value not in known:
            raise ValueError(f"`{name}` (={value!r}) must be one of {', '.join(known)}")
    exact = not images.is_floating_point()
    kind = torch.float64 if exact else torch.promote_types(images.dtype, torch.float32)
    factors = _check_scales(scales, len(images), kind, images.device, look=exact)
    _check_placement(len(images), shift, flip)
    before = tuple(images.shape[-2:])
    canvas = before if size is None else _check_size(size)
    plain = shift is None and flip is None
    if not exact and plain and canvas == before and not isinstance(scales, Tensor) and scales == 1:
        return images
    matrices: list[Tensor] = []  # (N, S, H) for the rows, then for the columns
    for axis in (0, 1):
        if axis and plain and before[0] == before[1] and canvas[0] == canvas[1]:
            matrices *= 2
            break
        sources = _sources(before[axis], canvas[axis], factors, shift, flip, axis)
        weights = _weights(sources, before[axis], factors, interpolation, antialias, border)
        weights = (weights / STEP).round() * STEP if exact else weights.to(images.dtype)
        matrices.append(weights if images.dim() == 3 else weights.unsqueeze(1))
    rows, columns = matrices
    scaled = rows @ ((images.double() if exact else images) @ columns.mT)
    if not exact:
        return scaled
    # A divisor on the device: CUDA multiplies by the reciprocal of a plain number, which rounds differently.
    white = torch.tensor(255.0, dtype=torch.float64, device=images.device)
    return (scaled / white).clamp(0, 1).float()


def rescale_masks(
    masks: Tensor, scales: Tensor | float, *, shift: Tensor | None = None, flip: Tensor | None = None
) -> Tensor:
    """Rescale masks as `rescale` does their images: the nearest class number, and `IGNORE` beyond the edge.

    Shapes: masks (N, H, W) of integers, scales (N,) or one number → (N, H, W).

    Example:
        >>> rescale_masks(torch.arange(5, dtype=torch.uint8).expand(1, 5, 5), 0.5)[0, 2]
        tensor([255,   0,   2,   4, 255], dtype=torch.uint8)
    """
    factors = _check_scales(scales, len(masks), torch.float32, masks.device, look=False)
    _check_placement(len(masks), shift, flip)
    moved = masks
    for axis, length in enumerate(masks.shape[1:]):
        sources = _sources(length, length, factors, shift, flip, axis)
        nearest = (sources + 0.5).floor().long().unsqueeze(2 - axis)  # (N, H, 1) or (N, 1, W)
        inside = (nearest >= 0) & (nearest < length)
        moved = moved.gather(1 + axis, nearest.clamp(0, length - 1).expand(masks.shape)).where(inside, IGNORE)
    return moved


def make_scaled(
    images: "Tensor | NDArray[np.uint8]",
    scales: "Tensor | NDArray[np.float64] | float",
    size: Size,
    interpolation: str = "bilinear",
    antialias: bool = False,
    *,
    truncate: str = "error",
    chunk: int = CHUNK,
) -> Tensor:
    """Scale each digit about the centre of its image, on a black canvas, as MNIST-Scale does.

    Shapes: images (N, H, W) or (N, 1, H, W), scales (N,) or one number → (N, 1, size, size) float32 in [0, 1].

    Paper, section 4, and Sohn and Lee before it: "without making any truncation of the foreground pixels". As `rescale`
    with border `zeros`. The paper's numbers come out without `antialias`.

    Args:
        images: digits, integers 0 … 255 or floats in [0, 1], on any device; the result stays there.
        scales, size, interpolation, antialias: as in `rescale`.
        truncate: `error` refuses to cut off foreground, `allow` cuts it.
        chunk: images at a time.

    Raises:
        ValueError: an argument is out of its range, or a foreground pixel's centre would fall outside the canvas.

    Example:
        >>> digit = torch.zeros(1, 5, 5, dtype=torch.uint8)
        >>> digit[0, 2, 2] = 255
        >>> make_scaled(digit, 2.0, 5)[0, 0, 2]
        tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    pixels, factors, canvas = _check_digits(images, scales, size)
    if truncate not in TRUNCATIONS:
        raise ValueError(f"`truncate` (={truncate!r}) must be one of {', '.join(TRUNCATIONS)}")
    if chunk < 1:
        raise ValueError(f"`chunk` (={chunk}) must be at least 1")
    if truncate == "error":
        _refuse_truncation(pixels, factors, canvas)
    result = torch.empty(len(pixels), 1, *canvas, device=pixels.device)
    how: dict[str, Any] = {"interpolation": interpolation, "antialias": antialias, "border": "zeros"}
    for start in range(0, len(pixels), chunk):
        part = slice(start, start + chunk)
        result[part, 0] = rescale(pixels[part], factors[part], canvas, **how).clamp(0, 1)
    return result


def cut_off(images: "Tensor | NDArray[np.uint8]", scales: "Tensor | NDArray[np.float64] | float", size: Size) -> Tensor:
    """How many canvas pixels of each image's foreground fall outside: 0 where all of it fits.

    Shapes: images (N, H, W) or (N, 1, H, W), scales (N,) or one number → (N,) float64.

    Foreground is what is not 0. A pixel falls outside when its scaled centre does; the result is how far the farthest
    one lies beyond the edge.
    """
    return _overhang(*_check_digits(images, scales, size))


def _sources(length: int, size: int, scales: Tensor, shift: Tensor | None, flip: Tensor | None, axis: int) -> Tensor:
    """Where each canvas pixel reads the image along an axis, 0 for the rows: (N, size)."""
    canvas = torch.arange(size, dtype=scales.dtype, device=scales.device) - (size - 1) / 2
    if shift is not None:
        canvas = canvas - size * shift[:, axis : axis + 1].to(scales)
    sources = canvas / scales.unsqueeze(1) + (length - 1) / 2
    return sources if flip is None or axis == 0 else torch.where(flip.unsqueeze(1), length - 1 - sources, sources)


def _weights(sources: Tensor, length: int, scales: Tensor, interpolation: str, antialias: bool, border: str) -> Tensor:
    """The sampling matrix of an axis for each image: (N, size, length)."""
    if border == "edge":
        sources = sources.clamp(0, length - 1)
    pixels = torch.arange(length, dtype=scales.dtype, device=scales.device)
    distance = (sources.unsqueeze(-1) - pixels).abs()
    width = (1 / scales).clamp(min=1).unsqueeze(1)  # (N, 1)
    if antialias:
        distance = distance / width.unsqueeze(2)
    pieces = []
    for reach, coefficients in KERNELS[interpolation]:
        value = coefficients[-1] * distance
        for coefficient in coefficients[-2:0:-1]:
            value = (value + coefficient) * distance
        pieces.append((value + coefficients[0]).where(distance < reach, 0))
    weights = pieces[0] if len(pieces) == 1 else pieces[0] + pieces[1]
    if border == "edge":
        return weights / weights.sum(-1, keepdim=True)
    return weights / _kernel_sums(sources, width, interpolation).unsqueeze(2) if antialias else weights


def _kernel_sums(sources: Tensor, width: Tensor, interpolation: str) -> Tensor:
    """The sum of the widened kernel over all whole positions, those outside of the image too: (N, size).

    In closed form, since a loop over the positions would have to ask the device how many there are: on either side of
    u they lie at distances a, a + 1, …, n of them within reach, and Σ(a + k)ᵐ follows from the sums of k, k² and k³.
    """
    total, fraction = torch.zeros_like(sources), sources - sources.floor()
    for a in (fraction, 1 - fraction):
        for reach, coefficients in KERNELS[interpolation]:
            n = (reach * width - a).ceil().clamp(min=0)
            first = n * (n - 1) / 2
            second, third = first * (2 * n - 1) / 3, first * first
            square = (n * a + 2 * first) * a + second
            sums = (n, n * a + first, square, ((n * a + 3 * first) * a + 3 * second) * a + third)
            for power, (coefficient, value) in enumerate(zip(coefficients, sums, strict=False)):
                total = total + coefficient * value / width**power
    return total


def _overhang(pixels: Tensor, scales: Tensor, size: tuple[int, int]) -> Tensor:
    foreground = pixels != 0
    beyond = torch.zeros_like(scales)
    for axis, length in ((2, size[0]), (1, size[1])):
        occupied = foreground.any(axis)  # (N, H) for the rows, (N, W) for the columns
        offsets = (torch.arange(occupied.shape[1], device=pixels.device) - (occupied.shape[1] - 1) / 2).abs().double()
        reach = torch.where(occupied, offsets, 0).amax(1)
        beyond = torch.maximum(beyond, reach * scales - length / 2)
    return torch.where(beyond > SLACK, beyond, 0)


def _refuse_truncation(pixels: Tensor, scales: Tensor, size: tuple[int, int]) -> None:
    beyond = _overhang(pixels, scales, size)
    if not (cut := beyond.nonzero()[:, 0]).numel():
        return
    index = int(cut[0])
    grow = math.ceil(2 * float(beyond.max()) - SLACK)
    raise ValueError(
        f"`size` (={size[0]}×{size[1]}) cuts off the foreground of {cut.numel()} of {len(pixels)} digits, first digit "
        f"{index} at scale {float(scales[index]):g} by {float(beyond[index]):.2g} pixels: use a canvas of "
        f"{size[0] + grow}×{size[1] + grow}, smaller scales, or truncate='allow'"
    )


def _check_digits(images: Any, scales: Any, size: Size) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Digits (N, H, W), a scale for each in float64, and the size of the canvas; all values are checked."""
    pixels = torch.as_tensor(images)
    if pixels.dim() == 4 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]
    if pixels.dim() != 3:
        raise ValueError(f"`images` (of shape {tuple(pixels.shape)}) must be (N, H, W) or (N, 1, H, W)")
    _check_images(pixels)
    if pixels.is_floating_point() and pixels.numel():
        low, high = (float(end) for end in pixels.aminmax())
        if not 0 <= low <= high <= 1:
            raise ValueError(f"`images` (from {low:g} to {high:g}) must be integers 0 … 255 or floats in [0, 1]")
    factors = _check_scales(scales, len(pixels), torch.float64, pixels.device, look=True).expand(len(pixels))
    return pixels, factors, _check_size(size)


def _check_images(images: Tensor) -> None:
    if images.dim() not in (3, 4) or 0 in images.shape[1:]:
        raise ValueError(f"`images` (of shape {tuple(images.shape)}) must be (N, H, W) or (N, C, H, W)")
    if images.is_complex() or images.dtype == torch.bool:
        raise ValueError(f"`images` (of {images.dtype}) must be integers 0 … 255 or floats")
    if not images.is_floating_point() and images.dtype != torch.uint8 and images.numel():
        low, high = (int(end) for end in images.aminmax())
        if not 0 <= low <= high <= 255:
            raise ValueError(f"`images` (from {low} to {high}) must be integers 0 … 255 or floats")


def _check_scales(scales: Any, count: int, kind: torch.dtype, device: torch.device, *, look: bool) -> Tensor:
    """Scales (N,), or (1,) of one number. `look` checks the values of a tensor, which waits for the device."""
    if isinstance(scales, int | float):
        if not (math.isfinite(scales) and scales > 0):
            raise ValueError(f"`scales` (={scales}) must be finite and above 0")
        return torch.full((1,), float(scales), dtype=kind, device=device)
    factors = torch.as_tensor(scales).to(device, kind)
    factors = factors.view(1) if factors.dim() == 0 else factors
    if factors.shape not in ((1,), (count,)):
        raise ValueError(
            f"`scales` (of shape {tuple(factors.shape)}) must be one number, or one for each of {count} images"
        )
    if look and len(bad := (~(factors.isfinite() & (factors > 0))).nonzero()):
        index = int(bad[0, 0])
        raise ValueError(f"`scales` (={float(factors[index])} at index {index}) must be finite and above 0")
    return factors


def _check_placement(count: int, shift: Tensor | None, flip: Tensor | None) -> None:
    if shift is not None and shift.shape != (count, 2):
        raise ValueError(f"`shift` (of shape {tuple(shift.shape)}) must be ({count}, 2), one pair for each image")
    if flip is not None and (flip.shape != (count,) or flip.dtype != torch.bool):
        raise ValueError(f"`flip` ({flip.dtype}, of shape {tuple(flip.shape)}) must be ({count},) of torch.bool")


def _check_size(size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"`size` (={size}) must be at least 1 pixel a side")
    return height, width
