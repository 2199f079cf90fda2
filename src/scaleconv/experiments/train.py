"""Trains the runs of an experiment: which there are, the digits each one sees, and what training leaves of it.

A run is one model on one fold at one point. Its paths follow from it alone, so an interrupted experiment finds what it
left behind. Networks are trained by stochastic gradient descent (`sgd.py`), with tests and checkpoints in between; RBMs
and the softmax on pixels by `train_unsupervised`, all folds at once and without checkpoints, since they take minutes.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..data import (
    Digits,
    Fixed,
    ScaleDistribution,
    ScaledSet,
    Scenes,
    Split,
    hold_out,
    load_digits,
    make_folds,
    make_scaled,
    make_scenes,
    make_set,
    make_split,
    parse_scales,
    scalar_mean,
)
from ..data.appearance import shift, smooth
from ..models import AUGMENTED, Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised
from ..models.rbm import Progress
from .checkpoint import Checkpoint, check_shapes, read_checkpoint, write_checkpoint
from .config import TITLES, DataConfig, Settings
from .experiment import Experiment, Point
from .records import Epoch, Series, record_name, run_file
from .sgd import Trainer, TrainerGroup, error_rate

SECONDS_BETWEEN = 5.0  # checkpoints, at least: on a GPU ten epochs may take less time than one


@dataclass(frozen=True)
class Run:
    """One network on one fold at one point."""

    model: str
    point: Point
    fold: int
    seed: int

    @property
    def settings(self) -> Settings:
        return self.point.settings

    @property
    def title(self) -> str:
        at = f", {self.point.title}" if self.point.title else ""
        return f"{TITLES[self.model]}{at}, fold {self.fold}"

    def identity(self) -> dict[str, Any]:
        """All that its weights depend on."""
        config = self.settings.of_weights(self.model)
        return {"model": self.model, "fold": self.fold, "seed": self.seed, "config": config}

    def record(self, folder: Path) -> Path:
        return folder / record_name(self.model, self.point.name, self.fold, self.seed)

    def checkpoint(self, folder: Path) -> Path:
        """The state of the unfinished run."""
        return run_file(self.record(folder), "checkpoints")

    def weights(self, folder: Path) -> Path:
        """The weights of the finished run."""
        return run_file(self.record(folder), "weights")

    def network(self) -> nn.Module:
        """Its network as it is before training, on the CPU."""
        torch.manual_seed(self.seed)
        return self.settings.network.make(self.model, self.settings.data.size)


def plan_runs(experiment: Experiment) -> list[Run]:
    """All runs, model by model, point by point."""
    return [
        Run(model, point, fold, experiment.seed)
        for model in experiment.models
        for point in experiment.points
        for fold in experiment.folds
    ]


class Watcher(Protocol):
    """Is told about the progress of runs, for display only."""

    def plan(self, title: str, runs: int) -> None:
        """This many runs are to be done."""

    def begin(self, run: Run, done: int) -> None:
        """A run begins, or resumes after this many epochs."""

    def epoch(self, run: Run, entry: Epoch) -> None:
        """A run has finished an epoch."""

    def end(self, title: str) -> None:
        """A run is finished, now or earlier."""


class Silent:
    """A `Watcher` that says nothing."""

    def plan(self, title: str, runs: int) -> None: ...

    def begin(self, run: Run, done: int) -> None: ...

    def epoch(self, run: Run, entry: Epoch) -> None: ...

    def end(self, title: str) -> None: ...


@dataclass(frozen=True)
class RunDigits:
    """The digits of one run, on its device.

    Attributes:
        train, test, val: images (N, 1, H, W). The mean of the training pixels, one number, is subtracted (appendix C).
        train_labels, test_labels, val_labels: (N,), or (N, H, W) where the images are scenes.
        originals, original_labels: (N, 28, 28) uint8 and (N,), the test digits as published.
        mean: of the training pixels.
        config: how they were made.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    val: Tensor
    val_labels: Tensor
    originals: Tensor
    original_labels: Tensor
    mean: float
    config: DataConfig

    def at_scale(self, scale: float, count: int | None = None, size: int | None = None) -> tuple[Tensor, Tensor]:
        """The test images with all digits at one scale instead of their own, as the network would see them; labels.

        What leaves the canvas, which may have a size of its own, is cut off. Scenes are composed anew, since fewer
        large digits have room in one.
        """
        config = replace(self.config, size=size or self.config.size)
        if config.scene:
            scenes = compose(self.originals, self.original_labels, Fixed(scale), config, test=True, count=count)
            return scenes.images - self.mean, scenes.labels
        made = make_scaled(self.originals[:count], scale, config.size, config.interpolation, truncate="allow")
        made = appearance(made, scale, config, self.originals.shape[2])
        return made - self.mean, self.original_labels[:count]

    def pixels(self, images: Tensor) -> Tensor:
        """Images as they were before the mean was subtracted, in [0, 1]."""
        return (images + self.mean).clamp(0, 1)

    def blank(self) -> Tensor:
        """An empty image, as the network would see it: (1, 1, H, W)."""
        return torch.full_like(self.test[:1], -self.mean)


