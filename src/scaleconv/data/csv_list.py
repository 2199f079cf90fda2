"""A CSV file of images: a path, relative to the file, and a class on each line, without a header."""

import csv
from pathlib import Path

from .folders import Candidate, ImageFolder, Skipped, check_shares, divide_by_class


def read_csv(path: Path, *, val: float = 0.1, test: float = 0.1, seed: int = 0) -> ImageFolder:
    """Find, check and divide the images that a CSV file lists."""
    check_shares(val, test)
    skipped: list[Skipped] = []
    candidates = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if len(row) == 2:
                candidates.append(Candidate("", row[1], path.parent / row[0]))
            else:
                skipped.append(Skipped(f"line {number}", f"has {len(row)} columns, not 2"))
    labels = {candidate.label for candidate in candidates}
    return divide_by_class(path.parent, candidates, skipped, labels, val=val, test=test, seed=seed)
