"""Images as tensors: their modes, their sizes, the batches they come in, and who decodes them."""

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.folders import write_classes, write_image
from scaleconv.data import load_folder, loading
from scaleconv.data.loading import ImageSet, Order, decode


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


def test_what_is_transparent_is_white(tmp_path):
    clear = np.dstack([np.full((4, 4), 10, np.uint8)] * 3 + [np.zeros((4, 4), np.uint8)])
    assert decode(save(tmp_path / "clear.png", clear), 1).unique().tolist() == [255]


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


def test_crop_keeps_the_middle_and_letterbox_keeps_everything(tmp_path):
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:40] = 255
    path = save(tmp_path / "wide.png", pixels)
    assert decode(path, 1, (20, 20), "crop").unique().tolist() == [255]
    boxed = decode(path, 1, (60, 60), "letterbox")
    assert torch.equal(boxed[0], torch.from_numpy(pixels[:1]).expand(60, -1))  # the edge is repeated above and below


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


def test_mean_and_std_are_those_of_the_training_pixels(tmp_path):
    data = load_folder(write_classes(tmp_path, 10))
    pixels = torch.stack([data.train[index][0] for index in range(len(data.train))]).double() / 255
    mean, std = data.moments
    assert mean[0] == pytest.approx(float(pixels.mean()), abs=1e-6)
    assert std[0] == pytest.approx(float(pixels.std(correction=0)), abs=1e-6)


def test_an_epoch_shows_every_image_once_in_batches_of_one_size():
    sizes = [(8, 8)] * 21 + [(9, 7)] * 5
    order = Order(sizes, batch=8, seed=3)
    for number in (1, 2):
        batches = order.epoch(number)
        assert len(batches) == order.steps == 4
        assert sorted(index for batch in batches for index in batch) == list(range(26))
        assert all(len({sizes[index] for index in batch}) == 1 for batch in batches)
        assert sorted(map(len, batches)) == [5, 7, 7, 7]
    assert order.epoch(1) == Order(sizes, batch=8, seed=3).epoch(1) != order.epoch(2)
    assert order.epoch(1) != Order(sizes, batch=8, seed=4).epoch(1)


@pytest.mark.parametrize("done", [0, 1, 4, 6, 12])
def test_the_batches_that_remain_are_those_that_were_not_done(done):
    order = Order([(8, 8)] * 30, batch=8, seed=0)
    every = [batch for epoch in (1, 2, 3) for batch in order.epoch(epoch)]
    assert list(order.remaining(3, done)) == every[done:]


def test_neither_workers_nor_memory_change_what_comes_out(tmp_path, monkeypatch):
    write_classes(tmp_path, 12, size=(9, 9))
    order = Order([(9, 9)] * 20, batch=6, seed=0).epoch(1)
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


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_is_gone_later_is_one_line_that_names_it(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(loading, "KEPT_BYTES", 0)
    images: ImageSet = load_folder(write_classes(tmp_path, 4)).train
    gone = tmp_path / images.files[2].name
    gone.unlink()
    with pytest.raises(OSError, match=f"cannot read {gone}, which could be read before") as error:
        list(images.batches([[0, 1], [2]], workers))
    assert "\n" not in str(error.value)
