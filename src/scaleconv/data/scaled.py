"""The generator of MNIST-Scale: each digit scaled about the centre of its image, onto a canvas of any size.

A pure function of images and scales: no files, no randomness. Paper, section 4, and Sohn and Lee before it: "without
making any truncation of the foreground pixels".
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CUBIC = -0.75  # PyTorch's
STEP = 2.0**-22  # weights are multiples of this; see `make_scaled`
SLACK = 1e-6  # forgives rounding where a scaled pixel meets the edge of the canvas
CHUNK = 4096  # digits at a time: bounds the memory, and does not change the result
INTERPOLATIONS = ("bilinear", "bicubic")
TRUNCATIONS = ("error", "allow")


def make_scaled(
    images: Tensor | NDArray[np.uint8],
    scales: Tensor | NDArray[np.float64] | float,
    size: int | tuple[int, int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    *,
    truncate: str = "error",
    chunk: int = CHUNK,
) -> Tensor:
    """Scale each image about its centre, onto a canvas of the given size.

    Shapes: images (N, H, W) or (N, 1, H, W), scales (N,) or one number → (N, 1, size, size) float32 in [0, 1].

    Along each axis, with canvas length S, image length H and scale s, canvas pixel q reads the image at

        u = (q − (S−1)/2) / s + (H−1)/2

    Convention: pixel centres at whole coordinates; centre goes to centre, on odd and even lengths alike. Linear between
    neighbours, zero outside the image (the background of the digits). s = 1 on a canvas of the image's size returns the
    image unchanged. `bicubic` is PyTorch's kernel (a = −0.75), clamped to [0, 1] afterwards.

    Images of integers give the same bits in every order, batch size and chunk, with every matrix library and on every
    device: weights are rounded to multiples of 2⁻²² and pixels are whole numbers up to 255, so each product and each
    partial sum is a multiple of 2⁻⁴⁴ below 2⁹, which float64 holds exactly; nothing depends on the order of summation.
    Only the division by 255 and the final float32 round, once per pixel. The rounded weights are within 2⁻²³ of the
    true ones, which moves a pixel by less than 1e-6. Images of floats are also taken, to ordinary rounding.

    Args:
        images: digits, integers 0 … 255 or floats in [0, 1], on any device; the result stays there.
        scales: factor of each image, above 0; above 1 enlarges.
        size: of the canvas, one number or (height, width).
        interpolation: `bilinear` or `bicubic`.
        antialias: widen the kernel by 1/s where s < 1, so that pixels are averaged and not skipped. The paper's
            numbers come out without it.
        truncate: `error` refuses to cut off foreground, `allow` cuts it.
        chunk: images at a time.

    Returns:
        The scaled images.

    Raises:
        ValueError: an argument is out of its range, or a foreground pixel's centre would fall outside the canvas.

    Example:
        >>> digit = torch.zeros(1, 5, 5, dtype=torch.uint8)
        >>> digit[0, 2, 2] = 255
        >>> make_scaled(digit, 2.0, 5)[0, 0, 2]
        tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    pixels = _check_images(images)
    factors = _check_scales(scales, len(pixels)).to(pixels.device)
    height, width = _check_size(size)
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"`interpolation` (={interpolation!r}) must be one of {', '.join(INTERPOLATIONS)}")
    if truncate not in TRUNCATIONS:
        raise ValueError(f"`truncate` (={truncate!r}) must be one of {', '.join(TRUNCATIONS)}")
    if chunk < 1:
        raise ValueError(f"`chunk` (={chunk}) must be at least 1")
    if truncate == "error":
        _refuse_truncation(pixels, factors, (height, width))

    # A divisor on the device: CUDA multiplies by the reciprocal of a plain number, which rounds differently.
    white = torch.tensor(1.0 if pixels.is_floating_point() else 255.0, dtype=torch.float64, device=pixels.device)
    result = torch.empty(len(pixels), 1, height, width, device=pixels.device)
    for start in range(0, len(pixels), chunk):
        part = slice(start, start + chunk)
        rows = _axis_weights(factors[part], pixels.shape[1], height, interpolation, antialias)  # (n, h, H)
        square = pixels.shape[1] == pixels.shape[2] and height == width
        columns = rows if square else _axis_weights(factors[part], pixels.shape[2], width, interpolation, antialias)
        scaled = rows @ (pixels[part].double() @ columns.mT)  # (n, h, w)
        result[part, 0] = (scaled / white).clamp(0, 1)
    return result


