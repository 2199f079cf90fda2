"""Images as tensors: their modes, their sizes, the batches they come in, and who decodes them."""

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.folders import write_classes, write_image, write_masks
from scaleconv.data import decoding, load_folder, loading
from scaleconv.data.decoding import UnusableImageError, decode
from scaleconv.data.loading import ImageSet


def save(path, pixels, mode=None, **options):
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def test_every_mode_becomes_the_same_picture(tmp_path):
    grey = np.arange(0, 240, 2, dtype=np.uint8).reshape(10, 12)
    expected = torch.from_numpy(grey.copy())
    opaque = np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    files = {
        "L": save(tmp_path / "l.png", grey),
        "LA": save(tmp_path / "la.png", grey, "LA"),
        "RGB": save(tmp_path / "rgb.png", grey, "RGB"),
        "RGBA": save(tmp_path / "rgba.png", opaque),
        "P": save(tmp_path / "p.png", grey, "P"),
        "16 bit": save(tmp_path / "16.png", grey.astype(np.uint16) * 257),
        "BMP": save(tmp_path / "l.bmp", grey),
        "WebP": save(tmp_path / "l.webp", grey, "RGB", lossless=True),
    }
    for mode, path in files.items():
        assert torch.equal(decode(path, 1)[0], expected), mode
        assert torch.equal(decode(path, 3), expected.expand(3, -1, -1)), mode
    ink = save(tmp_path / "cmyk.jpg", np.full((16, 16), 90, np.uint8), "CMYK", quality=100)
    assert (decode(ink, 1).int() - 90).abs().max() <= 2


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "RGBA"])
def test_what_is_transparent_or_of_the_colour_that_a_file_calls_so_is_white(tmp_path, mode):
    grey = np.array([[10, 10, 90], [90, 200, 10]], np.uint8)
    image = Image.fromarray(grey)
    if mode == "P":
        image.putpalette([value for value in range(256) for _ in range(3)])  # colours are their own numbers
    elif mode != "L":
        image = image.convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(np.where(grey == 10, 0, 255).astype(np.uint8)))
    named = {"P": {"transparency": 10}, "L": {"transparency": 10}, "RGB": {"transparency": (10, 10, 10)}}
    image.save(tmp_path / "clear.png", **named.get(mode, {}))
    with Image.open(tmp_path / "clear.png") as stored:
        assert stored.mode == mode
    expected = [[255, 255, 90], [90, 200, 255]]
    assert decode(tmp_path / "clear.png", 1)[0].tolist() == expected
    assert decode(tmp_path / "clear.png", 3).tolist() == [expected] * 3


@pytest.mark.parametrize("size", [None, (4, 6)])
def test_exif_rotation_is_applied(tmp_path, size):
    pixels = np.zeros((64, 96), np.uint8)
    pixels[:, :48] = 200  # left half light; turned by 90° clockwise it is the top half
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = decode(save(tmp_path / "turned.jpg", pixels, exif=exif), 1, size and size[::-1])
    assert upright.shape[1:] == ((96, 64) if size is None else (6, 4))
    half = upright.shape[1] // 2
    assert (upright[0, : half - 1] > 150).all()
    assert (upright[0, half + 1 :] < 50).all()


@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_a_jpeg_is_decoded_as_large_as_its_upright_size_needs(tmp_path, orientation):
    """Of 64 columns and 1024 rows upright, light and dark columns in turn, the 8 rows in the middle are kept.

    Turned the wrong way round, an eighth of the pixels would do, and all would be grey.
    """
    upright = np.zeros((1024, 64), np.uint8)
    upright[:, ::2] = 255
    stored = {1: upright, 6: np.rot90(upright), 8: np.rot90(upright, -1)}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "tall.jpg", np.ascontiguousarray(stored), exif=exif, quality=100)
    found = decode(path, 1, (8, 64))[0].int()
    assert (found - torch.from_numpy(upright[:8].astype(np.int32))).abs().max() <= 4


@pytest.mark.parametrize(
    ("size", "decoded"), [((75, 100), (150, 200)), ((70, 80), (150, 200)), ((76, 100), (300, 400)), (None, (600, 800))]
)
def test_a_jpeg_is_decoded_to_at_least_twice_its_size_and_no_larger_than_that_takes(
    tmp_path, monkeypatch, size, decoded
):
    """A file of 600×800 can be decoded at a half, a quarter and an eighth."""
    sizes = []

    def seen(image, channels):
        sizes.append((image.height, image.width))
        return in_mode(image, channels)

    in_mode = decoding._in_mode
    monkeypatch.setattr(decoding, "_in_mode", seen)
    path = save(tmp_path / "large.jpg", np.full((600, 800), 90, np.uint8))
    assert decode(path, 1, size).shape == (1, *(size or (600, 800)))
    assert sizes == [decoded]


