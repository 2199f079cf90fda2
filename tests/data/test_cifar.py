"""CIFAR-10 comes out of its binary batches as it went in, and as a folder; a damaged batch is refused by name."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.command import refused, says_next
from scaleconv.data import read_cifar10, read_folder
from scaleconv.data.datasets import CIFAR_BATCHES as BATCHES
from scaleconv.data.datasets import CIFAR_CLASSES as CLASSES
from scaleconv.data.datasets import CIFAR_COUNT as COUNT
from scaleconv.data.datasets import CIFAR_RECORD as RECORD


@pytest.fixture(scope="module")
def records():
    """A batch: made-up images, the classes in turn."""
    made = np.random.default_rng(0).integers(0, 256, (COUNT, RECORD), dtype=np.uint8)
    made[:, 0] = np.arange(COUNT) % 10
    return made


@pytest.fixture(scope="module")
def batches(records, tmp_path_factory):
    """The directory of the six files, which all have the same content."""
    folder = tmp_path_factory.mktemp("batches")
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    for name in BATCHES["train"]:
        os.link(folder / "test_batch.bin", folder / name)
    return folder


def test_every_byte_becomes_a_pixel_of_its_colour_row_and_column(batches, records):
    images, labels = read_cifar10(batches, "test")
    assert images.shape == (COUNT, 3, 32, 32)
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    for index, colour, row, column in ((0, 0, 0, 0), (3, 1, 5, 7), (COUNT - 1, 2, 31, 31)):
        assert images[index, colour, row, column] == records[index, 1 + 1024 * colour + 32 * row + column]


def test_the_training_batches_follow_one_another(batches):
    images, labels = read_cifar10(batches, "train", COUNT + 5)
    assert len(images) == len(labels) == COUNT + 5
    assert torch.equal(images[COUNT:], images[:5])
    assert len(read_cifar10(batches)[1]) == 5 * COUNT


def test_the_command_writes_a_part_as_a_folder_of_classes(run, batches, records):
    for part, count in (("train", 40), ("test", 20)):
        code, output, errors = run(
            "data", "cifar10", f"c/{part}", "--data-dir", batches, "--part", part, "--count", count
        )
        assert (code, errors) == (0, "")
        assert output.startswith(f"c/{part}: {count} images of 10 classes\n")
        says_next(output, "the other part beside it, then scaleconv compare --data c")
    with Image.open("c/train/cat/00013.png") as image:
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), records[13, 1:].reshape(3, 32, 32).transpose(1, 2, 0))
    found = read_folder("c")
    assert (found.classes, len(found.test)) == (CLASSES, 20)


def test_what_is_not_a_batch_is_one_line(run, batches, records, tmp_path):
    def refuses(*words, count=1):
        refused(run("data", "cifar10", "c", "--data-dir", tmp_path / "b", "--part", "test", "--count", count), *words)
        assert not (tmp_path / "c").exists()

    refuses("cannot read", "b/test_batch.bin (No such file or directory)")
    (tmp_path / "b").mkdir()
    path = tmp_path / "b" / "test_batch.bin"
    for data, got in ((records[1:].tobytes(), f"{COUNT * RECORD - RECORD} bytes"), (bytes(2**25), "more bytes")):
        path.write_bytes(data)
        refuses("test_batch.bin must be a batch of CIFAR-10, of 30730000 bytes, got", got)
    wrong = records.copy()
    wrong[-1, 0] = 10
    path.write_bytes(wrong.tobytes())
    refuses("test_batch.bin must be a batch of CIFAR-10, with labels 0 … 9, got 10")
    refuses("`count` must be 1 to the 10000 images there are, got 0", count=0)
    refused(run("data", "cifar10", "c", "--data-dir", batches, "--part", "val"), "`part` (='val') must be one of")
