"""MNIST-Scale as a whole: pinned to the bit, its preprocessing, and files, of which no damaged one is believed.

Then smoothing by the formula of the published recipe, and the places of shifted digits.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from scaleconv.data import (
    MNIST_SCALE,
    Uniform,
    cut_off,
    load_digits,
    make_scaled,
    make_set,
    read_set,
    scalar_mean,
    subtract_mean,
    write_set,
)
from scaleconv.data.sets import shift, smooth

EMBEDDED_MD5 = "e2d1b0b28af6f98f6c1d426db916d816"
MNIST_MD5 = "843e642e50c05a3c269ca61572cfd9cf"


@pytest.fixture(scope="module")
def full_mnist():
    """The 60,000 training digits, if this machine has them; the fixture `cache` hides where from the other tests."""
    try:
        return load_digits("mnist", "train", download=False)
    except OSError as error:
        pytest.skip(f"full MNIST is not to be had: {error}")


def test_the_default_set_is_pinned(embedded):
    made = make_set(embedded)
    assert made.checksum() == EMBEDDED_MD5
    assert Uniform(0.3, 1) == MNIST_SCALE
    assert made.parameters.as_dict() == {
        "dataset": "embedded",
        "part": "test",
        "checksums": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
        "scales": "uniform:0.3,1",
        "seed": 0,
        "size": (28, 28),
        "interpolation": "bilinear",
        "antialias": False,
        "truncate": "error",
    }


def test_the_default_set_of_full_mnist_is_pinned(full_mnist):
    assert make_set(full_mnist).checksum() == MNIST_MD5


def test_the_papers_large_canvas_cuts_813_training_digits(full_mnist):
    assert int((cut_off(full_mnist.images, 1.6, 40) > 0).sum()) == 813
    assert not cut_off(full_mnist.images, 1.6, 44).any()


def test_the_set_is_its_digits_scaled_by_what_was_drawn(embedded):
    made = make_set(embedded, Uniform(0.5, 1.2), (40, 36), seed=5)
    assert torch.equal(made.scales, torch.from_numpy(Uniform(0.5, 1.2).draw(10_000, 5)))
    assert torch.equal(made.labels, embedded.labels)
    assert torch.equal(made.images, make_scaled(embedded.images, made.scales, (40, 36)))
    assert (made.parameters.size, len(made)) == ((40, 36), 10_000)


def test_the_mean_is_one_number_of_the_training_images():
    images = torch.rand(20, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    train, test = images[:15], images[15:]
    mean = float(np.mean(train.numpy().astype(np.float64)))
    assert scalar_mean(train) == pytest.approx(mean, abs=1e-12)
    centred, tested = subtract_mean(train, test)
    assert torch.equal(centred, train - mean)
    assert torch.equal(tested, test - mean)
    with pytest.raises(ValueError, match="empty"):
        scalar_mean(images[:0])


@pytest.fixture
def made(embedded):
    return make_set(replace(embedded, images=embedded.images[:40], labels=embedded.labels[:40]))


def test_what_is_written_is_read_back(made, tmp_path):
    path = tmp_path / "new" / "set.safetensors"
    assert write_set(made, path) == made.checksum()
    again = read_set(path)
    assert again.parameters == made.parameters
    for name in ("images", "labels", "scales"):
        assert torch.equal(getattr(again, name), getattr(made, name))
        assert getattr(again, name).dtype == getattr(made, name).dtype
    assert [file.name for file in path.parent.iterdir()] == ["set.safetensors"]


def test_every_damage_is_noticed(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")
    flipped = []
    for place in (*range(0, 8 + header, 3), *range(8 + header, len(good), 997), len(good) - 1):
        flipped.append(bytearray(good))
        flipped[-1][place] ^= 1
    for damaged in (*flipped, b"", good[:7], good[:100], good[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="make it again") as error:
            read_set(path)
        assert "\n" not in str(error.value)


def rewrite(path, tensors=None, **changes):
    with safe_open(path, framework="pt") as stored:
        about = {**stored.metadata(), **changes}
    save_file({**load_file(path), **(tensors or {})}, path, about)


def test_the_same_numbers_in_another_shape_or_type_are_refused(made, tmp_path):
    """The checksum is of the numbers alone, whatever their shape, and float64 becomes float32 before it."""
    path = tmp_path / "set.safetensors"
    for tensors in (
        {"images": made.images.permute(0, 2, 3, 1).contiguous()},
        {"images": made.images.double()},
        {"labels": made.labels[:, None]},
        {"scales": made.scales.view(2, 20)},
    ):
        write_set(made, path)
        rewrite(path, tensors)
        with pytest.raises(ValueError, match=r"set.safetensors is damaged .*shapes and types of a set"):
            read_set(path)


def test_parameters_that_are_no_table_are_refused_by_name(made, tmp_path):
    path = tmp_path / "set.safetensors"
    for parameters in ("[" * 100_000, "1" * 5000, "[[]]", "{", '{"colour": "red"}'):
        write_set(made, path)
        rewrite(path, parameters=parameters)
        with pytest.raises(ValueError, match=r"set.safetensors is damaged or not a set"):
            read_set(path)


def test_missing_files_and_wrong_names_are_refused_in_one_line(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot read .*No such file") as error:
        read_set(tmp_path / "none.safetensors")
    assert "\n" not in str(error.value)
    with pytest.raises(IsADirectoryError, match="cannot read"):
        read_set(tmp_path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        write_set(made, tmp_path / "set.npy")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write"):
        write_set(made, tmp_path / "file" / "set.safetensors")


def by_formula(image, scale):
    """The recipe pixel by pixel: 2/π · arctan(0.02 · (I − 128)), I smoothed by σ = 7/8 · s; black to 0, white to 1."""
    sigma, size = 7 / 8 * scale, len(image)
    kernel = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-40, 41)}
    total = sum(kernel.values())

    def contrast(intensity):
        return 2 / math.pi * math.atan(0.02 * (intensity - 128))

    black, white = contrast(0), contrast(255)
    result = torch.zeros(size, size, dtype=torch.float64)
    for y in range(size):
        for x in range(size):
            smoothed = sum(
                image[j][i] * kernel[y - j] * kernel[x - i] / total**2 for j in range(size) for i in range(size)
            )
            result[y, x] = (contrast(255 * float(smoothed)) - black) / (white - black)
    return result


@pytest.mark.parametrize("scale", [0.5, 1.3, 3.0])
def test_digits_are_smoothed_and_contrasted_by_the_published_formula(scale):
    image = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = smooth(image.view(1, 1, 7, 7), scale)[0, 0]
    torch.testing.assert_close(found, by_formula(image.tolist(), scale), rtol=0, atol=1e-12)


def test_every_image_is_smoothed_by_its_own_scale_whatever_the_batch(monkeypatch):
    images = torch.rand(5, 1, 6, 9, dtype=torch.float64)
    scales = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.3], dtype=torch.float64)
    together = smooth(images, scales)
    for one, image, scale in zip(together, images, scales.tolist(), strict=True):
        torch.testing.assert_close(one, smooth(image.unsqueeze(0), scale)[0])
    monkeypatch.setattr("scaleconv.data.sets.CHUNK", 2)
    assert torch.equal(smooth(images, scales), together)
    with pytest.raises(ValueError, match=r"`scales` must be above 0, got 0\.0"):
        smooth(images, 0.0)


def corners(images):
    """Where the first row and column with anything in it lie, and how many there are from the first to the last."""
    found = []
    for axis in (2, 1):
        occupied = (images[:, 0].amax(axis) > 0).int()
        first, last = occupied.argmax(1), occupied.shape[1] - 1 - occupied.flip(1).argmax(1)
        found.append((first, last - first + 1))
    return found


def test_shifted_digits_stay_whole_and_lie_wherever_they_fit():
    images = torch.zeros(400, 1, 12, 10)
    images[:, :, 4:8, 3:7] = 1  # an original of 4×4, in the middle
    moved = shift(images, 1.0, 4, seed=1)
    for (first, count), most, middle in zip(corners(moved), (4, 3), (4, 3), strict=True):
        assert (count == 4).all()  # what left on one side would come back on the other
        assert set((first - middle).tolist()) == set(range(-most, most + 1))
    assert torch.equal(moved.sum((1, 2, 3)), images.sum((1, 2, 3)))
    assert torch.equal(moved, shift(images, 1.0, 4, seed=1))
    assert not torch.equal(moved, shift(images, 1.0, 4, seed=2))
    large = torch.rand(8, 1, 8, 8)  # of the canvas, or larger: they stay
    assert torch.equal(shift(large, torch.tensor([2.0, 3.0] * 4), 4, seed=0), large)
