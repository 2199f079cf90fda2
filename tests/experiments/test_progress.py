"""Progress on a terminal shows what a person waits for; anywhere else it is silent."""

import io

import pytest
from rich.console import Console

from scaleconv.experiments import Epoch, load_experiment, plan_runs
from scaleconv.experiments.progress import Board


def shown(terminal):
    stream = io.StringIO()
    first, *_, run = plan_runs(load_experiment("fig4a", "quick", {"training.epochs": 4, "folds": [0, 1]}))
    with Board(Console(file=stream, force_terminal=terminal, width=140)) as board:
        board.plan("fig4a", 12)
        board.begin(first, 3)
        board.end(first.title)
        board.end("another")
        board.begin(run, 1)
        board.epoch(run, Epoch(2, 0.1234, 5.5, 0.5))
        board.epoch(run, Epoch(3, 0.0567, None, 0.25))
    return stream.getvalue()


@pytest.mark.parametrize(
    "words",
    ["fig4a", " 2/12", "SI-ConvNet, 18, 32, fold 1", "3/4", "loss 0.0567", "error  5.50 %", "4 epochs/s"],
)
def test_a_terminal_sees_how_many_runs_and_of_each_epoch_loss_last_error_and_rate(words):
    assert words in shown(True)


def test_runs_that_are_finished_leave_the_board():
    first, second, *_ = plan_runs(load_experiment("fig4a", "quick"))
    with Board(Console(file=io.StringIO(), force_terminal=True)) as board:
        board.plan("fig4a", 18)
        board.begin(first, 0)
        board.begin(second, 0)
        board.end(first.title)
        assert [task.description for task in board.progress.tasks] == ["fig4a", second.title]


def test_anything_else_sees_nothing():
    assert shown(False).strip() == ""
