"""Image files as tensors, by Pillow: PNG, JPEG, BMP and WebP, and masks of class numbers.

Without Pillow, everything that reads or writes images raises ImportError, which names the extra to install.
Files are not trusted. The header is read first, and an image of more than 67 megapixels is not decoded. Every error of
Pillow becomes a `ValueError` of one line. No file is changed.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .files import refuse_pipes
from .rescale import IGNORE

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
MOST_PIXELS = 2**26  # 67 megapixels, 200 MB once decoded
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # of P, the numbers and not the colours
FITS = ("crop", "letterbox")

Size = tuple[int, int]


class UnusableImageError(ValueError):
    """Why a file cannot be used, as what follows its name: `is broken (…)`."""


def import_pillow() -> Any:
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading images needs Pillow: pip install 'scaleconv[experiments]'") from None
    return Image


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings, of damaged EXIF data and the like: what makes a file unusable is an exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An image whose header has been read. Errors of the block that decodes it are handled in the same way.

    Raises:
        UnusableImageError: why the file cannot be used.
    """
    pillow = import_pillow()
    try:
        refuse_pipes(path)
        with quiet_pillow(), path.open("rb") as file, pillow.open(file, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise UnusableImageError(_too_large(f"{image.width}×{image.height}"))
            yield image
    except UnusableImageError:
        raise
    except pillow.DecompressionBombError:  # from twice Pillow's own limit on, before the size is known here
        raise UnusableImageError(_too_large("more")) from None
    except pillow.UnidentifiedImageError:
        raise UnusableImageError(f"is not an image ({', '.join(FORMATS)})") from None
    except Exception as error:  # the parsers of Pillow may raise anything for a damaged file
        if isinstance(error, OSError) and error.strerror:  # the system's, not Pillow's
            raise UnusableImageError(f"cannot be read ({error.strerror})") from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnusableImageError(f"is broken ({reason})") from None


def inspect(path: Path) -> tuple[Size, bool, str]:
    """(height, width) of an upright image, whether it has no colour, and a checksum of its bytes.

    It is decoded, to see whether it can be used. A JPEG is decoded at an eighth of its size, which reads all its bytes.

    Raises:
        UnusableImageError: why not.
    """
    with opened(path) as image:
        (width, height), grey = image.size, image.mode in GREY_MODES
        upright = (width, height) if image.getexif().get(ORIENTATION) in SIDEWAYS else (height, width)
        image.draft(None, (max(1, width // 8), max(1, height // 8)))
        image.load()
        return upright, grey, checksum(path)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def read_image(
    path: str | os.PathLike[str], channels: int | None = None, size: Size | None = None, fit: str = "crop"
) -> Tensor:
    """An image as (C, H, W) float32 in [0, 1], prepared as `load_folder` prepares those of a folder.

    Args:
        path: the file.
        channels: 1 or 3; None takes 1 where the image has no colour.
        size: (height, width); None leaves the image its own.
        fit: `crop` or `letterbox`, as for `load_folder`.

    Raises:
        ValueError: the file cannot be read, is no image, is broken, or has more than 67 megapixels.
    """
    try:
        return decode(Path(path), channels, size, fit) / 255
    except UnusableImageError as error:
        raise ValueError(f"the image {printable(str(path))} {error}") from None


def read_mask(path: str | os.PathLike[str]) -> Tensor:
    """A mask as (H, W) int64: the numbers as they are stored.

    Raises:
        ValueError: the file cannot be read, is no image, is broken, too large, or in colour.
    """
    try:
        return decode_mask(Path(path))
    except UnusableImageError as error:
        raise ValueError(f"the mask {printable(str(path))} {error}") from None


def decode(path: Path, channels: int | None, size: Size | None = None, fit: str = "crop") -> Tensor:
    """An image as a tensor: (C, H, W) uint8.

    EXIF rotation is applied. Transparent pixels are laid over white. 16 bits are rounded to 8. CMYK becomes RGB, and
    grey and colour become what `channels` says; None takes 1 where the image has no colour.

    Raises:
        UnusableImageError: why the file cannot be used.
    """
    with opened(path) as image:
        channels = channels or (1 if image.mode in GREY_MODES else 3)
        if size:
            wanted = size[::-1] if image.getexif().get(ORIENTATION) not in SIDEWAYS else size  # (width, height)
            largest = max(wanted[0] / image.width, wanted[1] / image.height)
            # A JPEG is decoded at no more than it takes: to at least twice the size, from which it is averaged.
            image.draft(None, (round(2 * largest * image.width), round(2 * largest * image.height)))
        upright = _in_mode(_upright(image), channels)
        pixels = np.asarray(_fitted(upright, size, fit) if size else upright)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels).copy()).permute(2, 0, 1).contiguous()


def decode_mask(path: Path, size: Size | None = None, fit: str = "crop") -> Tensor:
    """A mask as a tensor, (H, W) int64, fitted as its image is; beyond a letterboxed image there is no label.

    Raises:
        UnusableImageError: why the file cannot be used.
    """
    with opened(path) as image:
        if image.mode not in MASK_MODES:
            raise UnusableImageError(f"cannot be used (its mode {image.mode} holds colours, not class numbers)")
        numbers = np.asarray(_upright(image)).astype(np.int32)
    if size:
        numbers = np.asarray(_fitted(import_pillow().fromarray(numbers), size, fit, mask=True))
    return torch.from_numpy(numbers.astype(np.int64))


def printable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _too_large(size: str) -> str:
    return f"is too large ({size} pixels, at most {MOST_PIXELS:,})"


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _in_mode(image: Any, channels: int) -> Any:
    pillow = import_pillow()
    if image.mode.startswith("I"):
        image = pillow.fromarray((np.asarray(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("L" if channels == 1 else "RGB")


def _fitted(image: Any, size: Size, fit: str, *, mask: bool = False) -> Any:
    height, width = size
    choose: Callable[[float, float], float] = max if fit == "crop" else min
    factor = choose(width / image.width, height / image.height)
    scaled = max(1, round(factor * image.width)), max(1, round(factor * image.height))
    if scaled != image.size:
        resampling = import_pillow().Resampling
        image = image.resize(scaled, resampling.NEAREST if mask else resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if fit == "crop":
        return image.crop((left, top, left + width, top + height))
    margins = [(-top, height - image.height + top), (-left, width - image.width + left)]
    pixels = np.asarray(image)
    if mask:
        return np.pad(pixels, margins, constant_values=IGNORE)
    return np.pad(pixels, margins + [(0, 0)] * (pixels.ndim - 2), mode="edge")
