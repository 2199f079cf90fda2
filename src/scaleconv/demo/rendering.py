"""Arrays as pictures: PNG files inside a `data:` address, so that an answer is one JSON text.

A picture has one pixel for each number; the browser enlarges it.
"""

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.decoding import import_pillow

Pixels = NDArray[np.uint8]


def grey(image: Tensor) -> str:
    """(H, W) in [0, 1], from black to white."""
    return shaded(image, 0, 1, palette="gray")


def shaded(values: Tensor, low: float | None = None, high: float | None = None, palette: str = "magma") -> str:
    """(H, W) of any numbers, from dark at `low` to light at `high`, by default at the least and the largest."""
    least = float(values.min()) if low is None else low
    largest = float(values.max()) if high is None else high
    shade = (values - least) / max(largest - least, 1e-6)
    return _png(_table(palette)[_bytes(shade)])


def winners(index: Tensor, strength: Tensor, colours: Sequence[str]) -> str:
    """(H, W): the colour of the level that won, black where the layer answers no more than at half of all positions."""
    low, high = strength.median(), strength.max()
    light = ((strength - low) / (high - low).clamp(min=1e-6)).clamp(0, 1).sqrt()  # weak answers are seen too
    table = torch.tensor([list(bytes.fromhex(colour[1:])) for colour in colours]) / 255
    return _png(_bytes(table[index.long()] * light.unsqueeze(-1)))


def levels(
    names: Sequence[str], colours: Sequence[str], images: Sequence[Tensor | None], responses: Sequence[Tensor]
) -> list[dict[str, Any]]:
    """The levels of a pyramid: each image (C, h, w) as the mean of its channels, if there is one, and its response.

    The responses (h', w') share their shades.
    """
    low, high = (float(end) for end in torch.cat([response.flatten() for response in responses]).aminmax())
    return [
        {
            "name": name,
            "colour": colour,
            "image": None if image is None else shaded(image.mean(0), palette="gray"),
            "response": shaded(response, low, high),
            "peak": float(response.max()),
        }
        for name, colour, image, response in zip(names, colours, images, responses, strict=True)
    ]


def legend(names: Sequence[str], winner: Tensor) -> list[dict[str, Any]]:
    """The levels with their colours, and the share of the map that each has won."""
    shares = winner.flatten().long().bincount(minlength=len(names)) / winner.numel()
    entries = zip(names, level_colours(len(names)), shares.tolist(), strict=True)
    return [{"name": name, "colour": colour, "share": share} for name, colour, share in entries]


def classes(labels: Tensor, colours: Sequence[str]) -> str:
    """(H, W) of class numbers, each in its colour."""
    table = np.array([list(bytes.fromhex(colour[1:])) for colour in colours], np.uint8)
    return _png(table[labels.numpy()])


@cache
def level_colours(count: int) -> tuple[str, ...]:
    """A colour for each of so many levels, as `#rrggbb`, bright enough to be told apart on black.

    Example:
        >>> level_colours(2)
        ('#477bf2', '#dd3d08')
    """
    from matplotlib import colormaps

    return tuple(_hex(colormaps["turbo"](0.15 + 0.7 * place / max(count - 1, 1))[:3]) for place in range(count))


@cache
def class_colours() -> tuple[str, ...]:
    """Those of the ten digits and, last, of the background."""
    from matplotlib import colormaps

    return (*(_hex(colormaps["tab10"](digit)[:3]) for digit in range(10)), "#000000")


def _hex(colour: Sequence[float]) -> str:
    return "#" + bytes(round(255 * part) for part in colour).hex()


def _bytes(values: Tensor) -> Pixels:
    pixels: Pixels = (values.clamp(0, 1) * 255).round().byte().numpy()
    return pixels


@cache
def _table(name: str) -> Pixels:
    from matplotlib import colormaps

    table: Pixels = (255 * colormaps[name](np.arange(256))[:, :3]).round().astype(np.uint8)
    return table


def _png(pixels: Pixels) -> str:
    file = io.BytesIO()
    import_pillow().fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
