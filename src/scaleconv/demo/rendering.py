"""Renders arrays as pictures: PNG files in `data:` addresses, so that an answer is one JSON text.

A picture has one pixel per number; the browser enlarges it.
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
    """(H, W) of any numbers, from dark at `low` to light at `high`; by default their minimum and maximum."""
    least = float(values.min()) if low is None else low
    largest = float(values.max()) if high is None else high
    shade = (values - least) / max(largest - least, 1e-6)
    return _png(_table(palette)[_bytes(shade)])


def winners(index: Tensor, strength: Tensor, colours: Sequence[str]) -> str:
    """(H, W): the colour of the winner, from black at the median of `strength` to full at its maximum."""
    low, high = strength.median(), strength.max()
    light = ((strength - low) / (high - low).clamp(min=1e-6)).clamp(0, 1).sqrt()  # weak responses remain visible
    return _png(_bytes(_rgb(colours)[index.long()] * light.unsqueeze(-1)))


def levels(
    names: Sequence[str], colours: Sequence[str], images: Sequence[Tensor | None], responses: Sequence[Tensor]
) -> list[dict[str, Any]]:
    """The levels of a pyramid: each image (C, h, w), if given, as the mean of its channels, and each response (h', w').

    All responses share one range of shades.
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
    """The levels with their colours, and the share of positions that each wins."""
    shares = winner.flatten().long().bincount(minlength=len(names)) / winner.numel()
    entries = zip(names, level_colours(len(names)), shares.tolist(), strict=True)
    return [{"name": name, "colour": colour, "share": share} for name, colour, share in entries]


def classes(labels: Tensor, colours: Sequence[str]) -> str:
    """(H, W) of class numbers, each in its colour."""
    return _png(_bytes(_rgb(colours)[labels]))


@cache
def level_colours(count: int) -> tuple[str, ...]:
    """A colour `#rrggbb` per level, bright enough to tell them apart on black.

    Example:
        >>> level_colours(2)
        ('#477bf2', '#dd3d08')
    """
    from matplotlib import colormaps, colors

    return tuple(colors.to_hex(colormaps["turbo"](0.15 + 0.7 * level / max(count - 1, 1))) for level in range(count))


@cache
def class_colours() -> tuple[str, ...]:
    """The colours of the ten digits and, last, of the background."""
    from matplotlib import colormaps, colors

    return (*(colors.to_hex(colormaps["tab10"](digit)) for digit in range(10)), "#000000")


def _rgb(colours: Sequence[str]) -> Tensor:
    return torch.tensor([list(bytes.fromhex(colour[1:])) for colour in colours]) / 255


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
