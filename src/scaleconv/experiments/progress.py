"""Live progress of an item on a terminal; silent anywhere else."""

from pathlib import Path
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .config import Experiment
from .cost import CostStudy, run_cost
from .devices import choose_device
from .plan import Run
from .records import Epoch, Record
from .runner import make_folder, run_experiment


def run_on_terminal(item: Experiment | CostStudy, folder: Path, device: str, data_dir: Path | None) -> list[Record]:
    """Run an item with live progress; `auto` takes a GPU if there is one."""
    device = choose_device(device)
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 in all products, as convolutions have it anyway
    make_folder(folder)
    with Board(Console(stderr=True)) as board:
        if isinstance(item, CostStudy):
            return run_cost(item, folder, device=device, watcher=board)
        return run_experiment(item, folder, device=device, data_dir=data_dir, watcher=board)


class Board:
    """A line for the item, and one per run under way (epoch, loss, error, rate, time left); is a `Watcher`.

    Runs that are finished leave the board, since an item may have a hundred. On what is no terminal it prints nothing.
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
        self.item = self.progress.add_task("", total=None, figures="", visible=False)
        self.tasks: dict[str, TaskID] = {}
        self.errors: dict[str, str] = {}  # as last tested

    def __enter__(self) -> "Board":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def plan(self, title: str, runs: int) -> None:
        self.progress.update(self.item, description=title, total=runs, figures="runs", visible=True)

    def begin(self, run: Run, done: int) -> None:
        epochs = run.settings.epochs(run.model)
        self.tasks[run.title] = self.progress.add_task(run.title, total=epochs, completed=done, figures="")

    def epoch(self, run: Run, entry: Epoch) -> None:
        if entry.test_error is not None:
            self.errors[run.title] = f"  error {entry.test_error:5.2f} %"
        rate = f"  {1 / entry.seconds:.2g} epochs/s" if entry.seconds >= 1e-9 else ""
        figures = f"loss {entry.train_loss:.4f}{self.errors.get(run.title, '')}{rate}"
        self.progress.update(self.tasks[run.title], completed=entry.epoch, figures=figures)

    def end(self, title: str) -> None:
        self.progress.advance(self.item)
        if title in self.tasks:
            self.progress.remove_task(self.tasks.pop(title))
