"""Progress on the terminal: a line for the item, and one for each run that is at work."""

import time
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


class ProgressDisplay:
    """A `Watcher` that shows epochs, loss, error, rate and time left.

    Finished runs are removed, since an item may have a hundred. Without a terminal it prints nothing.
    """

    def __init__(self, console: Console) -> None:
        self.progress = make_progress(console)
        self.item = self.progress.add_task("", total=None, figures="", visible=False)
        self.tasks: dict[str, TaskID] = {}
        self.begun: dict[str, tuple[float, float]] = {}  # when a run began, and after how many epochs
        self.figures: dict[str, str] = {}

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
        if self.progress.disable or title not in self.tasks:
            return
        start, first = self.begun[title]
        rate = (epochs - first) / max(time.perf_counter() - start, 1e-9)
        self.figures[title] = figures or self.figures.get(title, "")
        shown = f"{self.figures[title]}  {rate:.2g} epochs/s"
        self.progress.update(self.tasks[title], completed=epochs, figures=shown)

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
