"""How far the features of a rescaled image are from the rescaled features of the image."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..data.rescale import rescale
from .activations import activations

SLACK = 1e-4  # of a pixel: forgives rounding where a position is read at the edge of a map


def equivariance_error(
    model: nn.Module,
    images: Tensor,
    rescaled: Tensor,
    scale: float,
    layers: Sequence[str],
    blank: Tensor,
    batch: int = 1000,
) -> dict[str, float]:
    """The relative distance between features of rescaled images and rescaled features of the images.

    Shapes: images, rescaled (N, …), blank (1, …) → one number for each layer.

    With g(x) = f(x) − f(blank), f the output of a layer, and T_s the rescaling by s about the centre,

        error = ‖g(T_s x) − T_s g(x)‖ / ‖T_s g(x)‖,   both norms over all images together

    Convention: a map (N, C, H, W) is rescaled about its centre, bilinear, and compared where T_s g(x) is known, which
    for s < 1 is the inner part. An output (N, U) has no positions; there T_s is the identity, and the error is that of
    invariance. The response to `blank` is subtracted: with a large bias any features would be close.

    Args:
        model: the network.
        images: those the features of which are rescaled.
        rescaled: the same images, rescaled by `scale`.
        scale: the factor; above 1 enlarges.
        layers: names of modules.
        blank: an image with nothing in it.
        batch: images at a time.
    """
    if not scale > 0:
        raise ValueError(f"`scale` must be above 0, got {scale}")
    if images.shape != rescaled.shape:
        raise ValueError(
            f"`rescaled` must have the shape of `images` {tuple(images.shape)}, got {tuple(rescaled.shape)}"
        )
    empty = activations(model, blank, layers)
    distance, norm = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    for some, moved in zip(images.split(batch), rescaled.split(batch), strict=True):
        of_images, of_moved = activations(model, some, layers, batch), activations(model, moved, layers, batch)
        for name in layers:
            expected, found = (of[name].double() - empty[name].double() for of in (of_images, of_moved))
            if expected.dim() == 4:
                expected, known = rescale_maps(expected, scale)
                expected, found = expected * known, found * known
            distance[name] += float((found - expected).square().sum())
            norm[name] += float(expected.square().sum())
    return {name: (distance[name] / norm[name]) ** 0.5 if norm[name] else 0.0 for name in layers}


def rescale_maps(maps: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Maps (N, C, H, W) rescaled about their centre on the same grid, bilinear, and where they are known, 1 or 0.

    The second tensor is (1, 1, H, W). A position is known if it is read between pixels of the map; beyond, the map is
    taken as 0.
    """
    ones = torch.ones(1, 1, *maps.shape[2:], dtype=maps.dtype, device=maps.device)
    moved, known = (rescale(each, scale, antialias=False, border="zeros") for each in (maps, ones))
    return moved, (known > 1 - SLACK).to(maps.dtype)
