"""A terminal shows how far long work is; nothing else does."""

import io

import pytest
from rich.console import Console

from scaleconv.data.progress import watched


def text_of(terminal=True):
    """What is counted, and what the console shows of it on a clock by which each thing takes 50 ms."""
    clock, stream = [0.0], io.StringIO()

    def things():
        for number in range(4):
            clock[0] += 0.05
            yield number

    options = {"force_terminal": terminal, "width": 120, "color_system": None, "get_time": lambda: clock[0]}
    found = list(watched(things(), "checking images", 4, Console(file=stream, **options)))
    return found, stream.getvalue()


def test_a_terminal_shows_the_count_the_rate_and_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    found, text = text_of()
    assert found == [0, 1, 2, 3]
    for shown in ("checking images", "4/4", "20/s", "00:00"):
        assert shown in text


@pytest.mark.parametrize(
    ("variables", "terminal"), [({}, False), ({"TERM": "dumb"}, True), ({"TERM": "xterm", "RANK": "1"}, True)]
)
def test_a_pipe_a_dumb_terminal_and_all_processes_but_the_first_show_nothing(monkeypatch, variables, terminal):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert text_of(terminal) == ([0, 1, 2, 3], "")
