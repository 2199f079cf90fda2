"""A filter under many transforms: levels and winners of the loops, known patterns; and the files of pictures."""

import base64
import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from helpers import reference
from scaleconv.demo import filters


def disc(side, radius):
    place = torch.arange(side) - (side - 1) / 2
    return (radius + 0.5 - torch.hypot(place[:, None], place)).clamp(0, 1)  # half of it at the radius


def winner_at_the_centre(found, decode):
    """By its colour there, whatever the brightness."""
    shown = decode(found["winners"])
    colour = torch.tensor(shown[shown.shape[0] // 2, shown.shape[1] // 2]).float()
    assert colour.max() > 0
    known = torch.tensor([list(bytes.fromhex(entry["colour"][1:])) for entry in found["legend"]]).float()
    return found["legend"][int((known / known.norm(dim=1, keepdim=True) @ colour).argmax())]["name"]


def letter(degrees):
    """An L (9, 9), rotated."""
    image = torch.zeros(9, 9)
    image[1:8, 1:3] = image[6:8, 1:7] = 1
    return torch.rot90(image, degrees // 90)


@pytest.mark.parametrize(
    ("by", "patch", "image", "winner"),
    [
        *(
            ("scale", disc(9, 3), disc(65, 3 * s), name)
            for s, name in ((2 ** (-1 / 3), "×1.3"), (1, "×1"), (2, "×0.5"))
        ),
        *(("rotation", letter(0), F.pad(letter(d), [16] * 4), f"{-d % 360}°") for d in (0, 90, 180, 270)),
    ],
)
def test_a_pattern_is_found_by_the_level_that_undoes_its_transform(by, patch, image, winner, decode):
    assert winner_at_the_centre(filters.apply_patch(patch, image, by), decode) == winner


def test_a_patch_responds_by_its_correlation():
    patch = torch.zeros(9, 9)
    patch[4, 4] = 1  # without its mean 80/81 there and −1/81 elsewhere, of norm √(80/81)
    found = filters.apply_patch(patch, F.pad(patch, [20] * 4), "scale")
    assert {level["name"]: level["peak"] for level in found["levels"]}["×1"] == pytest.approx((80 / 81) ** 0.5)


@pytest.mark.parametrize(("name", "by"), [("ConvNet.conv1", "rotation"), ("SI-FCN.conv3", "scale")])
def test_levels_and_winners_of_a_layer_are_those_of_the_loops(pairs, by, name, decode):
    torch.manual_seed(1)
    layer, image = filters.find_layers(pairs)[name], torch.rand(23, 20)
    found = filters.apply_layer(layer, 2, image, by)
    with torch.no_grad():
        features = layer.before((image - image.mean())[None, None]).double().numpy()
    weight = layer.convolution.weight.detach()[2:3].double().numpy()
    bias = np.zeros(1) if layer.convolution.bias is None else layer.convolution.bias.detach()[2:3].numpy()
    call = ((1, 1), [(weight.shape[-1] // 2,) * 2] * 2, (1, 1), 1)
    matrices = [transform.matrix for transform in filters.TRANSFORMS[by].values()]
    aligned = reference.ti_conv2d(features, weight, bias, *call, matrices, "bilinear", "zeros")[:, 0, 0]
    assert found["channels"] == weight.shape[1]
    shares = np.bincount(aligned.argmax(0).ravel(), minlength=len(matrices)) / aligned[0].size
    assert [entry["share"] for entry in found["legend"]] == pytest.approx(shares, abs=1e-6)
    alone = reference.convolve(features[0], weight, bias, *call)
    for kind, expected in (("plain", alone), ("invariant", aligned.max(0))):
        red = decode(found[kind]["image"]).astype(int)[..., [0, 2]] @ [1, -1]  # more red than blue above 0
        assert ((red > 20) <= (expected > 0)).all()
        assert ((red < -20) <= (expected < 0)).all()
        assert np.abs(red).max() > 20
        assert found[kind]["peak"] == pytest.approx(expected.max(), rel=1e-4)
    for shown, matrix in zip(found["levels"], matrices, strict=True):
        level = reference.transform(features[0], matrix, "bilinear", "zeros")
        assert decode(shown["image"]).shape[:2] == level.shape[1:]
        assert shown["peak"] == pytest.approx(reference.convolve(level, weight, bias, *call).max(), rel=1e-4)


def test_a_gallery_shows_each_filter_with_white_at_zero(pairs, decode):
    layer = filters.find_layers(pairs)["SI-FCN.conv2"]
    shown = layer.gallery()
    assert len(shown) == layer.filters
    for picture, weight in zip(shown, layer.convolution.weight.detach().mean(1), strict=True):
        red = torch.tensor(decode(picture)[..., [0, 2]].astype(int)) @ torch.tensor([1, -1])
        clear = weight.abs() > 0.1 * weight.abs().max()
        assert torch.equal((red > 0)[clear], (weight > 0)[clear])


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
    found = filters.read_picture(saved(across, kind, **animated))
    assert pixels_of(found).shape == (48, 96)
    assert np.abs(pixels_of(found) - np.linspace(0, 255, 96)).max() < 6
    assert np.array_equal(decode(found["image"])[..., 0], pixels_of(found))


def test_a_picture_that_was_taken_sideways_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate it clockwise to see it upright
    dark_left = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), [40, 40], 1).repeat(40, 0))
    found = pixels_of(filters.read_picture(saved(dark_left, "JPEG", exif=exif)))
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
        filters.read_picture(file)
