"""A file is whole or not there."""

import pytest

from scaleconv.data.atomic import atomic_path, remove_leftovers


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
