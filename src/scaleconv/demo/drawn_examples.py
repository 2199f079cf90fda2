"""Draws the pictures with which the tab for photographs begins, so that the package carries no photograph of others.

Each is a few polygons and ellipses on a square of 1 × 1, drawn at several times its size and averaged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.decoding import import_pillow
from .uploads import SIDE

FINE = 4  # lines are drawn at so many times the size

SKY, HAZE, CLOUD, SEA, DEEP, ROAD, GRASS = "#7fb2e5", "#cfe2f2", "#eef3f7", "#3f6f94", "#2a5273", "#77777a", "#6f8f4e"
RED, DARK, GLASS, BLACK, WHITE, GREY, BEIGE = "#b8282b", "#7c1a1d", "#33424f", "#1d1d1f", "#f2f2ee", "#9aa6b2", "#dca"


class Pen:
    """Shapes on an image, by coordinates from 0 to 1."""

    def __init__(self) -> None:
        from PIL import ImageDraw

        self.image = import_pillow().new("RGB", (FINE * SIDE, FINE * SIDE))
        self._draw = ImageDraw.Draw(self.image)

    def box(self, colour: str, left: float, top: float, right: float, bottom: float) -> None:
        self._draw.rectangle([FINE * SIDE * each for each in (left, top, right, bottom)], colour)

    def disc(self, colour: str, x: float, y: float, width: float, height: float = 0.0) -> None:
        height = height or width
        ends = (x - width, y - height, x + width, y + height)
        self._draw.ellipse([FINE * SIDE * each for each in ends], colour)

    def shape(self, colour: str, *corners: tuple[float, float]) -> None:
        self._draw.polygon([(FINE * SIDE * x, FINE * SIDE * y) for x, y in corners], colour)

    def fade(self, upper: str, lower: str, top: float, bottom: float) -> None:
        """From one colour to another, line by line."""
        from PIL import ImageColor

        first, last = (np.array(ImageColor.getrgb(colour)) for colour in (upper, lower))
        lines = range(round(FINE * SIDE * top), round(FINE * SIDE * bottom))
        for place, line in enumerate(lines):
            share = place / max(1, len(lines) - 1)
            colour = tuple(int(each) for each in first + share * (last - first))
            self._draw.line([(0, line), (FINE * SIDE, line)], colour)

    def wheel(self, x: float, y: float, radius: float) -> None:
        self.disc(BLACK, x, y, radius)
        self.disc(GREY, x, y, radius / 2)


def airplane(pen: Pen) -> None:
    pen.fade(SKY, HAZE, 0, 1)
    pen.disc(CLOUD, 0.2, 0.85, 0.22, 0.05)
    pen.shape(GREY, (0.16, 0.46), (0.10, 0.27), (0.18, 0.27), (0.30, 0.45))  # tail
    pen.shape(WHITE, (0.10, 0.46), (0.20, 0.43), (0.80, 0.43), (0.90, 0.49), (0.80, 0.55), (0.24, 0.55))
    pen.disc(WHITE, 0.84, 0.49, 0.10, 0.06)
    pen.shape(GREY, (0.58, 0.50), (0.30, 0.78), (0.22, 0.78), (0.40, 0.50))  # near wing
    pen.shape(GREY, (0.55, 0.43), (0.42, 0.28), (0.36, 0.28), (0.42, 0.43))  # far wing
    pen.disc(GLASS, 0.44, 0.62, 0.06, 0.025)
    pen.shape(GLASS, (0.83, 0.45), (0.89, 0.46), (0.90, 0.48), (0.83, 0.48))


def automobile(pen: Pen) -> None:
    pen.fade(HAZE, CLOUD, 0, 0.45)
    pen.box(GRASS, 0, 0.40, 1, 0.62)
    pen.box(ROAD, 0, 0.60, 1, 1)
    pen.disc(DEEP, 0.5, 0.79, 0.42, 0.03)
    pen.shape(RED, (0.26, 0.50), (0.36, 0.34), (0.62, 0.34), (0.76, 0.50))
    pen.shape(GLASS, (0.31, 0.49), (0.38, 0.37), (0.47, 0.37), (0.47, 0.49))
    pen.shape(GLASS, (0.50, 0.49), (0.50, 0.37), (0.60, 0.37), (0.70, 0.49))
    pen.shape(RED, (0.08, 0.56), (0.14, 0.50), (0.78, 0.49), (0.92, 0.55), (0.93, 0.72), (0.07, 0.72))
    pen.box(DARK, 0.07, 0.68, 0.93, 0.73)
    pen.box(WHITE, 0.87, 0.57, 0.92, 0.61)
    pen.wheel(0.26, 0.72, 0.09)
    pen.wheel(0.75, 0.72, 0.09)


def ship(pen: Pen) -> None:
    pen.fade(SKY, HAZE, 0, 0.62)
    pen.fade(SEA, DEEP, 0.60, 1)
    pen.shape(DARK, (0.06, 0.55), (0.94, 0.52), (0.86, 0.70), (0.14, 0.70))
    pen.shape(RED, (0.12, 0.665), (0.88, 0.66), (0.86, 0.70), (0.14, 0.70))
    pen.box(WHITE, 0.16, 0.36, 0.34, 0.55)
    pen.box(GLASS, 0.18, 0.40, 0.32, 0.43)
    pen.box(BEIGE, 0.22, 0.24, 0.29, 0.36)
    pen.box(GREY, 0.38, 0.45, 0.56, 0.54)
    pen.box(BEIGE, 0.58, 0.45, 0.74, 0.54)
    pen.box(GREY, 0.80, 0.32, 0.815, 0.54)
    pen.shape(HAZE, (0.0, 0.72), (0.14, 0.69), (0.86, 0.69), (1.0, 0.72), (0.5, 0.74))


def truck(pen: Pen) -> None:
    pen.fade(SKY, HAZE, 0, 0.6)
    pen.box(GRASS, 0, 0.58, 1, 0.70)
    pen.box(ROAD, 0, 0.68, 1, 1)
    pen.box(WHITE, 0.05, 0.24, 0.66, 0.68)
    pen.box(GREY, 0.05, 0.64, 0.66, 0.69)
    pen.shape(RED, (0.69, 0.69), (0.69, 0.34), (0.85, 0.34), (0.93, 0.52), (0.93, 0.72), (0.69, 0.72))
    pen.shape(GLASS, (0.76, 0.50), (0.76, 0.38), (0.84, 0.38), (0.89, 0.50))
    pen.box(BLACK, 0.05, 0.69, 0.93, 0.73)
    for x in (0.16, 0.29, 0.82):
        pen.wheel(x, 0.75, 0.07)


EXAMPLES: tuple[Callable[[Pen], None], ...] = (airplane, automobile, ship, truck)


def draw_examples() -> dict[str, Tensor]:
    """Each picture (3, SIDE, SIDE) uint8, by the class of CIFAR-10 that it shows."""
    found = {}
    for draw in EXAMPLES:
        pen = Pen()
        draw(pen)
        small: Any = pen.image.resize((SIDE, SIDE), import_pillow().Resampling.BOX)
        found[draw.__name__] = torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()
    return found
