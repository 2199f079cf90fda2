"""One filter on one image under many transforms: every level, its response, and the level that wins at each position.

A filter is one of a trained network, at any of its convolutions, or a patch that someone drew.
"""

import base64
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Uniform, make_scenes
from ..ops import Transform, rotation, scaling, ti_conv2d
from ..ops.geometry import BILINEAR, canvas_size, plane_sources
from ..ops.traceable import indices, read_plane
from . import rendering
from .answers import Answer
from .networks import Pair

LEAST, SIDE = 16, 96  # the shortest and the longest side of an image
PATCH = 9  # side of a drawn filter
TRANSFORMS: dict[str, dict[str, Transform]] = {
    "scale": {f"×{factor:.2g}": scaling(factor) for factor in (2 ** (k / 3) for k in range(-3, 4))},
    "rotation": {f"{degrees}°": rotation(degrees) for degrees in range(0, 360, 30)},
}


@dataclass(frozen=True)
class Layer:
    """A convolution of a network, and what comes before it."""

    title: str
    before: nn.Module
    convolution: nn.Conv2d

    @property
    def filters(self) -> int:
        return self.convolution.out_channels


def find_layers(pairs: dict[str, Pair]) -> dict[str, Layer]:
    """Every convolution of the four networks whose filters the page offers, by name."""
    networks = {
        "ConvNet": pairs["digits"].plain,
        "SI-ConvNet": pairs["digits"].invariant,
        "FCN": pairs["scenes"].plain,
        "SI-FCN": pairs["scenes"].invariant,
    }
    found = {}
    for title, network in networks.items():
        before: list[nn.Module] = []
        for name, module in network.get_submodule("stages").named_children():
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
    scene = make_scenes(pair.digits, pair.labels, Uniform(0.5, 2), 1, SIDE, seed=1).images[0, 0]
    named = {"dots of many sizes": dots, "lines of all directions": spokes, "a scene of digits": scene}
    return [{"name": name, **as_pixels((255 * image).round().byte())} for name, image in named.items()]


def as_pixels(image: Tensor) -> Answer:
    """An image (H, W) uint8 as `limits.pixels` reads it, and as a picture.

    Raises:
        ValueError: it is too narrow for the filters.
    """
    height, width = image.shape
    if min(height, width) < LEAST:
        raise ValueError(f"`file` must be at least {LEAST} pixels a side at this size, got {width}×{height}")
    text = base64.b64encode(image.numpy().tobytes()).decode()
    return {"pixels": text, "width": width, "height": height, "image": rendering.grey(image / 255)}


@torch.no_grad()
def of_network(layer: Layer, number: int, image: Tensor, by: str) -> Answer:
    """The filter of this number, on what the network makes of an image (H, W) in [0, 1] before the layer.

    The mean of the image is subtracted, as that of the training pixels is in training.
    """
    given = layer.before((image - image.mean())[None, None])
    convolution = layer.convolution
    bias = None if convolution.bias is None else convolution.bias[number : number + 1]
    return _answer(given, convolution.weight[number : number + 1], bias, by)


@torch.no_grad()
def of_patch(patch: Tensor, image: Tensor, by: str) -> Answer:
    """A drawn patch (K, K) in [0, 1] as the filter; its mean is removed, so that an even area gives no response."""
    weight = patch - patch.mean()
    return _answer(image[None, None], (weight / weight.norm().clamp(min=1e-6))[None, None], None, by)


def _answer(given: Tensor, weight: Tensor, bias: Tensor | None, by: str) -> Answer:
    transforms = TRANSFORMS[by]
    padding = weight.shape[-1] // 2
    output, winner = ti_conv2d(
        given, weight, bias, padding=padding, transforms=tuple(transforms.values()), return_winner=True
    )
    levels = [transformed(given, each) for each in transforms.values()]
    responses = [F.conv2d(level, weight, bias, padding=padding)[0, 0] for level in levels]
    colours = rendering.level_colours(len(transforms))
    return {
        "filter": rendering.shaded(weight[0].mean(0), palette="gray"),
        "channels": weight.shape[1],
        "output": rendering.shaded(output[0, 0]),
        "winners": rendering.winners(winner[0, 0], output[0, 0], colours),
        "legend": rendering.legend(list(transforms), winner),
        "levels": rendering.levels(list(transforms), colours, [level[0] for level in levels], responses),
    }


def transformed(images: Tensor, transform: Transform) -> Tensor:
    """Images (N, C, H, W) as the level that `ti_conv2d` convolves under this transform.

    Example:
        >>> images = torch.rand(1, 1, 4, 6)
        >>> torch.equal(transformed(images, rotation(90)), torch.rot90(images, 1, (2, 3)))
        True
    """
    matrix, size = transform.numbers, images.shape[2:]
    canvas = canvas_size(matrix, size)
    y, x = (indices(length, images.device) for length in canvas)
    level, _ = read_plane(images, plane_sources(matrix, size, canvas, y[:, None], x), size, BILINEAR)
    return level
