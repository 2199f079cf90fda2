"""A file is whole or not there."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from scaleconv.data import files, read_image, read_mask, read_set
from scaleconv.data.datasets import MNIST
from scaleconv.data.files import atomic_path, check_folder, check_writable, remove_leftovers
from scaleconv.data.idx import read_idx
from scaleconv.experiments.checkpoint import load_checkpoint


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_or_a_folder_appears_only_when_it_is_whole(tmp_path):
    path, plain = tmp_path / "note.txt", tmp_path / "plain.txt"
    with atomic_path(path) as part:
        part.write_text("whole")
        assert not path.exists()
    plain.write_text("")
    assert path.read_text() == "whole"
    assert path.stat().st_mode == plain.stat().st_mode
    with atomic_path(tmp_path / "a" / "notes") as part:
        (part / "first").mkdir(parents=True)
        assert not (tmp_path / "a" / "notes").exists()
    assert names(tmp_path) == ["a", "first", "note.txt", "notes", "plain.txt"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ZeroDivisionError])
def test_a_block_that_fails_leaves_the_earlier_file_and_no_directory_that_it_has_made(tmp_path, fault):
    def fail(path):
        with atomic_path(path) as part:
            part.write_text("half")
            raise fault

    (tmp_path / "note.txt").write_text("earlier")
    for path in (tmp_path / "note.txt", tmp_path / "a" / "b" / "note.txt"):
        with pytest.raises(fault):
            fail(path)
    assert names(tmp_path) == ["note.txt"]
    assert (tmp_path / "note.txt").read_text() == "earlier"


def test_an_error_of_the_disk_names_the_file_and_leaves_nothing(tmp_path):
    def fill():
        with atomic_path(tmp_path / "a" / "note.txt") as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"cannot write .*a/note.txt \(No space left on device\): name a place"):
        fill()
    assert names(tmp_path) == []


KILLED = """
import sys, time
from scaleconv.data.files import atomic_path

with atomic_path(sys.argv[1]) as part:
    part.write_text("half")
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["note.txt", "note[1].txt"])
def test_a_process_still_writing_is_not_disturbed_and_what_it_leaves_when_killed_is_removed(tmp_path, name):
    path, other = tmp_path / name, tmp_path / ".other.txt.abcd.part"
    other.mkdir()
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "written\n"
        left = sorted(each.name for each in tmp_path.iterdir())
        assert len(left) == 2
        remove_leftovers(path)
        with atomic_path(path) as part:  # two processes may write the same file: the last one counts
            part.write_text("second")
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*left, name])
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    (tmp_path / f".{name}.abcd.part").mkdir()  # killed before it was locked
    with atomic_path(path) as part:
        part.write_text("third")
    assert names(tmp_path) == sorted([name, other.name])
    assert path.read_text() == "third"


def test_trying_whether_a_file_can_be_written_leaves_nothing(tmp_path):
    (tmp_path / "note.txt").write_text("earlier")
    (tmp_path / "folder").mkdir()
    before = names(tmp_path)
    check_writable(tmp_path / "note.txt")
    check_writable(tmp_path / "a" / "b" / "note.txt")
    check_folder(tmp_path / "a" / "b")
    for path, reason in (
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / "note.txt" / "x", "File exists|Not a directory"),
        (tmp_path / "a" / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(OSError, match=rf"cannot write {path} \(({reason})\): name a place"):
            check_writable(path)
    with pytest.raises(OSError, match=rf"cannot write to {tmp_path}/note.txt/x \(Not a directory\): name a place"):
        check_folder(tmp_path / "note.txt" / "x")
    assert names(tmp_path) == before
    assert (tmp_path / "note.txt").read_text() == "earlier"


@pytest.mark.parametrize("times", [2, 3])
def test_a_directory_that_another_process_removes_before_it_is_locked_is_made_again_twice(tmp_path, monkeypatch, times):
    path, left, acquire = tmp_path / "a" / "note.txt", [*range(times)], files.FileLock.acquire

    def removed(lock):
        if left:
            left.pop()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return acquire(lock)

    monkeypatch.setattr(files.FileLock, "acquire", removed)
    if times == 3:
        with pytest.raises(FileNotFoundError, match=f"cannot write {path}"):
            check_writable(path)
        return
    with atomic_path(path) as part:
        part.write_text("whole")
    assert path.read_text() == "whole"


READERS = {
    "set": read_set,
    "image": read_image,
    "mask": read_mask,
    "idx": lambda path: read_idx(path, MNIST.files["train"][0]),
    "checkpoint": load_checkpoint,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(read, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(10)
    try:
        with pytest.raises((OSError, ValueError), match=r"pipe.* \(it is a pipe or a device, not a file\)"):
            read(pipe)
    finally:
        signal.alarm(0)
