"""A run: (network, source, recipe, seed) → record. Which there are, what is left to do, and what is done for each.

Finished runs are skipped and interrupted ones resume from their checkpoint. Networks that another item has trained with
the very same settings are used again where the item says so. On a GPU, runs of equal shape are trained at once; on a
CPU networks take turns, and only the folds of an RBM are trained at once.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..data import ImageData
from ..data.files import atomic_path, check_folder, remove_leftovers
from ..environment import describe_environment
from ..models import UNSUPERVISED, Classifier, Fold, Recipe, UnsupervisedSettings, train_unsupervised
from .checkpoint import (
    Checkpoint,
    check_settings,
    check_shapes,
    encode_checkpoint,
    load_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from .engine import Engine, Local, Silent, Watcher
from .items import Experiment, Run, folder_name, plan_runs
from .measures import MEASURES, Tally, Trained, check_measure, measure_cost, score
from .methods import TITLES, epochs_of, of_result
from .processes import agreed, any_process, is_first, make_fabric, noted_signals, noticing_loss
from .records import Epoch, Record, Series, read_records, run_file, summary_writer, write_log, write_record
from .settings import DigitData, FolderData, Settings
from .sources import Source, Sources, images_of
from .trainer import Trainer, TrainerGroup

MOST_AT_ONCE = 6  # runs trained at once on a GPU: from there on, the time of a step grows with their number
SECONDS_BETWEEN = 10.0  # checkpoints, at least
SHARE_OF_TIME = 0.02  # that checkpoints may take


@dataclass(frozen=True)
class Outcome:
    """What a run has left: its record, and its weights as the bytes of a file."""

    record: Record
    weights: bytes


@dataclass(frozen=True)
class Options:
    """How runs are done, whatever they are.

    Attributes:
        device: `cpu`, `cuda`, `cuda:1`, …
        data_dir: directory of the digits, if they are not the embedded ones.
        images: the user's, for runs on those.
        workers: processes that decode images.
        tensorboard: whether to log for TensorBoard too.
    """

    device: str = "cpu"
    data_dir: Path | None = None
    images: ImageData | None = None
    workers: int = 0
    tensorboard: bool = False


@dataclass(frozen=True)
class Task:
    """Runs that are trained at once; or one that another item has trained: its record and its weights."""

    runs: tuple[Run, ...]
    trained: tuple[Record, Checkpoint] | None = None


@noticing_loss()
def run_experiment(
    experiment: Experiment,
    folder: Path,
    options: Options | None = None,
    *,
    watcher: Watcher | None = None,
    engine: Engine | None = None,
    runs: Sequence[Run] | None = None,
) -> list[Record]:
    """Run what is not finished yet and return the records of all runs of the experiment.

    Args:
        experiment: what to run.
        folder: of its weights; its records are in a file beside it, of the same name.
        options: how.
        watcher: is told of every epoch.
        engine: where to train; None is this process.
        runs: those of the experiment, if not all.

    Raises:
        ValueError: a setting cannot be, the loss became infinite, or there are records of other settings.
        ImportError: a package is missing.
        OSError: a file cannot be read or written.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the checkpoint was written.
    """
    folder, options = Path(folder), options or Options()
    watcher, engine = watcher or Silent(), engine or Local()
    runs = plan_runs(experiment) if runs is None else runs
    check_runs(runs, folder, options)
    watcher.plan(experiment.item, len(runs))
    tasks = agreed(options.device, lambda: _tasks(experiment, runs, folder, options, watcher, engine))
    sources = Sources(options.device, options.data_dir, options.images)
    work = partial(_work, sources=sources, options=options)
    titles = {run.name: run.title for run in runs}
    with closing(engine.run(work, tasks, folder, watcher)) as results:
        for outcomes in results:
            for outcome in outcomes if is_first() else ():
                save(folder, outcome)
            for outcome in outcomes:
                watcher.end(titles[outcome.record.name])
    records: list[Record] = agreed(
        options.device, lambda: [each for each in read_records(folder) if each.name in titles]
    )
    return records


def check_runs(runs: Sequence[Run], folder: Path, options: Options) -> None:
    """Refuse what cannot be done before anything is; see `run_experiment`."""
    if is_first():
        check_folder(folder)  # the first file that is written makes it: a run that is refused leaves none
        finished_runs(runs, folder)
    for run in {(run.model, run.point.name): run for run in runs}.values():
        if run.model not in UNSUPERVISED:
            images, _ = images_of(run.settings.data)
            check_measure(run.settings.measure, run.model, run.make(images))
    if options.tensorboard:
        summary_writer()


def save(folder: Path, outcome: Outcome) -> None:
    """Write weights, then the record, which says that they are there, and remove the checkpoint."""
    name = outcome.record.name
    with atomic_path(run_file(folder, name, "weights")) as part:
        part.write_bytes(outcome.weights)
    write_record(folder, msgspec.structs.replace(outcome.record, experiment=folder.name))
    run_file(folder, name, "checkpoints").unlink(missing_ok=True)


def _tasks(
    experiment: Experiment, runs: Sequence[Run], folder: Path, options: Options, watcher: Watcher, engine: Engine
) -> list[Task]:
    """What is left to do."""
    finished, pending, tasks = finished_runs(runs, folder), list[Run](), list[Task]()
    for run in runs:
        for path in (run.checkpoint(folder), run.weights(folder)):
            remove_leftovers(path)
        if run.name in finished:
            run.checkpoint(folder).unlink(missing_ok=True)  # of a run that was killed when it had just finished
            watcher.end(run.title)
        elif trained := _trained_before(experiment, run, folder):
            tasks.append(Task((run,), trained))
        else:
            pending.append(run)
    shared = engine.groups and torch.device(options.device).type == "cuda"
    return tasks + [Task(tuple(group)) for group in _groups(pending, shared)]


def finished_runs(runs: Sequence[Run], folder: Path) -> set[str]:
    """The runs that have a record. Those of a point must be of its settings, or they could not be compared.

    Raises:
        ValueError: a record has other settings, or is of a point that there is not.
    """
    known = {(run.model, run.point.name): run for run in runs}
    points = {run.point.name for run in runs}
    finished = set()
    for record in read_records(folder):
        where = f"{record.name} in {folder.name}"
        if record.point not in points:
            raise ValueError(
                f"{where} is of a point that the item does not have ({record.point!r}): "
                "give these results another --name, or delete the old ones"
            )
        if run := known.get((record.model, record.point)):
            check_settings(where, of_result(run.model, record.config), of_result(run.model, run.config))
        finished.add(record.name)
    return finished


def _trained_before(experiment: Experiment, run: Run, folder: Path) -> tuple[Record, Checkpoint] | None:
    """The record and the weights of the same run in another item, if both are there."""
    for item in experiment.reuse:
        other = folder.parent / folder_name(item, experiment.preset)
        records = {record.name: record for record in read_records(other)}
        for name in (run.point.name, ""):
            there = replace(run, point=msgspec.structs.replace(run.point, name=name))
            record, weights = records.get(there.name), there.weights(other)
            if record and weights.exists() and (found := load_checkpoint(weights)).run == run.identity():
                return record, found
    return None


def _groups(runs: Sequence[Run], shared: bool) -> list[list[Run]]:
    """The runs to train at once: where they share a GPU up to `MOST_AT_ONCE` of equal shape, else each network alone.

    The folds of an RBM are trained by a batch of matrix products, which a CPU too does faster at once.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        used = {key: value for key, value in run.config.items() if key not in ("data", "measure")}
        data = run.settings.data
        size = (images_of(data)[0].size, data.train - (data.held_out if isinstance(data, DigitData) else 0))
        shape = (run.model, size, msgspec.json.encode(used, order="sorted"))
        groups.setdefault(shape if shared or run.model in UNSUPERVISED else run.name, []).append(run)
    starts = [(group, start) for group in groups.values() for start in range(0, len(group), MOST_AT_ONCE)]
    return [group[start : start + MOST_AT_ONCE] for group, start in starts]


