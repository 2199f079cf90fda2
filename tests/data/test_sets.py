"""MNIST-Scale as a whole: pinned to the bit, its preprocessing, and files, of which no damaged one is believed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from scaleconv.data import (
    MNIST_SCALE,
    Uniform,
    load_digits,
    make_scaled,
    make_set,
    read_set,
    scalar_mean,
    subtract_mean,
    write_set,
)

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
    from scaleconv.data import cut_off

    assert int((cut_off(full_mnist.images, 1.6, 40) > 0).sum()) == 813
    assert not cut_off(full_mnist.images, 1.6, 44).any()


def test_the_set_is_its_digits_scaled_by_what_was_drawn(embedded):
    made = make_set(embedded, Uniform(0.5, 1.2), (40, 36), seed=5)
    assert torch.equal(made.scales, torch.from_numpy(Uniform(0.5, 1.2).draw(10_000, 5)))
    assert torch.equal(made.labels, embedded.labels)
    assert torch.equal(made.images, make_scaled(embedded.images, made.scales, (40, 36)))
    assert made.parameters.size == (40, 36)
    assert len(made) == 10_000
    assert 0 <= float(made.images.min()) < float(made.images.max()) <= 1


def test_the_checksum_sees_every_tensor(embedded):
    from dataclasses import replace

    made = make_set(replace(embedded, images=embedded.images[:50], labels=embedded.labels[:50]))
    sums = {made.checksum()}
    for name in ("images", "labels", "scales"):
        changed = getattr(made, name).clone()
        changed.view(-1)[-1] += 1
        sums.add(replace(made, **{name: changed}).checksum())
    assert len(sums) == 4


def test_the_mean_is_one_number_of_the_training_images():
    images = torch.rand(20, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    train, test = images[:15], images[15:]
    mean = float(np.mean(train.numpy().astype(np.float64)))
    assert scalar_mean(train) == pytest.approx(mean, abs=1e-12)
    centred, tested = subtract_mean(train, test)
    assert torch.equal(centred, train - mean)
    assert torch.equal(tested, test - mean)
    assert len(torch.unique(train - centred)) <= 4  # one number, to rounding: not a mean image
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


def test_the_file_is_uncompressed_and_says_what_it_is(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    with safe_open(path, framework="np") as stored:
        about = stored.metadata()
        assert stored.get_tensor("images").tobytes() == made.images.numpy().tobytes()
    assert about["checksum"] == made.checksum()
    assert json.loads(about["parameters"])["scales"] == "uniform:0.3,1"
    assert path.stat().st_size > 40 * 28 * 28 * 4


def test_every_damage_is_noticed(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")
    for place in (*range(0, 8 + header, 3), *range(8 + header, len(good), 997), len(good) - 1):
        damaged = bytearray(good)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="make it again") as error:
            read_set(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(made, tmp_path, size):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"damaged.*make it again"):
        read_set(path)


def test_another_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "set.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="not a set of scaled digits"):
        read_set(path)


def test_parameters_of_another_version_are_refused(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    with safe_open(path, framework="pt") as stored:
        about = stored.metadata()
    about["parameters"] = json.dumps({"colour": "red"})
    save_file(load_file(path), path, about)
    with pytest.raises(ValueError, match="not those of this version"):
        read_set(path)


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


@pytest.mark.parametrize("parameters", ["[" * 100_000, "1" * 5000, "[[]]", "{"], ids=["nested", "long", "list", "cut"])
def test_parameters_that_are_no_table_are_refused_by_name(made, tmp_path, parameters):
    path = tmp_path / "set.safetensors"
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


def test_a_failed_write_keeps_what_was_there(made, tmp_path, monkeypatch):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    before = path.read_bytes()

    def fail(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("scaleconv.data.sets.save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        write_set(made, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["set.safetensors"]


KILLED = """
import sys, time
from scaleconv.data import embedded_digits, make_set, sets

def slow(tensors, filename, metadata):
    save_file(tensors, filename, metadata)
    print("written", flush=True)
    time.sleep(60)  # before the file gets its name

save_file, sets.save_file = sets.save_file, slow
sets.write_set(make_set(embedded_digits()), sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_make_leaves_nothing_that_is_read_later(tmp_path):
    path = tmp_path / "set.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    left = list(tmp_path.iterdir())
    assert all(file.name.startswith(".") and file.suffix == ".part" for file in left)
    assert len(left) == 1, "the process was killed before it wrote: the test shows nothing"
    with pytest.raises(FileNotFoundError):
        read_set(path)
