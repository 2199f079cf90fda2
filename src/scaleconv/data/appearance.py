"""Scaled digits as other data sets show them: smoothed in proportion to their scale, contrasted, and anywhere.

MNIST Large Scale (Jansson and Lindeberg, "Scale-invariant scale-channel networks", 2022) and the MNIST of STIR
(Altstidl and others, "Just a matter of scale?", 2022) smooth a digit by a Gaussian of 7/8 of its scale, so that it
looks the same at all scales, and pass it through an arctangent. In STIR it also lies anywhere on the canvas.
"""

import math

import numpy as np
import torch
from torch import Tensor

SMOOTHING = 7 / 8  # standard deviation in pixels of the original digit
STEEPNESS = 0.02 * 255  # of the arctangent, for pixels between 0 and 1
MIDDLE = 128 / 255  # goes to 0
CHUNK = 2048  # digits at a time


def smooth(images: Tensor, scales: Tensor | float) -> Tensor:
    """Smooth each image by a Gaussian of 7/8 of its scale, and contrast it.

    Shapes: images (N, 1, H, W) in [0, 1], scales (N,) or one number → (N, 1, H, W) in [0, 1].

    With σ = 7/8·s the result is a + b·(2/π)·arctan(0.02·(I − 128)), I the smoothed image between 0 and 255. The two
    numbers a and b bring black to 0 and white to 1; in the published files it lies between −0.76 and 0.76. Outside of
    the image is black.

    Example:
        >>> dot = torch.zeros(1, 1, 9, 9)
        >>> dot[..., 4, 4] = 1
        >>> smooth(dot, 0.5)[0, 0, 4].argmax().item()
        4
    """
    factors = torch.as_tensor(scales, dtype=images.dtype, device=images.device).expand(len(images))
    if not (factors > 0).all():
        raise ValueError(f"`scales` must be above 0, got {float(factors.min())}")
    result = torch.empty_like(images)
    low, high = (math.atan(STEEPNESS * (end - MIDDLE)) for end in (0.0, 1.0))
    for start in range(0, len(images), CHUNK):
        part = slice(start, start + CHUNK)
        rows, columns = (_gaussians(SMOOTHING * factors[part], length) for length in images.shape[2:])
        smoothed = rows @ images[part] @ columns.mT
        result[part] = (torch.atan(STEEPNESS * (smoothed - MIDDLE)) - low) / (high - low)
    return result


def shift(images: Tensor, scales: Tensor | float, side: int, seed: int) -> Tensor:
    """Move each scaled digit from the middle to any place that has room for its whole original image.

    Shapes: images (N, 1, H, W), scales (N,) or one number → (N, 1, H, W).

    Args:
        images: digits in the middle of the canvas.
        scales: of the digits.
        side: of the original images, in pixels.
        seed: of the places, whole pixels from the middle, all equally likely.
    """
    factors = torch.as_tensor(scales, dtype=torch.float64).cpu().expand(len(images))
    random = np.random.default_rng([seed, len(images)])
    index = []
    for length in images.shape[2:]:
        room = ((length - factors.numpy() * side) / 2).clip(min=0).astype(np.int64)
        moved = torch.from_numpy(random.integers(-room, room + 1)).to(images.device)
        index.append((torch.arange(length, device=images.device) - moved.view(-1, 1)) % length)  # (N, length)
    each = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    return images[:, 0][each, index[0].unsqueeze(2), index[1].unsqueeze(1)].unsqueeze(1)


def _gaussians(deviations: Tensor, length: int) -> Tensor:
    """The matrix that smooths an axis, for each standard deviation: (N, 1, length, length).

    A Gaussian is taken at whole pixels, and its sum over all of them is 1, those outside of the image too.
    """
    pixels = torch.arange(length, dtype=deviations.dtype, device=deviations.device)
    reach = torch.arange(-4 * length, 4 * length + 1, dtype=deviations.dtype, device=deviations.device)
    width = 2 * deviations.square().view(-1, 1, 1, 1)
    weights = torch.exp(-(pixels.view(-1, 1) - pixels).square() / width)
    return weights / torch.exp(-reach.square() / width).sum(-1, keepdim=True)
