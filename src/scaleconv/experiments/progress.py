"""Live progress of an experiment on a terminal; silent anywhere else."""

from pathlib import Path
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..models import TITLES
from .config import Experiment
from .records import Epoch, Record
from .runner import run_experiment


def run_on_terminal(experiment: Experiment, folder: Path, device: str, data_dir: Path | None) -> list[Record]:
    """Run an experiment with live progress; `auto` takes a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` must be one this machine has, got {device!r} ({error})") from None
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 in all products, as convolutions have it anyway
    with Board(Console(stderr=True)) as board:
        return run_experiment(experiment, folder, device=device, data_dir=data_dir, watcher=board)


class Board:
    """A line per run (epoch, loss, error, rate, time left); is a `Watcher`.

    On what is no terminal it prints nothing.
    """

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[tuple[str, int], TaskID] = {}
        self.errors: dict[tuple[str, int], str] = {}  # as last tested

    def __enter__(self) -> "Board":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def begin(self, model: str, fold: int, epochs: int, done: int) -> None:
        task = self.progress.add_task(f"{TITLES[model]}, fold {fold}", total=epochs, completed=done, figures="")
        self.tasks[model, fold] = task

    def epoch(self, model: str, fold: int, entry: Epoch) -> None:
        if entry.test_error is not None:
            self.errors[model, fold] = f"  error {entry.test_error:5.2f} %"
        rate = f"  {1 / entry.seconds:.2g} epochs/s" if entry.seconds >= 1e-9 else ""
        figures = f"loss {entry.train_loss:.4f}{self.errors.get((model, fold), '')}{rate}"
        self.progress.update(self.tasks[model, fold], completed=entry.epoch, figures=figures)

    def skip(self, model: str, fold: int, epochs: int) -> None:
        self.progress.add_task(
            f"{TITLES[model]}, fold {fold}", total=epochs, completed=epochs, figures="finished before"
        )
