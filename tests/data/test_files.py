"""A file is whole or not there."""

import gc
import os
import signal
import sys
from contextlib import suppress

import pytest

from scaleconv.data import atomic, read_image, read_set
from scaleconv.data.atomic import atomic_path, check_folder, check_writable, remove_leftovers
from scaleconv.data.datasets import MNIST
from scaleconv.data.idx import read_idx
from scaleconv.data.masks import read_mask
from scaleconv.experiments.checkpoint import load_checkpoint


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "note.txt"
    with atomic_path(path) as part:
        part.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_block_that_fails_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("earlier")

    def interrupted():
        with atomic_path(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"note.txt": "earlier"}


@pytest.mark.parametrize("name", ["note.txt", "note[1].txt"])
def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path, name):
    (tmp_path / f".{name}.abcd.part").write_text("half")
    (tmp_path / ".other.txt.abcd.part").write_text("half")
    with atomic_path(tmp_path / name) as part:
        part.write_text("whole")
    assert {file.name for file in tmp_path.iterdir()} == {name, ".other.txt.abcd.part"}


def test_what_another_process_is_writing_is_not_removed(tmp_path):
    """Two processes may make the same file: the last one counts."""
    path = tmp_path / "note.txt"
    with atomic_path(path) as first:
        first.write_text("first")
        remove_leftovers(path)
        with atomic_path(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"note.txt": "first"}


def test_a_block_that_fails_leaves_no_directory_that_it_has_made(tmp_path):
    (tmp_path / "there").mkdir()

    def fail():
        with atomic_path(tmp_path / "there" / "a" / "b" / "note.txt"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_trying_whether_a_file_can_be_written_leaves_nothing(tmp_path):
    (tmp_path / "note.txt").write_text("earlier")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
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
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "note.txt").read_text() == "earlier"


def test_a_directory_that_another_process_removes_while_it_is_empty_is_made_again(tmp_path, monkeypatch):
    path, left = tmp_path / "a" / "note.txt", [1, 2]

    def removed(target):
        if left:
            left.pop()
            target.parent.rmdir()

    monkeypatch.setattr(atomic, "remove_leftovers", removed)
    with atomic_path(path) as part:
        part.write_text("whole")
    assert path.read_text() == "whole"


def interrupted_at(number, write):
    """Interrupt a function before the line of `atomic` that comes as the so manieth; False if there are fewer lines."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename != atomic.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that Python closed for us
@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_at_any_line_leaves_the_file_whole_and_nothing_else(tmp_path, fails):
    path = tmp_path / "note.txt"

    def write():
        with suppress(ZeroDivisionError), atomic_path(path) as part:
            part.write_text("later")
            if fails:
                raise ZeroDivisionError

    gc.freeze()  # what other tests left takes long to look through
    number, seen = 0, set()
    while True:
        path.write_text("earlier")
        number += 1
        if not interrupted_at(number, write):
            break
        gc.collect()
        assert [file.name for file in tmp_path.iterdir()] == ["note.txt"], number
        seen.add(path.read_text())
    gc.unfreeze()
    assert number > 15
    assert seen == ({"earlier"} if fails else {"earlier", "later"})


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