def _work(task: Task, folder: Path, watcher: Watcher, *, sources: Sources, options: Options) -> list[Outcome]:
    """Train runs at once, unless they were."""
    if task.trained:
        return [_measured_again(task.runs[0], *task.trained, sources)]
    if task.runs[0].model in UNSUPERVISED:
        return _train_features(task.runs, sources, options, watcher)
    groups: dict[tuple[int, int], dict[Run, Checkpoint | None]] = {}
    for run in task.runs:
        found = agreed(options.device, partial(_checkpoint, run, folder))
        at = (len(found.history), int(found.tensors["cursor"])) if found else (0, 0)
        groups.setdefault(at, {})[run] = found
    return [outcome for group in groups.values() for outcome in _train(group, sources, folder, options, watcher)]


def _checkpoint(run: Run, folder: Path) -> Checkpoint | None:
    path = run.checkpoint(folder)
    return read_checkpoint(path, run.identity()) if path.exists() else None


def _train(
    group: dict[Run, Checkpoint | None], sources: Sources, folder: Path, options: Options, watcher: Watcher
) -> list[Outcome]:
    """Train runs with equal networks, recipes and numbers of steps, which stand at the same step."""
    settings = next(iter(group)).settings.training
    fabric = make_fabric(options.device, settings.precision)
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(fabric.device)
    trainers, histories = dict[Run, Trainer](), dict[Run, list[Epoch]]()
    for run, checkpoint in group.items():
        source = sources.open(run.settings.data, run.fold)
        about = {"seed": run.seed, "fold": run.fold, "workers": options.workers}
        trainers[run] = Trainer(run.classifier(source), source, settings, fabric, **about)
        histories[run] = list(checkpoint.history) if checkpoint else []
        watcher.begin(run.title, settings.epochs, len(histories[run]))
    trained = TrainerGroup(list(trainers.values()))
    epoch, done = len(next(iter(histories.values()))) + 1, 0
    for run, checkpoint in group.items():
        if checkpoint and len(checkpoint.history) < settings.epochs:
            trainers[run].begin_epoch(epoch)
            trainers[run].load_state(run.checkpoint(folder), checkpoint.tensors)
            done = int(trainers[run].cursor) % trained.steps
    outcomes: dict[Run, Outcome] = {}
    spent = max(float(trainer.seconds) for trainer in trainers.values()) if done else 0.0
    clock = _Clock()
    with noted_signals() as received:
        while len(outcomes) < len(trainers):
            start = time.perf_counter()
            for done in trained.run_epoch(epoch, done):  # noqa: B020
                for run in group.keys() - outcomes.keys():
                    watcher.advance(run.title, epoch - 1 + done / trained.steps, "")
                stopped, due = any_process(fabric, bool(received), clock.due())
                if (stopped or due) and done < trained.steps and not outcomes:
                    with clock.writing():
                        _save_states(trainers, histories, folder, spent + time.perf_counter() - start)
                if stopped and done < trained.steps:
                    raise KeyboardInterrupt
            losses = {run: trainer.epoch_loss() for run, trainer in trainers.items() if run not in outcomes}
            _refuse_divergence(losses, epoch, folder)
            seconds, spent, done = spent + time.perf_counter() - start, 0.0, 0
            for run, loss in losses.items():
                trainer, history = trainers[run], histories[run]
                ended = settings.ended([*(entry.train_loss for entry in history), loss])
                tested = ended or bool(settings.evaluate_every and epoch % settings.evaluate_every == 0)
                history.append(_tested(trainer, Epoch(epoch, loss, None, seconds), history, tested))
                if isinstance(run.settings.data, FolderData) and is_first():
                    write_log(folder, run.name, history, tensorboard=options.tensorboard)
                watcher.advance(run.title, epoch, _figures(history[-1]))
                if ended:  # while others of the group train on, and this one with them
                    outcomes[run] = _finish(run, trainer, history, len(trainers), options.device)
            stopped, due = any_process(fabric, bool(received), clock.due())  # also while it was tested
            if (stopped or due) and not outcomes:
                with clock.writing():
                    _save_states(trainers, histories, folder, 0.0)
            if stopped:
                for outcome in outcomes.values() if fabric.is_global_zero else ():
                    save(folder, outcome)
                raise KeyboardInterrupt
            epoch += 1
    return [outcomes[run] for run in group]


