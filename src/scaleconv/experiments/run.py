"""Runs an item: every model at every point on every fold, each run leaving one record.

Finished runs are skipped and interrupted ones resume from their checkpoint. Networks that another item has trained with
the very same settings are used again where the experiment says so. On a GPU, runs of equal shape are trained at once;
on the CPU networks take turns, and only the folds of an RBM are trained at once. An `Engine` says where. A
terminal shows the progress.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, singledispatch
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import TaskID

from ..data.atomic import check_folder, remove_leftovers
from ..data.progress import make_progress
from ..environment import choose_device
from ..models import LATER, UNSUPERVISED
from ..models import TITLES as NETWORKS
from .checkpoint import Checkpoint, check_settings, check_shapes, load_checkpoint, write_checkpoint
from .config import Settings, sections
from .engine import Engine, Local, Task
from .experiment import Experiment, Item
from .items import folder_name
from .measures import check_measure, measure
from .parsing import build
from .records import Epoch, Record, describe_environment, read_record, read_records, write_record
from .train import DigitStore, Outcome, Run, Silent, Watcher, plan_runs, train_features, train_networks

MOST_AT_ONCE = 6  # runs trained at once on a GPU: from there on, the time of a step grows with their number

# How each model is trained: from runs that may be trained at once to what is left of each. It may leave checkpoints in
# the folder, or start over when it is interrupted.
Procedure = Callable[[Sequence[Run], DigitStore, Path, Watcher], dict[Run, Outcome]]
PROCEDURES: dict[str, Procedure] = {
    **dict.fromkeys((*NETWORKS, *LATER), train_networks),
    **dict.fromkeys(UNSUPERVISED, train_features),
}


def run_on_terminal(
    item: Item, folder: Path, device: str, data_dir: Path | None, engine: Engine | None = None
) -> list[Record]:
    """Run an item with live progress; `auto` takes a GPU if there is one. Only experiments run on other machines."""
    engine = engine or Local()
    device = engine.device(device) if isinstance(item, Experiment) else choose_device(device)
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 in all products, as convolutions have it anyway
    check_folder(folder)
    with ProgressDisplay(Console(stderr=True)) as display:
        return run_item(item, folder, device, data_dir, display, engine)


@singledispatch
def run_item(
    item: Any, folder: Path, device: str, data_dir: Path | None, watcher: Watcher, engine: Engine
) -> list[Record]:
    """Run what is not finished yet and return the records of all runs of the item."""
    raise TypeError(f"`item` must be of a class with a procedure, got {type(item).__name__}")


@run_item.register
def _run(
    item: Experiment, folder: Path, device: str, data_dir: Path | None, watcher: Watcher, engine: Engine
) -> list[Record]:
    return run_experiment(item, folder, device=device, data_dir=data_dir, watcher=watcher, engine=engine)


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    watcher: Watcher | None = None,
    engine: Engine | None = None,
) -> list[Record]:
    """Run what is not finished yet and return the records of all runs of the experiment.

    Args:
        experiment: what to run.
        folder: for its records; checkpoints and weights go into folders beside them.
        device: `cpu`, `cuda`, `cuda:1`, …
        data_dir: directory of the digits, if they are not the embedded ones.
        watcher: told of every epoch; on another machine, a copy of it is.
        engine: where to train; None is this process.
    """
    check_folder(folder)  # the first file that is written makes it: a run that is refused leaves none
    watcher, engine = watcher or Silent(), engine or Local()
    runs = plan_runs(experiment)
    for run in {(run.model, run.point.name): run for run in runs}.values():
        check_measure(run)
    watcher.plan(experiment.item, len(runs))
    store = DigitStore(torch.device(device), data_dir)
    work = partial(_work, store=store, device=device)
    for task in engine.run(work, _tasks(experiment, runs, folder, device, watcher, engine), folder, watcher):
        for run in task.what[0]:
            watcher.end(run.title)
    return [read_record(run.record(folder)) for run in runs]


def _tasks(
    experiment: Experiment, runs: Sequence[Run], folder: Path, device: str, watcher: Watcher, engine: Engine
) -> Iterator[Task]:
    """What is left to do. A task is told its runs and, where another item has trained its only run, what came out."""
    finished, pending = _finished(experiment, folder), []
    for run in runs:
        for path in (run.record(folder), run.checkpoint(folder), run.weights(folder)):
            remove_leftovers(path)
        if run.record(folder) in finished:
            run.checkpoint(folder).unlink(missing_ok=True)  # of a run that was killed when it had just finished
            watcher.end(run.title)
        elif trained := _trained_before(experiment, run, folder):
            yield Task((run.record(folder).name,), ([run], trained))
        else:
            pending.append(run)
    for group in _groups(pending, engine.groups and torch.device(device).type == "cuda"):
        yield Task(tuple(run.record(folder).name for run in group), (group, None))


def _work(
    what: tuple[list[Run], tuple[Record, Checkpoint] | None],
    folder: Path,
    watcher: Watcher,
    *,
    store: DigitStore,
    device: str,
) -> None:
    """Train runs at once, unless they were, and leave a record of each."""
    group, trained = what
    if trained:
        _finish(group[0], folder, *trained, store)
        return
    for run, outcome in PROCEDURES[group[0].model](group, store, folder, watcher).items():
        weights = Checkpoint(run.identity(), outcome.history, outcome.weights)
        write_checkpoint(run.weights(folder), weights)
        _finish(run, folder, _record(run, outcome, device), weights, store)
        run.checkpoint(folder).unlink(missing_ok=True)


def _finished(experiment: Experiment, folder: Path) -> set[Path]:
    """The records that are there. Those of a point must be of its settings, or they could not be compared."""
    points = {point.name: point.settings for point in experiment.points}
    finished = set()
    for record in read_records(folder):
        path = folder / record.name
        now = points.get(record.point)
        if now is None:
            raise ValueError(
                f"{path} is of a point that {experiment.item} does not have ({record.point!r}): "
                "give these results another --name, or delete the old ones"
            )
        # Settings that did not exist when the record was made have the default, which changes nothing.
        before = build(Settings, record.config, f"the settings of {path}").of_result(record.model)
        check_settings(path, before, now.of_result(record.model))
        finished.add(path)
    return finished


def _trained_before(experiment: Experiment, run: Run, folder: Path) -> tuple[Record, Checkpoint] | None:
    """The record and the weights of the same run in another item, if both are there."""
    for item in experiment.reuse:
        other = folder.parent / folder_name(item, experiment.preset)
        for name in (run.point.name, ""):
            there = replace(run, point=replace(run.point, name=name))
            record, weights = there.record(other), there.weights(other)
            if record.exists() and weights.exists() and (found := load_checkpoint(weights)).run == run.identity():
                return read_record(record), found
    return None


def _groups(runs: Sequence[Run], shared: bool) -> list[list[Run]]:
    """The runs to train at once: where they share a GPU up to `MOST_AT_ONCE` of equal shape, else each network alone.

    The folds of an RBM are trained by a batch of matrix products, which a CPU too does faster at once.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        used = [getattr(run.settings, name) for name in sections(run.model) if name not in ("data", "measure")]
        data = run.settings.data
        shape = (run.model, data.size, data.train - data.held_out, *used)
        groups.setdefault(shape if shared or run.model in UNSUPERVISED else run, []).append(run)
    starts = [(group, start) for group in groups.values() for start in range(0, len(group), MOST_AT_ONCE)]
    return [group[start : start + MOST_AT_ONCE] for group, start in starts]


