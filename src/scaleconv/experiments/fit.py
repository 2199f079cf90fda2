"""Trains a network on a folder of images, with or without masks: `fit(model, data)`.

A run can be stopped at any step and goes on bit for bit: which images make up a batch, how they are augmented and what
a network draws at random depend on the seed and the step alone, and the rest of its state is in its checkpoint. Several
processes train one network where torchrun has started them.
"""

import csv
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ..data.atomic import check_folder, remove_leftovers
from ..data.loading import ImageData, ImageSet, Order, load_folder
from ..data.progress import make_progress
from ..environment import choose_device
from ..ops.checks import check_count
from .checkpoint import Checkpoint, check_settings, read_checkpoint, write_checkpoint
from .classifier import Classifier, NetworkSpec, load, make_classifier, network_config
from .distributed import join_processes, joint_norms
from .evaluate import TEST_SCALES, accuracies, measure_cost, score
from .records import (
    Epoch,
    Record,
    Series,
    describe_environment,
    read_record,
    record_name,
    run_file,
    write_record,
    writing,
)
from .training import FitSettings, Training, cloned

SECONDS_BETWEEN = 30.0  # checkpoints
OWN = "own"  # the method of a network that is given as a Module


@dataclass(frozen=True)
class Fitted:
    """A trained network.

    Attributes:
        network: takes images in [0, 1]; in evaluation mode.
        record: accuracy at every scale (`series`), cost, settings, environment and history.
        weights: their file, for `scaleconv.experiments.load`; None where no folder was given.
    """

    network: Classifier
    record: Record
    weights: Path | None


def method_name(model: NetworkSpec | nn.Module, settings: FitSettings) -> str:
    """What a run is called in its folder: its variant, and whether training images were rescaled."""
    variant = model.variant if isinstance(model, NetworkSpec) else OWN
    return f"{variant}-scale" if "scale" in settings.augment else variant


def identity(model: NetworkSpec | nn.Module, data: ImageData, settings: FitSettings) -> dict[str, Any]:
    """All that the weights of a run depend on."""
    return {"network": network_config(model), "data": data.config(), "settings": settings.as_dict()}


def fit(
    model: NetworkSpec | nn.Module,
    data: ImageData | str | os.PathLike[str],
    settings: FitSettings | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    workers: int = 0,
    tensorboard: bool = False,
    quiet: bool = False,
) -> Fitted:
    """Train a network on a folder of images and test it at every scale.

    Args:
        model: by name, or a Module that takes (N, C, H, W) of mean 0 to one number for each class, or with masks for
            each class and pixel. A Module is trained itself, from the weights it has.
        data: of `load_folder`, or a folder whose images are all of one size, with a folder for each class.
        settings: how to train; the defaults if None.
        folder: for the record, the weights, the log and the checkpoint. A run that is finished there is not repeated,
            one that was interrupted goes on. None keeps nothing.
        device: `cpu`, `cuda`, …; `auto` takes a GPU if there is one.
        workers: processes that decode images where they are too many to be kept in memory. Changes the time only.
        tensorboard: whether to log for TensorBoard too, in `folder`/tensorboard.
        quiet: without a progress bar; there is none without a terminal either.

    Raises:
        ValueError: an argument breaks its rule, the loss became infinite, or the folder holds the same run with other
            settings or images.
        OSError: an image, the record or the checkpoint cannot be read or written.
        ConnectionError: of several processes, one was lost.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the checkpoint was written.

    Example:
        >>> from scaleconv.data import load_folder
        >>> fitted = fit(NetworkSpec("resnet18", "converted"), load_folder("photos", resize=64))  # doctest: +SKIP
        >>> fitted.record.series["accuracy by scale"].y  # doctest: +SKIP
    """
    settings = settings or FitSettings()
    data = data if isinstance(data, ImageData) else load_folder(data)
    processes, device = join_processes(choose_device(device))
    run = _Run(model, data, settings, Path(folder) if folder is not None and processes.leads else None)
    check_count("workers", workers, least=0)
    if found := processes.agree(run.finished):
        return found
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 in all products, as convolutions have it anyway
        torch.cuda.reset_peak_memory_stats(device)
    steps = run.order.steps * settings.epochs
    training = Training(run.network(), settings, steps=steps, device=device, processes=processes)
    history = processes.agree(lambda: run.resume(training))
    if processes.size > 1:
        training.load_state(run.checkpoint, processes.agree(training.state))
    with joint_norms(training.network, processes, device):
        history = _train(run, training, history, workers, tensorboard, quiet or not processes.leads)
    tested = training.tested.eval()
    tally = score(tested, data.test, device, TEST_SCALES, amp=settings.amp, workers=workers, processes=processes)
    history[-1] = replace(history[-1], test_error=tally.error(TEST_SCALES.index(1.0)))
    record = processes.agree(lambda: _finish(run, training, history, accuracies(tally, data.test)))
    return Fitted(tested, record, None if run.folder is None else run.weights)