class DigitStore:
    """Makes the digits of runs; each scaled set is made once and shared by all runs that use it."""

    def __init__(self, device: torch.device | str, data_dir: Path | None = None) -> None:
        self.device, self.data_dir = torch.device(device), data_dir
        self._digits: dict[tuple[str, str], Digits] = {}
        self._sets: dict[DataConfig, ScaledSet] = {}

    def of(self, config: DataConfig, fold: int) -> RunDigits:
        digits = self._load(config)
        split = divide(digits.labels, config, fold)
        train, test = (self._images(config, part, test=part is split.test) for part in (split.train, split.test))
        val = self._images(config, split.val, test=True) if config.val else (test[0][:0], test[1][:0])
        mean = scalar_mean(train[0])
        return RunDigits(
            train=train[0] - mean,
            train_labels=train[1],
            test=test[0] - mean,
            test_labels=test[1],
            val=val[0] - mean,
            val_labels=val[1],
            originals=digits.images[split.test].to(self.device),
            original_labels=digits.labels[split.test].to(self.device),
            mean=mean,
            config=config,
        )

    def _images(self, config: DataConfig, part: Tensor, *, test: bool) -> tuple[Tensor, Tensor]:
        """Images made of some of the digits, and their labels."""
        if config.scene:
            digits = self._load(config)
            images, labels = digits.images[part].to(self.device), digits.labels[part].to(self.device)
            scenes = compose(images, labels, parse_scales(config.scales), config, test=test)
            return scenes.images, scenes.labels
        made, part = self._scaled(config), part.to(self.device)
        return made.images[part], made.labels[part]

    def _load(self, config: DataConfig) -> Digits:
        key = (config.dataset, config.part)
        if key not in self._digits:
            self._digits[key] = load_digits(config.dataset, config.part or None, data_dir=self.data_dir)
        return self._digits[key]

    def _scaled(self, config: DataConfig) -> ScaledSet:
        named = ("dataset", "part", "scales", "interpolation", "smoothed", "shifted", "size", "seed", "truncate")
        key = DataConfig(**{name: getattr(config, name) for name in named})  # the rest does not change the set
        if key not in self._sets:
            made = make_set(
                self._load(config),
                parse_scales(config.scales),
                config.size,
                seed=config.seed,
                interpolation=config.interpolation,
                truncate=config.truncate,
            )
            images, labels, factors = (part.to(self.device) for part in (made.images, made.labels, made.scales))
            images = appearance(images, factors, config, self._load(config).images.shape[2])
            self._sets[key] = ScaledSet(images, labels, factors, made.parameters)
        return self._sets[key]


def appearance(images: Tensor, scales: Tensor | float, config: DataConfig, side: int) -> Tensor:
    """Scaled digits, made from images of a side, as the settings want them to look."""
    images = shift(images, scales, side, config.seed) if config.shifted else images
    return smooth(images, scales) if config.smoothed else images


def compose(
    images: Tensor,
    labels: Tensor,
    scales: ScaleDistribution,
    config: DataConfig,
    *,
    test: bool,
    count: int | None = None,
) -> Scenes:
    """As many scenes as there are digits, or the first of them; for training and test they are laid out differently."""
    return make_scenes(
        images,
        labels,
        scales,
        min(count or len(images), len(images)),
        config.size,
        digits=config.scene,
        pieces=config.pieces,
        noise=config.noise,
        seed=2 * config.seed + test,
    )


