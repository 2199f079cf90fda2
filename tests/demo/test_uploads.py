"""Files of pictures become pixels; what is no picture is refused, and never decoded if it is too large."""

import base64
import io
import zlib

import numpy as np
import pytest
from PIL import Image

from scaleconv.demo import uploads


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels_of(found):
    return np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(found["height"], found["width"])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
def test_a_picture_is_shrunk_and_converted_to_grey(kind, decode):
    across = Image.fromarray(np.broadcast_to(np.linspace(0, 255, 400, dtype=np.uint8), (200, 400))).convert("RGB")
    animated = {"save_all": True, "append_images": [Image.new("RGB", (400, 200))]} if kind == "WEBP" else {}
    found = uploads.read_picture(saved(across, kind, **animated))
    assert pixels_of(found).shape == (48, 96)
    assert np.abs(pixels_of(found) - np.linspace(0, 255, 96)).max() < 6
    assert np.array_equal(decode(found["image"])[..., 0], pixels_of(found))


def test_a_picture_that_was_taken_sideways_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate it clockwise to see it upright
    dark_left = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), [40, 40], 1).repeat(40, 0))
    found = pixels_of(uploads.read_picture(saved(dark_left, "JPEG", exif=exif)))
    assert found.shape == (80, 40)
    assert found[:30].mean() < 20 < 235 < found[50:].mean()


SVG = b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><svg><text>&b;</text></svg>'
GIF = saved(Image.new("L", (20, 20)), "GIF")
PROGRESSIVE = saved(Image.new("L", (64, 64), 7), "JPEG", progressive=True)
SCANS = PROGRESSIVE[:-2] + 2000 * PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2] + PROGRESSIVE[-2:]
PNG = saved(Image.new("L", (5000, 3000), 7), "PNG")
HEADER = b"IHDR" + 2 * (60_000).to_bytes(4) + PNG[24:29]
HUGE = PNG[:12] + HEADER + zlib.crc32(HEADER).to_bytes(4) + PNG[33:]
REFUSED = {
    "a JPEG of 2,000 scans": (SCANS, "scans, more than 100"),
    "empty": (b"", "must be a picture, PNG, JPEG, BMP or WEBP"),
    "text": (b"not a picture at all", "must be a picture"),
    "an SVG with entities": (SVG, "must be a picture"),
    "a GIF": (GIF, "must be a picture"),
    "half a PNG": (PNG[: len(PNG) // 2], "cannot be read"),
    "a PNG of 17 megapixels": (saved(Image.new("L", (5000, 3400)), "PNG"), "5000×3400, of more than 16 megapixels"),
    "a PNG of 3.6 gigapixels": (HUGE, "cannot be read"),
    "a strip": (saved(Image.new("L", (640, 64)), "PNG"), "at least 16 pixels a side at this size, got 96×10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_picture_is_refused(case):
    file, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"^`file` .*{message}"):
        uploads.read_picture(file)


def test_a_photograph_keeps_its_colours_and_its_middle_square(decode):
    stripes = Image.fromarray(np.repeat(np.uint8([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]), 100, 1).repeat(100, 0))
    found = uploads.read_photograph(saved(stripes, "PNG"))
    assert (found["width"], found["height"]) == (96, 96)
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(3, 96, 96)
    assert (pixels[1, :, 4:92] == 255).all()  # green, the middle third of 300 × 100
    assert (pixels[[0, 2], :, 4:92] == 0).all()
    assert np.array_equal(decode(found["image"]).transpose(2, 0, 1), pixels)


def test_a_photograph_that_is_too_small_or_broken_is_refused():
    for file, message in ((saved(Image.new("RGB", (300, 15)), "PNG"), "at least 16 pixels"), (b"text", "a picture")):
        with pytest.raises(ValueError, match=f"^`file` must be {message}"):
            uploads.read_photograph(file)
