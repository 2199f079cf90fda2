"""Training on images of your own: `fit` trains one network, `run_compare` several alike, with the same seeds.

What is compared are methods: variants of the network, with or without rescaled training images. `page` says what came
out.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console
from torch import nn

from ..data.files import atomic_path, check_folder
from ..data.folders import check_shares
from ..data.loading import ImageData, check_task, load_folder
from ..environment import choose_device
from ..models import Classifier
from ..models.networks import DEFAULTS, channels_of, check_network
from ..nn.convert import LATE_SCALES
from ..ops.checks import check_count
from .checkpoint import load
from .display import ProgressDisplay
from .engine import Engine
from .items import Experiment, Point, Run, check_name, merge, read_toml
from .measures import TEST_SCALES
from .methods import COMPARED, METHODS, OWN, PAPERS, apply_method
from .page import BASELINE, mean_accuracy, recipe, summary_text, title, write_page
from .processes import agreed, is_first
from .records import Record
from .run import Options, check_runs, run_experiment
from .settings import Data, MeasureSettings, NetworkSettings, Settings, TrainingSettings, checked, read
from .sources import folder_data, images_of


@dataclass(frozen=True)
class Fitted:
    """A trained network.

    Attributes:
        network: takes images in [0, 1]; in evaluation mode.
        record: accuracy at every scale (`series`), cost, settings, environment and history.
        weights: their file, for `scaleconv.experiments.load`; None where no folder was given, and in all processes of
            torchrun but the first.
    """

    network: Classifier
    record: Record
    weights: Path | None


def fit(
    model: NetworkSettings | nn.Module,
    data: ImageData | str | os.PathLike[str],
    settings: TrainingSettings | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
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
        folder: for the weights, the log and the checkpoint; the record goes into the file `<folder>.jsonl`. A run that
            is finished there is not repeated, one that was interrupted goes on. None keeps nothing.
        seed: of weights, order and augmentation.
        device: `cpu`, `cuda`, …; `auto` takes a GPU if there is one.
        workers: processes that decode images where they are too many to be kept in memory. Changes the time only.
        tensorboard: whether to log for TensorBoard too, in `folder`/tensorboard.
        quiet: without a progress bar, and without the line a minute that takes its place where there is no terminal.

    Raises:
        ValueError: an argument breaks its rule, the loss became infinite, or the folder holds the same run with other
            settings or images.
        OSError: an image, the record or the checkpoint cannot be read or written.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the checkpoint was written.

    Example:
        >>> from scaleconv.data import load_folder
        >>> fitted = fit(NetworkSettings(variant="converted"), load_folder("photos", resize=64))  # doctest: +SKIP
        >>> fitted.record.series["accuracy by scale"].y  # doctest: +SKIP
    """
    check_count("workers", workers, least=0)
    check_count("seed", seed, least=0)
    settings = checked(settings or TrainingSettings())
    images = data if isinstance(data, ImageData) else load_folder(data)
    if isinstance(model, nn.Module):
        kind, module = type(model), model
        method, network = "own", NetworkSettings(name=f"{kind.__module__}:{kind.__qualname__}")
    else:
        method, network, module = model.variant, checked(model), None
        check_channels(folder_data(images), network)
    if "scale" in settings.augment:
        method = f"{method}-scale"
    point = Point(own_settings(folder_data(images), network, settings))
    run = Run(method, point, 0, seed, module)
    item = own_item("fit", [method], [seed], point)
    kept = Path(folder) if folder is not None and is_first() else None
    options = Options(choose_device(device), None, images, workers, tensorboard)
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProgressDisplay(Console(stderr=True, quiet=quiet or not is_first())) as display,
    ):
        place = kept or Path(scratch) / "fit"
        (record,) = run_experiment(item, place, options, watcher=display, runs=[run])
        weights = run.weights(place)
        content = agreed(options.device, weights.read_bytes)
        if not is_first():
            with atomic_path(weights) as part:
                part.write_bytes(content)
        trained = load(weights, network.name if module is None else module)
    return Fitted(trained, record, weights if kept else None)


