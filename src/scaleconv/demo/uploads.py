"""Reads the pictures that visitors send, and packs pixels as the page sends them back. Nothing is stored.

A file is not trusted: its size is read from the header, and a picture of too many pixels is never decoded.
"""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.decoding import FORMATS, import_pillow, quiet_pillow
from . import rendering

LEAST, SIDE = 16, 96  # the shortest and the longest side of an image
MOST_PIXELS = 2**24  # of a picture, by its header: 50 MB once decoded
MOST_SCANS = 100  # of a JPEG, each of which takes as long as all of its pixels; a usual one has ten
SCAN = b"\xff\xda"  # begins one


def read_picture(file: bytes) -> dict[str, Any]:
    """A picture in grey, its longest side at most `SIDE`; of an animation, the first frame.

    Raises:
        ValueError: it is empty, broken, of another format, too large or too narrow.
    """
    with _opened(file) as upright:
        grey = upright.convert("L")
        grey.thumbnail((SIDE, SIDE))
    if min(grey.size) < LEAST:
        raise ValueError(f"`file` must be at least {LEAST} pixels a side at this size, got {grey.width}×{grey.height}")
    return as_pixels(torch.from_numpy(np.array(grey)))


def read_photograph(file: bytes) -> dict[str, Any]:
    """The middle square of a picture in colour, at `SIDE` pixels a side; of an animation, the first frame.

    Raises:
        ValueError: it is empty, broken, of another format, too large or too small.
    """
    from PIL import ImageOps

    with _opened(file) as upright:
        width, height = upright.size
        square = ImageOps.fit(upright.convert("RGB"), (SIDE, SIDE))
    if min(width, height) < LEAST:
        raise ValueError(f"`file` must be at least {LEAST} pixels a side, got {width}×{height}")
    return as_pixels(torch.from_numpy(np.array(square)).permute(2, 0, 1))


def as_pixels(image: Tensor) -> dict[str, Any]:
    """An image (H, W) or (3, H, W) uint8 as the page sends it back, and as a picture."""
    text = base64.b64encode(image.contiguous().numpy().tobytes()).decode()
    height, width = image.shape[-2:]
    return {"pixels": text, "width": width, "height": height, "image": rendering.picture(image / 255)}


@contextmanager
def _opened(file: bytes) -> Iterator[Any]:
    """A picture upright; what goes wrong, here or in the block, is a `ValueError` of one line."""
    pillow = import_pillow()
    from PIL import ImageOps

    try:
        with quiet_pillow(), pillow.open(io.BytesIO(file), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it is {width}×{height}, of more than {MOST_PIXELS // 10**6} megapixels")
            if opened.format == "JPEG" and (scans := file.count(SCAN)) > MOST_SCANS:
                raise ValueError(f"it has {scans:,} scans, more than {MOST_SCANS}")
            opened.draft(None, (4 * SIDE, 4 * SIDE))  # a JPEG is decoded at a smaller size
            yield ImageOps.exif_transpose(opened)
    except pillow.UnidentifiedImageError:
        raise ValueError(f"`file` must be a picture, {', '.join(FORMATS[:-1])} or {FORMATS[-1]}") from None
    except Exception as error:  # a decoder may raise anything on a broken file
        raise ValueError(f"`file` cannot be read as a picture ({error!s:.80})") from None
