"""What the page takes from a browser, and refuses: everything has a bound, and a message that names it.

A request is JSON from anyone who can reach the port. Whatever is not as it should be is a `ValueError`.
"""

import base64
import binascii
import io
import json
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.decoding import FORMATS, import_pillow, quiet_pillow

MOST_JSON = 2**16  # bytes of a request
MOST_FILE = 2**23  # bytes of a picture, 8 MiB
MOST_PIXELS = 2**24  # of a picture, by its header: 50 MB once decoded
MOST_SCANS = 100  # of a JPEG, each of which takes as long as all of its pixels; a usual one has ten
SCAN = b"\xff\xda"  # begins one
MOST_SEED = 10**6


def parse(text: bytes) -> Mapping[str, Any]:
    """The fields of a request."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the request must be JSON") from None
    if not isinstance(fields, dict):
        raise ValueError(f"the request must be a JSON object, got {type(fields).__name__}")
    return fields


def number(fields: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """A number between two others.

    Example:
        >>> number({"scale": float("nan")}, "scale", 0.3, 2)
        Traceback (most recent call last):
            ...
        ValueError: `scale` must be a number from 0.3 to 2, got nan
    """
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:  # as NaN is not
        raise ValueError(f"`{name}` must be a number from {low:g} to {high:g}, got {_short(value)}")
    return float(value)


def whole(fields: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number between two others."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"`{name}` must be a whole number from {low} to {high}, got {_short(value)}")
    return value


def choice(fields: Mapping[str, Any], name: str, known: Container[str]) -> str:
    """One of some names."""
    value = fields.get(name)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"`{name}` must be one of those on the page, got {_short(value)}")
    return value


def pixels(fields: Mapping[str, Any], name: str, height: int, width: int) -> Tensor:
    """(height, width) uint8, sent row by row in base64."""
    value = fields.get(name)
    try:
        found = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != height * width:
        raise ValueError(f"`{name}` must be {height}×{width} bytes in base64, got {_short(value)}")
    return torch.from_numpy(np.frombuffer(found, np.uint8).reshape(height, width).copy())


def picture(file: bytes, side: int) -> Tensor:
    """A picture as grey (H, W) uint8, its longest side at most so long; of an animation, the first frame.

    The size is read from the header, and a picture of too many pixels is never decoded.

    Raises:
        ValueError: it is empty, broken, of another format, or too large.
    """
    image = import_pillow()
    from PIL import ImageOps

    try:
        with quiet_pillow(), image.open(io.BytesIO(file), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it is {width}×{height}, of more than {MOST_PIXELS // 10**6} megapixels")
            if opened.format == "JPEG" and (scans := file.count(SCAN)) > MOST_SCANS:
                raise ValueError(f"it has {scans:,} scans, more than {MOST_SCANS}")
            opened.draft("L", (4 * side, 4 * side))  # a JPEG is decoded at a smaller size
            shown = ImageOps.exif_transpose(opened).convert("L")
            shown.thumbnail((side, side))
    except image.UnidentifiedImageError:
        raise ValueError(f"`file` must be a picture, {', '.join(FORMATS[:-1])} or {FORMATS[-1]}") from None
    except Exception as error:  # a decoder may raise anything on a broken file
        raise ValueError(f"`file` cannot be read as a picture ({_short(str(error))})") from None
    return torch.from_numpy(np.asarray(shown).copy())


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