def own_settings(data: Data, network: NetworkSettings, training: TrainingSettings) -> Settings:
    """The settings of runs on a user's images: they are tested at every scale."""
    measure = MeasureSettings(kind="accuracy", scales=TEST_SCALES)
    return Settings(data=data, network=network, training=training, measure=measure)


def check_channels(data: Data, network: NetworkSettings) -> None:
    """Refuse images of another number of channels than a network takes that is made by its name."""
    if (channels := channels_of(network.name)) not in (None, images_of(data)[0].channels):
        raise ValueError(f"`data` must have {channels} channels for {network.name}, got {images_of(data)[0].channels}")


def own_item(name: str, methods: list[str], seeds: list[int], point: Point) -> Experiment:
    """An item of methods on a user's images."""
    return Experiment(
        item=name,
        preset="",
        title=f"Accuracy on {name}",
        models=tuple(methods),
        baseline="plain",
        folds=(0,),
        seeds=tuple(seeds),
        points=(point,),
    )


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison in a file: what all methods share, and by name what each of them changes.

    Attributes:
        network, training: keys of `NetworkSettings` and of `TrainingSettings`.
        methods: tables of these two. One of them, `plain`, is what the others are compared with.
    """

    network: dict[str, Any] = {}
    training: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]]

    def settings(self, file: str) -> dict[str, tuple[NetworkSettings, TrainingSettings]]:
        """Of each method.

        Raises:
            ValueError: a key or a value is wrong, a name is, or there is no `plain` method.
        """
        if BASELINE not in self.methods:
            raise ValueError(f"`methods` must have {BASELINE}, got {', '.join(self.methods) or 'none'}, in {file}")
        found = {}
        for name, changes in self.methods.items():
            if name in PAPERS:
                raise ValueError(f"`methods` must not have names of methods of the paper, got {name}, in {file}")
            table = merge({"network": {**self.network}, "training": {**self.training}}, changes)
            read(_Sections, table, f"[methods.{check_name(name)}] of {file}")
            where = f"{file}, [methods.{name}]"
            sections = read(NetworkSettings, table["network"], where), read(TrainingSettings, table["training"], where)
            found[name] = sections
        if (variant := found[BASELINE][0].variant) != BASELINE:
            raise ValueError(f"`methods.{BASELINE}.network.variant` must be {BASELINE}, got {variant}, in {file}")
        return found


class _Sections(Struct, frozen=True, forbid_unknown_fields=True):
    network: dict[str, Any]
    training: dict[str, Any]


class Request(Struct, frozen=True, kw_only=True):
    """What the command line asks for, as it was typed: lists are names or numbers separated by commas."""

    data: Path
    plan: Path | None = None
    methods: str | None = None
    task: str
    model: str | None
    scales: str | None
    layers: str | None
    resize: int | None
    native: bool
    letterbox: bool
    split: str
    augment: str | None
    optimizer: str
    batch: int
    lr: float | None
    amp: bool
    average: float
    workers: int
    tensorboard: bool
    epochs: int | None
    name: str
    results: Path
    device: str

    def network(self) -> NetworkSettings:
        check_task(self.task)
        table: dict[str, object] = {"name": self.model or DEFAULTS[self.task], "layers": _parts(self.layers)}
        if self.scales is not None:
            table["scales"] = _numbers("scales", self.scales)
        found = read(NetworkSettings, table, "the options")
        check_network(found.name, self.task)
        return found

    def training(self) -> TrainingSettings:
        rates = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.05}
        table: dict[str, object] = {
            "batch": self.batch,
            "optimizer": self.optimizer,
            "learning_rate": rates.get(self.optimizer, 0.0) if self.lr is None else self.lr,
            "augment": _parts(self.augment),
            "precision": "bfloat16" if self.amp else "float32",
        }
        if self.epochs is not None:
            table["epochs"] = self.epochs
        if self.average:
            table |= {"keep": "average", "average": self.average}
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"`lr` must be above 0, got {self.lr}")
        return read(TrainingSettings, table, "the options")

    def load(self, network: NetworkSettings) -> ImageData:
        val, test = self._shares()
        return load_folder(
            self.data,
            task=self.task,
            resize=self.resize,
            native=self.native,
            fit="letterbox" if self.letterbox else "crop",
            channels=channels_of(network.name),
            val=val,
            test=test,
        )

    def _shares(self) -> tuple[float, ...]:
        shares = _numbers("split", self.split)
        if len(shares) != 2:
            raise ValueError(f"`split` must be two shares, to validate and to test on, got {self.split!r}")
        try:
            check_shares(*shares)
        except ValueError:
            raise ValueError(
                f"`split` must be shares of at least 0 to validate on and above 0 to test on, together below 1, "
                f"got {self.split!r}"
            ) from None
        return shares


def run_compare(request: Request, methods: Sequence[str] | None, seeds: Sequence[int], engine: Engine) -> Iterator[str]:
    """Do what was asked for, and tell it line by line; `methods` None takes all that are compared.

    Everything that was typed is checked before the first image is read.
    """
    asked = _planned(request) if request.plan else _asked(request, methods)
    networks = [network for network, _ in asked.values()]
    folder = request.results / check_name(request.name)
    device = engine.device(request.device)
    check_count("workers", request.workers, least=0)
    if is_first():
        check_folder(folder)
    images = request.load(networks[0])
    data = folder_data(images)
    for network in networks:
        check_channels(data, network)
    points = {name: Point(own_settings(data, *sections)) for name, sections in asked.items()}
    runs = [Run(name, point, 0, seed) for seed in seeds for name, point in points.items()]
    known = [name for name in points if name in METHODS] or [BASELINE]
    item = own_item(request.name, known, list(seeds), runs[0].point)
    options = Options(device, None, images, request.workers, request.tensorboard)
    check_runs(runs, folder, options)
    if is_first():
        yield images.folder.summary()
    for part in (images.train, images.val, images.test):
        _ = part.kept  # decoded once: a set that is small enough travels with the runs
    started = time.perf_counter()
    with ProgressDisplay(Console(stderr=True, quiet=not is_first())) as display:
        records = run_experiment(item, folder, options, watcher=display, engine=engine, runs=runs)
    if not is_first():
        return
    places = {run.name: place for place, run in enumerate(runs)}
    records.sort(key=lambda record: places[record.name])
    for record in records:
        yield f"{title(record.model)}, seed {record.seed}: {mean_accuracy(record):.1f} % over all scales"
    written = write_page(records, images, folder)
    yield f"\n{summary_text(records)}"
    yield f"\n{time.perf_counter() - started:.0f} s; written: {', '.join(map(str, written))}"
    yield from (recipe(record, folder) for record in records)


def _asked(request: Request, methods: Sequence[str] | None) -> dict[str, tuple[NetworkSettings, TrainingSettings]]:
    """The methods that the options name."""
    network, training = request.network(), request.training()
    if methods is None and "scale" in training.augment:
        raise ValueError("`augment` must not hold scale, got scale: with and without it is what is compared")
    names = list(COMPARED) if methods is None else list(methods)
    for name in names:
        if name not in OWN:
            raise ValueError(f"`variant` must be some of {', '.join(OWN)}, got {name!r}")
    if "scale" in training.augment:
        names = [name if name.endswith("-scale") else f"{name}-scale" for name in names]
    late_scales = LATE_SCALES if request.scales is None else network.scales
    return {name: apply_method(name, network, training, late_scales) for name in names}


def _planned(request: Request) -> dict[str, tuple[NetworkSettings, TrainingSettings]]:
    """The methods of a file."""
    assert request.plan is not None
    check_task(request.task)
    found = read(Plan, read_toml(request.plan), request.plan.name).settings(request.plan.name)
    for network, _ in found.values():
        check_network(network.name, request.task, network.maps, network.blocks)
    names = _parts(request.methods) or list(found)
    for name in names:
        if name not in found:
            raise ValueError(f"`methods` must be some of {', '.join(found)}, got {name!r}")
    return {name: found[name] for name in names}


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers separated by commas, got {text!r}") from None