def _tested(trainer: Trainer, entry: Epoch, history: Sequence[Epoch], tested: bool) -> Epoch:
    """The entry with the errors that are due; the network with the least validation error may be kept."""
    scored, source = _scorer(trainer), trainer.source
    if len(source.val):
        subject = trainer.network if trainer.settings.keep == "best" else trainer.tested
        val_error = scored(subject, source.val).error()
        trainer.keep_best([*(each.val_error for each in history if each.val_error is not None), val_error])
        entry = msgspec.structs.replace(entry, val_error=val_error)
    if tested:
        entry = msgspec.structs.replace(entry, test_error=scored(trainer.tested, source.test).error())
    return entry


def _scorer(trainer: Trainer) -> Callable[..., Tally]:
    """Tests networks as they are trained: in the same precision, by the same processes."""
    how = {"fabric": trainer.fabric, "workers": trainer.workers, "precision": trainer.settings.precision}
    return partial(score, uncounted=trainer.source.uncounted, **how)


def _finish(run: Run, trainer: Trainer, history: list[Epoch], together: int, device: str) -> Outcome:
    """Measure what the run measures on its trained network, and what that costs."""
    network = run.classifier(trainer.source).to(trainer.device)  # as it is loaded again: with its own norms
    network.load_state_dict(trainer.tested.state_dict())
    series = _measured(run, network, trainer.source, _scorer(trainer))
    own = isinstance(run.settings.data, FolderData) and trainer.fabric.is_global_zero
    recipe = trainer.settings
    cost = measure_cost(network, trainer.source.test, recipe.batch, recipe.precision) if own else {}
    parameters = sum(parameter.numel() for parameter in network.parameters())
    outcome = _outcome(run, history, network.state_dict(), parameters, together, device, series, cost)
    if (world := trainer.fabric.world_size) > 1:
        environment = {**outcome.record.environment, "processes": world}
        outcome = replace(outcome, record=msgspec.structs.replace(outcome.record, environment=environment))
    return outcome