def test_crop_keeps_the_middle_and_letterbox_keeps_everything(tmp_path):
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:40] = 255
    path = save(tmp_path / "wide.png", pixels)
    assert decode(path, 1, (20, 20), "crop").unique().tolist() == [255]
    boxed = decode(path, 1, (60, 60), "letterbox")
    assert torch.equal(boxed[0], torch.from_numpy(pixels[:1]).expand(60, -1))  # the edge is repeated above and below
    colours = np.dstack([pixels, 255 - pixels, pixels // 5])
    boxed = decode(save(tmp_path / "colours.png", colours), 3, (60, 60), "letterbox")
    assert torch.equal(boxed, torch.from_numpy(colours[:1].transpose(2, 0, 1).copy()).expand(-1, 60, -1))


def test_images_of_one_size_keep_it_and_others_need_a_decision(tmp_path):
    write_classes(tmp_path, 6)
    data = load_folder(tmp_path)
    assert (data.size, data.channels) == ((12, 12), 1)
    write_image(tmp_path / "cat" / "big.png", size=(20, 24))
    with pytest.raises(ValueError, match=r"`resize` must be given, or `native`, .* got 12×12 to 20×24"):
        load_folder(tmp_path)
    assert load_folder(tmp_path, resize=16).size == (16, 16)
    native = load_folder(tmp_path, native=True)
    assert (native.size, native.channels) == (None, 3)
    for options, message in (
        ({"resize": 8, "native": True}, "`resize`.*must not be given"),
        ({"resize": 0}, "`resize` must be 1 to 4096"),
        ({"fit": "squash"}, "`fit` must be one of crop, letterbox"),
        ({"channels": 2}, "`channels` must be 1 or 3"),
    ):
        with pytest.raises(ValueError, match=message):
            load_folder(tmp_path, **options)


def write_levels(root, *levels):
    """Six images of two classes, one level for each channel in one half of the rows and another in the other half."""
    pixels = np.empty((6, 8, 8, 3), np.uint8)
    for channel, (upper, lower) in enumerate(levels):
        pixels[:, :4, :, channel], pixels[:, 4:, :, channel] = upper, lower
    for index, image in enumerate(pixels):
        image[0, 0] = image[4, 0]  # no two files are copies
        image[4, index + 1] = image[1, 0]
        path = root / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return root


@pytest.mark.parametrize(
    ("levels", "mean", "std"),
    [
        (((51, 153), (0, 255), (204, 102)), (0.4, 0.5, 0.6), (0.2, 0.5, 0.2)),
        (((0, 255), (51, 51), (255, 255)), (0.5, 0.2, 1), (0.5, 1 / 255, 1 / 255)),  # one level where all are equal
    ],
)
def test_mean_and_std_are_those_of_the_training_pixels_channel_by_channel(tmp_path, levels, mean, std):
    """Half of all pixels have each level: the mean is between them, and the deviation half their distance."""
    found = load_folder(write_levels(tmp_path, *levels)).moments
    assert found == (pytest.approx(mean, abs=1e-6), pytest.approx(std, abs=1e-6))


def test_neither_workers_nor_memory_change_what_comes_out(tmp_path, monkeypatch):
    write_classes(tmp_path, 12, size=(9, 9))
    order = [[7, 3, 11], [0, 12, 5], [9]]
    kept = load_folder(tmp_path, resize=8).train
    assert kept.kept is not None
    expected = list(kept.batches(order))
    assert [labels.tolist() for _, labels in expected] == [kept.labels[indices].tolist() for indices in order]
    monkeypatch.setattr(loading, "KEPT_BYTES", 0)
    for workers in (0, 1, 2):
        decoded = load_folder(tmp_path, resize=8).train
        assert decoded.kept is None
        found = list(decoded.batches(iter(order), workers))
        for (images, labels), (others, theirs) in zip(expected, found, strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, theirs)


@pytest.mark.parametrize("masked", [False, True])
def test_a_set_is_kept_up_to_so_many_bytes_all_channels_and_masks_counted(tmp_path, monkeypatch, masked):
    """Of 3×8×8 bytes for each of the training images in colour; in grey with a mask, 2×16×16."""
    if masked:
        data = load_folder(write_masks(tmp_path), task="segmentation")
    else:
        data = load_folder(write_levels(tmp_path, (0, 255), (9, 8), (3, 7)))
    count = len(data.train) * (2 * 16 * 16 if masked else 3 * 8 * 8)
    for most, kept in ((count, True), (count - 1, False)):
        monkeypatch.setattr(loading, "KEPT_BYTES", most)
        images = load_folder(data.folder).train
        assert (images.kept is not None) == kept


def test_a_file_that_was_exchanged_for_one_of_another_format_is_not_decoded(tmp_path):
    """Pillow knows dozens of formats, and their parsers are not all as safe as those of pictures on the web."""
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path, format="TIFF")
    with pytest.raises(UnusableImageError, match="is not an image"):
        decode(path, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_is_gone_later_is_one_line_that_names_it(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(loading, "KEPT_BYTES", 0)
    images: ImageSet = load_folder(write_classes(tmp_path, 4)).train
    gone = tmp_path / images.files[2].name
    gone.unlink()
    with pytest.raises(OSError, match=f"cannot read {gone}, which could be read before") as error:
        list(images.batches([[0, 1], [2]], workers))
    assert "\n" not in str(error.value)
