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
from ..drawing import RESPONSES, angle_colours, dimming, scale_colours

Pixels = NDArray[np.uint8]


def grey(image: Tensor) -> str:
    """(H, W) in [0, 1], from black to white."""
    return shaded(image, 0, 1, palette="gray")


def picture(image: Tensor) -> str:
    """(H, W) in grey or (3, H, W) in colour, in [0, 1]."""
    return grey(image) if image.dim() == 2 else _png(_bytes(image.permute(1, 2, 0)))


def signed(values: Tensor, most: float) -> str:
    """(H, W) of any numbers: white at 0, red above and blue below, full at ±`most`."""
    return shaded(values, -most, most, RESPONSES)


def shaded(values: Tensor, low: float, high: float, palette: str) -> str:
    """(H, W) of any numbers, from the first colour at `low` to the last at `high`."""
    return _png(_table(palette)[_bytes((values - low) / max(high - low, 1e-6))])


def winners(index: Tensor, strength: Tensor, colours: Sequence[str]) -> str:
    """(H, W): the colour of the winner, from black at the median of `strength` to full at its maximum."""
    return _png(_bytes(_rgb(colours)[index.long()] * dimming(strength).unsqueeze(-1)))


def strongest(responses: Sequence[Tensor]) -> float:
    """The largest magnitude in all of them, at which a colour is full."""
    return max(float(response.abs().max()) for response in responses)


def levels(
    names: Sequence[str], colours: Sequence[str], images: Sequence[Tensor | None], responses: Sequence[Tensor]
) -> list[dict[str, Any]]:
    """The levels of a pyramid: each image (C, h, w), if given, as the mean of its channels, and each response (h', w').

    All responses share their colours, of which white is 0; so do all images, from their least value to their largest.
    """
    most = strongest(responses)
    shown = [None if image is None else image.mean(0) for image in images]
    ends = [end for image in shown if image is not None for end in image.aminmax()]
    low, high = (float(min(ends)), float(max(ends))) if ends else (0.0, 1.0)
    return [
        {
            "name": name,
            "colour": colour,
            "image": None if image is None else shaded(image, low, high, "gray"),
            "response": signed(response, most),
            "peak": float(response.max()),
        }
        for name, colour, image, response in zip(names, colours, shown, responses, strict=True)
    ]


def legend(names: Sequence[str], colours: Sequence[str], winner: Tensor) -> list[dict[str, Any]]:
    """The levels with their colours, and the share of positions that each wins."""
    shares = winner.flatten().long().bincount(minlength=len(names)) / winner.numel()
    entries = zip(names, colours, shares.tolist(), strict=True)
    return [{"name": name, "colour": colour, "share": share} for name, colour, share in entries]


def classes(labels: Tensor, colours: Sequence[str]) -> str:
    """(H, W) of class numbers, each in its colour."""
    return _png(_bytes(_rgb(colours)[labels]))


def level_colours(scales: Sequence[float]) -> list[str]:
    """A colour `#rrggbb` for the level of each scale."""
    return [_hex(colour) for colour in scale_colours(scales)]


def rotated_colours(degrees: Sequence[float]) -> list[str]:
    """A colour `#rrggbb` for the level of each angle."""
    return [_hex(colour) for colour in angle_colours(degrees)]


def _hex(colour: Sequence[float]) -> str:
    return "#" + bytes(round(255 * part) for part in colour[:3]).hex()


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
