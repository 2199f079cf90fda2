"""What comes from a browser is bounded, and what is refused is named."""

import base64
import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from scaleconv.demo import limits

NAN, INFINITE = float("nan"), float("inf")


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of(width, height):
    """A PNG of a few bytes that says it is this large."""

    def chunk(name, content):
        body = name + content
        return len(content).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)

    size = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 0, 0, 0, 0])
    parts = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE, 0.29, 2.01, "1", None, True, [1], {}])
def test_a_number_lies_in_its_range(value):
    with pytest.raises(ValueError, match=r"`scale` must be a number from 0\.3 to 2, got"):
        limits.number({"scale": value}, "scale", 0.3, 2)


@pytest.mark.parametrize("value", [-1, 7, 1.0, 10**400, "1", None, True])
def test_a_whole_number_lies_in_its_range(value):
    with pytest.raises(ValueError, match="`digits` must be a whole number from 0 to 6, got"):
        limits.whole({"digits": value}, "digits", 0, 6)


@pytest.mark.parametrize("value", ["", "AAA", "!!!!", "AAAAAA==", 5, None, "é" * 8])
def test_pixels_are_as_many_as_they_should_be(value):
    with pytest.raises(ValueError, match="`patch` must be 2×3 bytes in base64, got"):
        limits.pixels({"patch": value}, "patch", 2, 3)


def test_pixels_come_row_by_row():
    sent = base64.b64encode(bytes(range(6))).decode()
    assert limits.pixels({"patch": sent}, "patch", 2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"1", b"[" * 100_000, b"\xff"])
def test_a_request_is_a_json_object(text):
    with pytest.raises(ValueError, match="the request must be"):
        limits.parse(text)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
def test_a_picture_is_shrunk_and_turned_to_grey(kind):
    across = np.broadcast_to(np.linspace(0, 255, 400, dtype=np.uint8), (200, 400))
    found = limits.picture(saved(Image.fromarray(across).convert("RGB"), kind), 96)
    assert (found.shape, found.dtype) == ((48, 96), torch.uint8)
    assert found[:, :10].float().mean() < 40
    assert found[:, -10:].float().mean() > 215


def test_a_picture_that_was_taken_sideways_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it clockwise to see it upright
    dark_left = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), [40, 40], 1).repeat(40, 0))
    found = limits.picture(saved(dark_left, "JPEG", exif=exif), 96)
    assert found.shape == (80, 40)
    assert found[:30].float().mean() < 20 < 235 < found[50:].float().mean()


def test_of_an_animation_only_the_first_frame_is_read():
    frames = [Image.new("L", (20, 20), grey) for grey in (200, 10, 10)]
    found = limits.picture(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), 96)
    assert found.float().mean() == pytest.approx(200, abs=2)


BOMB = b"""<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>
<svg xmlns="http://www.w3.org/2000/svg"><text>&b;</text></svg>"""
DOT = b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0"  # a frame of one pixel
GIF = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff" + 10_000 * DOT + b";"
PROGRESSIVE = saved(Image.new("L", (64, 64), 7), "JPEG", progressive=True)
SCANS = PROGRESSIVE[:-2] + 2000 * PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2] + PROGRESSIVE[-2:]
REFUSED = {
    "a JPEG of 2,000 scans": (SCANS, "scans, more than 100"),
    "empty": (b"", "must be a picture, PNG, JPEG, BMP or WEBP"),
    "text": (b"not a picture at all", "must be a picture"),
    "an SVG bomb": (BOMB, "must be a picture"),
    "a GIF of 10,000 frames": (GIF, "must be a picture"),
    "half a PNG": (saved(Image.new("L", (64, 64), 7), "PNG")[:70], "cannot be read"),
    "a PNG of 25 megapixels": (png_of(5000, 5000), "5000×5000, of more than 16 megapixels"),
    "a PNG of 3.6 gigapixels": (png_of(60_000, 60_000), "cannot be read"),
    "a PNG without its pixels": (png_of(4000, 4000), "cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_picture_is_refused(case):
    file, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        limits.picture(file, 96)
