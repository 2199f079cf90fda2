"""A contact sheet: what the scaled digits look like, with their factors. The only part of this room that draws."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .datasets import Digits
from .files import atomic_path, check_writable
from .rescale import make_scaled
from .scales import ScaleDistribution, TruncatedNormal, Uniform
from .sets import MNIST_SCALE

ROWS = 10  # one for each class
COLUMNS = 8
ZOOM = 3  # points of the picture for each pixel of a digit
GAP, LABEL, MARGIN, TITLE = 4, 16, 24, 30  # points
PAPER, INK = 255, "#222222"


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
        ImportError: matplotlib is not installed.
        ValueError: the name does not end in `.png`, or foreground would be cut off.
        OSError: the file cannot be written.
    """
    if not str(path).endswith(".png"):
        raise ValueError(f"`path` (={path}) must end in .png")
    check_writable(path)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("drawing needs matplotlib: pip install 'scaleconv[experiments]'") from None

    def scaled(indices: Tensor, factors: NDArray[np.float64]) -> NDArray[np.float32]:
        made = make_scaled(digits.images[indices], factors, size, interpolation, antialias, truncate=truncate)
        return made[:, 0].numpy()

    steps = _steps(scales)
    examples = _one_of_each(digits.labels)
    across = scaled(examples.repeat_interleave(len(steps)), np.tile(steps, len(examples)))
    drawn = min(ROWS * COLUMNS, len(digits))
    factors = scales.draw(drawn, seed)
    as_drawn = scaled(torch.arange(drawn), factors)

    high, wide = as_drawn.shape[1:]
    panels = [
        (
            f"a digit of each class across the scales, {high}×{wide} canvas",
            across,
            np.tile(steps, len(examples)),
            len(steps),
        ),
        (f"the first {drawn} digits of the set: {scales}, seed {seed}", as_drawn, factors, COLUMNS),
    ]
    sheets = [(title, *_sheet(images, shown, columns)) for title, images, shown, columns in panels]
    width = MARGIN + sum(sheet.shape[1] + MARGIN for _, sheet, _ in sheets)
    height = MARGIN + TITLE + max(sheet.shape[0] for _, sheet, _ in sheets)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
    left = MARGIN
    for title, sheet, labels in sheets:
        high, wide = sheet.shape
        axes = figure.add_axes((left / width, 1 - (TITLE + high) / height, wide / width, high / height))
        axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        figure.text(left / width, 1 - 0.7 * TITLE / height, title, fontsize=9, color=INK, va="center")
        for x, y, text in labels:
            axes.text(x, y, text, fontsize=7, color=INK, ha="center", va="center")
        left += wide + MARGIN
    with atomic_path(path) as part:
        figure.savefig(part, format="png")


def _steps(scales: ScaleDistribution) -> NDArray[np.float64]:
    """The factors of the columns: from one end of the distribution to the other."""
    if isinstance(scales, Uniform | TruncatedNormal):
        return np.linspace(scales.low, scales.high, COLUMNS)
    return np.unique(scales.draw(COLUMNS, seed=0))


def _one_of_each(labels: Tensor) -> Tensor:
    """The first digit of each class that there is."""
    return torch.stack([(labels == label).nonzero()[0, 0] for label in labels.unique()])


def _sheet(
    images: NDArray[np.float32], factors: Sequence[float] | NDArray[np.float64], columns: int
) -> tuple[NDArray[np.uint8], list[tuple[float, float, str]]]:
    """Tile images (N, H, W) with room for a label below each: the sheet, and where each label goes."""
    high, wide = images.shape[1] * ZOOM, images.shape[2] * ZOOM
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (high + LABEL), columns * (wide + GAP) - GAP), PAPER, np.uint8)
    labels = []
    for k, image in enumerate(images):
        top, left = k // columns * (high + LABEL), k % columns * (wide + GAP)
        sheet[top : top + high, left : left + wide] = np.kron(np.round(image * 255), np.ones((ZOOM, ZOOM)))
        labels.append((left + wide / 2, top + high + LABEL / 2 - 1, f"× {factors[k]:.2f}"))
    return sheet, labels
