"""Which network to take for a folder of images: trains several under one budget; `page` says what came out.

A method is a variant of the network, with or without rescaled training images. All share the images, the recipe, the
number of epochs and the seeds. A finished run is not repeated, and an interrupted one goes on.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..data.files import check_folder
from ..data.folders import check_shares
from ..data.loading import ImageData, check_task, load_folder
from ..ops.checks import check_count
from ..ops.signature import DEFAULT_SCALES
from .classifier import DEFAULT_MODELS, NetworkSpec
from .distributed import join_processes
from .engine import Engine, Local, Task
from .fit import finished_record, fit, method_name
from .items import check_name
from .page import TITLES, mean_accuracy, recipe, summary_text, title, write_page
from .records import Record, read_record, record_name
from .train import Silent, Watcher
from .training import FitSettings

COMPARED = ("plain", "plain-scale", "converted", "converted-scale", "pyramid")


@dataclass(frozen=True)
class Method:
    """A network and how it is trained, but for the seed."""

    spec: NetworkSpec
    settings: FitSettings


def make_methods(spec: NetworkSpec, settings: FitSettings, names: Iterable[str]) -> list[Method]:
    """The methods of these names in `TITLES`; a variant without a suffix is trained as the settings say.

    Raises:
        ValueError: a name is not known.
    """
    methods = []
    for name in names:
        variant, _, suffix = name.partition("-")
        if name not in TITLES:
            raise ValueError(f"`variant` must be some of {', '.join(TITLES)}, got {name!r}")
        augment = (*settings.augment, "scale") if suffix and "scale" not in settings.augment else settings.augment
        methods.append(Method(replace(spec, variant=variant), replace(settings, augment=augment)))
    return methods


def compared_names(settings: FitSettings) -> list[str]:
    """The methods that `compare` trains.

    Raises:
        ValueError: all are asked to be trained on rescaled images, which is what is compared.
    """
    if "scale" in settings.augment:
        raise ValueError("`augment` must not hold scale, got scale: with and without it is what is compared")
    return list(COMPARED)


def run_methods(
    methods: Sequence[Method],
    data: ImageData,
    folder: Path,
    seeds: Sequence[int],
    *,
    device: str = "auto",
    workers: int = 0,
    tensorboard: bool = False,
    engine: Engine | None = None,
) -> Iterator[Record]:
    """Train every method with every seed, unless it was, and give its record.

    All methods are trained with the first seed, then with the second: stopped early, they can be compared. Records come
    as they are finished, which on a cluster is another order.
    """
    processes, _ = join_processes(device)
    tasks = []
    for seed in seeds:
        for method in methods:
            settings = replace(method.settings, seed=seed)
            if record := processes.agree(partial(finished_record, method.spec, data, settings, folder)):
                yield record
            else:
                name = record_name(method_name(method.spec, settings), "", 0, seed)
                tasks.append(Task((name,), (method.spec, settings)))
    if tasks:
        for part in (data.train, data.val, data.test):
            _ = part.kept  # decoded once: a set that is small enough travels with the tasks
    work = partial(_work, data=data, device=device, workers=workers, tensorboard=tensorboard)
    for task in (engine or Local()).run(work, tasks, folder, Silent()):
        yield processes.agree(partial(read_record, folder / task.records[0]))


def _work(
    what: tuple[NetworkSpec, FitSettings], folder: Path, watcher: Watcher, *, data: ImageData, **options: Any
) -> None:
    """Train one network; `fit` shows a bar of its own."""
    spec, settings = what
    fit(spec, data, settings, folder, **options)


@dataclass(frozen=True)
class FolderRequest:
    """What the command line asks for, as it was typed: lists are names or numbers separated by commas."""

    data: Path
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

    def spec(self) -> NetworkSpec:
        scales = DEFAULT_SCALES if self.scales is None else _numbers("scales", self.scales)
        check_task(self.task)
        spec = NetworkSpec(self.model or DEFAULT_MODELS[self.task], scales=scales, layers=_parts(self.layers))
        spec.check_task(self.task)
        return spec

    def settings(self) -> FitSettings:
        return FitSettings(
            epochs=FitSettings().epochs if self.epochs is None else self.epochs,
            batch=self.batch,
            optimizer=self.optimizer,
            lr=self.lr,
            average=self.average,
            augment=_parts(self.augment),
            amp=self.amp,
        )

    def load(self, spec: NetworkSpec) -> ImageData:
        val, test = self._shares()
        return load_folder(
            self.data,
            task=self.task,
            resize=self.resize,
            native=self.native,
            fit="letterbox" if self.letterbox else "crop",
            channels=spec.channels,
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


def run_folder(
    request: FolderRequest, variants: Sequence[str] | None, seeds: Sequence[int], engine: Engine
) -> Iterator[str]:
    """Do what was asked for, and tell it line by line; `variants` None takes all that are compared.

    Everything that was typed is checked before the first image is read.
    """
    spec, settings = request.spec(), request.settings()
    folder = request.results / check_name(request.name)
    names = compared_names(settings) if variants is None else variants
    methods = make_methods(spec, settings, names)
    device = engine.device(request.device)
    check_count("workers", request.workers, least=0)
    join_processes(device)[0].agree(partial(check_folder, folder))
    data = request.load(spec)
    for each in dict.fromkeys(method.spec for method in methods):  # none is trained before all are known to be made
        each.make(data.channels, data.size, len(data.folder.classes), data.task)
    yield data.folder.summary()
    started, records, planned = time.perf_counter(), [], len(methods) * len(seeds)
    for record in run_methods(
        methods,
        data,
        folder,
        seeds,
        device=device,
        workers=request.workers,
        tensorboard=request.tensorboard,
        engine=engine,
    ):
        records.append(record)
        done = f"{len(records)} of {planned}"
        yield f"{title(record.model)}, seed {record.seed} ({done}): {mean_accuracy(record):.1f} % over all scales"
    if not join_processes(device)[0].leads:
        return
    order = [method_name(method.spec, method.settings) for method in methods]
    records.sort(key=lambda record: (record.seed, order.index(record.model)))
    written = write_page(records, data, folder)
    yield f"\n{summary_text(records)}"
    yield f"\n{time.perf_counter() - started:.0f} s; written: {', '.join(map(str, written))}"
    yield from (recipe(record, folder) for record in records)


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers separated by commas, got {text!r}") from None
