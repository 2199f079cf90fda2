"""IDX files, the format of MNIST: a big-endian header (type, rank, sizes), then the bytes.

Reads them gzipped or not, and accepts a file only if magic number, shape, length and MD5 are those published. No more
bytes are read or unpacked than the expected file has. Every refusal is one line that says what to do next.
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

MAGIC = b"\x00\x00\x08"  # of unsigned bytes; the rank follows
GZIP_MAGIC = b"\x1f\x8b"
REPLACE = "delete it and fetch a fresh copy"
KINDS = {1: "labels", 3: "images"}


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
    """A file with the right header and the wrong contents; `md5` is that of the unpacked bytes."""

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
    if fault := _fault(data, expected):
        raise ValueError(f"{path} {fault}")
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


def _fault(data: bytes, expected: IdxFile) -> str:
    """What is wrong with the header or the length of a file, and what to do; empty if nothing is."""
    rank, wanted = len(expected.shape), KINDS[len(expected.shape)]
    if len(data) >= 4 and data[:3] != MAGIC:
        return f"is not an IDX file of bytes: it begins with {data[:4].hex(' ')}; {REPLACE}"
    if len(data) >= 4 and data[3] != rank:
        held = KINDS.get(data[3], f"arrays of rank {data[3]}")
        return f"holds {held}, not {wanted}: files were swapped; rename them or fetch them again"
    if len(data) < expected.start:
        return f"is truncated: {len(data)} bytes, and the header alone takes {expected.start}; {REPLACE}"
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", count=rank, offset=4))
    if shape[0] != expected.shape[0]:
        return f"holds {shape[0]} {wanted}, not {expected.shape[0]}: it is another part or set; {REPLACE}"
    if shape != expected.shape:
        sizes, right = ("×".join(map(str, s[1:])) for s in (shape, expected.shape))
        return f"holds images of {sizes}, not {right}: it is another data set; {REPLACE}"
    if len(data) < expected.nbytes:
        return f"is truncated: {len(data)} bytes, not {expected.nbytes}; {REPLACE}"
    if len(data) > expected.nbytes:
        return f"is longer than the {expected.nbytes} bytes that its header says; {REPLACE}"
    return ""
