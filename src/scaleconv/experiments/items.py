"""What is run: an item is a set of points, each with its own settings. At each, every method makes a run on every fold.

Every file in `configs/` is an item, named after the file. It holds the paper's protocol, the preset `paper`; its
`[presets.*]` tables change what they name. `base` names an item whose settings it takes over. `points` change settings
once more, each for itself. The overrides of the command line come last and reach every point. `compare` makes an item
of its own.

Two keys are for this module only: `order`, the item's place among the others, and `search = true` for an item that
compares settings or readings of the paper, and is not run with all.
"""

import copy
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import nn

from ..models import UNSUPERVISED, Classifier, Images, make_network
from ..models.networks import check_network
from .methods import METHODS, TITLES, config_of, of_weights, settings_of
from .records import run_file, run_name
from .settings import SECTIONS, DigitData, FolderData, Seed, Settings, brief, read, task_of
from .sources import Source

MOST_DRAWS = 10**6  # folds where each is a draw of its own
TRAINED = ("training", "rbm", "si_rbm")  # sections with a number of epochs
START = 4  # the purpose of a random stream: the weights before training; others are in `trainer` and `data.order`
LAST = 1000  # the place of an item that names none
Table = dict[str, Any]


class Point(Struct, frozen=True, forbid_unknown_fields=True):
    """One value of what an experiment varies.

    Attributes:
        settings: of its runs.
        name: goes into file names; empty for the only point of a table.
        x: its position on the axis.
        label: shown instead of x.
    """

    settings: Settings
    name: str = ""
    x: float | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9.]*", self.name):
            raise ValueError(f"`name` of a point must be of small letters, digits and dots, got {self.name!r}")

    @property
    def title(self) -> str:
        return self.label or ("" if self.x is None else f"{self.x:g}")


class FigureSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Axes of an item's figure and table; `kind` is `lines`, or `bars` where x is no quantity."""

    x: str = ""
    y: str = "test error (%)"
    kind: Literal["lines", "bars"] = "lines"
    log_x: bool = False
    log_y: bool = False