def divide(labels: Tensor, config: DataConfig, fold: int) -> Split:
    """Which digits train and test in a fold.

    With `test` digits named, each fold is a draw of its own: for one fold the test digits are the same whatever the
    number of training digits, and a smaller training set is part of a larger one.

    Raises:
        ValueError: there are too few digits.
    """
    needed = config.train + config.val + config.test if config.test else config.train * config.sets
    if needed > len(labels):
        rule = f"`test` (={config.test})" if config.test else f"each of `sets` (={config.sets})"
        raise ValueError(
            f"`data.train` (={config.train}) with {rule} must not need more than the {len(labels)} digits of "
            f"{config.dataset}, got {needed}"
        )
    if config.test:
        seed, stratified = config.fold_seed + fold, config.stratified
        split = make_split(labels, config.train, config.test, val=config.val, seed=seed, stratified=stratified)
    else:
        order = config.fold_seed if config.fold_seed >= 0 else None
        split = make_folds(labels, config.train, count=config.sets, seed=order)[fold]
    split = replace(split, test=split.test[: config.tested or None])
    return hold_out(split, config.held_out, labels) if config.held_out else split


@dataclass(frozen=True)
class Outcome:
    """What training leaves of a run.

    Attributes:
        weights: by name, as the network's `load_state_dict` takes them; of an RBM, with samples from it.
        history: of all epochs; the last one was tested.
        parameters: numbers learned.
        runs_together: how many runs shared the device.
        other_seconds: of training outside of its epochs.
        series: what else was measured in training, by name.
    """

    weights: dict[str, Tensor]
    history: list[Epoch]
    parameters: int
    runs_together: int
    other_seconds: float = 0.0
    series: dict[str, Series] = field(default_factory=dict)


def train_networks(runs: Sequence[Run], store: DigitStore, folder: Path, watcher: Watcher) -> dict[Run, Outcome]:
    """Train runs with equal networks, recipes and numbers of batches; those at the same epoch train at once."""
    groups: dict[int, dict[Run, Checkpoint | None]] = {}
    for run in runs:
        path = run.checkpoint(folder)
        checkpoint = read_checkpoint(path, run.identity()) if path.exists() else None
        groups.setdefault(checkpoint.epoch if checkpoint else 0, {})[run] = checkpoint
    outcomes: dict[Run, Outcome] = {}
    for group in groups.values():
        outcomes |= _train_group(group, store, folder, watcher)
    return outcomes


def _train_group(
    group: dict[Run, Checkpoint | None], store: DigitStore, folder: Path, watcher: Watcher
) -> dict[Run, Outcome]:
    recipe = next(iter(group)).settings.training
    digits = {run: store.of(run.settings.data, run.fold) for run in group}
    trainers: dict[Run, Trainer] = {}
    histories: dict[Run, list[Epoch]] = {}
    for run, checkpoint in group.items():
        trainers[run] = _make_trainer(run, digits[run], checkpoint, folder)
        histories[run] = list(checkpoint.history) if checkpoint else []
        watcher.begin(run, len(histories[run]))
    trained = TrainerGroup(list(trainers.values()))
    outcomes: dict[Run, Outcome] = {}
    epoch, saved = len(next(iter(histories.values()))), time.perf_counter()
    while len(outcomes) < len(trainers):
        epoch, start = epoch + 1, time.perf_counter()
        trained.epoch(epoch)
        losses = {run: trainer.mean_loss() for run, trainer in trainers.items() if run not in outcomes}
        _refuse_divergence(losses, epoch, folder)
        seconds = time.perf_counter() - start
        due = epoch % recipe.checkpoint_every == 0 and time.perf_counter() - saved >= SECONDS_BETWEEN
        for run, loss in losses.items():
            history, trainer = histories[run], trainers[run]
            ended = recipe.ended([*(entry.train_loss for entry in history), loss])
            seen = digits[run]
            val_error = error_rate(trainer.network, seen.val, seen.val_labels) if len(seen.val) else None
            if val_error is not None:
                trainer.keep_best([*(entry.val_error for entry in history if entry.val_error is not None), val_error])
            tested = ended or epoch % recipe.evaluate_every == 0
            test_error = error_rate(trainer.tested, seen.test, seen.test_labels) if tested else None
            history.append(Epoch(epoch, loss, test_error, seconds, val_error))
            if ended:  # while others of the group train on, and this one with them
                outcomes[run] = _network_outcome(trainer, history, len(trainers))
            elif due:
                write_checkpoint(run.checkpoint(folder), Checkpoint(run.identity(), history, trainer.state()))
            watcher.epoch(run, history[-1])
        saved = time.perf_counter() if due else saved
    return outcomes


