"""Runs an experiment: every model on every fold, each run leaving one record.

Finished runs are skipped, interrupted ones go on from their checkpoint. On a GPU all folds of a model train together;
on the CPU they take turns.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from ..data import Split, load_digits, make_folds, make_set, parse_scales, subtract_mean
from ..models import make_model
from .checkpoint import Checkpoint, difference, read_checkpoint, write_checkpoint
from .config import DataConfig, Experiment
from .records import Epoch, Record, describe_environment, read_record, read_records, record_path, write_record
from .together import Together
from .training import Trainer, count_errors


class Watcher(Protocol):
    """Is told how the runs go on, for display only."""

    def begin(self, model: str, fold: int, epochs: int, done: int) -> None: ...

    def epoch(self, model: str, fold: int, entry: Epoch) -> None: ...

    def skip(self, model: str, fold: int, epochs: int) -> None: ...


@dataclass(frozen=True)
class Digits:
    """The scaled digits of an experiment on the device, and its folds."""

    images: Tensor
    labels: Tensor
    folds: tuple[Split, ...]


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"cannot write to {folder} ({error.strerror}): name another directory (--results)") from None
    finished = _finished(experiment, folder)
    pending: dict[str, list[int]] = {}
    for model in experiment.models:
        for fold in experiment.folds:
            if (model, fold, experiment.seed) in finished:
                if watcher:
                    watcher.skip(model, fold, experiment.training.epochs)
            else:
                pending.setdefault(model, []).append(fold)
    if pending:
        digits = prepare_digits(experiment.data, torch.device(device), data_dir)
        for model, folds in pending.items():
            for group in _groups(experiment, folder, model, folds, device):
                _train(experiment, folder, model, group, digits, watcher)
    paths = [record_path(folder, m, fold, experiment.seed) for m in experiment.models for fold in experiment.folds]
    return [read_record(path) for path in paths]


def prepare_digits(config: DataConfig, device: torch.device, data_dir: Path | None = None) -> Digits:
    """Scale the digits, move them to the device and divide them."""
    digits = load_digits(config.dataset, data_dir=data_dir)
    made = make_set(digits, parse_scales(config.scales), config.size, seed=config.seed)
    seed = config.fold_seed if config.fold_seed >= 0 else None
    folds = make_folds(made.labels, config.train, count=config.sets, seed=seed)
    return Digits(made.images.to(device), made.labels.to(device), folds)


def _finished(experiment: Experiment, folder: Path) -> set[tuple[str, int, int]]:
    """The runs that have a record. All records of a folder must be of these settings, or they could not be compared."""
    records = read_records(folder)
    for record in records:
        if record.config != experiment.settings():
            path = record_path(folder, record.model, record.fold, record.seed)
            raise ValueError(
                f"{path} was made with other settings ({difference(record.config, experiment.settings())}): "
                "give these results another --name, or delete the old ones"
            )
    return {(record.model, record.fold, record.seed) for record in records}


def _identify(experiment: Experiment, model: str, fold: int) -> dict[str, Any]:
    """All that identifies a run."""
    return {"model": model, "fold": fold, "seed": experiment.seed, "config": experiment.settings()}


def _checkpoint_path(folder: Path, model: str, fold: int, seed: int) -> Path:
    return folder / "checkpoints" / record_path(folder, model, fold, seed).with_suffix(".safetensors").name


def weights_path(folder: Path, model: str, fold: int, seed: int) -> Path:
    """Where the weights of a finished run lie."""
    return folder / "weights" / record_path(folder, model, fold, seed).with_suffix(".safetensors").name


def _groups(
    experiment: Experiment, folder: Path, model: str, folds: Iterable[int], device: str
) -> list[dict[int, Checkpoint | None]]:
    """The folds to train together: on a GPU all that stand at the same epoch, on the CPU each alone."""
    groups: dict[tuple[int, int], dict[int, Checkpoint | None]] = {}
    for fold in folds:
        path = _checkpoint_path(folder, model, fold, experiment.seed)
        checkpoint = read_checkpoint(path, _identify(experiment, model, fold)) if path.exists() else None
        alone = 0 if torch.device(device).type == "cuda" else fold
        groups.setdefault((checkpoint.epoch if checkpoint else 0, alone), {})[fold] = checkpoint
    return list(groups.values())


def _train(
    experiment: Experiment,
    folder: Path,
    model: str,
    group: dict[int, Checkpoint | None],
    digits: Digits,
    watcher: Watcher | None,
) -> None:
    recipe, seed = experiment.training, experiment.seed
    tests: dict[int, tuple[Tensor, Tensor]] = {}
    trainers: dict[int, Trainer] = {}
    histories: dict[int, list[Epoch]] = {}
    for fold, checkpoint in group.items():
        split = digits.folds[fold]
        train, test = (indices.to(digits.images.device) for indices in (split.train, split.test))
        train_images, test_images = subtract_mean(digits.images[train], digits.images[test])
        tests[fold] = (test_images, digits.labels[test])
        torch.manual_seed(seed)
        network = make_model(model, experiment.network.shape(experiment.data.size), experiment.network.scales)
        network.to(digits.images.device)
        trainers[fold] = Trainer(network, train_images, digits.labels[train], recipe, seed=seed, fold=fold)
        histories[fold] = list(checkpoint.history) if checkpoint else []
        if checkpoint:
            trainers[fold].load_state(checkpoint.tensors)
        if watcher:
            watcher.begin(model, fold, recipe.epochs, len(histories[fold]))
    together = Together(list(trainers.values()))
    done = len(next(iter(histories.values())))
    for epoch in range(done + 1, recipe.epochs + 1):
        start = time.perf_counter()
        together.epoch(epoch)
        losses = {fold: trainer.mean_loss() for fold, trainer in trainers.items()}
        for fold, loss in losses.items():
            if not math.isfinite(loss):
                raise ValueError(
                    f"{model}, fold {fold}, diverged: its loss is {loss} in epoch {epoch}; "
                    f"lower training.learning_rate (={recipe.learning_rate}) and delete {folder / 'checkpoints'}"
                )
        seconds = time.perf_counter() - start
        last = epoch == recipe.epochs
        for fold, trainer in trainers.items():
            error = None
            if last or epoch % recipe.evaluate_every == 0:
                wrong = count_errors(trainer.network, *tests[fold])
                error = 100 * wrong / len(tests[fold][1])
            entry = Epoch(epoch, losses[fold], error, seconds)
            histories[fold].append(entry)
            if not last and epoch % recipe.checkpoint_every == 0:
                state = Checkpoint(epoch, _identify(experiment, model, fold), histories[fold], trainer.state())
                write_checkpoint(_checkpoint_path(folder, model, fold, seed), state)
            if watcher:
                watcher.epoch(model, fold, entry)
    for fold, trainer in trainers.items():
        _finish(experiment, folder, model, fold, trainer, histories[fold], len(trainers))


def _finish(
    experiment: Experiment,
    folder: Path,
    model: str,
    fold: int,
    trainer: Trainer,
    history: list[Epoch],
    runs_together: int,
) -> None:
    """Keep the weights, write the record, and only then drop the checkpoint."""
    test_error = history[-1].test_error
    if test_error is None:
        raise ValueError(f"`history` of {model}, fold {fold}, must end with a test")
    run = _identify(experiment, model, fold)
    weights = {name.removeprefix("weight."): t for name, t in trainer.state().items() if name.startswith("weight.")}
    final = Checkpoint(len(history), run, [], weights)
    write_checkpoint(weights_path(folder, model, fold, experiment.seed), final)
    record = Record(
        experiment=folder.name,
        model=model,
        fold=fold,
        seed=experiment.seed,
        test_error=test_error,
        config=experiment.settings(),
        environment=describe_environment(str(trainer.images.device)),
        history=history,
        parameters=sum(parameter.numel() for parameter in trainer.network.parameters()),
        seconds=sum(entry.seconds for entry in history),
        seconds_per_epoch=median(entry.seconds for entry in history),
        runs_together=runs_together,
    )
    write_record(folder, record)
    _checkpoint_path(folder, model, fold, experiment.seed).unlink(missing_ok=True)
