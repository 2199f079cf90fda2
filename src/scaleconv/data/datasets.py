"""Published data sets: MNIST and Fashion-MNIST, looked for, downloaded and checked; CIFAR-10 from its binary batches.

The 10,000 MNIST test digits are part of the package. The rest is looked for in the directory the user names, else in
`$SCALECONV_DATA`, else in the user's cache directory, and is downloaded there if it is missing. If the user names a
directory without the files, that is an error. A file appears in the cache only after it passed every check of `idx.py`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from .files import atomic_path
from .idx import ChecksumError, IdxData, IdxFile, parse_idx, read_idx
from .progress import make_progress

VARIABLE = "SCALECONV_DATA"
EMBEDDED = "embedded"
PARTS = ("train", "test")
ALL = "all"  # training digits, then test digits
TIMEOUT = 30  # seconds without a byte
INSTEAD = (
    f"name a directory that holds the files (--data-dir or ${VARIABLE}), or use the embedded digits "
    "(--dataset embedded, or --preset quick)"
)

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_BATCHES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
CIFAR_COUNT = 10_000  # images in a file
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes of an image with its label


class OtherDatasetError(ValueError):
    """The directory holds the files of another data set."""


@dataclass(frozen=True)
class Dataset:
    name: str  # as the user writes it, and the name of its folder
    title: str  # its proper name
    files: dict[str, tuple[IdxFile, IdxFile]]  # for each part, the images and the labels
    mirrors: tuple[str, ...]  # addresses of the folder, each ending in `/`, in the order in which they are tried
    folders: tuple[str, ...]  # where, below a data directory, its files may lie, in the order in which they are tried


def _files(stem: str, count: int, md5_of_images: str, md5_of_labels: str) -> tuple[IdxFile, IdxFile]:
    images = IdxFile(f"{stem}-images-idx3-ubyte", (count, 28, 28), md5_of_images)
    return images, IdxFile(f"{stem}-labels-idx1-ubyte", (count,), md5_of_labels)


MNIST = Dataset(
    "mnist",
    "MNIST",
    {
        "train": _files("train", 60_000, "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
        "test": _files("t10k", 10_000, "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
    folders=("mnist", "MNIST/raw", "."),
)
FASHION = Dataset(
    "fashion",
    "Fashion-MNIST",
    {
        "train": _files("train", 60_000, "f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
        "test": _files("t10k", 10_000, "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    folders=("fashion", "FashionMNIST/raw", "."),
)
DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION)}


@dataclass(frozen=True)
class Digits:
    """Digits as published."""

    images: Tensor  # (N, H, W) uint8, 0 … 255
    labels: Tensor  # (N,) int64, 0 … 9
    dataset: str  # `mnist`, `fashion` or `embedded`
    part: str  # `train`, `test` or `all`
    source: str  # the directory they were read from
    checksums: tuple[str, str]  # MD5 of the two unpacked files, images and labels

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> "Digits":
        """The first of them; all, if None."""
        if count is not None and not 1 <= count <= len(self):
            raise ValueError(f"`count` must be 1 to the {len(self)} digits there are, got {count}")
        return replace(self, images=self.images[:count], labels=self.labels[:count])


def embedded_digits() -> Digits:
    """The 10,000 MNIST test digits that come with the package.

    Example:
        >>> digits = embedded_digits()
        >>> digits.images.shape, digits.labels.shape
        (torch.Size([10000, 28, 28]), torch.Size([10000]))
    """
    folder = resources.files(__package__).joinpath("mnist")
    files = MNIST.files["test"]
    return _digits([read_idx(folder.joinpath(f"{file.name}.gz"), file) for file in files], EMBEDDED, "test")


def load_digits(
    dataset: str = "mnist",
    part: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Digits:
    """Read one part of a data set, and check every byte of it.

    Args:
        dataset: `mnist`, `fashion`, or `embedded` (the 10,000 test digits in the package).
        part: `train`, `test`, or `all` for the training digits and then the test digits; if not given, the training
            digits, or the only ones there are.
        data_dir: directory of the IDX files, gzipped or not; else `$SCALECONV_DATA`, else the user's cache directory.
            The embedded digits are not read from it, but it must exist.
        download: whether to fetch what the cache directory lacks.

    Raises:
        OSError: files are missing or unreadable, or cannot be downloaded.
        ValueError: a file is not what it should be, or an argument is unknown.
        ImportError: a download is needed, and requests is not installed.
    """
    if dataset not in (*DATASETS, EMBEDDED):
        raise ValueError(f"`dataset` (={dataset!r}) must be one of {', '.join((*DATASETS, EMBEDDED))}")
    if part not in (None, *PARTS, ALL):
        raise ValueError(f"`part` (={part!r}) must be one of {', '.join((*PARTS, ALL))}")
    if dataset == EMBEDDED:
        if data_dir:
            data_directory(data_dir)  # not read, but a wrong name is a mistake to report
        if part == "train":
            raise ValueError("`part` (='train') is not in the embedded digits: use part='test', or dataset='mnist'")
        return embedded_digits()
    if part == ALL:
        train, test = (load_digits(dataset, each, data_dir=data_dir, download=download) for each in PARTS)
        return replace(
            train,
            images=torch.cat([train.images, test.images]),
            labels=torch.cat([train.labels, test.labels]),
            part=ALL,
            checksums=(f"{train.checksums[0]} {test.checksums[0]}", f"{train.checksums[1]} {test.checksums[1]}"),
        )
    published, part = DATASETS[dataset], part or "train"
    directory, named = data_directory(data_dir)
    paths = find_files(published, part, directory)
    if missing := [file.name for file, path in zip(published.files[part], paths, strict=True) if path is None]:
        if published is MNIST and part == "test" and not named:
            return replace(embedded_digits(), dataset=dataset)  # the same bytes, and no need to fetch them
        if named or not download:
            raise FileNotFoundError(
                f"no {' and '.join(missing)} (.gz or not) in {directory}: put the {part} files of {published.title} "
                f"there, {INSTEAD}"
            )
        fetch_files(published, part, directory / published.name)
        paths = find_files(published, part, directory)
    found = [path for path in paths if path is not None]
    read = [_read(path, file, published) for file, path in zip(published.files[part], found, strict=True)]
    return _digits(read, dataset, part, str(found[0].parent))


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """The directory to look in, and whether the user named it; if not, it is the cache directory."""
    if named := data_dir or os.environ.get(VARIABLE):
        directory = Path(named).expanduser()
        if not directory.is_dir():
            which = "`data_dir`" if data_dir else f"${VARIABLE}"
            raise NotADirectoryError(f"{which} (={directory}) is not a directory: name one that holds the IDX files")
        return directory, True
    import platformdirs

    return Path(platformdirs.user_cache_dir("scaleconv", appauthor=False)), False


def find_files(dataset: Dataset, part: str, directory: Path) -> list[Path | None]:
    """Where the images and the labels lie, in the first folder that has either; None for what is not there."""
    found = ([_find(directory / folder, file) for file in dataset.files[part]] for folder in dataset.folders)
    return next(filter(any, found), [None, None])


def fetch_files(dataset: Dataset, part: str, folder: Path) -> None:
    """Download the images and the labels of one part into the folder, those that are not there yet.

    Raises:
        OSError: no mirror gave the file, or the folder cannot be written to.
    """
    for file in dataset.files[part]:
        if _find(folder, file) is None:
            with atomic_path(folder / f"{file.name}.gz") as path:
                path.write_bytes(_fetch(dataset, file))


def take_inventory(data_dir: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, str, Digits | str]]:
    """Read and check everything that can be found: data set, part, and the digits or what is wrong.

    Raises:
        OSError: a directory that was named is not there.
    """
    directory, _ = data_directory(data_dir)
    yield EMBEDDED, "test", embedded_digits()
    for name, part in ((name, part) for name in DATASETS for part in PARTS):
        found: Digits | str = f"not in {directory} (--data-dir, ${VARIABLE})"
        if any(find_files(DATASETS[name], part, directory)):
            try:
                found = load_digits(name, part, data_dir=directory)
            except OtherDatasetError:
                pass
            except (OSError, ValueError) as error:
                found = str(error)
        yield name, part, found


def read_cifar10(
    directory: str | os.PathLike[str], part: str = "train", count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Read one part of CIFAR-10: files of 10,000 images, each a byte for the class and 32×32 bytes for each colour.

    Args:
        directory: of the six files whose names end in `.bin`. Nothing is downloaded.
        part: `train` or `test`.
        count: read the first images only; all, if None.

    Returns:
        Images (N, 3, 32, 32) uint8, and labels (N,) int64, which are indices of `CIFAR_CLASSES`.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is not a batch of CIFAR-10, or an argument is out of its range.
    """
    if part not in PARTS:
        raise ValueError(f"`part` (={part!r}) must be one of {', '.join(PARTS)}")
    most = CIFAR_COUNT * len(CIFAR_BATCHES[part])
    if count is not None and not 1 <= count <= most:
        raise ValueError(f"`count` must be 1 to the {most} images there are, got {count}")
    needed = CIFAR_BATCHES[part][: -(-(count or most) // CIFAR_COUNT)]
    records = torch.cat([_read_batch(Path(directory) / name) for name in needed])[:count]
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def _read_batch(path: Path) -> Tensor:
    """Records (N, bytes) of a file of CIFAR-10, no more of which is read than it should have."""
    length = CIFAR_COUNT * CIFAR_RECORD
    try:
        with path.open("rb") as stream:
            data = stream.read(length + 1)
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror}): `data_dir` must hold the batches") from None
    if len(data) != length:
        got = f"{len(data)} bytes" if len(data) < length else "more bytes"
        raise ValueError(f"{path} must be a batch of CIFAR-10, of {length} bytes, got {got}")
    records = np.frombuffer(data, np.uint8).reshape(CIFAR_COUNT, CIFAR_RECORD)
    if (highest := records[:, 0].max()) >= len(CIFAR_CLASSES):
        raise ValueError(f"{path} must be a batch of CIFAR-10, with labels 0 … 9, got {highest}")
    return torch.from_numpy(records.copy())


