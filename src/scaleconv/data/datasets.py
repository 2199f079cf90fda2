"""The published data sets: their files, checksums and mirrors, and how they are downloaded.

Each mirror is tried in turn, over https. A file appears in its folder only after its bytes passed every check of
`idx.py`: a broken connection, a wrong page or a killed process leaves nothing that would be read later.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from .atomic import atomic_path
from .idx import IdxFile, parse_idx

TIMEOUT = 30  # seconds without a byte
PLAIN = {"Accept-Encoding": "identity"}  # the gzipped file itself: servers may offer to unpack it on the way

PARTS = ("train", "test")


@dataclass(frozen=True)
class Dataset:
    """One published data set.

    Attributes:
        name: as the user writes it, and the name of its folder.
        title: its proper name.
        files: for each part, the images and the labels.
        mirrors: addresses of the folder, each ending in `/`, in the order in which they are tried.
        folders: where, below a data directory, its files may lie, in the order in which they are tried.
    """

    name: str
    title: str
    files: dict[str, tuple[IdxFile, IdxFile]]
    mirrors: tuple[str, ...]
    folders: tuple[str, ...]


def _files(checksums: tuple[str, str, str, str]) -> dict[str, tuple[IdxFile, IdxFile]]:
    """The four files; the checksums are those of train images, train labels, test images, test labels, unpacked."""
    files: dict[str, tuple[IdxFile, IdxFile]] = {}
    for part, stem, count, md5s in (("train", "train", 60_000, checksums[:2]), ("test", "t10k", 10_000, checksums[2:])):
        images = IdxFile(f"{stem}-images-idx3-ubyte", (count, 28, 28), md5s[0])
        labels = IdxFile(f"{stem}-labels-idx1-ubyte", (count,), md5s[1])
        files[part] = (images, labels)
    return files


MNIST = Dataset(
    name="mnist",
    title="MNIST",
    files=_files(
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        )
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
    folders=("mnist", "MNIST/raw", "."),
)

FASHION = Dataset(
    name="fashion",
    title="Fashion-MNIST",
    files=_files(
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        )
    ),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    folders=("fashion", "FashionMNIST/raw", "."),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION)}


def fetch_files(dataset: Dataset, part: str, folder: Path) -> None:
    """Download the images and the labels of one part into the folder, those that are not there yet.

    Raises:
        ImportError: pooch is not installed.
        OSError: no mirror gave the file, or the folder cannot be written to.
    """
    for file in dataset.files[part]:
        if not any((folder / name).is_file() for name in (file.name, f"{file.name}.gz")):
            _fetch(dataset, file, folder / f"{file.name}.gz")


def _fetch(dataset: Dataset, file: IdxFile, target: Path) -> None:
    try:
        from pooch import HTTPDownloader  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError(
            f"{dataset.title} is not on this machine, and the download needs pooch: "
            "pip install 'scaleconv[experiments]', or name a directory that holds it (--data-dir), "
            "or use the embedded digits (--dataset embedded, or --preset quick)"
        ) from None
    failures = []
    with atomic_path(target) as part:
        for mirror in dataset.mirrors:
            url = mirror + target.name
            try:
                with _Progress(target.name) as progress, part.open("wb") as stream:
                    download = HTTPDownloader(progress, chunk_size=1 << 16, timeout=TIMEOUT, headers=PLAIN)
                    download(url, _Bounded(stream, file.most_nbytes), None)
                if not parse_idx(part.read_bytes(), url, file).verified:
                    raise ValueError(f"{url} was not sent as published, and no checksum vouches for it")
                return
            except (OSError, ValueError) as error:
                failures.append(f"{urlsplit(url).hostname}: {_reason(error)}")
        raise ConnectionError(
            f"could not download {target.name} from any of {len(failures)} mirrors ({'; '.join(failures)}): "
            "check the network, or name a directory that holds the files (--data-dir), "
            "or use the embedded digits (--dataset embedded, or --preset quick)"
        )


def _reason(error: Exception) -> str:
    """In a few words: what requests says about a connection fills a screen."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return type(error).__name__ if isinstance(error, OSError) and error.errno is None else str(error)


class _Bounded:
    """A file that refuses to grow beyond so many bytes: a server may send without end."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self.stream, self.left = stream, most

    def write(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it sends more bytes than the file has")
        self.stream.write(data)

    def flush(self) -> None:
        self.stream.flush()


class _Progress:
    """A progress bar on standard error, with the four members that pooch expects of one."""

    def __init__(self, name: str) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(file=sys.stderr)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.stop()

    @property
    def total(self) -> float | None:
        return self._bar.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._bar.update(self._task, total=size or None)

    def update(self, size: float) -> None:
        self._bar.advance(self._task, size)

    def reset(self) -> None:
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        """The bar is closed when its block ends."""
