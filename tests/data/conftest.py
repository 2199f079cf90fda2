"""A small data set in the shape of MNIST, whose files the tests may damage, and the digits of the package."""

import gzip
import hashlib
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scaleconv.data import datasets
from scaleconv.data.datasets import Dataset
from scaleconv.data.idx import IdxFile

TRAIN, TEST = 30, 20


def idx_bytes(array):
    """An IDX file, written from the description of the format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def md5(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def contents():
    """File name → unpacked bytes of the four files."""
    random = np.random.default_rng(0)
    files = {}
    for stem, count in (("train", TRAIN), ("t10k", TEST)):
        files[f"{stem}-images-idx3-ubyte"] = idx_bytes(random.integers(0, 256, (count, 7, 5), np.uint8))
        files[f"{stem}-labels-idx1-ubyte"] = idx_bytes((np.arange(count) % 10).astype(np.uint8))
    return files


@pytest.fixture
def dataset(contents, monkeypatch):
    """The small data set, known to the package as `small`."""

    def files(stem, count):
        images, labels = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        return (
            IdxFile(images, (count, 7, 5), md5=md5(contents[images])),
            IdxFile(labels, (count,), md5=md5(contents[labels])),
        )

    parts = {"train": files("train", TRAIN), "test": files("t10k", TEST)}
    small = Dataset("small", "Small", parts, mirrors=(), folders=("small", "."))
    monkeypatch.setitem(datasets.DATASETS, "small", small)
    return small


@pytest.fixture
def folder(contents, tmp_path):
    """A directory with the four files, gzipped."""
    path = tmp_path / "files"
    path.mkdir()
    for name, data in contents.items():
        (path / f"{name}.gz").write_bytes(gzip.compress(data))
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """No test reads or writes the user's own cache directory, except the one that looks for full MNIST."""
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    monkeypatch.setitem(
        sys.modules, "platformdirs", SimpleNamespace(user_cache_dir=lambda *_, **__: str(tmp_path / "cache"))
    )
    return tmp_path / "cache"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Threads that wait for each other on a busy machine make these small tests many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def embedded():
    return datasets.embedded_digits()
