"""An image at many scales, and the responses to it aligned and pooled: `si_conv2d` with any function for the filter.

Plain, differentiable operations for sizes that may be symbolic, by the equations in the docstring of `si_conv2d`. The
caller has the function, and knows the grid of its outputs: no Modules here. Paper, section 3.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .geometry import SLACK, is_inside, source, support_of, target
from .traceable import find_wins, indices, read_axis

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
    height, width = (length if scale == 1 else math.floor(scale * length + SLACK) for length in size)
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
    for dim, samples in zip((2, 3), size, strict=True):
        sources = source(indices(samples, images.device), scale, images.shape[dim], samples)
        images = read_axis(images, dim, sources, support_of(scale, antialias))
    return images


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
    for axis, outputs in enumerate(output_size):
        places = indices(outputs, response.device)
        targets = target(places, scale, image_size[axis], size[axis], stride[axis], offset[axis])
        inside.append(is_inside(targets, response.shape[2 + axis]))
        response = read_axis(response, 2 + axis, targets)
    covered = inside[0].unsqueeze(1) & inside[1]
    return response, covered.to(response.device)


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
