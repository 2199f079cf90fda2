"""Which network to take for a user's images: several methods, trained alike with the same seeds.

A method is a variant of the network, with or without rescaled training images. `page` says what came out.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from ..data.files import check_folder
from ..data.folders import check_shares
from ..data.loading import ImageData, check_task, load_folder
from ..models.networks import DEFAULTS, channels_of, check_network
from ..ops.checks import check_count
from .display import ProgressDisplay
from .engine import Engine
from .fit import check_channels, own_item, own_settings
from .items import Point, check_name
from .methods import COMPARED, OWN
from .page import mean_accuracy, recipe, summary_text, title, write_page
from .processes import is_first
from .records import read_records
from .run import Options, check_runs, plan_runs, run_experiment
from .settings import NetworkSettings, TrainingSettings, read
from .sources import folder_data


class Request(Struct, frozen=True, kw_only=True):
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
    network, training = request.network(), request.training()
    folder = request.results / check_name(request.name)
    if methods is None and "scale" in training.augment:
        raise ValueError("`augment` must not hold scale, got scale: with and without it is what is compared")
    names = list(COMPARED) if methods is None else list(methods)
    for name in names:
        if name not in OWN:
            raise ValueError(f"`variant` must be some of {', '.join(OWN)}, got {name!r}")
    device = engine.device(request.device)
    check_count("workers", request.workers, least=0)
    if is_first():
        check_folder(folder)
    images = request.load(network)
    if "scale" in training.augment:
        names = [name if name.endswith("-scale") else f"{name}-scale" for name in names]
    check_channels(folder_data(images), network)
    point = Point(own_settings(folder_data(images), network, training))
    item = own_item(request.name, list(dict.fromkeys(names)), list(seeds), point)
    runs = plan_runs(item)
    options = Options(device, None, images, request.workers, request.tensorboard)
    check_runs(runs, folder, options)
    if is_first():
        yield images.folder.summary()
    for part in (images.train, images.val, images.test):
        _ = part.kept  # decoded once: a set that is small enough travels with the runs
    started = time.perf_counter()
    with ProgressDisplay(Console(stderr=True, quiet=not is_first())) as display:
        run_experiment(item, folder, options, watcher=display, engine=engine)
    if not is_first():
        return
    wanted = [run.name for run in runs]
    records = sorted((r for r in read_records(folder) if r.name in wanted), key=lambda r: wanted.index(r.name))
    for record in records:
        yield f"{title(record.model)}, seed {record.seed}: {mean_accuracy(record):.1f} % over all scales"
    written = write_page(records, images, folder)
    yield f"\n{summary_text(records)}"
    yield f"\n{time.perf_counter() - started:.0f} s; written: {', '.join(map(str, written))}"
    yield from (recipe(record, folder) for record in records)


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers separated by commas, got {text!r}") from None
