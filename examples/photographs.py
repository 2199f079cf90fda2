"""Folders of photographs for `scaleconv compare`, from data sets as they are published.

    python examples/photographs.py signs gtsrb photos/signs
    scaleconv compare --data photos/signs --resize 32 --plan examples/plans/signs.toml --name signs --seeds 5

- `signs`: German traffic signs (gtsrb/CLASS/TRACK_FRAME.png). A quarter of the tracks of each class is tested on.
- `far-signs`: the same tracks, every sign at its own size in the middle of a canvas, its edge repeated. Signs of up to
  `FAR` pixels are trained on, all sizes up to that of the canvas are tested on.
- `nuclei`: microscope images with masks (images, masks, sizes.csv). Images with nuclei of at most `SMALL_NUCLEI` pixels
  are trained on, but for a quarter of them; the rest is tested on.

The last two say in `sizes.csv` how large the signs and nuclei are, and `compare` gives its results by that size.

Other sets are folders already, or are written by `scaleconv data`.
"""

import argparse
import csv
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

EVERY = 4  # of so many tracks or images, one is tested on
FAR, CANVAS = 40, 80  # pixels of a side
SMALL_NUCLEI = 16  # pixels: the median over an image


def tracks_of(source: Path) -> dict[str, dict[str, list[Path]]]:
    """The frames of each track, by class."""
    found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(source.glob("*/*.png")):
        found[path.parent.name][path.stem.partition("_")[0]].append(path)
    return found


def divide_signs(source: Path, out: Path) -> None:
    """Copy whole tracks to train or to test."""
    for label, tracks in tracks_of(source).items():
        for number, frames in enumerate(tracks.values()):
            folder = out / ("test" if number % EVERY == 0 else "train") / label
            folder.mkdir(parents=True, exist_ok=True)
            for frame in frames:
                shutil.copy(frame, folder)


def place_signs(source: Path, out: Path) -> None:
    """Write far signs to train and all signs to test, each at its own size on the canvas."""
    sides: dict[str, float] = {}
    for label, tracks in tracks_of(source).items():
        for number, frames in enumerate(tracks.values()):
            part = "test" if number % EVERY == 0 else "train"
            for frame in frames:
                pixels = np.asarray(Image.open(frame).convert("RGB"))
                side = max(pixels.shape[:2])
                if side > (FAR if part == "train" else CANVAS):
                    continue
                pads = [((CANVAS - length) // 2, (CANVAS - length + 1) // 2) for length in pixels.shape[:2]]
                name = f"{part}/{label}/{frame.name}"
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.pad(pixels, (*pads, (0, 0)), mode="edge")).save(out / name)
                sides[name] = side
    write_sizes(out, sides)


def divide_nuclei(source: Path, out: Path) -> None:
    """Copy images and masks to train where nuclei are small, and all others to test."""
    with (source / "sizes.csv").open(newline="", encoding="utf-8") as file:
        published = {row["name"]: float(row["median_diameter"]) for row in csv.DictReader(file)}
    sizes: dict[str, float] = {}
    for number, (name, size) in enumerate(sorted(published.items())):
        part = "train" if size <= SMALL_NUCLEI and number % EVERY > 0 else "test"
        for kind in ("images", "masks"):
            folder = out / part / kind
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / kind / f"{name}.png", folder)
        sizes[f"{part}/images/{name}.png"] = size
    write_sizes(out, sizes)


def write_sizes(out: Path, sizes: Mapping[str, float]) -> None:
    """Write how large what each image shows is."""
    with (out / "sizes.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "size"), *sizes.items()])


SETS = {"signs": divide_signs, "far-signs": place_signs, "nuclei": divide_nuclei}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("source", type=Path, help="as published")
    parser.add_argument("out", type=Path, help="a folder that there is not yet")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    SETS[given.set](given.source, given.out)
