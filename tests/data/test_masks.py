"""Folders of images and masks: what belongs together, and what is left out or refused."""

import os
import struct
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from helpers.folders import write_image
from scaleconv.data import (
    Fixed,
    embedded_digits,
    make_scenes,
    read_image,
    read_mask,
    read_masked_images,
    write_scenes,
)
from scaleconv.data.decoding import decode, decode_mask

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (6, 5, 3), np.uint8)
CLASSES = RANDOM.integers(0, 3, (6, 5), np.uint8)
CLASSES[0, 0] = 2


@pytest.fixture
def folder(tmp_path):
    for index, stem in enumerate("abcd"):
        add(tmp_path, stem, image=COLOUR + index)
    return tmp_path


def add(folder, stem, image=None, mask=CLASSES):
    """A pair; its image differs from all others unless it is given."""
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    image = COLOUR + 10 + len(list((folder / "images").iterdir())) if image is None else image
    Image.fromarray(image).save(folder / "images" / f"{stem}.bmp")
    Image.fromarray(mask).save(folder / "masks" / f"{stem}.png")


def reasons(folder):
    return {each.name: each.reason for each in read_masked_images(folder).skipped}


def test_images_and_masks_are_paired_by_name_whatever_the_ending(folder):
    found = read_masked_images(folder)
    assert (found.classes, found.skipped, found.masked) == (("0", "1", "2"), (), True)
    assert {part: len(getattr(found, part)) for part in ("train", "val", "test")} == {"train": 2, "val": 1, "test": 1}
    assert sorted((file.name, file.mask) for file in found.images)[1] == ("images/b.bmp", "masks/b.png")
    assert read_masked_images(folder, val=0, test=0.5, seed=1).val == ()
    for part, name in (("images", "a.bmp"), ("masks", "a.png")):  # in folders inside, too
        (folder / part / "more").mkdir()
        (folder / part / name).rename(folder / part / "more" / name)
    found = read_masked_images(folder)
    assert ("images/more/a.bmp", "masks/more/a.png") in [(file.name, file.mask) for file in found.images]


def test_parts_that_are_given_are_kept(folder, tmp_path):
    for part in ("train", "test"):
        add(tmp_path / "divided" / part, part, image=COLOUR[:: 1 if part == "train" else -1])
    found = read_masked_images(tmp_path / "divided")
    assert [file.mask for file in found.train] == ["train/masks/train.png"]
    assert [file.mask for file in found.test] == ["test/masks/test.png"]


