"""A terminal shows how far long work is; nothing else does."""

import io
import time

import pytest
from rich.console import Console

from scaleconv.data.progress import watched


def text_of(things, terminal=True):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    found = list(watched(things, "checking images", 4, console))
    return found, stream.getvalue()


def slowly():
    for number in range(4):
        time.sleep(0.03)
        yield number


def test_a_terminal_shows_the_count_the_rate_and_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    found, text = text_of(slowly())
    assert found == [0, 1, 2, 3]
    assert "checking images" in text
    assert "4/4" in text
    rate = float(text.rpartition("/s")[0].rpartition(" ")[2])
    assert 3 < rate < 40
    assert "00:00" in text


def test_without_a_terminal_nothing_is_shown():
    assert text_of(range(4), terminal=False) == ([0, 1, 2, 3], "")


def test_a_dumb_terminal_shows_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert text_of(range(4)) == ([0, 1, 2, 3], "")


def test_of_several_processes_only_the_first_shows_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("RANK", "1")
    assert text_of(range(4)) == ([0, 1, 2, 3], "")


def test_an_error_in_between_ends_the_bar_and_is_raised():
    def broken():
        yield 0
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        text_of(broken())