def _find(folder: Path, file: IdxFile) -> Path | None:
    for name in (file.name, f"{file.name}.gz"):
        try:
            if (folder / name).is_file():
                return folder / name
        except OSError as error:
            raise type(error)(f"cannot look into {folder} ({error.strerror}): check its permissions") from None
    return None


def _read(path: Path, file: IdxFile, dataset: Dataset) -> IdxData:
    """As `read_idx`; a good file of another data set, whose files bear the same names, is not called corrupted."""
    try:
        return read_idx(path, file)
    except ChecksumError as error:
        for other in DATASETS.values():
            if error.md5 in {file.md5 for pair in other.files.values() for file in pair}:
                raise OtherDatasetError(
                    f"{path} is a file of {other.title}, not the one of {dataset.title}: "
                    f"name the directory that holds {dataset.title} (--data-dir or ${VARIABLE})"
                ) from None
        raise


def _fetch(dataset: Dataset, file: IdxFile) -> bytes:
    """The gzipped bytes of a file, from the first mirror that gives the right ones."""
    try:
        import requests
    except ImportError:
        raise ImportError(
            f"{dataset.title} is not on this machine, and the download needs requests: "
            f"pip install 'scaleconv[experiments]', or {INSTEAD}"
        ) from None
    failures = []
    for mirror in dataset.mirrors:
        url = f"{mirror}{file.name}.gz"
        try:
            data = _download(requests.get, url, file)
            parse_idx(data, url, file)
            return data
        except (OSError, ValueError) as error:  # what requests says about a connection fills a screen
            reason = type(error).__name__ if isinstance(error, OSError) else error
            failures.append(f"{urlsplit(url).hostname}: {reason}")
    raise ConnectionError(
        f"could not download {file.name}.gz from any of {len(failures)} mirrors ({'; '.join(failures)}): check the "
        f"network, or {INSTEAD}"
    )


def _download(get: Callable[..., Any], url: str, file: IdxFile) -> bytes:
    """What a server sends, up to the length that the file may have: it may send without end."""
    data, plain = bytearray(), {"Accept-Encoding": "identity"}  # servers may offer to unpack the file on the way
    with (
        get(url, stream=True, timeout=TIMEOUT, headers=plain) as response,
        make_progress(Console(stderr=True), transient=True) as bar,
    ):
        if not response.ok:
            raise ValueError(f"HTTP {response.status_code}")
        length = int(response.headers.get("Content-Length", 0)) or None
        task = bar.add_task(file.name, total=length, figures="bytes")
        for block in response.iter_content(1 << 16):
            data += block
            bar.update(task, completed=len(data))
            if len(data) > file.most_nbytes:
                raise ValueError("it sends more bytes than the file has")
    return bytes(data)


def _digits(read: list[IdxData], dataset: str, part: str, source: str = "the package") -> Digits:
    (images, of_images), (labels, of_labels) = read
    pixels, numbers = torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()).long()
    return Digits(pixels, numbers, dataset, part, source, (of_images, of_labels))