def test_what_cannot_be_used_is_left_out_counted_and_named(folder):
    Image.fromarray(COLOUR).save(folder / "images" / "alone.png")
    Image.fromarray(CLASSES).save(folder / "masks" / "mask.png")
    add(folder, "broken")
    (folder / "images" / "broken.bmp").write_bytes((folder / "images" / "broken.bmp").read_bytes()[:60])
    add(folder, "cut")
    (folder / "masks" / "cut.png").write_bytes((folder / "masks" / "cut.png").read_bytes()[:40])
    add(folder, "large", mask=CLASSES[:, :4])
    add(folder, "colours", mask=COLOUR)
    add(folder, "nothing", mask=np.full_like(CLASSES, 255))
    add(folder, "twin", image=COLOUR)
    Image.fromarray(COLOUR).save(folder / "images" / "a.png")
    Image.fromarray(CLASSES).save(folder / "masks" / "b.jpg")
    (folder / "images" / "notes.txt").write_text("")
    (folder / "masks" / ".hidden.png").touch()
    (folder / "images" / "b.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "masks" / "pipe.png")
    found = reasons(folder)
    assert found.pop("images/broken.bmp").startswith("is broken (")
    assert found.pop("masks/cut.png").startswith("is not an image (")
    assert found == {
        "images/alone.png": "has no mask",
        "masks/mask.png": "has no image",
        "masks/large.png": "is 6×4, its image 6×5",
        "masks/colours.png": "cannot be used (its mode RGB holds colours, not class numbers)",
        "masks/nothing.png": "has no label (255 in every pixel)",
        "images/twin.bmp": "is a copy of images/a.bmp",
        "images/a.png": "shares its name with a.bmp",
        "masks/b.jpg": "does not end in .png, .bmp",
        "images/notes.txt": "does not end in .png, .jpg, .jpeg, .bmp, .webp",
        "masks/.hidden.png": "is hidden",
        "images/b.png": "cannot be read (No such file or directory)",
        "masks/pipe.png": "is not a regular file",
    }
    summary = read_masked_images(folder).summary(1).splitlines()
    assert summary[0].endswith("4 images of 3 classes (2 to train, 1 to val, 1 to test)")
    assert summary[1::2] == ["14 left out:", "  … and 13 more"]


def test_numbers_that_are_no_class_are_refused_with_the_mask(folder):
    wrong = CLASSES.copy()
    wrong[2, 3] = 7
    add(folder, "e", mask=wrong)
    assert len(read_masked_images(folder).classes) == 8
    with pytest.raises(ValueError, match=r"`classes` \(=3\) must be above .* got 7 in masks/e.png; 1 of 5 masks"):
        read_masked_images(folder, classes=3)
    deep = CLASSES.astype(np.uint16) + 300
    add(folder, "e", mask=deep)
    with pytest.raises(ValueError, match=r"`classes` \(=255\) must be above .* got 302 in masks/e.png"):
        read_masked_images(folder)


def test_the_fingerprint_follows_the_masks(folder):
    before = read_masked_images(folder).fingerprint()
    assert read_masked_images(folder).fingerprint() == before
    Image.fromarray(CLASSES[::-1]).save(folder / "masks" / "c.png")
    assert read_masked_images(folder).fingerprint() != before


def test_scenes_are_written_as_images_and_masks(tmp_path):
    digits = embedded_digits()
    scenes = make_scenes(digits.images, digits.labels, Fixed(1), 3, 40)
    found = read_masked_images(write_scenes(scenes, tmp_path / "scenes"))
    assert len(found.images) == 3
    assert torch.equal(read_mask(tmp_path / "scenes" / "masks" / "00002.png"), scenes.labels[2])
    torch.testing.assert_close(
        read_image(tmp_path / "scenes" / "images" / "00002.png"), scenes.images[2], atol=1 / 510, rtol=0
    )
    with pytest.raises(ValueError, match="`path` must name a folder that is not there yet"):
        write_scenes(scenes, tmp_path / "scenes")


def test_a_mask_is_fitted_as_its_image(tmp_path):
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:31], pixels[:, 31:41] = 100, 200  # with borders between the pixels that are left
    Image.fromarray(pixels).save(tmp_path / "image.png")
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    cropped = decode_mask(tmp_path / "mask.png", (10, 10), "crop")
    assert cropped[0].tolist() == cropped[9].tolist() == pixels[0, 21:40:2].tolist()
    boxed = decode_mask(tmp_path / "mask.png", (30, 30), "letterbox")
    assert boxed[:10].unique().tolist() == boxed[20:].unique().tolist() == [255]
    assert torch.equal(boxed[10:20], torch.from_numpy(pixels[::2, 1::2].copy()))
    assert torch.equal(decode_mask(tmp_path / "mask.png"), torch.from_numpy(pixels))
    image = decode(tmp_path / "image.png", 1, (30, 30), "letterbox")[0, 15]
    assert ((image.float() - boxed[15].float()).abs() <= 100).all()
    assert (image == boxed[15]).sum() >= 26


def test_a_mask_with_a_palette_holds_its_numbers_and_not_its_colours(tmp_path):
    picture = Image.fromarray(CLASSES)
    picture.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    assert picture.mode == "P"
    picture.save(tmp_path / "mask.png")
    assert torch.equal(read_mask(tmp_path / "mask.png"), torch.from_numpy(CLASSES).long())


@pytest.mark.parametrize("fault", [MemoryError(), struct.error("bad\nlength"), KeyError("mode"), SyntaxError("broken")])
def test_every_error_of_pillow_is_a_refusal_that_names_the_file(tmp_path, monkeypatch, fault):
    """A chunk that claims gigabytes ends in MemoryError, others in errors of Pillow's parsers."""
    path = write_image(tmp_path / "photo.png")
    monkeypatch.setattr(PngImageFile, "load_end", Mock(side_effect=fault))
    with pytest.raises(ValueError, match=r"the image .*photo.png is broken \(") as refusal:
        read_image(path)
    assert str(refusal.value).isprintable()


def test_folders_that_cannot_be_used_are_refused(folder, tmp_path):
    with pytest.raises(NotADirectoryError, match="`data` must be a directory with the folders images and masks"):
        read_masked_images(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match=r"the folders images and masks, got .* without images and masks"):
        read_masked_images(folder / "masks")
    with pytest.raises(ValueError, match="`classes` must lie between 2 and 255, got 1"):
        read_masked_images(folder, classes=1)
    with pytest.raises(ValueError, match="must hold at least 5 images to divide them, got 4"):
        read_masked_images(folder, val=0.5, test=0.4)
    for path in (folder / "masks").iterdir():
        Image.fromarray(np.where(CLASSES == 2, 255, 0).astype(np.uint8)).save(path)  # as many tools write two classes
    with pytest.raises(ValueError, match=r"must hold masks of at least 2 classes, got 0 .* \(255 is a pixel without"):
        read_masked_images(folder)
    for path in (folder / "masks").iterdir():
        path.unlink()
    with pytest.raises(
        ValueError, match=r"must hold an image with a mask, got none; 4 left out, first: images/a.bmp has"
    ):
        read_masked_images(folder)


def test_without_pillow_the_message_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"reading images needs Pillow: pip install 'scaleconv\[experiments\]'"):
        read_image(folder / "images" / "a.bmp")
