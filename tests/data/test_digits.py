"""Where digits come from, which IDX files are accepted, and that nothing else is ever taken for digits."""

import gzip
import hashlib
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from scaleconv.data import datasets, load_digits
from scaleconv.data.datasets import OtherDatasetError, take_inventory
from scaleconv.data.idx import IdxFile, parse_idx, read_idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert ": " in text or ";" in text, f"no next step in: {text}"
    return text


def test_embedded_digits_are_the_mnist_test_digits(embedded):
    assert (embedded.images.shape, embedded.images.dtype) == ((10_000, 28, 28), torch.uint8)
    assert embedded.labels.dtype == torch.int64
    # Facts published with MNIST: the first ten labels, and how many of each class there are.
    assert embedded.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert embedded.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_the_first_digits_are_as_many_as_asked_for_up_to_all(embedded):
    assert embedded.first(3).labels.tolist() == [7, 2, 1]
    assert [len(embedded.first(count).images) for count in (1, 9_999, 10_000, None)] == [1, 9_999, 10_000, 10_000]
    for count in (0, 10_001):
        with pytest.raises(ValueError, match=f"`count` must be 1 to the 10000 digits there are, got {count}"):
            embedded.first(count)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", [".", "small"])
def test_files_are_read_gzipped_or_not_from_either_folder(dataset, contents, tmp_path, packed, below):
    place = tmp_path / "here" / below
    place.mkdir(parents=True)
    for name, data in contents.items():
        (place / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    digits = load_digits("small", "train", data_dir=tmp_path / "here")
    expected = np.frombuffer(contents[IMAGES][16:], np.uint8).reshape(30, 7, 5)
    assert np.array_equal(digits.images.numpy(), expected)
    assert digits.labels.tolist() == list(contents[LABELS][8:])
    assert len(load_digits("small", "test", data_dir=tmp_path / "here")) == 20


def test_all_digits_are_the_training_digits_and_then_the_test_digits(dataset, folder):
    train, test, both = (load_digits("small", part, data_dir=folder) for part in ("train", "test", "all"))
    assert len(both) == 50
    assert torch.equal(both.images[:30], train.images)
    assert torch.equal(both.images[30:], test.images)
    assert torch.equal(both.labels[30:], test.labels)
    assert both.part == "all"
    assert both.checksums[1] == f"{train.checksums[1]} {test.checksums[1]}"


def test_digits_are_looked_for_in_the_argument_then_the_variable_then_the_cache(
    dataset, folder, cache, tmp_path, monkeypatch
):
    shutil.copytree(folder, cache / "small")
    shutil.copytree(folder, tmp_path / "other")
    assert load_digits("small").source == str(cache / "small")
    monkeypatch.setenv("SCALECONV_DATA", str(tmp_path / "other"))
    assert load_digits("small").source == str(tmp_path / "other")
    assert load_digits("small", data_dir=folder).source == str(folder)


def test_a_named_directory_is_never_passed_over(dataset, folder, cache, tmp_path, monkeypatch):
    shutil.copytree(folder, cache / "small")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"no {IMAGES} and {LABELS}") as error:
        load_digits("small", data_dir=tmp_path / "empty")
    assert "--data-dir" in one_line(error)
    monkeypatch.setenv("SCALECONV_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match="SCALECONV_DATA") as error:
        load_digits("small")
    one_line(error)


def header(count, *sizes):
    return struct.pack(f">BBBB{1 + len(sizes)}I", 0, 0, 8, 1 + len(sizes), count, *sizes)


def damages(images, labels):
    """What was done → what the file of the images holds, and what the message must say."""
    packed = gzip.compress(images)
    flipped = bytearray(images)
    flipped[500] ^= 1
    crc = bytearray(packed)
    crc[-6] ^= 1
    return {
        "empty": (b"", "must have 1066 bytes, got only 0: it is cut off or another file"),
        "cut": (images[:-1], "got only 1065"),
        "gzip cut": (packed[:-20], "truncated"),
        "too long": (images + b"\0", "must have 1066 bytes, got more"),
        "one bit flipped": (bytes(flipped), "corrupted.*MD5"),
        "gzip damaged": (bytes(crc), "corrupted.*gzip"),
        "gzip header only": (packed[:4], "truncated"),
        "gzip body is noise": (packed[:10] + b"\xff" * 60, "corrupted.*gzip"),
        "swapped": (labels, "got only 38"),
        "another size": (header(30, 5, 7) + images[16:], "corrupted.*MD5"),
    }


@pytest.mark.parametrize("damage", list(damages(b"\0" * 1066, b"")))
def test_a_damaged_file_is_refused_in_one_line(dataset, folder, contents, damage):
    data, message = damages(contents[IMAGES], contents[LABELS])[damage]
    (folder / f"{IMAGES}.gz").unlink()
    (folder / IMAGES).write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        load_digits("small", data_dir=folder)
    assert IMAGES in one_line(error)


def labels_file(content):
    """The bytes of an IDX file of labels, and what is expected of it."""
    data = header(len(content)) + content
    return data, IdxFile("labels", (len(content),), hashlib.md5(data, usedforsecurity=False).hexdigest())


def test_a_checksum_vouches_for_the_content_however_it_is_packed(tmp_path):
    """Linux distributions pack the published files anew."""
    data, expected = labels_file(bytes([3, 4]))
    for stored in (data, gzip.compress(data), gzip.compress(data, compresslevel=1, mtime=1)):
        assert parse_idx(stored, "labels", expected)[0].tolist() == [3, 4]
        with pytest.raises(ValueError, match="corrupted"):
            parse_idx(stored, "labels", IdxFile("labels", (2,), md5="0" * 32))
    data, expected = labels_file(hashlib.shake_128(b"").digest(2**16))  # which gzip cannot compress
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(data, compresslevel=0))
    assert path.stat().st_size > len(data)
    assert read_idx(path, expected)[0].size == 2**16


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_file_that_unpacks_to_far_more_is_refused_before_it_fills_the_memory(tmp_path, pack):
    data, expected = labels_file(bytes(3))
    path = tmp_path / "labels.gz"
    path.write_bytes(pack(data + bytes(2**26)))
    tracemalloc.start()
    with pytest.raises(ValueError, match="must have 11 bytes, got more"):
        read_idx(path, expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("below", [".", "small"])
def test_one_missing_file_is_named_even_if_the_next_folder_has_both(dataset, folder, below):
    if below == "small":
        (folder / "small").mkdir()
        (folder / "small" / IMAGES).touch()
    else:
        (folder / f"{LABELS}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"no {LABELS} ") as error:
        load_digits("small", data_dir=folder)
    assert IMAGES not in one_line(error)


@pytest.mark.parametrize("call", ["is_file", "open"])
def test_an_unreadable_directory_or_file_is_refused_in_one_line(dataset, folder, monkeypatch, call):
    # The system's answer is given by hand: it refuses the administrator nothing, and tests may run as one.
    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(PermissionError, match=r"Permission denied.*check") as error:
        load_digits("small", data_dir=folder)
    one_line(error)


def test_a_named_directory_must_exist_for_the_embedded_digits_too(tmp_path):
    assert load_digits("embedded", data_dir=tmp_path).source == "the package"
    with pytest.raises(NotADirectoryError, match=r"`data_dir` \(=/nonexistent\) is not a directory") as error:
        load_digits("embedded", data_dir="/nonexistent")
    one_line(error)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"`dataset` .='cifar'."):
        load_digits("cifar")
    with pytest.raises(ValueError, match=r"`part` .='validation'."):
        load_digits("mnist", "validation")
    with pytest.raises(ValueError, match=r"`part` .='train'. is not in the embedded"):
        load_digits("embedded", "train")


@pytest.fixture
def mnist_test_files(tmp_path):
    """The test files of MNIST, from the package, in a directory."""
    packed = Path(datasets.__file__).parent / "mnist"
    return Path(shutil.copytree(packed, tmp_path / "mnist-files", ignore=shutil.ignore_patterns("*.md")))


def test_good_files_of_another_data_set_are_not_called_corrupted(mnist_test_files):
    with pytest.raises(OtherDatasetError, match="file of MNIST, not the one of Fashion-MNIST") as error:
        load_digits("fashion", "test", data_dir=mnist_test_files)
    assert "delete" not in one_line(error)


def test_inventory_tells_what_is_there_and_what_is_not_and_reports_a_damaged_file(mnist_test_files):
    def inventory():
        return {(dataset, part): found for dataset, part, found in take_inventory(mnist_test_files)}

    found = inventory()
    assert [len(found[name, "test"]) for name in ("embedded", "mnist")] == [10_000, 10_000]
    assert found["mnist", "test"].source == str(mnist_test_files)
    for absent in (("mnist", "train"), ("fashion", "train"), ("fashion", "test")):
        assert found[absent].startswith("not in")
    (mnist_test_files / "t10k-labels-idx1-ubyte.gz").write_bytes(b"noise")
    assert "got only 5" in inventory()["mnist", "test"]
