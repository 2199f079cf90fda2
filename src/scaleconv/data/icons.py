"""The Emoji images of STIR: 36 icons of Font Awesome at 48 sizes, each anywhere on a black canvas, in three sets.

Altstidl and others, "Just a matter of scale?", 2022 (github.com/taltstidl/scale-equivariant-cnn, `data/gen_emoji.py`).
The icons are drawn from the SVG files of the npm package @fortawesome/fontawesome-free 5.15.3, which the user has
installed; nothing is downloaded. Places are those of the published set: the same generator, seed and order of draws.
Deviation: icons are drawn by the scanlines below, which follow Cairo. Of the pixels that CairoSVG 2.9.1 draws 94.5 %
are equal, 99.6 % within 2 of 255, and all within 21.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .datasets import data_directory

Floats = NDArray[np.float64]
Part = tuple[complex, ...]

PACKAGE, VERSION = "@fortawesome/fontawesome-free", "5.15.3"
FOLDERS = (".", "package", "fontawesome-free", PACKAGE, f"node_modules/{PACKAGE}")  # below the data directory
EMOJI = (  # in the order of the labels
    *("tired", "surprise", "smile-wink", "smile-beam", "sad-tear", "sad-cry", "meh-rolling-eyes", "meh-blank"),
    *("laugh-wink", "laugh-squint", "laugh-beam", "laugh", "kiss-wink-heart", "kiss-beam", "kiss", "grin-wink"),
    *("grin-tongue-wink", "grin-tongue-squint", "grin-tongue", "grin-tears", "grin-stars", "grin-squint-tears"),
    *("grin-squint", "grin-hearts", "grin-beam-sweat", "grin-beam", "grin-alt", "grin", "grimace", "frown-open"),
    *("flushed", "dizzy", "angry", "smile", "meh", "frown"),
)
EMBEDDED_ICONS = {  # for trying things out
    "square": ("0 0 512 512", "M0 0h512v512H0z"),
    "triangle": ("0 0 512 512", "M256 0L512 512H0z"),
    "frame": ("0 0 512 512", "M0 0h512v512H0zM160 160v192h192V160z"),
    "disc": ("0 0 512 512", "M256 0C397 0 512 115 512 256S397 512 256 512 0 397 0 256 115 0 256 0z"),
}
CANVAS = 64
SIZES = range(64, 16, -1)  # in the order of the draws
SETS = 3  # to train, to validate and to test on
SEED = 42
SCANLINES = 15  # to a pixel, as many as Cairo has
GRID = 256
TOLERANCE = 0.1  # pixels between a curve and the lines that are drawn for it, as Cairo has it


@dataclass(frozen=True)
class Icon:
    """An icon: lines and curves in its view box, every contour closed.

    Attributes:
        view: (left, top, width, height).
        parts: of each line its two ends, of each cubic Bézier curve its four points; x + iy.
    """

    view: tuple[float, float, float, float]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class IconSet:
    """K icons at each size, in three sets that differ in their places alone; labels are the places in `names`."""

    images: Tensor  # (3, 48, K, 64, 64) uint8, from size 64 to 17
    places: Tensor  # (3, 48, K, 2) int64, pixels from the left and from the top
    names: tuple[str, ...]

    def of_sizes(self, part: int, sizes: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Images (N, 1, 64, 64) uint8 of a set at these sizes, and labels (N,)."""
        chosen = [SIZES.index(size) for size in sizes]
        images = self.images[part, chosen].flatten(0, 1).unsqueeze(1)
        return images, torch.arange(len(self.names)).repeat(len(chosen))


def load_icons(dataset: str, data_dir: str | os.PathLike[str] | None = None) -> IconSet:
    """The set of STIR (`emoji`), or one of four shapes (`embedded`).

    Args:
        dataset: which.
        data_dir: holds the npm package: itself, or a folder above it. Else `$SCALECONV_DATA` or the cache directory.

    Raises:
        OSError: the package is not there, or cannot be read.
        ValueError: it is of another version, or a file is not a drawing that can be read.
    """
    if dataset == "embedded":
        return make_icons({name: parse_icon(*icon) for name, icon in EMBEDDED_ICONS.items()})
    folder = find_package(data_dir)
    return make_icons({name: read_icon(folder / "svgs" / "regular" / f"{name}.svg") for name in EMOJI})


