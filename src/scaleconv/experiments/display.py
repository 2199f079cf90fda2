"""Progress on the terminal: a bar for the item, and one for each run that is at work. In a log, a line a minute."""

import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import TaskID

from ..data.progress import make_progress
from ..environment import choose_device
from .cost import CostStudy, run_cost
from .engine import Engine, Local, Silent
from .items import Experiment, Item
from .processes import is_first
from .records import Record
from .run import Options, run_experiment

SECONDS_BETWEEN_LINES = 60.0  # of a log


class ProgressDisplay:
    """A `Watcher` that shows epochs, loss, error, rate and time left.

    Finished runs are removed, since an item may have a hundred. Without a terminal it prints a line now and then.
    """

    def __init__(self, console: Console) -> None:
        self.progress = make_progress(console)
        self.item = self.progress.add_task("", total=None, figures="", visible=False)
        self.tasks: dict[str, TaskID] = {}
        self.begun: dict[str, tuple[float, float]] = {}  # when a run began, and after how many epochs
        self.figures: dict[str, str] = {}
        self.logged = time.perf_counter()  # when a line was printed, or might have been

    def __enter__(self) -> "ProgressDisplay":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __reduce__(self) -> tuple[type[Silent], tuple[()]]:
        """In another process it shows nothing."""
        return Silent, ()

    def plan(self, title: str, runs: int) -> None:
        self.progress.update(self.item, description=title, total=runs, figures="runs", visible=True)

    def begin(self, title: str, epochs: int, done: int) -> None:
        self.tasks[title] = self.progress.add_task(title, total=epochs, completed=done, figures="")
        self.begun[title] = (time.perf_counter(), done)

    def advance(self, title: str, epochs: float, figures: str) -> None:
        if title not in self.tasks:
            return
        self.figures[title] = figures or self.figures.get(title, "")
        now, (start, first) = time.perf_counter(), self.begun[title]
        if self.progress.disable and now < self.logged + SECONDS_BETWEEN_LINES:
            return
        rate = (epochs - first) / max(now - start, 1e-9)
        shown = f"{self.figures[title]}  {rate:.2g} epochs/s"
        self.progress.update(self.tasks[title], completed=epochs, figures=shown)
        if self.progress.disable:
            self.logged = now
            item, *runs = self.progress.tasks
            run = next(task for task in runs if task.id == self.tasks[title])
            line = f"{item.description}: {item.completed:.0f} of {item.total or 0:.0f} runs; {title}: "
            total = run.total or 0
            line += f"{epochs:.0f} of {total:.0f} epochs, {shown.strip()}"
            if rate > 0:
                line += f", {timedelta(seconds=round((total - epochs) / rate))} left for this run"
            self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self, title: str) -> None:
        self.progress.advance(self.item)
        if title in self.tasks:
            self.progress.remove_task(self.tasks.pop(title))


def run_on_terminal(
    item: Item, folder: Path, device: str, data_dir: Path | None, engine: Engine | None = None
) -> list[Record]:
    """Run an item with live progress; `auto` takes a GPU if there is one. Only experiments run on other machines."""
    engine = engine or Local()
    with ProgressDisplay(Console(stderr=True, quiet=not is_first())) as display:
        if isinstance(item, CostStudy):
            return run_cost(item, folder, device=choose_device(device), watcher=display)
        if not isinstance(item, Experiment):
            raise TypeError(f"`item` must be an Experiment or a CostStudy, got {type(item).__name__}")
        options = Options(engine.device(device), data_dir)
        return run_experiment(item, folder, options, watcher=display, engine=engine)