class Item(Protocol):
    """What every item has, whether it trains networks (`Experiment`) or times a layer (`CostStudy`)."""

    @property
    def item(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def checks(self) -> tuple[str, ...]: ...
    @property
    def paper(self) -> dict[str, tuple[float, ...]]: ...


class Experiment(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One item under one preset.

    Attributes:
        item, preset: the file and the preset the settings come from.
        title: heading of its table and figure.
        models: methods, by name.
        baseline: the method the others are compared with.
        folds: the repeats: sets of the digits, or draws of them.
        points: what is varied, one group of runs each.
        claim: what the paper says about it, in a sentence.
        checks: which claims are checked against the records: names in `claims.py`.
        seed: of the weights and of the order of the images, shared by all methods. Each fold draws its own from it.
        seeds: more than one, in place of `seed`: all methods are run with the first, then with the second.
        reuse: items whose trained networks are used where settings, fold and seed are the same.
        figure: axes.
        paper: the paper's numbers: mean and, if given, standard deviation for each method, others by name.
    """

    item: str
    preset: str
    title: str
    models: tuple[str, ...]
    baseline: str
    folds: tuple[int, ...]
    points: tuple[Point, ...]
    claim: str = ""
    checks: tuple[str, ...] = ()
    seed: Seed = 0
    seeds: tuple[Seed, ...] = ()
    reuse: tuple[str, ...] = ()
    figure: FigureSettings = FigureSettings()
    paper: dict[str, tuple[float, ...]] = {}

    def __post_init__(self) -> None:
        for key, name in [*(("models", name) for name in self.models), ("baseline", self.baseline)]:
            if name not in METHODS:
                raise ValueError(f"`{key}` (={name!r}) must be among {', '.join(TITLES)}")
        for key in ("models", "folds"):
            check_list(key, getattr(self, key))
        check_list("seeds", self.seeds or (self.seed,))
        check_list("points", [point.name for point in self.points])
        features = [name for name in self.models if name in UNSUPERVISED]
        if features and any(point.settings.measure.kind for point in self.points):
            raise ValueError(f"`models` must be networks where something is measured on them, got {features[0]!r}")
        for point in self.points:
            data = point.settings.data
            for name in self.models:
                if name not in UNSUPERVISED:
                    network = settings_of(name, point.settings).network
                    check_network(network.name, task_of(data), network.maps)
                elif not isinstance(data, DigitData) or task_of(data) == "segmentation":
                    raise ValueError(f"`models` must be networks on images other than digits, got {name!r}")
            most = data.sets - 1 if isinstance(data, DigitData) and not data.test else MOST_DRAWS
            if wrong := [fold for fold in self.folds if not 0 <= fold <= most]:
                raise ValueError(f"`folds` must lie between 0 and {most}, got {wrong[0]}")

    @property
    def settings(self) -> Settings:
        """Those of the first point, for what is the same at all of them."""
        return self.points[0].settings

    @property
    def is_table(self) -> bool:
        """Whether it is a table of methods, as Table 1 is, and not a set of curves."""
        return not self.points[0].name and not self.settings.measure.kind

    def at_point(self, name: str | None) -> "Experiment":
        """The same with one point only, the first if none is named."""
        names = [point.name for point in self.points]
        if name is not None and name not in names:
            raise ValueError(f"`point` must be one of {', '.join(names) or 'none'} in {self.item}, got {name!r}")
        return replace(self, points=(self.points[names.index(name) if name is not None else 0],))


@dataclass(frozen=True)
class Run:
    """One method on one fold at one point.

    Attributes:
        model: the method, by name.
        point: has the settings that all methods share.
        fold, seed: which repeat.
        module: a network of the user's own, which is trained from the weights it has; None makes a new one.
    """

    model: str
    point: Point
    fold: int
    seed: int
    module: nn.Module | None = field(default=None, compare=False)

    @property
    def settings(self) -> Settings:
        return settings_of(self.model, self.point.settings)

    @property
    def name(self) -> str:
        return run_name(self.model, self.point.name, self.fold, self.seed)

    @property
    def title(self) -> str:
        at = f", {self.point.title}" if self.point.title else ""
        repeat = f"seed {self.seed}" if isinstance(self.settings.data, FolderData) else f"fold {self.fold}"
        return f"{TITLES.get(self.model, self.model)}{at}, {repeat}"

    @property
    def config(self) -> dict[str, Any]:
        """The settings its result depends on, as its record holds them."""
        return config_of(self.model, self.settings)

    @property
    def start(self) -> int:
        """The seed of its weights, the same for all methods: on fold 0 that of the item, on each other one its own."""
        if self.fold == 0:
            return self.seed
        return int(np.random.default_rng([self.seed, self.fold, 0, START]).integers(2**63))

    def identity(self) -> dict[str, Any]:
        """All that its weights depend on."""
        config = of_weights(self.model, self.config)
        start = {"start": self.start} if self.fold else {}  # weights from when all folds had one start are others
        return {"model": self.model, "fold": self.fold, "seed": self.seed, "config": config, **start}

    def weights(self, folder: Path) -> Path:
        """The file of the weights of the finished run."""
        return run_file(folder, self.name, "weights")

    def checkpoint(self, folder: Path) -> Path:
        """The file of the state of the unfinished run."""
        return run_file(folder, self.name, "checkpoints")

    def make(self, images: Images) -> nn.Module:
        """Its network as it is before training, for images of mean 0."""
        torch.manual_seed(self.start)
        if self.module is not None:
            return self.module
        return make_network(images, **asdict(self.settings.network))

    def classifier(self, source: Source) -> Classifier:
        """Its network as it is before training."""
        return Classifier(self.make(source.images), source.mean, source.std, source.classes)


def plan_runs(experiment: Experiment) -> list[Run]:
    """All runs, seed by seed, method by method, point by point."""
    return [
        Run(model, point, fold, seed)
        for seed in experiment.seeds or (experiment.seed,)
        for model in experiment.models
        for point in experiment.points
        for fold in experiment.folds
    ]


def check_list(name: str, values: Sequence[Any]) -> None:
    """Refuse an empty list, and one that names something twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"`{name}` must name at least one, and none twice, got {list(values)}")


# Items that are no `Experiment`: the type that their file is read into.
STUDIES: dict[str, type[Any]] = {}


def read_items(folder: Traversable) -> dict[str, Table]:
    """All files, in the order in which items are run: the later ones use networks of the earlier ones."""
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    files = {name.removesuffix(".toml"): _read_file(folder.joinpath(name)) for name in names}
    for item in files:
        bases = [item]
        while "base" in (table := files[bases[-1]]):
            base = table["base"]
            if base not in files or base in bases:
                raise ValueError(f"`base` in {bases[-1]}.toml must be an item that is not based on it, got {base!r}")
            bases.append(base)
    return dict(sorted(files.items(), key=lambda entry: (entry[1].get("order", LAST), entry[0])))


class _Keys(Struct):
    """The keys of a file that no item has."""

    order: int = LAST
    search: bool = False
    base: str = ""
    presets: dict[str, dict[str, Any]] = {}


def _read_file(file: Traversable) -> Table:
    table = read_toml(file)
    read(_Keys, table, file.name)
    return table


def read_toml(file: Traversable | Path) -> Table:
    """The tables of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise type(error)(f"cannot read {file} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not valid TOML ({brief(error)})") from None


CONFIGS = resources.files("scaleconv").joinpath("configs")
_FILES = read_items(CONFIGS)
ITEMS = tuple(_FILES)
SEARCHES = tuple(name for name, table in _FILES.items() if table.get("search"))


def load_item(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Item:
    """Read an item's file, apply a preset, then overrides such as {"training.epochs": 3}.

    The override `epochs` is of all that is trained, whatever the method.

    Returns:
        An `Experiment`, or the type in `STUDIES`.

    Raises:
        ValueError: an unknown item, preset or key, or a value of the wrong kind.
    """
    table, presets = _read(item)
    changes, where = _nested(overrides or {}), f"{item}.toml"
    if preset not in presets:
        raise ValueError(f"`preset` must be one of {brief(', '.join(presets))}, got {preset!r}, in {where}")
    merge(table, presets[preset])
    if item in STUDIES:
        merge(table, changes)
        study: Item = read(STUDIES[item], {**table, "item": item, "preset": preset}, where)
        return study
    if "epochs" in changes:
        epochs = changes.pop("epochs")
        changes = merge({section: {"epochs": epochs} for section in TRAINED}, changes)
    points = changes.pop("points", table.pop("points", [{}]))
    if not isinstance(points, list):
        raise ValueError(f"`points` in {where} must be a list of tables, got {brief(points)}")
    merge(table, changes)
    base = {section: table.pop(section, {}) for section in SECTIONS}
    read(Settings, _with_source(base), where)  # refused here, by name, rather than at each point
    changed = {section: changes.get(section, {}) for section in SECTIONS}
    table["points"] = [_point(point, base, changed, where) for point in points]
    return read(Experiment, {**table, "item": item, "preset": preset}, where)


def load_experiment(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Experiment:
    """As `load_item`, for an item that trains networks."""
    if item in STUDIES or not isinstance(loaded := load_item(item, preset, overrides), Experiment):
        raise ValueError(f"`item` must be one that trains networks, got {item!r}")
    return loaded


def folder_name(item: str, preset: str) -> str:
    """The name of an item's results unless someone names another."""
    return item if preset == "paper" else f"{item}-{preset}"


def check_name(name: str) -> str:
    """Refuse a name of results that would lie outside their directory.

    Example:
        >>> check_name("table1-quick")
        'table1-quick'
    """
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ValueError(
            f"`name` must be a folder's name of letters, digits, '.', '_', '+' and '-' that begins with a letter "
            f"or a digit, got {name!r}"
        )
    return name


def parse_override(text: str) -> tuple[str, Any]:
    """Read `training.epochs=3` as a key and a TOML value; what is no TOML value is taken as text."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"`set` must be KEY=VALUE, such as training.epochs=3, got {text!r}")
    if re.search(r"[\r\n]", text):
        raise ValueError(f"`set` must be one KEY=VALUE on one line; give --set twice to set two keys, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def meant(item: str) -> str:
    """Which item somebody may have meant, as the end of a message."""
    similar = difflib.get_close_matches(item, ITEMS)
    return f"an item, such as {' or '.join(similar or ITEMS[:2])} (`scaleconv show` lists them)"


def _read(item: str) -> tuple[Table, Table]:
    """A file and its presets, both on top of the settings of the item it is based on."""
    if item not in _FILES:
        raise ValueError(f"`item` must be {meant(item)}, got {item!r}")
    table = {key: copy.deepcopy(value) for key, value in _FILES[item].items() if key not in ("order", "search")}
    presets = {"paper": {}, **table.pop("presets", {})}
    if "base" not in table:
        return table, presets
    base, base_presets = _read(table.pop("base"))
    inherited = {name: merge(_settings(base_presets.get(name, {})), preset) for name, preset in presets.items()}
    return merge(_settings(base), table), inherited


def _settings(table: Table) -> Table:
    return {key: value for key, value in table.items() if key in SECTIONS}


def _with_source(settings: Table) -> Table:
    """Settings whose data names its source: digits, unless it is another."""
    data = settings.get("data", {})
    return {**settings, "data": {"source": "digits", **data}} if isinstance(data, Mapping) else settings


def _point(point: Any, base: Table, changes: Table, where: str) -> Table:
    if not isinstance(point, Mapping) or not isinstance(point.get("set", {}), Mapping):
        raise ValueError(f"`points` in {where} must be tables with a table `set`, got {brief(point)}")
    settings = merge(merge(copy.deepcopy(base), _nested(point.get("set", {}))), changes)
    return {**{key: value for key, value in point.items() if key != "set"}, "settings": _with_source(settings)}


def _nested(flat: Mapping[str, Any]) -> Table:
    table: Table = {}
    for key, value in flat.items():
        change = value
        for part in reversed(key.split(".")):
            change = {part: change}
        merge(table, change)
    return table


def merge(table: Table, change: Mapping[str, Any]) -> Table:
    """Put a table on top of another, key by key."""
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            merge(table[key], value)
        else:
            table[key] = copy.deepcopy(value)
    return table