def _measured(run: Run, network: Classifier, source: Source, scored: Callable[..., Tally]) -> dict[str, Series]:
    settings = run.settings.measure
    if not settings.kind:
        return {}
    return MEASURES[settings.kind](Trained(network, partial(run.classifier, source), source, settings, scored))


def _measured_again(run: Run, trained: Record, weights: Checkpoint, sources: Sources) -> Outcome:
    """What another item has trained, measured as this run wants it."""
    source = sources.open(run.settings.data, run.fold)
    network = run.classifier(source)
    check_shapes(run.name, weights.tensors, network.state_dict())
    network.load_state_dict(weights.tensors)
    scored = partial(score, uncounted=source.uncounted, precision=run.settings.training.precision)
    series = _measured(run, network.to(sources.device), source, scored) or trained.series
    record = msgspec.structs.replace(
        trained,
        config=run.config,
        point=run.point.name,
        x=run.point.x,
        label=run.point.label,
        series=series,
        test_error=_test_error(series, trained.history),
    )
    return Outcome(record, encode_checkpoint(weights))


def _outcome(
    run: Run,
    history: list[Epoch],
    tensors: Mapping[str, Tensor],
    parameters: int,
    together: int,
    device: str,
    series: dict[str, Series],
    cost: dict[str, float] | None = None,
) -> Outcome:
    record = Record(
        experiment="",
        model=run.model,
        fold=run.fold,
        seed=run.seed,
        test_error=_test_error(series, history),
        config=run.config,
        environment=describe_environment(device),
        history=history,
        parameters=parameters,
        seconds=sum(entry.seconds for entry in history),
        seconds_per_epoch=median(entry.seconds for entry in history),
        runs_together=together,
        point=run.point.name,
        x=run.point.x,
        label=run.point.label,
        series=series,
        cost=cost or {},
    )
    return Outcome(record, encode_checkpoint(Checkpoint(run.identity(), history, dict(tensors))))


def _test_error(series: dict[str, Series], history: Sequence[Epoch]) -> float | None:
    return fmean(series["test_error"].y) if "test_error" in series else history[-1].test_error