def find_package(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the npm package in the data directory."""
    directory, _ = data_directory(data_dir)
    for folder in (directory / name for name in FOLDERS):
        if (folder / "svgs" / "regular").is_dir():
            version = json.loads((folder / "package.json").read_text(encoding="utf-8")).get("version")
            if version != VERSION:
                raise ValueError(f"{folder} must be {PACKAGE} {VERSION}, got version {version}")
            return folder
    raise FileNotFoundError(
        f"no {PACKAGE} in {directory}: install it (`npm install {PACKAGE}@{VERSION}`), and name the directory that "
        "holds it (--data-dir)"
    )


def make_icons(icons: dict[str, Icon]) -> IconSet:
    """Draw icons at all sizes, and place them as the published generator does: icon by icon, size by size, set by set.

    Example:
        >>> made = load_icons("embedded")
        >>> made.images.shape, made.names
        (torch.Size([3, 48, 4, 64, 64]), ('square', 'triangle', 'frame', 'disc'))
    """
    random = np.random.RandomState(SEED)  # whose numbers never change
    images = np.zeros((SETS, len(SIZES), len(icons), CANVAS, CANVAS), np.uint8)
    places = np.zeros((SETS, len(SIZES), len(icons), 2), np.int64)
    for index, icon in enumerate(icons.values()):
        for level, size in enumerate(SIZES):
            drawn = draw_icon(icon, size)
            for part in range(SETS):
                left, top = random.randint(0, CANVAS - size + 1, 2)
                images[part, level, index, top : top + size, left : left + size] = drawn
                places[part, level, index] = left, top
    return IconSet(torch.from_numpy(images), torch.from_numpy(places), tuple(icons))


def draw_icon(icon: Icon, size: int) -> NDArray[np.uint8]:
    """How much of each pixel an icon covers, from 0 to 255: (size, size).

    The view box is scaled to fit and centred, as SVG has it by default. What winds around a point counts as inside.
    """
    left, top, width, height = icon.view
    middle, scale = complex(left + width / 2, top + height / 2), size / max(width, height)
    centre = complex(size / 2, size / 2)
    parts = [tuple(_on_grid((point - middle) * scale + centre) for point in part) for part in icon.parts]
    x0, y0, x1, y1 = np.array([line for part in parts for line in flatten(part)]).view(np.float64).T
    # Rows of samples are at (k + ½)/SCANLINES; a line crosses those between its ends.
    first, last = (np.floor(y * SCANLINES + 0.5).astype(np.int64).clip(0, size * SCANLINES) for y in (y0, y1))
    counts, down = np.abs(last - first), np.where(last > first, 1, -1)
    line = np.repeat(np.arange(len(counts)), counts)
    row = np.minimum(first, last)[line] + np.arange(len(line)) - np.repeat(np.cumsum(counts) - counts, counts)
    part = ((row + 0.5) / SCANLINES - y0[line]) / (y1 - y0)[line]
    x = (x0[line] + part * (x1 - x0)[line]).clip(0, size)
    # From where it is crossed, a row is covered, or no longer: part of that pixel, and all to the right.
    pixel = np.floor(x).astype(np.int64)
    steps = np.zeros((size * SCANLINES, size + 2))
    np.add.at(steps, (row, pixel), down[line] * (pixel + 1 - x))
    np.add.at(steps, (row, pixel + 1), down[line] * (x - pixel))
    covered = np.abs(np.cumsum(steps, 1)[:, :size]).clip(max=1)
    mean: Floats = covered.reshape(size, SCANLINES, size).mean(1)
    return np.rint(255 * mean).astype(np.uint8)


def flatten(part: Part) -> list[tuple[complex, complex]]:
    """A line as it is; a curve as lines, halved until its handles are within `TOLERANCE` pixels of its chord.

    Example:
        >>> len(flatten((0, 8j, 8 + 8j, 8)))
        16
    """
    start, end = part[0], part[-1]
    if len(part) == 2 or max(_distance(handle - start, end - start) for handle in part[1:3]) < TOLERANCE:
        return [(start, end)]
    a, b, c = ((one + other) / 2 for one, other in pairwise(part))  # de Casteljau
    ab, bc = (a + b) / 2, (b + c) / 2
    middle = (ab + bc) / 2
    return [*flatten((start, a, ab, middle)), *flatten((middle, bc, c, end))]


def _distance(point: complex, chord: complex) -> float:
    """Of a point from the line between 0 and `chord`."""
    if not chord:
        return abs(point)
    along = (point * chord.conjugate()).real / abs(chord) ** 2
    return abs(point - min(max(along, 0.0), 1.0) * chord)


def _on_grid(point: complex) -> complex:
    """The nearest of the points that Cairo knows, 256 to a pixel."""
    return complex(round(point.real * GRID), round(point.imag * GRID)) / GRID


def read_icon(path: Path) -> Icon:
    """An icon from an SVG file of one path, as those of Font Awesome are."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror})") from None
    view, paths = re.findall(r'viewBox="([^"]*)"', text), re.findall(r'<path [^>]*\bd="([^"]*)"', text)
    if len(view) != 1 or len(paths) != 1:
        raise ValueError(f"{path} must have one view box and one path, got {len(view)} and {len(paths)}")
    try:
        return parse_icon(view[0], paths[0])
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_icon(view: str, path: str) -> Icon:
    """An icon from the attributes `viewBox` and `d` of SVG.

    Example:
        >>> parse_icon("0 0 4 4", "M1 1h2v2z").parts
        (((1+1j), (3+1j)), ((3+1j), (3+3j)), ((3+3j), (1+1j)))
    """
    numbers = [float(number) for number in view.split()]
    if len(numbers) != 4 or min(numbers[2:]) <= 0:
        raise ValueError(f"`view` must be left, top, width and height, got {view!r}")
    left, top, width, height = numbers
    return Icon((left, top, width, height), tuple(_parts(path)))


def _parts(path: str) -> Iterator[Part]:
    """The lines and curves of a path, every contour closed."""
    from fontTools.pens.recordingPen import RecordingPen
    from fontTools.svgLib.path import parse_path

    pen = RecordingPen()
    parse_path(path, pen)
    here = start = 0j
    for kind, coordinates in pen.value:
        points = tuple(complex(*point) for point in coordinates)
        if kind == "moveTo":
            here = start = points[0]
        elif kind in ("lineTo", "curveTo"):
            yield (here, *points)
            here = points[-1]
        elif kind == "qCurveTo":
            raise ValueError("`path` must be of lines and cubic curves, got a quadratic one")
        elif here != start:  # the end of a contour
            yield here, start
