"""A file is whole or not there."""

import pytest

from scaleconv.data.atomic import atomic_path


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
