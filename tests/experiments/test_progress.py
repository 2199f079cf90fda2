"""Progress on a terminal shows what a person waits for; anywhere else it is silent."""

import io

import pytest
from rich.console import Console

from scaleconv.experiments import Epoch
from scaleconv.experiments.progress import Board


def shown(terminal):
    stream = io.StringIO()
    with Board(Console(file=stream, force_terminal=terminal, width=120)) as board:
        board.skip("convnet", 0, 4)
        board.begin("si_convnet", 1, 4, 1)
        board.epoch("si_convnet", 1, Epoch(2, 0.1234, 5.5, 0.5))
        board.epoch("si_convnet", 1, Epoch(3, 0.0567, None, 0.25))
    return stream.getvalue()


@pytest.mark.parametrize(
    "words",
    ["ConvNet, fold 0", "finished before", "SI-ConvNet, fold 1", "3/4", "loss 0.0567", "error  5.50 %", "4 epochs/s"],
)
def test_a_terminal_sees_epoch_loss_last_error_and_rate(words):
    assert words in shown(True)


def test_anything_else_sees_nothing():
    assert shown(False).strip() == ""