def _make_trainer(run: Run, digits: RunDigits, checkpoint: Checkpoint | None, folder: Path) -> Trainer:
    """The network of a run at its beginning, or where its checkpoint has left it."""
    recipe = run.settings.training
    trainer = Trainer(
        run.network().to(digits.train.device),
        digits.train,
        digits.train_labels,
        recipe,
        seed=run.seed,
        fold=run.fold,
        augment=recipe.augment or run.model == AUGMENTED,
        interpolation=run.settings.data.interpolation,
    )
    if checkpoint:
        check_shapes(run.checkpoint(folder), checkpoint.tensors, trainer.expected(checkpoint.tensors))
        trainer.load_state(checkpoint.tensors)
    return trainer


def _network_outcome(trainer: Trainer, history: list[Epoch], runs_together: int) -> Outcome:
    weights = {name: tensor.detach().clone() for name, tensor in trainer.tested.state_dict().items()}
    parameters = sum(parameter.numel() for parameter in trainer.network.parameters())
    return Outcome(weights, history, parameters, runs_together)


def _refuse_divergence(losses: dict[Run, float], epoch: int, folder: Path) -> None:
    for run, loss in losses.items():
        if not math.isfinite(loss):
            raise ValueError(
                f"{run.title} diverged: its loss is {loss} in epoch {epoch}; lower training.learning_rate "
                f"(={run.settings.training.learning_rate}) and delete {folder / 'checkpoints'}"
            )


def train_features(runs: Sequence[Run], store: DigitStore, folder: Path, watcher: Watcher) -> dict[Run, Outcome]:
    """Train runs of one method that learns features without labels, all folds at once.

    The classifier is trained once, after the last epoch, so only that one has a test error. `folder` is not used: an
    interrupted run starts over.
    """
    model, settings, seed = runs[0].model, runs[0].settings, runs[0].seed
    folds = []
    for run in runs:
        digits = store.of(run.settings.data, run.fold)
        train, test = digits.pixels(digits.train), digits.pixels(digits.test)
        folds.append(Fold(train, digits.train_labels, test, digits.test_labels))
        watcher.begin(run, 0)

    def watch(progress: Progress) -> None:
        if progress.epoch < settings.epochs(model):  # the last one is reported below, with its test error
            for run, loss in zip(runs, progress.reconstruction.tolist(), strict=True):
                watcher.epoch(run, Epoch(progress.epoch, loss, None, progress.seconds))

    try:
        found = train_unsupervised(model, folds, _unsupervised_settings(model, settings), seed=seed, watch=watch)
    except ValueError as error:
        raise ValueError(f"{TITLES[model]}: {error}, in the settings [{model}]") from None
    outcomes = {}
    for run, result in zip(runs, found, strict=True):
        outcomes[run] = _feature_outcome(result, len(runs))
        watcher.epoch(run, outcomes[run].history[-1])
    return outcomes


def _unsupervised_settings(model: str, settings: Settings) -> UnsupervisedSettings:
    """What `train_unsupervised` is told of a model's settings."""
    classifier = UnsupervisedSettings(penalties=settings.softmax.penalties, held_out=settings.softmax.held_out)
    if model == "rbm":
        return replace(classifier, hidden=settings.rbm.hidden, recipe=settings.rbm)
    if model == "si_rbm":
        machine = settings.si_rbm
        return replace(classifier, hidden=machine.hidden, recipe=machine, scales=machine.scales)
    return classifier


def _feature_outcome(result: UnsupervisedRun, runs: int) -> Outcome:
    losses, errors = result.held_out_losses, result.held_out_errors
    # Samples are kept with the weights: drawing them takes digits, and a picture is made from this file alone.
    tensors = result.weights if result.samples is None else {**result.weights, "samples": result.samples}
    series = {
        "held_out_loss": Series(list(losses), list(losses.values())),
        "held_out_error": Series(list(errors), list(errors.values())),
    }
    pairs = zip(result.reconstruction, result.epoch_seconds, strict=True)
    epochs = [Epoch(number, loss, None, seconds) for number, (loss, seconds) in enumerate(pairs, start=1)]
    if not epochs:  # pixels: a classifier only
        history = [Epoch(1, losses[result.penalty], result.test_error, result.seconds)]
        return Outcome(tensors, history, result.parameters, 1, series=series)
    history = [*epochs[:-1], replace(epochs[-1], test_error=result.test_error)]
    other = result.seconds - sum(result.epoch_seconds)
    return Outcome(tensors, history, result.parameters, runs, other, series)
