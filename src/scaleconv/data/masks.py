"""Images and their masks, for dense prediction on data of your own: which files belong together, and what is wrong.

    photos/images/1.jpg         photos/masks/1.png         paired by name, whatever the ending; divided here
    photos/train/images/1.jpg   photos/train/masks/1.png   divided already, beside photos/test, perhaps photos/val

A mask is an image of class numbers. As in `folders`, every file is decoded once when the folder is read, what cannot be
used is left out and named, and no file is changed.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .atomic import refuse_pipes
from .folders import (
    FORMATS,
    MOST_PIXELS,
    PURPOSE,
    SUFFIXES,
    THREADS,
    ImageFile,
    ImageFolder,
    Skipped,
    check_shares,
    divide,
    divided_folder,
    find_parts,
    import_pillow,
    inspect,
    new_folder,
    printable,
    quiet_pillow,
)
from .progress import watched
from .scenes import Scenes

MASK_SUFFIXES = (".png", ".bmp")  # JPEG changes numbers, and WebP knows colours only
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # of P, the numbers and not the colours
IGNORE = 255  # in a mask: a pixel without a label


def read_masked_images(
    root: str | os.PathLike[str], *, classes: int | None = None, val: float = 0.1, test: float = 0.1, seed: int = 0
) -> ImageFolder:
    """Find, check and divide the images and masks of a folder.

    An image and a mask belong together if their names are the same but for the ending. Images are PNG, JPEG, BMP or
    WebP; masks are PNG or BMP, in grey or with a palette. Left out and named are files without a partner, all but the
    first of several files with one name, broken and unreadable ones, images of more than 67 megapixels, copies of an
    image, masks in colour, masks of another size than their image, and masks without a label.

    Args:
        root: has the folders `images` and `masks`, or such folders in train, test and val.
        classes: how many there are; None for one more than the largest number in the masks.
        val, test: shares of the images where the folder is not divided already; each part gets at least one image,
            unless `val` is 0.
        seed: of the division.

    Raises:
        OSError: a folder cannot be read.
        ValueError: a part has no pair that can be used, there are too few to be divided, or masks hold numbers that are
            no class, or one class only.
        ImportError: Pillow is not installed.
    """
    if classes is not None and not 2 <= classes <= IGNORE:
        raise ValueError(f"`classes` must lie between 2 and {IGNORE}, got {classes}")
    check_shares(val, test)
    import_pillow()
    folder = Path(root)
    if not folder.is_dir():
        raise NotADirectoryError(f"`data` must be a directory with the folders images and masks, got {folder}")
    parts = find_parts(folder)
    skipped: list[Skipped] = []
    pairs = [(part, *pair) for part, path in parts.items() for pair in _pairs(path, folder, skipped)]
    usable: dict[str, list[ImageFile]] = {part: [] for part in parts}
    taken: dict[str, str] = {}
    largest: dict[str, int] = {}
    with quiet_pillow(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        inspected = pool.map(lambda pair: _inspect_pair(*pair[1:]), pairs)
        for (part, *paths), found in zip(pairs, watched(inspected, "checking images", len(pairs)), strict=True):
            image, mask = (str(path.relative_to(folder)) for path in paths)
            if isinstance(found, _Wrong):
                skipped.append(Skipped(printable(mask if found.mask else image), found.reason))
            elif found.image.checksum in taken:
                skipped.append(Skipped(printable(image), f"is a copy of {taken[found.image.checksum]}"))
            else:
                taken[found.image.checksum] = printable(image)
                largest[printable(mask)] = found.largest
                checksum = found.image.checksum + found.checksum
                usable[part].append(replace(found.image, name=image, mask=mask, checksum=checksum))
    if not taken:
        first = f"; {len(skipped)} left out, first: {skipped[0]}" if skipped else ""
        raise ValueError(f"`data` (={folder}) must hold an image with a mask, got none{first}")
    count = classes or max(largest.values()) + 1
    if wrong := [name for name, number in largest.items() if number >= (classes or IGNORE)]:
        raise ValueError(
            f"`classes` (={classes or IGNORE}) must be above every number in the masks, got {largest[wrong[0]]} in "
            f"{wrong[0]}; {len(wrong)} of {len(largest)} masks hold such numbers"
        )
    if count < 2:
        raise ValueError(
            f"`data` (={folder}) must hold masks of at least 2 classes, got 0 in every pixel with a label "
            f"({IGNORE} is a pixel without one)"
        )
    if "" in usable:
        usable = divide(usable[""], "", val, test, seed=(seed, PURPOSE))
    return divided_folder(folder, [str(number) for number in range(count)], {"val": [], **usable}, skipped)


def write_scenes(scenes: Scenes, root: str | os.PathLike[str]) -> Path:
    """Write scenes as PNGs, `root/images/INDEX.png` and `root/masks/INDEX.png`, whole or not at all.

    Raises:
        ValueError: there is something of that name already.
    """
    pillow = import_pillow()
    with new_folder(root) as part:
        for name in ("images", "masks"):
            (part / name).mkdir(parents=True)
        pixels = (scenes.images[:, 0] * 255).round().byte().cpu().numpy()
        masked = zip(pixels, scenes.labels.byte().cpu().numpy(), strict=True)
        for index, (scene, mask) in enumerate(watched(masked, "writing scenes", len(pixels))):
            pillow.fromarray(scene).save(part / "images" / f"{index:05}.png")
            pillow.fromarray(mask).save(part / "masks" / f"{index:05}.png")
    return Path(root)


def read_mask(path: str | os.PathLike[str]) -> Tensor:
    """A mask as (H, W) int64: the numbers as they are stored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no image, is broken, too large, or in colour.
        ImportError: Pillow is not installed.
    """
    with _opened(path) as image:
        if image.mode not in MASK_MODES:
            raise ValueError(f"cannot read the mask {path} (its mode {image.mode} holds colours, not class numbers)")
        return torch.from_numpy(np.asarray(image).astype(np.int64))


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A decoded image, upright. Pillow's warnings are not passed on: what matters is told by exceptions."""
    pillow = import_pillow()
    from PIL import ImageOps, UnidentifiedImageError

    try:
        refuse_pipes(path)
        with quiet_pillow(), Path(path).open("rb") as file, pillow.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it is {width}×{height}, of more than {MOST_PIXELS // 10**6} megapixels")
            upright = ImageOps.exif_transpose(image)
            upright.load()
        yield upright
    except UnidentifiedImageError:
        raise ValueError(f"cannot read the image {path} (it is no {', '.join(FORMATS)})") from None
    except pillow.DecompressionBombError:
        raise ValueError(f"cannot read the image {path} (more than {MOST_PIXELS // 10**6} megapixels)") from None
    except Exception as error:  # Pillow raises whatever a damaged file makes its parsers stumble over
        if str(error).startswith("cannot read"):
            raise
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not Pillow's
            raise type(error)(f"cannot read the image {path} ({error.strerror})") from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cannot read the image {path} ({reason})") from None


@dataclass(frozen=True)
class _Pair:
    """An image, its mask's checksum, and the largest class number in it."""

    image: ImageFile
    checksum: str
    largest: int


@dataclass(frozen=True)
class _Wrong:
    """Why a pair cannot be used, and whether that is because of its mask."""

    reason: str
    mask: bool


def _inspect_pair(image: Path, mask: Path) -> _Pair | _Wrong:
    found = inspect(image)
    if isinstance(found, str):
        return _Wrong(found, mask=False)
    try:
        numbers = read_mask(mask)
        checksum = hashlib.blake2b(mask.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        return _Wrong(f"cannot be used ({str(error).partition('(')[2].removesuffix(')')})", mask=True)
    if tuple(numbers.shape) != found.size:
        sizes = ["×".join(map(str, size)) for size in (numbers.shape, found.size)]
        return _Wrong(f"is {sizes[0]}, its image {sizes[1]}", mask=True)
    labelled = numbers[numbers != IGNORE]
    if not len(labelled):
        return _Wrong(f"has no label ({IGNORE} in every pixel)", mask=True)
    return _Pair(found, checksum, int(labelled.max()))


def _pairs(part: Path, root: Path, skipped: list[Skipped]) -> list[tuple[Path, Path]]:
    """The images of a part, each with its mask."""
    if absent := [name for name in ("images", "masks") if not (part / name).is_dir()]:
        raise NotADirectoryError(
            f"`data` must be a directory with the folders images and masks, got {part} without {' and '.join(absent)}"
        )
    images = _by_stem(part / "images", root, SUFFIXES, skipped)
    masks = _by_stem(part / "masks", root, MASK_SUFFIXES, skipped)
    for missing, own, others in (("mask", images, masks), ("image", masks, images)):
        alone = [path for stem, path in own.items() if stem not in others]
        skipped += [Skipped(_name(path, root), f"has no {missing}") for path in alone]
    return [(images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())]


def _by_stem(folder: Path, root: Path, suffixes: tuple[str, ...], skipped: list[Skipped]) -> dict[str, Path]:
    """The files of a folder that may be images, by name without the ending."""
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise type(error)(f"cannot read the folder {folder} ({error.strerror})") from None
    found: dict[str, Path] = {}
    for path in files:
        if path.name.startswith("."):
            reason = "is hidden"
        elif path.suffix.lower() not in suffixes:
            reason = f"does not end in {', '.join(suffixes)}"
        elif not os.path.isfile(path):  # a folder, a pipe, a link to nothing; Path.is_file may raise
            reason = "is no file that can be read"
        elif path.stem in found:
            reason = f"shares its name with {found[path.stem].name}"
        else:
            found[path.stem] = path
            continue
        skipped.append(Skipped(_name(path, root), reason))
    return found


def _name(path: Path, root: Path) -> str:
    return printable(str(path.relative_to(root)))
