"""A contact sheet: what the scaled digits look like, with their factors."""

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .datasets import Digits
from .decoding import import_pillow
from .files import atomic_path, check_writable
from .rescale import make_scaled
from .scales import ScaleDistribution, TruncatedNormal, Uniform
from .sets import MNIST_SCALE

ROWS = 10  # one for each class
COLUMNS = 8
ZOOM = 3  # points of the picture for each pixel of a digit
GAP, LABEL, MARGIN, TITLE = 4, 16, 24, 30  # points
PAPER, INK, FONT = 255, 34, 11


def write_preview(
    digits: Digits,
    path: str | os.PathLike[str],
    scales: ScaleDistribution = MNIST_SCALE,
    size: int | tuple[int, int] = 28,
    *,
    seed: int = 0,
    interpolation: str = "bilinear",
    antialias: bool = False,
    truncate: str = "error",
) -> None:
    """Write a PNG: a digit of each class across the range of scales, beside the first digits of the set as drawn.

    Raises:
        ValueError: the name does not end in `.png`, or foreground would be cut off.
        OSError: the file cannot be written.
    """
    if not str(path).endswith(".png"):
        raise ValueError(f"`path` (={path}) must end in .png")
    check_writable(path)
    pillow = import_pillow()
    from PIL import ImageDraw, ImageFont

    def scaled(indices: Tensor, factors: NDArray[np.float64]) -> NDArray[np.float32]:
        made = make_scaled(digits.images[indices], factors, size, interpolation, antialias, truncate=truncate)
        return made[:, 0].numpy()

    steps = _steps(scales)
    examples = torch.stack([(digits.labels == label).nonzero()[0, 0] for label in digits.labels.unique()])
    across = np.tile(steps, len(examples))
    factors = scales.draw(min(ROWS * COLUMNS, len(digits)), seed)
    first = scaled(torch.arange(len(factors)), factors)
    high, wide = (ZOOM * length for length in first.shape[1:])
    canvas = f"{first.shape[1]} x {first.shape[2]} pixels"  # the font has no ×
    title = f"the first {len(factors)} digits of the set: {scales}, seed {seed}"
    panels = [
        (f"a digit of each class across the scales, {canvas}", scaled(examples.repeat_interleave(len(steps)), across)),
        (title, first),
    ]
    font, left, tiles, texts = ImageFont.load_default(FONT), MARGIN, [], []
    for (title, images), shown, columns in zip(panels, (across, factors), (len(steps), COLUMNS), strict=True):
        texts.append((left, TITLE // 2, title, "lm"))
        for k, (image, factor) in enumerate(zip(images, shown, strict=True)):
            top, start = TITLE + k // columns * (high + LABEL), left + k % columns * (wide + GAP)
            tiles.append((top, start, image))
            texts.append((start + wide // 2, top + high + LABEL // 2, f"{factor:.2f}", "mm"))
        left += max(columns * (wide + GAP), round(font.getlength(title))) + MARGIN
    page = np.full((max(top for top, *_ in tiles) + high + LABEL + MARGIN, left), PAPER, np.uint8)
    for top, start, image in tiles:
        page[top : top + high, start : start + wide] = np.kron(np.round(image * 255), np.ones((ZOOM, ZOOM)))
    picture = pillow.fromarray(page)
    draw = ImageDraw.Draw(picture)
    for x, y, text, anchor in texts:
        draw.text((x, y), text, fill=INK, font=font, anchor=anchor)
    with atomic_path(path) as part:
        picture.save(part, "png")


def _steps(scales: ScaleDistribution) -> NDArray[np.float64]:
    """The factors of the columns: from one end of the distribution to the other."""
    if isinstance(scales, Uniform | TruncatedNormal):
        return np.linspace(scales.low, scales.high, COLUMNS)
    return np.unique(scales.draw(COLUMNS, seed=0))