@dataclass
class _Run:
    """One run: what it is, and where its files lie."""

    model: NetworkSpec | nn.Module
    data: ImageData
    settings: FitSettings
    folder: Path | None
    identity: dict[str, Any] = field(init=False)
    method: str = field(init=False)
    order: Order = field(init=False)

    def __post_init__(self) -> None:
        self.identity = identity(self.model, self.data, self.settings)
        self.method = method_name(self.model, self.settings)
        self.order = Order(self.data.train.sizes, self.settings.batch, self.settings.seed)
        if isinstance(self.model, NetworkSpec):
            self.model.check_task(self.data.task)
            if self.model.channels not in (None, self.data.channels):
                raise ValueError(
                    f"`data` must have {self.model.channels} channels for {self.model.name}, got {self.data.channels}"
                )
        if self.folder is not None:
            check_folder(self.folder)
            for path in (self.record, self.weights, self.checkpoint, self.log):
                remove_leftovers(path)

    @property
    def title(self) -> str:
        return f"{self.method}, seed {self.settings.seed}"

    @property
    def record(self) -> Path:
        return (self.folder or Path()) / record_name(self.method, "", 0, self.settings.seed)

    @property
    def weights(self) -> Path:
        return run_file(self.record, "weights")

    @property
    def checkpoint(self) -> Path:
        return run_file(self.record, "checkpoints")

    @property
    def log(self) -> Path:
        return run_file(self.record, "logs")

    def network(self) -> Classifier:
        torch.manual_seed(self.settings.seed)
        return make_classifier(self.model, self.identity["data"], self.data.moments)

    def finished(self) -> Fitted | None:
        """The run as it was finished earlier, if record and weights are there."""
        record = finished_record(self.model, self.data, self.settings, self.folder)
        if record is None or not self.weights.exists():
            return None
        model = self.model.name if isinstance(self.model, NetworkSpec) else self.model
        return Fitted(load(self.weights, model), record, self.weights)

    def resume(self, training: Training) -> list[Epoch]:
        """Go on from the checkpoint, if there is one; the epochs so far."""
        if self.folder is None or not self.checkpoint.exists():
            return []
        found = read_checkpoint(self.checkpoint, self.identity)
        training.load_state(self.checkpoint, found.tensors)
        if (done := training.position // self.order.steps) != found.epoch:
            raise ValueError(
                f"{self.checkpoint} must have a history of its {done} epochs, got {found.epoch}: "
                "delete it to start this run again"
            )
        return list(found.history)


def finished_record(
    model: NetworkSpec | nn.Module, data: ImageData, settings: FitSettings, folder: Path | None
) -> Record | None:
    """The record of this very run, if it was finished earlier.

    Raises:
        ValueError: the folder has one of the same name that was made with other settings or images.
    """
    path = None if folder is None else folder / record_name(method_name(model, settings), "", 0, settings.seed)
    if path is None or not path.exists():
        return None
    record = read_record(path)
    check_settings(path, record.config, identity(model, data, settings))
    run_file(path, "checkpoints").unlink(missing_ok=True)  # of a run that was killed when it had just finished
    return record


def _finish(run: _Run, training: Training, history: list[Epoch], series: dict[str, Series]) -> Record:
    """Measure what the trained network costs, and leave its record and weights in the place of the checkpoint."""
    tested, device, processes = training.tested, training.device, training.processes
    record = Record(
        experiment="" if run.folder is None else run.folder.name,
        model=run.method,
        fold=0,
        seed=run.settings.seed,
        test_error=history[-1].test_error,
        config=run.identity,
        environment={
            **describe_environment(device),
            **({"processes": processes.size} if processes.size > 1 else {}),
        },
        history=history,
        parameters=sum(parameter.numel() for parameter in tested.parameters()),
        seconds=sum(entry.seconds for entry in history),
        seconds_per_epoch=median(entry.seconds for entry in history),
        runs_together=1,
        series=series,
        cost=_cost(tested, run.data.test, run.settings.batch, device),
    )
    if run.folder is not None:
        write_checkpoint(run.weights, Checkpoint(run.identity, history, cloned(tested.state_dict())))
        write_record(run.folder, record)
        run.checkpoint.unlink(missing_ok=True)
    return record


def _cost(network: Classifier, test: ImageSet, batch: int, device: str) -> dict[str, float]:
    """What the network costs on a batch of test images; on a GPU, also the most memory that training took."""
    images, labels = next(test.batches([Order(test.sizes, min(batch, len(test)), 0).epoch(0)[0]]))
    cost = measure_cost(network, images.to(device).float() / 255, torch.zeros_like(labels).to(device).long())
    if torch.device(device).type == "cuda":
        cost["peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return cost


def _train(
    run: _Run, training: Training, history: list[Epoch], workers: int, tensorboard: bool, quiet: bool
) -> list[Epoch]:
    """Train from where the run stands to its end."""
    settings, data, steps, processes = run.settings, run.data, run.order.steps, training.processes
    batches, known = run.order.remaining(settings.epochs, training.position), []

    def noted() -> Iterator[Sequence[int]]:  # the loader reads ahead of what is learned
        for indices in batches:
            known.append(indices)
            yield processes.share(indices)

    saved = time.perf_counter()
    with _bar(run, training, quiet) as show, _signals() as received, _logs(run, tensorboard) as log:
        begin = time.perf_counter()
        for images, labels in data.train.batches(noted(), workers):
            epoch = training.position // steps + 1
            training.step(images, labels, epoch, known.pop(0))
            if training.position % steps == 0:
                loss = training.loss.item() / len(data.train)
                training.seconds += time.perf_counter() - begin
                if not math.isfinite(loss):
                    raise ValueError(f"{run.title} diverged: its loss is {loss} in epoch {epoch}; lower --lr")
                val = None
                if len(data.val):
                    options: dict[str, Any] = {"amp": settings.amp, "workers": workers, "processes": processes}
                    val = score(training.tested, data.val, training.device, **options).error()
                history.append(Epoch(epoch, loss, None, training.seconds, val))
                log(history)
                training.loss.zero_()
                training.seconds, begin = 0.0, time.perf_counter()
            show(history)
            stopped = processes.any(bool(received))
            due = time.perf_counter() - saved >= SECONDS_BETWEEN or stopped
            if due and run.folder is not None and training.position < training.steps:
                training.seconds, begin = training.seconds + time.perf_counter() - begin, time.perf_counter()
                write_checkpoint(run.checkpoint, Checkpoint(run.identity, history, training.state()))
                saved = time.perf_counter()
            if stopped:
                raise KeyboardInterrupt
    return history


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Notes Ctrl-C and SIGTERM instead of stopping in the middle of a step; a second one stops at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(run: _Run, training: Training, quiet: bool) -> Iterator[Any]:
    """A function that shows how far the run is: steps, loss, error, images in a second, time left."""
    progress = make_progress(Console(stderr=True, quiet=quiet))
    task = progress.add_task(run.title, total=training.steps, completed=training.position, figures="")
    start, first = time.perf_counter(), training.position

    def show(history: list[Epoch]) -> None:
        if progress.disable:
            return
        passed = (training.position - first) / run.order.steps * len(run.data.train)
        figures = f"{passed / (time.perf_counter() - start):,.0f} images/s"
        if history:
            last = history[-1]
            val = "" if last.val_error is None else f"  validation error {last.val_error:.2f} %"
            figures = f"epoch {last.epoch}/{run.settings.epochs}  loss {last.train_loss:.4f}{val}  {figures}"
        progress.update(task, completed=training.position, figures=figures)

    with progress:
        yield show


@contextmanager
def _logs(run: _Run, tensorboard: bool) -> Iterator[Any]:
    """A function that writes the history so far: as CSV, whole or not at all, and for TensorBoard if asked."""
    if run.folder is None:
        yield lambda history: None
        return
    board = _board(run) if tensorboard else None

    def log(history: list[Epoch]) -> None:
        with writing(run.log) as part, part.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("epoch", "train_loss", "val_error", "seconds"))
            rows.writerows((e.epoch, f"{e.train_loss:.6g}", e.val_error, f"{e.seconds:.3f}") for e in history)
        if board is not None:
            last = history[-1]
            board.add_scalar("train_loss", last.train_loss, last.epoch)
            if last.val_error is not None:
                board.add_scalar("val_error", last.val_error, last.epoch)
            board.flush()

    closing: AbstractContextManager[Any] = nullcontext() if board is None else board
    with closing:
        yield log


def _board(run: _Run) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("`tensorboard` needs its package: pip install 'scaleconv[tensorboard]'") from None
    return SummaryWriter(str((run.folder or Path()) / "tensorboard" / run.record.stem))
