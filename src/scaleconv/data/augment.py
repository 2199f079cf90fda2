"""Rescaling, flipping and shifting batches of images, on any device: to augment them, and to test at other scales.

All three are one linear map along each axis, so a batch is resampled by two products with small matrices, and a mask
moves with its image. What is drawn
for an image depends on (seed, epoch, index of the image) alone: not on the batch, the order or the number of workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .masks import IGNORE

AUGMENTATIONS = ("scale", "flip", "crop")
LARGEST_SCALE = 2.0  # the least one is its inverse
FARTHEST_SHIFT = 0.125  # of a side
PURPOSE = 3  # of the random stream


@dataclass(frozen=True)
class Placement:
    """How each of N images is laid onto its canvas.

    Attributes:
        scale: (N,) float64, about the centre; above 1 enlarges.
        shift: (N, 2) float64, down and to the right, as a share of the side.
        flip: (N,) bool, left and right exchanged.
    """

    scale: Tensor
    shift: Tensor
    flip: Tensor


def draw_placement(kinds: Sequence[str], seed: int, epoch: int, indices: Sequence[int]) -> Placement:
    """Draw how images are augmented.

    Args:
        kinds: some of `scale` (by ½ … 2, its logarithm uniform), `flip` (every second image), `crop` (by up to an
            eighth of each side; what comes into view repeats the edge).
        seed, epoch: of the run.
        indices: of the images in the training set.

    Example:
        >>> draw_placement(["scale"], 0, 1, [5, 6]).scale.round(decimals=3)
        tensor([0.5730, 0.8060], dtype=torch.float64)
    """
    check_augmentations(kinds)
    bits = [np.random.PCG64([seed, PURPOSE, epoch, index]).random_raw(4) for index in indices]
    uniform = torch.from_numpy((np.array(bits) >> np.uint64(11)).astype(np.float64)) * 2.0**-53  # (N, 4) in [0, 1)
    uniform = uniform.reshape(len(indices), 4)
    still = torch.zeros(len(indices), dtype=torch.float64)
    return Placement(
        scale=LARGEST_SCALE ** (2 * uniform[:, 0] - 1) if "scale" in kinds else still + 1,
        shift=FARTHEST_SHIFT * (2 * uniform[:, 1:3] - 1) if "crop" in kinds else torch.stack([still, still], 1),
        flip=uniform[:, 3] < 0.5 if "flip" in kinds else still.bool(),
    )


def check_augmentations(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in AUGMENTATIONS:
            raise ValueError(f"`augment` must be some of {', '.join(AUGMENTATIONS)}, got {kind!r}")


def place(images: Tensor, placement: Placement) -> Tensor:
    """Lay each image onto a canvas of its own size.

    Shapes: images (N, C, H, W) float → (N, C, H, W).

    Along each axis, with length H, scale s and shift t, canvas pixel q reads the image at

        u = (q − (H−1)/2 − t·H) / s + (H−1)/2,    flipped: H − 1 − u

    Convention: linear between pixels; beyond the edge, the edge is repeated; where an image shrinks, pixels are
    averaged over 1/s of them and not skipped, as a camera does that moves away.

    Example:
        >>> line = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand(1, 1, 5, 5)
        >>> rescale(line, 2.0)[0, 0, 0]
        tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    height, width = images.shape[-2:]
    never = torch.zeros_like(placement.flip)
    rows = _weights(height, placement.scale, placement.shift[:, 0], never)
    columns = _weights(width, placement.scale, placement.shift[:, 1], placement.flip)
    rows, columns = (matrix.to(images).unsqueeze(1) for matrix in (rows, columns))  # (N, 1, H, H), (N, 1, W, W)
    return rows @ images @ columns.mT


def place_masks(masks: Tensor, placement: Placement) -> Tensor:
    """Lay each mask where `place` lays its image: the nearest class number, and no label beyond the edge.

    Shapes: masks (N, H, W) of integers → (N, H, W).

    Example:
        >>> rescale_masks(torch.arange(5, dtype=torch.uint8).expand(1, 5, 5), 0.5)[0, 2]
        tensor([255,   0,   2,   4, 255], dtype=torch.uint8)
    """
    count, height, width = masks.shape
    never = torch.zeros_like(placement.flip)
    rows = _sources(height, placement.scale, placement.shift[:, 0], never)
    columns = _sources(width, placement.scale, placement.shift[:, 1], placement.flip)
    moved = masks
    for axis, sources in ((1, rows), (2, columns)):
        nearest = (sources + 0.5).floor().long().to(masks.device).unsqueeze(3 - axis)  # (N, H, 1) or (N, 1, W)
        inside = (nearest >= 0) & (nearest < masks.shape[axis])
        index = nearest.clamp(0, masks.shape[axis] - 1).expand(count, height, width)
        moved = moved.gather(axis, index).where(inside, IGNORE)
    return moved


def rescale(images: Tensor, scale: float) -> Tensor:
    """Rescale all images (N, C, H, W) about their centre, on a canvas of the same size, as `place` does."""
    return images if scale == 1 else place(images, _about_the_centre(scale))


def rescale_masks(masks: Tensor, scale: float) -> Tensor:
    """Rescale all masks (N, H, W) about their centre, as `place_masks` does."""
    return masks if scale == 1 else place_masks(masks, _about_the_centre(scale))


def _about_the_centre(scale: float) -> Placement:
    """Of any number of images."""
    still = torch.zeros(1, dtype=torch.float64)
    return Placement(still + scale, torch.stack([still, still], 1), still.bool())


def _sources(length: int, scale: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Where each canvas pixel of one axis reads each image, in float64: (N, length)."""
    centre = (length - 1) / 2
    pixels = torch.arange(length, dtype=torch.float64)
    sources = (pixels - centre - length * shift.unsqueeze(1)) / scale.unsqueeze(1) + centre
    return torch.where(flip.unsqueeze(1), length - 1 - sources, sources)


def _weights(length: int, scale: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """The sampling matrix of one axis for each image, in float64: (N, length, length)."""
    pixels = torch.arange(length, dtype=torch.float64)
    sources = _sources(length, scale, shift, flip).clamp(0, length - 1)
    reach = (1 / scale).clamp(min=1).reshape(-1, 1, 1)
    weights = (1 - (sources.unsqueeze(-1) - pixels).abs() / reach).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)