def _record(run: Run, outcome: Outcome, device: str) -> Record:
    """What training says about a run."""
    history = outcome.history
    return Record(
        experiment="",
        model=run.model,
        fold=run.fold,
        seed=run.seed,
        test_error=history[-1].test_error,
        config={},
        environment=describe_environment(device),
        history=history,
        parameters=outcome.parameters,
        seconds=sum(entry.seconds for entry in history) + outcome.other_seconds,
        seconds_per_epoch=median(entry.seconds for entry in history),
        runs_together=outcome.runs_together,
        series=outcome.series,
    )


def _finish(run: Run, folder: Path, trained: Record, weights: Checkpoint, store: DigitStore) -> None:
    """Measure what the experiment measures, and write the record."""
    series = trained.series
    if run.settings.measure.kind:
        network = run.network()
        check_shapes(run.weights(folder), weights.tensors, network.state_dict())
        network.load_state_dict(weights.tensors)
        series = measure(run, network.to(store.device), store.of(run.settings.data, run.fold))
    record = replace(
        trained,
        experiment=folder.name,
        config=run.settings.as_dict(run.model),
        point=run.point.name,
        x=run.point.x,
        label=run.point.label,
        series=series,
        test_error=fmean(series["test_error"].y) if "test_error" in series else trained.history[-1].test_error,
    )
    write_record(folder, record)


class ProgressDisplay:
    """A `Watcher` that shows a line for the item, and one per run: epoch, loss, error, rate, time left.

    Finished runs are removed, since an item may have a hundred. Without a terminal it prints nothing.
    """

    def __init__(self, console: Console) -> None:
        self.progress = make_progress(console)
        self.item = self.progress.add_task("", total=None, figures="", visible=False)
        self.tasks: dict[str, TaskID] = {}
        self.errors: dict[str, str] = {}  # of the last test

    def __enter__(self) -> "ProgressDisplay":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __reduce__(self) -> tuple[type[Silent], tuple[()]]:
        """On another machine it shows nothing."""
        return Silent, ()

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
