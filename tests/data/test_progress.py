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


@pytest.mark.parametrize(
    ("variables", "terminal"), [({}, False), ({"TERM": "dumb"}, True), ({"TERM": "xterm", "RANK": "1"}, True)]
)
def test_a_pipe_a_dumb_terminal_and_all_processes_but_the_first_show_nothing(monkeypatch, variables, terminal):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert text_of(range(4), terminal) == ([0, 1, 2, 3], "")
