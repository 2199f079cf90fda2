"""Trains runs of one shape together by the paper's recipe, from where each stands, and keeps their state.

On a GPU all runs of a group share the steps; on the CPU they take turns, and a group is one run. How a step is made is
the business of `training.py` and `together.py`; here are epochs, tests and checkpoints.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from .checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from .digits import DigitStore, RunDigits
from .plan import Run, Watcher
from .records import Epoch, Series
from .together import Together
from .training import Trainer, count_errors

SECONDS_BETWEEN = 5.0  # checkpoints, at least: on a GPU ten epochs may take less time than one


@dataclass(frozen=True)
class Outcome:
    """What training leaves of a run.

    Attributes:
        weights: by name, as the network's `load_state_dict` takes them; of an RBM, with samples from it.
        history: of all epochs; the last one was tested.
        parameters: numbers learned.
        runs_together: how many runs shared the device.
        seconds_beside: of training that is in no epoch.
        series: what else training found out, by name.
    """

    weights: dict[str, Tensor]
    history: list[Epoch]
    parameters: int
    runs_together: int
    seconds_beside: float = 0.0
    series: dict[str, Series] = field(default_factory=dict)


def descend(runs: Sequence[Run], store: DigitStore, folder: Path, watcher: Watcher) -> dict[Run, Outcome]:
    """Train runs whose networks, recipes and numbers of batches are equal; those at the same epoch go together."""
    groups: dict[int, dict[Run, Checkpoint | None]] = {}
    for run in runs:
        path = run.checkpoint(folder)
        checkpoint = read_checkpoint(path, run.identity()) if path.exists() else None
        groups.setdefault(checkpoint.epoch if checkpoint else 0, {})[run] = checkpoint
    outcomes: dict[Run, Outcome] = {}
    for group in groups.values():
        outcomes |= _descend_together(group, store, folder, watcher)
    return outcomes


def _descend_together(
    group: dict[Run, Checkpoint | None], store: DigitStore, folder: Path, watcher: Watcher
) -> dict[Run, Outcome]:
    recipe = next(iter(group)).settings.training
    digits = {run: store.of(run.settings.data, run.fold) for run in group}
    trainers: dict[Run, Trainer] = {}
    histories: dict[Run, list[Epoch]] = {}
    for run, checkpoint in group.items():
        seen = digits[run]
        network = run.network().to(seen.train.device)
        trainers[run] = Trainer(network, seen.train, seen.train_labels, recipe, seed=run.seed, fold=run.fold)
        histories[run] = list(checkpoint.history) if checkpoint else []
        if checkpoint:
            trainers[run].load_state(checkpoint.tensors)
        watcher.begin(run, len(histories[run]))
    together = Together(list(trainers.values()))
    done = len(next(iter(histories.values())))
    saved = time.perf_counter()
    for epoch in range(done + 1, recipe.epochs + 1):
        start = time.perf_counter()
        together.epoch(epoch)
        losses = {run: trainer.mean_loss() for run, trainer in trainers.items()}
        _refuse_divergence(losses, epoch, folder)
        seconds = time.perf_counter() - start
        last = epoch == recipe.epochs
        due = epoch % recipe.checkpoint_every == 0 and time.perf_counter() - saved >= SECONDS_BETWEEN
        for run, trainer in trainers.items():
            tested = last or epoch % recipe.evaluate_every == 0
            entry = Epoch(epoch, losses[run], _test(trainer, digits[run]) if tested else None, seconds)
            histories[run].append(entry)
            if due and not last:
                state = Checkpoint(epoch, run.identity(), histories[run], trainer.state())
                write_checkpoint(run.checkpoint(folder), state)
            watcher.epoch(run, entry)
        saved = time.perf_counter() if due else saved
    return {run: _outcome(trainer, histories[run], len(trainers)) for run, trainer in trainers.items()}


def _test(trainer: Trainer, digits: RunDigits) -> float:
    return 100 * count_errors(trainer.network, digits.test, digits.test_labels) / len(digits.test_labels)


def _outcome(trainer: Trainer, history: list[Epoch], runs_together: int) -> Outcome:
    weights = {name.removeprefix("weight."): t for name, t in trainer.state().items() if name.startswith("weight.")}
    parameters = sum(parameter.numel() for parameter in trainer.network.parameters())
    return Outcome(weights, history, parameters, runs_together)


def _refuse_divergence(losses: dict[Run, float], epoch: int, folder: Path) -> None:
    for run, loss in losses.items():
        if not math.isfinite(loss):
            raise ValueError(
                f"{run.title} diverged: its loss is {loss} in epoch {epoch}; lower training.learning_rate "
                f"(={run.settings.training.learning_rate}) and delete {folder / 'checkpoints'}"
            )
