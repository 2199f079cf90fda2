"""CIFAR-10 from its binary batches: files of 10,000 images, each a byte for the class and 32×32 bytes for each colour.

A file is accepted only if its length and its labels are right; no more of it is read. Nothing is downloaded.
"""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .datasets import PARTS

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
SHAPE = (3, 32, 32)
COUNT = 10_000  # images in a file
RECORD = 1 + 3 * 32 * 32  # bytes of an image with its label


def read_cifar10(
    directory: str | os.PathLike[str], part: str = "train", count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Read one part of CIFAR-10.

    Args:
        directory: of the six files whose names end in `.bin`.
        part: `train` or `test`.
        count: read the first images only; all, if None.

    Returns:
        Images (N, 3, 32, 32) uint8, and labels (N,) int64, which are indices of `CLASSES`.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is not a batch of CIFAR-10, or an argument is out of its range.
    """
    if part not in PARTS:
        raise ValueError(f"`part` (={part!r}) must be one of {', '.join(PARTS)}")
    most = COUNT * len(BATCHES[part])
    if count is not None and not 1 <= count <= most:
        raise ValueError(f"`count` must be 1 to the {most} images there are, got {count}")
    needed = BATCHES[part][: -(-(count or most) // COUNT)]
    records = torch.cat([_read_batch(Path(directory) / name) for name in needed])[:count]
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].long()


def _read_batch(path: Path) -> Tensor:
    """Records (N, bytes) of a file."""
    try:
        with path.open("rb") as stream:
            data = stream.read(COUNT * RECORD + 1)
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror}): `data_dir` must hold the batches") from None
    if len(data) != COUNT * RECORD:
        length = f"{len(data)} bytes" if len(data) < COUNT * RECORD else "more bytes"
        raise ValueError(f"{path} must be a batch of CIFAR-10, of {COUNT * RECORD} bytes, got {length}")
    records = np.frombuffer(data, np.uint8).reshape(COUNT, RECORD)
    if (highest := records[:, 0].max()) >= len(CLASSES):
        raise ValueError(f"{path} must be a batch of CIFAR-10, with labels 0 … 9, got {highest}")
    return torch.from_numpy(records.copy())
