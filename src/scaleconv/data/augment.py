"""Augmentation of training images: rescaled, flipped and shifted, their masks with them.

The caller draws the random numbers. Nothing here waits for the device, so that a CUDA graph can capture it.
"""

from collections.abc import Sequence

from torch import Tensor

from .rescale import rescale as rescale_images
from .rescale import rescale_masks

AUGMENTATIONS = ("scale", "flip", "crop")
LAWS = ("log", "uniform")
FARTHEST_SHIFT = 0.125  # of a side


def augment(
    images: Tensor,
    labels: Tensor,
    draws: Tensor,
    kinds: Sequence[str],
    *,
    rescale: tuple[float, float] = (0.5, 2.0),
    law: str = "log",
    interpolation: str = "bilinear",
) -> tuple[Tensor, Tensor]:
    """Augment images, each by numbers of its own; where an image shrinks it is averaged, and its edge is repeated.

    Shapes: images (N, C, H, W), labels (N,) or (N, H, W), draws (N, 4) → images and labels of the same shapes.

    Args:
        images: floats.
        labels: of images, which stay as they are, or masks, which move with their images.
        draws: uniform in [0, 1), on the device of the images: for scale, shift down, shift to the right, and flip.
        kinds: some of `scale`, `flip` (every second image), `crop` (by up to an eighth of each side).
        rescale: the least and the largest scale.
        law: `log` halves an image as often as it doubles it, `uniform` draws evenly between the two.
        interpolation: `bilinear` or `bicubic`, of the images.

    Example:
        >>> import torch
        >>> ramp, half = torch.arange(4.0).expand(1, 1, 4, 4), torch.full((1, 4), 0.25)
        >>> augment(ramp, torch.tensor([7]), half, ["flip"])[0][0, 0, 0]
        tensor([3., 2., 1., 0.])
    """
    check_augmentations(kinds)
    if law not in LAWS:
        raise ValueError(f"`law` (={law!r}) must be one of {', '.join(LAWS)}")
    if not kinds:
        return images, labels
    least, most = rescale
    scales: Tensor | float = 1.0
    if "scale" in kinds:
        scales = least * (most / least) ** draws[:, 0] if law == "log" else least + (most - least) * draws[:, 0]
    shift = FARTHEST_SHIFT * (2 * draws[:, 1:3] - 1) if "crop" in kinds else None
    flip = draws[:, 3] < 0.5 if "flip" in kinds else None
    moved = rescale_images(
        images, scales, shift=shift, flip=flip, interpolation=interpolation, antialias=True, border="edge"
    )
    return moved, rescale_masks(labels, scales, shift=shift, flip=flip) if labels.dim() == 3 else labels


def check_augmentations(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in AUGMENTATIONS:
            raise ValueError(f"`augment` must be some of {', '.join(AUGMENTATIONS)}, got {kind!r}")
