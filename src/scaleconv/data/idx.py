"""IDX files, the format of MNIST: a big-endian header (type, rank, sizes), then the bytes.

Reads them gzipped or not, and accepts a file only if length and MD5 are those published. No more bytes are read or
unpacked than the expected file has. Every refusal is one line that says what to do next.
"""

import gzip
import hashlib
import io
import math
import zlib
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .files import refuse_pipes

GZIP_MAGIC = b"\x1f\x8b"
REPLACE = "delete it and fetch a fresh copy"


@dataclass(frozen=True)
class IdxFile:
    """What one published file must be."""

    name: str  # its file name, without `.gz`
    shape: tuple[int, ...]  # (count,) for labels, (count, height, width) for images
    md5: str  # of the unpacked file

    @property
    def start(self) -> int:
        """Length of the header."""
        return 4 + 4 * len(self.shape)

    @property
    def nbytes(self) -> int:
        """Length of the unpacked file: the header, then one byte per value."""
        return self.start + math.prod(self.shape)

    @property
    def most_nbytes(self) -> int:
        """What the file takes at most, gzipped or not; data that gzip cannot compress grow by less than 0.1 %."""
        return self.nbytes + self.nbytes // 1000 + 2**16


IdxData = tuple[NDArray[np.uint8], str]  # values (count, …), and the MD5 of the unpacked bytes


class ChecksumError(ValueError):
    """A file of the right length with the wrong contents; `md5` is that of the unpacked bytes."""

    def __init__(self, message: str, md5: str) -> None:
        super().__init__(message)
        self.md5 = md5


def read_idx(path: Path | Traversable, expected: IdxFile) -> IdxData:
    """Read one file and check all of it against what is expected.

    Raises:
        OSError: the file cannot be read.
        ValueError: it can, and is not the file that is expected.
    """
    try:
        if isinstance(path, Path):
            refuse_pipes(path)
        with path.open("rb") as stream:
            stored = stream.read(expected.most_nbytes + 1)
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"cannot read {path} ({reason}): check the path and its permissions") from None
    return parse_idx(stored, str(path), expected)


def parse_idx(stored: bytes, path: str, expected: IdxFile) -> IdxData:
    """As `read_idx`, of bytes already read; `path` is for the messages."""
    data = _unpack(stored, path, expected.nbytes + 1) if stored.startswith(GZIP_MAGIC) else stored
    if len(data) != expected.nbytes:
        got = f"only {len(data)}" if len(data) < expected.nbytes else "more"
        raise ValueError(
            f"{path} must have {expected.nbytes} bytes, got {got}: it is cut off or another file; {REPLACE}"
        )
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()  # against damage, not against forgery
    if md5 != expected.md5:
        raise ChecksumError(f"{path} is corrupted: its MD5 is {md5}, not {expected.md5}; {REPLACE}", md5)
    return np.frombuffer(data, np.uint8, offset=expected.start).reshape(expected.shape), md5


def _unpack(stored: bytes, path: str, most: int) -> bytes:
    """The unpacked bytes, at most so many: a small file may unpack to gigabytes."""
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(stored)).read(most)
    except EOFError:
        raise ValueError(f"{path} is truncated: its gzip stream ends early; {REPLACE}") from None
    except (OSError, zlib.error) as error:
        raise ValueError(f"{path} is corrupted: gzip says {error}; {REPLACE}") from None
