"""IDX files: which bytes are accepted, and that no more of them are unpacked than are expected."""

import gzip
import hashlib
import struct
import tracemalloc

import pytest

from scaleconv.data.datasets import DATASETS
from scaleconv.data.idx import IdxFile, parse_idx, read_idx


def header(count):
    return struct.pack(">BBBBI", 0, 0, 8, 1, count)


def test_a_label_above_9_is_refused():
    data = header(3) + bytes([0, 9, 10])
    with pytest.raises(ValueError, match="label 10"):
        parse_idx(data, "labels", IdxFile("labels", (3,)))


def test_a_checksum_vouches_for_the_content_however_it_is_packed():
    """Distributions of Linux pack the published files anew."""
    data = header(2) + bytes([3, 4])
    file = IdxFile("labels", (2,), md5=hashlib.md5(data, usedforsecurity=False).hexdigest())
    for stored in (data, gzip.compress(data), gzip.compress(data, compresslevel=1, mtime=1)):
        assert parse_idx(stored, "labels", file)[0].tolist() == [3, 4]
        with pytest.raises(ValueError, match="corrupted"):
            parse_idx(stored, "labels", IdxFile("labels", (2,), md5="0" * 32))
    assert all(file.md5 for dataset in DATASETS.values() for pair in dataset.files.values() for file in pair)


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_unpacks_to_far_more_is_refused_before_it_fills_the_memory(tmp_path, packed):
    bomb = header(3) + bytes(2**26)
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(bomb) if packed else bomb)
    del bomb
    tracemalloc.start()
    with pytest.raises(ValueError, match="longer than the 11 bytes that its header says"):
        read_idx(path, IdxFile("labels", (3,)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_file_that_gzip_cannot_compress_is_read(tmp_path):
    data = header(2**16) + bytes(value % 10 for value in hashlib.shake_128(b"").digest(2**16))
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(data, compresslevel=0))
    assert path.stat().st_size > len(data)
    assert read_idx(path, IdxFile("labels", (2**16,)))[0].size == 2**16
