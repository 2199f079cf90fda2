"""What digits this machine has: one entry for each part of each data set, there or not. Fetches nothing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from .datasets import DATASETS, PARTS
from .digits import VARIABLE, Digits, OtherDatasetError, data_directory, embedded_digits, find_files, load_digits


@dataclass(frozen=True)
class Entry:
    """One part of one data set, as words for a table; `count` is 0 where it is not there."""

    dataset: str
    part: str
    count: int
    classes: str
    source: str
    checksums: str


def take_inventory(data_dir: str | os.PathLike[str] | None = None) -> Iterator[Entry]:
    """Read and check everything that can be found, in the order in which it is looked for.

    Raises:
        OSError: a directory that was named is not there.
    """
    directory, _ = data_directory(data_dir)
    yield _present(embedded_digits())
    for dataset in DATASETS.values():
        for part in PARTS:
            absent = Entry(dataset.name, part, 0, "", f"not in {directory} (--data-dir, ${VARIABLE})", "")
            if not any(find_files(dataset, part, directory)):
                yield absent
                continue
            try:
                yield _present(load_digits(dataset.name, part, data_dir=directory))
            except OtherDatasetError:
                yield absent
            except (OSError, ValueError) as error:
                yield Entry(dataset.name, part, 0, "", str(error), "")


def _present(digits: Digits) -> Entry:
    counts = digits.labels.bincount(minlength=10)
    checksums = f"{' '.join(digits.checksums)} ({'agree' if digits.verified else 'none published'})"
    classes = f"{int(counts.min())} … {int(counts.max())}"
    return Entry(digits.dataset, digits.part, len(digits), classes, digits.source, checksums)
