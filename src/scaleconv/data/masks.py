"""Images and their masks, for dense prediction on data of your own: which files belong together, and what is wrong.

    photos/images/1.jpg   photos/masks/1.png      paired by name, whatever the ending

A mask is an image of class numbers. Every file is decoded once when the folder is read, so that a broken one is found
now and not in the third hour of training. What cannot be used is left out and named. No file is changed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .folders import FORMATS, GREY_MODES, MOST_PIXELS, SUFFIXES, Skipped, import_pillow, quiet_pillow

MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # of P, the numbers and not the colours
DEEP_WHITE = 65535  # of 16-bit grey
IGNORE = 255  # in a mask: a pixel without a label


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of an image (C, H, W) float32 in [0, 1] and its mask (H, W) int64, decoded when they are asked for.

    Attributes:
        pairs: the files of each image and of its mask, by name.
        classes: how many class numbers there are: 0 … classes − 1. A pixel of 255 has no label.
        channels: 1 or 3.
        left_out: the files that are not used, and why.
    """

    def __init__(
        self, pairs: tuple[tuple[Path, Path], ...], classes: int, channels: int, left_out: tuple[Skipped, ...]
    ) -> None:
        self.pairs, self.classes, self.channels, self.left_out = pairs, classes, channels, left_out

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.pairs[index]
        return read_image(image, self.channels), read_mask(mask)

    def summary(self, most: int = 10) -> str:
        """Counts, and the first of the files that are left out, each on a line."""
        lines = [f"{len(self)} images with masks of {self.classes} classes"]
        if self.left_out:
            lines.append(f"{len(self.left_out)} files left out:")
            lines += [f"  {each}" for each in self.left_out[:most]]
        if len(self.left_out) > most:
            lines.append(f"  … and {len(self.left_out) - most} more")
        return "\n".join(lines)


def read_masked_images(root: str | os.PathLike[str], *, classes: int | None = None, channels: int = 3) -> MaskedImages:
    """Find and check the images and masks of a folder that has the folders `images` and `masks`.

    An image and a mask belong together if their names are the same but for the ending. PNG, JPEG, BMP and WebP are
    read. Left out and named are files without a partner, all but the first of several files with one name, broken and
    unreadable ones, images of more than 67 megapixels, masks in colour, and pairs of different size.

    Args:
        root: the folder.
        classes: how many there are; None for one more than the largest number in the masks.
        channels: 3 for colour, 1 for grey; images are converted.

    Raises:
        OSError: a folder cannot be read.
        ValueError: no pair is left, or masks hold numbers that are no class.
        ImportError: Pillow is not installed.
    """
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 1 or 3, got {channels}")
    if classes is not None and not 2 <= classes <= IGNORE:
        raise ValueError(f"`classes` must lie between 2 and {IGNORE}, got {classes}")
    folder = Path(root)
    left_out: list[Skipped] = []
    images, masks = (_by_stem(folder / part, folder, left_out) for part in ("images", "masks"))
    for part, own, others in (("mask", images, masks), ("image", masks, images)):
        left_out += [Skipped(_name(path, folder), f"has no {part}") for stem, path in own.items() if stem not in others]
    pairs, largest = [], {}
    for stem in sorted(images.keys() & masks.keys()):
        try:
            image, mask = read_image(images[stem], channels), read_mask(masks[stem])
        except (OSError, ValueError) as error:
            reason = str(error).partition("(")[2].rstrip(")") or str(error)
            left_out.append(Skipped(_name(images[stem], folder), f"cannot be used with its mask ({reason})"))
            continue
        if image.shape[1:] != mask.shape:
            sizes = ["×".join(map(str, size)) for size in (mask.shape, image.shape[1:])]
            left_out.append(Skipped(_name(masks[stem], folder), f"is {sizes[0]}, its image {sizes[1]}"))
            continue
        pairs.append((images[stem], masks[stem]))
        largest[masks[stem]] = int(mask.where(mask != IGNORE, 0).max())
    if not pairs:
        first = f"; {len(left_out)} left out, first: {left_out[0]}" if left_out else ""
        raise ValueError(f"`root` (={folder}) must hold an image with a mask, got none{first}")
    most = max(largest.values()) + 1
    wrong = [path for path, value in largest.items() if value >= (classes or IGNORE)]
    if wrong:
        raise ValueError(
            f"`classes` (={classes or IGNORE}) must be above every number in the masks, got {largest[wrong[0]]} in "
            f"{_name(wrong[0], folder)}; {len(wrong)} of {len(pairs)} masks hold such numbers"
        )
    return MaskedImages(tuple(pairs), classes or most, channels, tuple(left_out))


def read_image(path: str | os.PathLike[str], channels: int | None = None) -> Tensor:
    """An image as (C, H, W) float32 in [0, 1], upright; 16-bit grey keeps its depth, and transparency is dropped.

    Args:
        path: the file.
        channels: 1 or 3 converts; None keeps grey as one channel and everything else as three.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no image, is broken, or has more than 67 megapixels.
        ImportError: Pillow is not installed.
    """
    with _opened(path) as image:
        wanted = channels or (1 if image.mode in GREY_MODES else 3)
        if image.mode.startswith("I"):
            grey = torch.from_numpy(np.asarray(image, np.float32) / DEEP_WHITE).clamp(0, 1)
            return grey.expand(wanted, -1, -1).contiguous()
        pixels = np.asarray(image.convert("L" if wanted == 1 else "RGB"), np.float32) / 255
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], wanted)).permute(2, 0, 1).contiguous()


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
    except (ValueError, SyntaxError, EOFError) as error:
        if str(error).startswith("cannot read"):
            raise
        raise ValueError(f"cannot read the image {path} ({error})") from None
    except OSError as error:
        if error.errno is None:  # Pillow's: the content, not the system
            raise ValueError(f"cannot read the image {path} ({error})") from None
        raise type(error)(f"cannot read the image {path} ({error.strerror})") from None


def _by_stem(folder: Path, root: Path, left_out: list[Skipped]) -> dict[str, Path]:
    """The images of a folder by name without the ending."""
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise type(error)(f"cannot read the folder {folder} ({error.strerror})") from None
    found: dict[str, list[Path]] = {}
    for path in files:
        if path.suffix.lower() in SUFFIXES:
            found.setdefault(path.stem, []).append(path)
        else:
            left_out.append(Skipped(_name(path, root), f"does not end in {', '.join(SUFFIXES)}"))
    for same in (paths for paths in found.values() if len(paths) > 1):
        left_out += [Skipped(_name(path, root), f"shares its name with {same[0].name}") for path in same[1:]]
    return {stem: paths[0] for stem, paths in found.items()}


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root))
