"""Which digits, and where they come from.

The 10,000 MNIST test digits are part of the package. Full MNIST and Fashion-MNIST are looked for in the directory the
user names, else in `$SCALECONV_DATA`, else in the user's cache directory, and are downloaded there if they are missing.
A directory that was named is never passed over in silence: if the files are not in it, that is the error.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from .datasets import DATASETS, MNIST, PARTS, Dataset, fetch_files
from .idx import ChecksumError, IdxData, IdxFile, read_idx

VARIABLE = "SCALECONV_DATA"
EMBEDDED = "embedded"
ALL = "all"  # training digits, then test digits


class OtherDatasetError(ValueError):
    """The directory holds the files of another data set."""


@dataclass(frozen=True)
class Digits:
    """Digits as published.

    Attributes:
        images: (N, H, W) uint8, 0 … 255.
        labels: (N,) int64, 0 … 9.
        dataset: `mnist`, `fashion` or `embedded`.
        part: `train`, `test` or `all`.
        source: the directory they were read from.
        checksums: MD5 of the two unpacked files, images and labels.
        verified: whether published checksums vouch for both files.
    """

    images: Tensor
    labels: Tensor
    dataset: str
    part: str
    source: str
    checksums: tuple[str, str]
    verified: bool

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
    images, labels = (read_idx(folder.joinpath(f"{file.name}.gz"), file) for file in MNIST.files["test"])
    return _digits(images, labels, EMBEDDED, "test", "the package")


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
        ImportError: a download is needed, and pooch is not installed.
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
            verified=train.verified and test.verified,
        )
    published, part = DATASETS[dataset], part or "train"
    directory, named = data_directory(data_dir)
    paths = find_files(published, part, directory)
    if missing := [file.name for file, path in zip(published.files[part], paths, strict=True) if path is None]:
        if published is MNIST and part == "test" and not named:
            return replace(embedded_digits(), dataset=dataset)  # the same bytes, and no need to fetch them
        if named or not download:
            raise FileNotFoundError(_missing_message(published, part, directory, missing))
        fetch_files(published, part, directory / published.name)
        paths = find_files(published, part, directory)
    found = [path for path in paths if path is not None]
    images, labels = (_read(path, file, published) for file, path in zip(published.files[part], found, strict=True))
    return _digits(images, labels, dataset, part, str(found[0].parent))


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
    paths: list[Path | None] = []
    for folder in dataset.folders:
        paths = [_find(directory / folder, file) for file in dataset.files[part]]
        if any(paths):
            return paths
    return paths


@dataclass(frozen=True)
class Entry:
    """One part of one data set, as words for a table.

    Attributes:
        dataset, part: which.
        count: of the digits; 0 where they are missing, and then all but `source` is empty.
        classes: the smallest and the largest number of digits of a class.
        source: where they come from, or what is wrong.
        verdict: whether the published checksums agree.
        checksums: MD5 of images and labels.
    """

    dataset: str
    part: str
    count: int
    classes: str
    source: str
    verdict: str
    checksums: tuple[str, str]


def take_inventory(data_dir: str | os.PathLike[str] | None = None) -> Iterator[Entry]:
    """Read and check everything that can be found, in the order in which it is looked for.

    Raises:
        OSError: a directory that was named is not there.
    """
    directory, _ = data_directory(data_dir)
    yield _present(embedded_digits())
    for dataset in DATASETS.values():
        for part in PARTS:
            absent = _absent(dataset, part, f"not in {directory} (--data-dir, ${VARIABLE})")
            if not any(find_files(dataset, part, directory)):
                yield absent
                continue
            try:
                yield _present(load_digits(dataset.name, part, data_dir=directory))
            except OtherDatasetError:
                yield absent
            except (OSError, ValueError) as error:
                yield _absent(dataset, part, str(error))


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


def _missing_message(dataset: Dataset, part: str, directory: Path, missing: list[str]) -> str:
    names = " and ".join(missing)
    return (
        f"no {names} (.gz or not) in {directory}: put the {part} files of {dataset.title} there, "
        f"name another directory (--data-dir or ${VARIABLE}), or use the embedded digits (--dataset embedded, or "
        "--preset quick)"
    )


def _digits(images: IdxData, labels: IdxData, dataset: str, part: str, source: str) -> Digits:
    return Digits(
        images=torch.from_numpy(images.values.copy()),
        labels=torch.from_numpy(labels.values.copy()).long(),
        dataset=dataset,
        part=part,
        source=source,
        checksums=(images.md5, labels.md5),
        verified=images.verified and labels.verified,
    )


def _present(digits: Digits) -> Entry:
    counts = digits.labels.bincount(minlength=10)
    classes = f"{int(counts.min())} … {int(counts.max())}"
    verdict = "agree" if digits.verified else "none published"
    return Entry(digits.dataset, digits.part, len(digits), classes, digits.source, verdict, digits.checksums)


def _absent(dataset: Dataset, part: str, reason: str) -> Entry:
    return Entry(dataset.name, part, 0, "", reason, "", ("", ""))
