"""Runs an experiment: every model at every point on every fold, each run leaving one record.

Finished runs are skipped, interrupted ones go on from their checkpoint, and networks that another item has trained
with the very same settings are taken over where the experiment says so. On a GPU runs of equal shape train together,
those of different points too; on the CPU networks take turns, and the folds of an RBM still go together.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import torch

from ..models import TITLES, UNSUPERVISED
from .checkpoint import Checkpoint, difference, load_checkpoint, write_checkpoint
from .config import OF_FEATURES, OF_NETWORKS, Experiment, Settings
from .descent import Outcome, descend
from .digits import DigitStore
from .features import learn_features
from .loading import folder_name
from .measures import measure
from .plan import Run, Silent, Watcher, plan_runs
from .records import Record, describe_environment, path_of, read_record, read_records, write_record
from .schema import build

TOGETHER = 6  # runs in a group on a GPU: beyond, a step takes as much longer as there are more of them

# How each model is trained: from runs that may go together to what is left of each. A model that is not trained by
# gradient descent has its own entry; it may leave checkpoints in the folder, or start over when it is interrupted.
Procedure = Callable[[Sequence[Run], DigitStore, Path, Watcher], dict[Run, Outcome]]
PROCEDURES: dict[str, Procedure] = {**dict.fromkeys(TITLES, descend), **dict.fromkeys(UNSUPERVISED, learn_features)}


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    watcher: Watcher | None = None,
) -> list[Record]:
    """Run what is not finished yet and return the records of all runs of the experiment.

    Args:
        experiment: what to run.
        folder: for its records; checkpoints and weights go into folders beside them.
        device: `cpu`, `cuda`, `cuda:1`, …
        data_dir: directory of the digits, if they are not the embedded ones.
        watcher: told of every epoch.
    """
    make_folder(folder)
    watcher = watcher or Silent()
    runs = plan_runs(experiment)
    finished = _finished(experiment, folder)
    watcher.plan(experiment.item, len(runs))
    store = DigitStore(torch.device(device), data_dir)
    pending = []
    for run in runs:
        if run.record(folder) in finished:
            watcher.end(run.title)
        elif trained := _trained_before(experiment, run, folder):
            _finish(run, folder, *trained, store)
            watcher.end(run.title)
        else:
            pending.append(run)
    for group in _groups(pending, store.device.type == "cuda"):
        for run, outcome in PROCEDURES[group[0].model](group, store, folder, watcher).items():
            weights = Checkpoint(len(outcome.history), run.identity(), [], outcome.weights)
            write_checkpoint(run.weights(folder), weights)
            _finish(run, folder, _record(run, outcome, device), weights, store)
            run.checkpoint(folder).unlink(missing_ok=True)
            watcher.end(run.title)
    return [read_record(run.record(folder)) for run in runs]


def make_folder(folder: Path) -> None:
    """Make the folder of an item, or say that it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"cannot write to {folder} ({error.strerror}): name another directory (--results)") from None


def _finished(experiment: Experiment, folder: Path) -> set[Path]:
    """The records that are there. Those of a point must be of its settings, or they could not be compared."""
    points = {point.name: point.settings for point in experiment.points}
    finished = set()
    for record in read_records(folder):
        path = path_of(folder, record)
        now = points.get(record.point)
        if now is None:
            raise ValueError(
                f"{path} is of a point that {experiment.item} does not have ({record.point!r}): "
                "give these results another --name, or delete the old ones"
            )
        # Settings that did not exist when the record was made have the value that changes nothing.
        before = build(Settings, record.config, f"the settings of {path}").deciding(record.model)
        if before != (wanted := now.deciding(record.model)):
            raise ValueError(
                f"{path} was made with other settings ({difference(before, wanted)}): "
                "give these results another --name, or delete the old ones"
            )
        finished.add(path)
    return finished


def _trained_before(experiment: Experiment, run: Run, folder: Path) -> tuple[Record, Checkpoint] | None:
    """The record and the weights of the same run in another item, if both are there."""
    for item in experiment.reuse:
        other = folder.parent / folder_name(item, experiment.preset)
        plain = replace(run, point=replace(run.point, name=""))
        record, weights = plain.record(other), plain.weights(other)
        if record.exists() and weights.exists() and (found := load_checkpoint(weights)).run == run.identity():
            return read_record(record), found
    return None


def _groups(runs: Sequence[Run], together: bool) -> list[list[Run]]:
    """The runs to hand over at once: on a GPU those of equal shape, `TOGETHER` at most; on the CPU each network alone.

    What learns features is a batch of matrix products, which a CPU too does faster at once.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        sections = [name for name in OF_FEATURES.get(run.model, OF_NETWORKS) if name not in ("data", "measure")]
        data = run.settings.data
        shape = (run.model, data.size, data.train - data.held_out, *(getattr(run.settings, name) for name in sections))
        groups.setdefault(shape if together or run.model in UNSUPERVISED else run, []).append(run)
    return [group[start : start + TOGETHER] for group in groups.values() for start in range(0, len(group), TOGETHER)]


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
        seconds=sum(entry.seconds for entry in history) + outcome.seconds_beside,
        seconds_per_epoch=median(entry.seconds for entry in history),
        runs_together=outcome.runs_together,
        series=outcome.series,
    )


def _finish(run: Run, folder: Path, trained: Record, weights: Checkpoint, store: DigitStore) -> None:
    """Measure what the experiment measures, and write the record."""
    series = trained.series
    if run.settings.measure.kind:
        network = run.network()
        network.load_state_dict(weights.tensors)
        series = measure(run, network.to(store.device), store.of(run.settings.data, run.fold))
    record = replace(
        trained,
        experiment=folder.name,
        config=run.settings.plain(run.model),
        point=run.point.name,
        x=run.point.x,
        label=run.point.label,
        series=series,
        test_error=fmean(series["test_error"].y) if "test_error" in series else trained.test_error,
    )
    write_record(folder, record)
