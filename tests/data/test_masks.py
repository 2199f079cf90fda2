"""Folders of images and masks: what belongs together, and what is left out or refused."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from scaleconv.data import read_image, read_mask, read_masked_images

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (6, 5, 3), np.uint8)
CLASSES = RANDOM.integers(0, 3, (6, 5), np.uint8)
CLASSES[0, 0] = 2


@pytest.fixture
def folder(tmp_path):
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    for stem in ("a", "b"):
        add(tmp_path, stem)
    return tmp_path


def add(folder, stem, image=COLOUR, mask=CLASSES):
    Image.fromarray(image).save(folder / "images" / f"{stem}.bmp")
    Image.fromarray(mask).save(folder / "masks" / f"{stem}.png")


def test_images_and_masks_are_paired_by_name_whatever_the_ending(folder):
    found = read_masked_images(folder)
    assert (len(found), found.classes, found.left_out) == (2, 3, ())
    image, mask = found[1]
    assert torch.equal(image, torch.from_numpy(COLOUR).permute(2, 0, 1).float() / 255)
    assert torch.equal(mask, torch.from_numpy(CLASSES).long())
    assert found.pairs[1][0].name == "b.bmp"


def test_what_cannot_be_used_is_left_out_counted_and_named(folder):
    Image.fromarray(COLOUR).save(folder / "images" / "alone.png")
    Image.fromarray(CLASSES).save(folder / "masks" / "mask.png")
    add(folder, "broken")
    (folder / "images" / "broken.bmp").write_bytes(b"BM")
    add(folder, "large", mask=CLASSES[:, :4])
    add(folder, "colours", mask=COLOUR)
    Image.fromarray(COLOUR).save(folder / "images" / "a.png")
    (folder / "images" / "notes.txt").write_text("")
    found = read_masked_images(folder)
    assert [pair[0].stem for pair in found.pairs] == ["a", "b"]
    reasons = {each.name: each.reason for each in found.left_out}
    assert reasons.pop("images/broken.bmp").startswith("cannot be used with its mask (")
    assert reasons == {
        "images/alone.png": "has no mask",
        "masks/mask.png": "has no image",
        "masks/large.png": "is 6×4, its image 6×5",
        "images/colours.bmp": "cannot be used with its mask (its mode RGB holds colours, not class numbers)",
        "images/a.png": "shares its name with a.bmp",
        "images/notes.txt": "does not end in .png, .jpg, .jpeg, .bmp, .webp",
    }
    assert found.summary(2).splitlines()[1:] == [
        "7 files left out:",
        *(f"  {each}" for each in found.left_out[:2]),
        "  … and 5 more",
    ]


def test_numbers_that_are_no_class_are_refused_with_the_mask(folder):
    wrong = CLASSES.copy()
    wrong[2, 3] = 7
    add(folder, "c", mask=wrong)
    assert read_masked_images(folder).classes == 8
    with pytest.raises(ValueError, match=r"`classes` \(=3\) must be above .* got 7 in masks/c.png; 1 of 3 masks"):
        read_masked_images(folder, classes=3)


def test_pixels_without_a_label_are_no_class(folder):
    some = CLASSES.copy()
    some[1] = 255
    add(folder, "c", mask=some)
    found = read_masked_images(folder, classes=3)
    assert (found[2][1][1] == 255).all()
    assert read_masked_images(folder).classes == 3


def test_a_mask_with_a_palette_holds_its_numbers_and_not_its_colours(tmp_path):
    picture = Image.fromarray(CLASSES)
    picture.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    assert picture.mode == "P"
    picture.save(tmp_path / "mask.png")
    assert torch.equal(read_mask(tmp_path / "mask.png"), torch.from_numpy(CLASSES).long())


def test_grey_colour_transparency_depth_and_orientation(tmp_path):
    grey = COLOUR[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(np.dstack([COLOUR, grey])).save(tmp_path / "rgba.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by a quarter, clockwise
    Image.fromarray(grey).save(tmp_path / "turned.png", exif=turned)
    expected = torch.from_numpy(grey).float() / 255
    assert torch.equal(read_image(tmp_path / "grey.png"), expected.unsqueeze(0))
    assert torch.equal(read_image(tmp_path / "grey.png", 3), expected.expand(3, -1, -1))
    assert torch.equal(read_image(tmp_path / "rgba.png"), torch.from_numpy(COLOUR).permute(2, 0, 1).float() / 255)
    torch.testing.assert_close(read_image(tmp_path / "deep.png"), expected.unsqueeze(0))
    assert torch.equal(read_image(tmp_path / "turned.png")[0], expected.rot90(-1))


def test_an_image_that_would_fill_the_memory_is_refused_by_its_header(tmp_path):
    Image.new("1", (30_000, 30_000)).save(tmp_path / "huge.png")
    with pytest.raises(ValueError, match=r"cannot read the image .*huge.png \(.*more than 67 megapixels"):
        read_image(tmp_path / "huge.png")


def test_folders_that_cannot_be_used_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot read the folder .*images"):
        read_masked_images(tmp_path / "nothing")
    for path in (folder / "masks").iterdir():
        path.unlink()
    with pytest.raises(
        ValueError, match=r"must hold an image with a mask, got none; 2 left out, first: images/a.bmp has"
    ):
        read_masked_images(folder)
    with pytest.raises(ValueError, match="`channels` must be 1 or 3, got 2"):
        read_masked_images(folder, channels=2)
    with pytest.raises(ValueError, match="`classes` must lie between 2 and 255, got 1"):
        read_masked_images(folder, classes=1)


def test_without_pillow_the_message_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"reading images needs Pillow: pip install 'scaleconv\[experiments\]'"):
        read_image(folder / "images" / "a.bmp")