def cut_off(
    images: Tensor | NDArray[np.uint8], scales: Tensor | NDArray[np.float64] | float, size: int | tuple[int, int]
) -> Tensor:
    """How many canvas pixels of each image's foreground fall outside: 0 where all of it fits.

    Shapes: images (N, H, W) or (N, 1, H, W), scales (N,) or one number → (N,) float64.

    Foreground is what is not 0. A pixel falls outside when its scaled centre does; the answer is how far the farthest
    one lies beyond the edge.
    """
    pixels = _check_images(images)
    return _overhang(pixels, _check_scales(scales, len(pixels)).to(pixels.device), _check_size(size))


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


def _axis_weights(scales: Tensor, length: int, size: int, interpolation: str, antialias: bool) -> Tensor:
    """The sampling matrix of one axis for each scale, in float64: (N, size, length)."""
    kernel = _cubic if interpolation == "bicubic" else _triangle
    canvas = torch.arange(size, dtype=torch.float64, device=scales.device) - (size - 1) / 2
    sources = canvas / scales.unsqueeze(1) + (length - 1) / 2  # (N, size)
    pixels = torch.arange(length, dtype=torch.float64, device=scales.device)
    distance = sources.unsqueeze(-1) - pixels  # (N, size, length)
    if antialias:
        widening = (1 / scales).clamp(min=1).reshape(-1, 1, 1)
        # The kernel's sum over all whole positions, those outside the image too: the background is averaged in.
        reach = math.ceil(2 * float(widening.max())) if len(scales) else 0
        around = torch.arange(-reach, reach + 1, dtype=torch.float64, device=scales.device)
        total = kernel(((sources - sources.floor()).unsqueeze(-1) - around) / widening).sum(-1, keepdim=True)
        weights = kernel(distance / widening) / total
    else:
        weights = kernel(distance)
    return (weights / STEP).round() * STEP


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    x = distance.abs()
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = CUBIC * (((x - 5) * x + 8) * x - 4)
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0))


def _check_images(images: Tensor | NDArray[np.uint8]) -> Tensor:
    pixels = torch.as_tensor(images)
    if pixels.dim() == 4 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]
    if pixels.dim() != 3 or 0 in pixels.shape[1:]:
        raise ValueError(f"`images` (of shape {tuple(pixels.shape)}) must be (N, H, W) or (N, 1, H, W)")
    if pixels.is_complex() or pixels.dtype == torch.bool:
        raise ValueError(f"`images` (of {pixels.dtype}) must be integers 0 … 255 or floats in [0, 1]")
    if pixels.dtype != torch.uint8 and pixels.numel():
        white = 1 if pixels.is_floating_point() else 255
        low, high = (float(end) for end in pixels.aminmax())
        if not 0 <= low <= high <= white:
            raise ValueError(f"`images` (from {low:g} to {high:g}) must be integers 0 … 255 or floats in [0, 1]")
    return pixels


def _check_scales(scales: Tensor | NDArray[np.float64] | float, count: int) -> Tensor:
    factors = torch.as_tensor(scales, dtype=torch.float64)
    if factors.dim() == 0:
        factors = factors.expand(count)
    if factors.shape != (count,):
        raise ValueError(
            f"`scales` (of shape {tuple(factors.shape)}) must be one number, or one for each of {count} images"
        )
    bad = (~(factors.isfinite() & (factors > 0))).nonzero()
    if len(bad):
        index = int(bad[0, 0])
        raise ValueError(f"`scales` (={float(factors[index])} at index {index}) must be finite and above 0")
    return factors


def _check_size(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"`size` (={size}) must be at least 1 pixel a side")
    return height, width
