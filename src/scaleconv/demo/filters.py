"""Computes what the page shows of a filter: every level, its response, and the level that wins at each position.

The filter is one of any convolution of a trained network, or a drawn patch; the image is an example or an upload.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Uniform, make_scenes
from ..ops import Transform, rotation, scaling, ti_conv2d
from ..ops.geometry import BILINEAR, canvas_size, plane_sources
from ..ops.levels import indices, read_plane
from . import rendering
from .answers import Answer
from .pairs import Pair
from .uploads import SIDE, as_pixels

PATCH = 9  # side of a drawn filter
FACTORS, DEGREES = [2 ** (k / 3) for k in range(-3, 4)], list(range(0, 360, 30))
TRANSFORMS: dict[str, dict[str, Transform]] = {
    "scale": {f"×{factor:.2g}": scaling(factor) for factor in FACTORS},
    "rotation": {f"{degrees}°": rotation(degrees) for degrees in DEGREES},
}
PLAIN = {"scale": FACTORS.index(1), "rotation": DEGREES.index(0)}  # the level that is the image itself


@dataclass(frozen=True)
class Layer:
    """A convolution of a network, and the modules before it."""

    title: str
    before: nn.Module
    convolution: nn.Conv2d

    @property
    def filters(self) -> int:
        return self.convolution.out_channels

    def gallery(self) -> list[str]:
        """A picture of each filter, the mean over its channels: white at 0, full at its own largest weight."""
        means = self.convolution.weight.detach().mean(1)
        return [rendering.signed(mean, rendering.strongest([mean])) for mean in means]


def find_layers(pairs: dict[str, Pair]) -> dict[str, Layer]:
    """Every convolution of the four networks, by the name of network and layer."""
    networks = {
        "ConvNet": pairs["digits"].plain,
        "SI-ConvNet": pairs["digits"].invariant,
        "FCN": pairs["scenes"].plain,
        "SI-FCN": pairs["scenes"].invariant,
    }
    found = {}
    for title, network in networks.items():
        before: list[nn.Module] = []
        for name, module in network.get_submodule("network.stages").named_children():
            if isinstance(module, nn.Conv2d):
                found[f"{title}.{name}"] = Layer(f"{title}, {name}", nn.Sequential(*before), module)
            before.append(module)
    return found


def examples(pair: Pair) -> list[Answer]:
    """Images to begin with: dots of many sizes, lines of all directions, and a scene of digits."""
    y, x = torch.meshgrid(torch.arange(SIDE) - (SIDE - 1) / 2, torch.arange(SIDE) - (SIDE - 1) / 2, indexing="ij")
    dots = torch.zeros(SIDE, SIDE)
    for row, across in ((-32, (-36, -20, 2, 32)), (0, (38, 20, -4, -34)), (32, (-34, -8, 16, 36))):
        for place, radius in zip(across, (1.5, 3, 6, 9), strict=True):
            dots = dots.maximum((radius + 0.5 - torch.hypot(y - row, x - place)).clamp(0, 1))
    spokes = ((4 * torch.hypot(y, x) / SIDE).clamp(0, 1) * torch.cos(12 * torch.atan2(y, x))).clamp(0, 1)
    spokes = spokes * (torch.hypot(y, x) < SIDE / 2)
    scene = make_scenes(pair.images, pair.labels, Uniform(0.5, 2), 1, SIDE, seed=1).images[0, 0]
    named = {"dots of many sizes": dots, "lines of all directions": spokes, "a scene of digits": scene}
    return [{"name": name, **as_pixels((255 * image).round().byte())} for name, image in named.items()]


@torch.no_grad()
def apply_layer(layer: Layer, number: int, image: Tensor, by: str) -> Answer:
    """The filter of this number on the features that an image (H, W) in [0, 1] has before the layer.

    The mean of the image is subtracted, as that of the training pixels is in training.
    """
    features = layer.before((image - image.mean())[None, None])
    convolution = layer.convolution
    bias = None if convolution.bias is None else convolution.bias[number : number + 1]
    return _apply(features, convolution.weight[number : number + 1], bias, by)


@torch.no_grad()
def apply_patch(patch: Tensor, image: Tensor, by: str) -> Answer:
    """A drawn patch (K, K) in [0, 1] as the filter; without its mean, so that a constant area has no response."""
    weight = patch - patch.mean()
    return _apply(image[None, None], (weight / weight.norm().clamp(min=1e-6))[None, None], None, by)


def _apply(images: Tensor, weight: Tensor, bias: Tensor | None, by: str) -> Answer:
    transforms = TRANSFORMS[by]
    padding = weight.shape[-1] // 2
    output, winner = ti_conv2d(
        images, weight, bias, padding=padding, transforms=tuple(transforms.values()), return_winner=True
    )
    levels = [transform_images(images, each) for each in transforms.values()]
    responses = [F.conv2d(level, weight, bias, padding=padding)[0, 0] for level in levels]
    colours, most = _colours(by), rendering.strongest(responses)
    plain, strongest = responses[PLAIN[by]], output[0, 0]
    return {
        "by": by,
        "channels": weight.shape[1],
        "plain": {"image": rendering.signed(plain, most), "peak": float(plain.max())},
        "invariant": {"image": rendering.signed(strongest, most), "peak": float(strongest.max())},
        "winners": rendering.winners(winner[0, 0], strongest, colours),
        "legend": rendering.legend(list(transforms), colours, winner),
        "levels": rendering.levels(list(transforms), colours, [level[0] for level in levels], responses),
    }


def _colours(by: str) -> list[str]:
    return rendering.level_colours(FACTORS) if by == "scale" else rendering.rotated_colours(DEGREES)


def transform_images(images: Tensor, transform: Transform) -> Tensor:
    """Images (N, C, H, W) as the level that `ti_conv2d` convolves under this transform.

    Example:
        >>> images = torch.rand(1, 1, 4, 6)
        >>> torch.equal(transform_images(images, rotation(90)), torch.rot90(images, 1, (2, 3)))
        True
    """
    matrix, size = transform.numbers, images.shape[2:]
    canvas = canvas_size(matrix, size)
    y, x = (indices(length, images.device) for length in canvas)
    level, _ = read_plane(images, plane_sources(matrix, size, canvas, y[:, None], x), size, BILINEAR)
    return level