def _save_states(trainers: dict[Run, Trainer], histories: dict[Run, list[Epoch]], folder: Path, seconds: float) -> None:
    """Write the checkpoints of runs; all processes take part, because each has a share of the loss."""
    for run, trainer in trainers.items():
        trainer.seconds.fill_(seconds)
        if trainer.fabric.world_size > 1:
            trainer.loss.copy_(trainer.fabric.all_reduce(trainer.loss))
        if trainer.fabric.is_global_zero:
            write_checkpoint(run.checkpoint(folder), Checkpoint(run.identity(), histories[run], trainer.state()))


def _refuse_divergence(losses: dict[Run, float], epoch: int, folder: Path) -> None:
    for run, loss in losses.items():
        if not math.isfinite(loss):
            rate = run.settings.training.learning_rate
            raise ValueError(
                f"{run.title} diverged: its loss is {loss} in epoch {epoch}; lower the learning rate (={rate}) and "
                f"delete {run.checkpoint(folder)} if it is there"
            )


def _figures(entry: Epoch) -> str:
    """What there is to say about an epoch."""
    parts = [f"loss {entry.train_loss:.4f}"]
    parts += [f"val {entry.val_error:.2f} %"] if entry.val_error is not None else []
    parts += [f"error {entry.test_error:.2f} %"] if entry.test_error is not None else []
    return "  ".join(parts)


class _Clock:
    """Says when a checkpoint is due: not too often, and so that they take a small share of the time."""

    def __init__(self) -> None:
        self.next = time.perf_counter() + SECONDS_BETWEEN

    def due(self) -> bool:
        return time.perf_counter() >= self.next

    @contextmanager
    def writing(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        end = time.perf_counter()
        self.next = end + max(SECONDS_BETWEEN, (end - start) / SHARE_OF_TIME)


def _train_features(runs: Sequence[Run], sources: Sources, options: Options, watcher: Watcher) -> list[Outcome]:
    """Train runs of one method that learns features without labels, all folds at once; they have no checkpoints."""
    model, settings = runs[0].model, runs[0].settings
    folds = []
    for run in runs:
        watcher.begin(run.title, epochs_of(model, settings), 0)
        source = sources.open(run.settings.data, run.fold)
        folds.append(Fold(*source.train.tensors, *source.test.tensors, start=run.start))  # type: ignore[misc]

    def watch(progress: Any) -> None:
        for run, loss in zip(runs, progress.reconstruction.tolist(), strict=True):
            watcher.advance(run.title, progress.epoch, f"loss {loss:.4f}")

    try:
        found = train_unsupervised(model, folds, _feature_settings(model, settings), seed=runs[0].seed, watch=watch)
    except ValueError as error:
        raise ValueError(f"{TITLES[model]}: {error}, in the settings [{model}]") from None
    outcomes = []
    for run, result in zip(runs, found, strict=True):
        pairs = zip(result.reconstruction, result.epoch_seconds, strict=True)
        history = [Epoch(number, loss, None, seconds) for number, (loss, seconds) in enumerate(pairs, start=1)]
        together = len(runs) if history else 1
        if not history:  # pixels: a classifier only
            history = [Epoch(1, result.held_out_losses[result.penalty], None, result.seconds)]
        history[-1] = msgspec.structs.replace(history[-1], test_error=result.test_error)
        held_out = {"held_out_loss": result.held_out_losses, "held_out_error": result.held_out_errors}
        series = {name: Series(list(values), list(values.values())) for name, values in held_out.items()}
        tensors = result.weights if result.samples is None else {**result.weights, "samples": result.samples}
        outcome = _outcome(run, history, tensors, result.parameters, together, options.device, series)
        record = msgspec.structs.replace(outcome.record, seconds=result.seconds)
        outcomes.append(replace(outcome, record=record))
    return outcomes


def _feature_settings(model: str, settings: Settings) -> UnsupervisedSettings:
    """What `train_unsupervised` is told of a method's settings."""
    found = UnsupervisedSettings(penalties=settings.softmax.penalties, held_out=settings.softmax.held_out)
    if model == "pixels":
        return found
    values = msgspec.structs.asdict(settings.rbm if model == "rbm" else settings.si_rbm)
    found = replace(found, hidden=values.pop("hidden"), scales=values.pop("scales", found.scales))
    return replace(found, recipe=Recipe(**values))
