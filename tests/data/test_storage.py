"""Sets on disk: what is written is what is read, and nothing damaged is ever believed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from scaleconv.data import make_set, read_set, write_set
from scaleconv.data.atomic import atomic_path


@pytest.fixture
def made(embedded):
    return make_set(replace(embedded, images=embedded.images[:40], labels=embedded.labels[:40]))


def test_what_is_written_is_read_back(made, tmp_path):
    path = tmp_path / "new" / "set.safetensors"
    assert write_set(made, path) == made.checksum()
    again = read_set(path)
    assert again.parameters == made.parameters
    for name in ("images", "labels", "scales"):
        assert torch.equal(getattr(again, name), getattr(made, name))
        assert getattr(again, name).dtype == getattr(made, name).dtype
    assert [file.name for file in path.parent.iterdir()] == ["set.safetensors"]


def test_the_file_is_uncompressed_and_says_what_it_is(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    with safe_open(path, framework="np") as stored:
        about = stored.metadata()
        assert stored.get_tensor("images").tobytes() == made.images.numpy().tobytes()
    assert about["checksum"] == made.checksum()
    assert json.loads(about["parameters"])["scales"] == "uniform:0.3,1"
    assert path.stat().st_size > 40 * 28 * 28 * 4


def test_every_damage_is_noticed(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")
    for place in (*range(0, 8 + header, 3), *range(8 + header, len(good), 997), len(good) - 1):
        damaged = bytearray(good)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="make it again") as error:
            read_set(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(made, tmp_path, size):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"damaged.*make it again"):
        read_set(path)


def test_another_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "set.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="not a set of scaled digits"):
        read_set(path)


def test_parameters_of_another_version_are_refused(made, tmp_path):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    with safe_open(path, framework="pt") as stored:
        about = stored.metadata()
    about["parameters"] = json.dumps({"colour": "red"})
    save_file(load_file(path), path, about)
    with pytest.raises(ValueError, match="not those of this version"):
        read_set(path)


def test_missing_files_and_wrong_names_are_refused_in_one_line(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot read .*No such file") as error:
        read_set(tmp_path / "none.safetensors")
    assert "\n" not in str(error.value)
    with pytest.raises(IsADirectoryError, match="cannot read"):
        read_set(tmp_path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        write_set(made, tmp_path / "set.npy")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write"):
        write_set(made, tmp_path / "file" / "set.safetensors")


def test_a_failed_write_keeps_what_was_there(made, tmp_path, monkeypatch):
    path = tmp_path / "set.safetensors"
    write_set(made, path)
    before = path.read_bytes()

    def fail(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("scaleconv.data.storage.save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        write_set(made, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["set.safetensors"]


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "note.txt"
    with atomic_path(path) as part:
        part.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


KILLED = """
import sys, time
from scaleconv.data import embedded_digits, make_set, storage

def slow(tensors, filename, metadata):
    save_file(tensors, filename, metadata)
    print("written", flush=True)
    time.sleep(60)  # before the file gets its name

save_file, storage.save_file = storage.save_file, slow
storage.write_set(make_set(embedded_digits()), sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_make_leaves_nothing_that_is_read_later(tmp_path):
    path = tmp_path / "set.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    left = list(tmp_path.iterdir())
    assert all(file.name.startswith(".") and file.suffix == ".part" for file in left)
    assert len(left) == 1, "the process was killed before it wrote: the test shows nothing"
    with pytest.raises(FileNotFoundError):
        read_set(path)
