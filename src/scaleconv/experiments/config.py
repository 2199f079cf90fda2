"""What an experiment is: frozen dataclasses, read from one TOML file per paper item.

A file holds the paper's protocol; its `[presets.*]` tables change what they name. A key that no dataclass has is an
error, and so is a value of the wrong kind. The main overrides of the command line end here too.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

from ..data import parse_scales
from ..models import TITLES, Shape
from ..ops.signature import DEFAULT_SCALES, check_scales
from .schema import build

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class DataConfig:
    """The digits and how they are divided.

    Attributes:
        dataset: `mnist`, `fashion` or `embedded`.
        scales: distribution of the digits' scales, as `parse_scales` reads it.
        size: of the canvas.
        seed: of the scales.
        train: digits in a set; a fold trains on one set and tests on the others.
        sets: how many sets the digits are divided into.
        fold_seed: of the order in which the sets are filled; below 0, the order of the file.
    """

    dataset: str = "mnist"
    scales: str = "uniform:0.3,1"
    size: int = 28
    seed: int = 0
    train: int = 10_000
    sets: int = 6
    fold_seed: int = 0

    def __post_init__(self) -> None:
        parse_scales(self.scales)
        _at_least(self, 1, "size", "train")
        _at_least(self, 2, "sets")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the networks, and the scales of those that have any."""

    maps: tuple[int, ...] = (36, 64)
    kernel: int = 7
    hidden: int = 150
    scales: tuple[float, ...] = DEFAULT_SCALES

    def __post_init__(self) -> None:
        check_scales(self.scales)
        if len(self.maps) != 2 or min(self.maps) < 1:
            raise ValueError(f"`maps` must be two positive numbers, got {list(self.maps)}")
        _at_least(self, 1, "kernel", "hidden")

    def shape(self, size: int) -> Shape:
        return Shape((self.maps[0], self.maps[1]), self.kernel, size, self.hidden)


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe, the same for all networks of a comparison.

    Attributes:
        epochs: passes over the training digits.
        batch: digits in a step; the last, partial batch of an epoch is left out.
        learning_rate: fixed.
        momentum: of the gradient.
        weight_decay: of the weights; biases have none.
        bias_rate: learning rate of the biases, in units of `learning_rate`.
        precision: `float32`, or `bfloat16` for mixed precision.
        evaluate_every: epochs between two tests; the last epoch is always tested.
        checkpoint_every: epochs between two checkpoints.
    """

    epochs: int = 700
    batch: int = 128
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    bias_rate: float = 2.0
    precision: str = "float32"
    evaluate_every: int = 10
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        _at_least(self, 1, "epochs", "batch", "evaluate_every", "checkpoint_every")
        _at_least(self, 0, "learning_rate", "momentum", "weight_decay", "bias_rate")
        if self.precision not in PRECISIONS:
            raise ValueError(f"`precision` must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")


@dataclass(frozen=True)
class Experiment:
    """One item of the paper under one preset.

    Attributes:
        item, preset: where the settings come from.
        title: heading of its table.
        models: names in `scaleconv.models.TITLES`.
        baseline: the model the others are compared with.
        folds: which of the data's sets are trained on, one run each.
        seed: of the weights and of the order of the digits, shared by all networks.
        paper: what the paper reports for a model: the mean, and the standard deviation if it gives one.
    """

    item: str
    preset: str
    title: str
    models: tuple[str, ...]
    baseline: str
    folds: tuple[int, ...]
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    paper: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, name in [*(("models", name) for name in self.models), ("baseline", self.baseline)]:
            if name not in TITLES:
                raise ValueError(f"`{key}` must be among {', '.join(TITLES)}, got {name!r}")
        for fold in self.folds:
            if not 0 <= fold < self.data.sets:
                raise ValueError(f"`folds` must lie between 0 and {self.data.sets - 1}, got {fold}")
        for name in ("models", "folds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"`{name}` must name at least one, and none twice, got {list(values)}")
        _at_least(self, 0, "seed")

    def settings(self) -> dict[str, Any]:
        """What a run's result depends on, as plain values: the part of the configuration that goes into records."""
        settings = {"data": asdict(self.data), "network": asdict(self.network), "training": asdict(self.training)}
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        return plain


def items() -> list[str]:
    """The paper items that have a configuration."""
    return sorted(file.name.removesuffix(".toml") for file in _configs().iterdir() if file.name.endswith(".toml"))


def load_experiment(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read an item's file, apply a preset, then overrides such as {"training.epochs": 3}.

    Raises:
        ValueError: an unknown item, preset or key, or a value of the wrong kind.
    """
    if item not in items():
        raise ValueError(f"`item` must be one of {', '.join(items())}, got {item!r}")
    table = tomllib.loads(_configs().joinpath(f"{item}.toml").read_text(encoding="utf-8"))
    presets = table.pop("presets", {})
    if preset not in presets:
        raise ValueError(f"`preset` must be one of {', '.join(presets)}, got {preset!r}")
    _merge(table, presets[preset])
    for key, value in (overrides or {}).items():
        *parents, last = key.split(".")
        change: dict[str, Any] = {last: value}
        for parent in reversed(parents):
            change = {parent: change}
        _merge(table, change)
    return build(Experiment, {**table, "item": item, "preset": preset}, f"{item}.toml")


def parse_override(text: str) -> tuple[str, Any]:
    """Read `training.epochs=3` as a key and a TOML value; what is no TOML value is taken as text."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"`set` must be KEY=VALUE, such as training.epochs=3, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _configs() -> Any:
    return resources.files("scaleconv").joinpath("configs")


def _merge(table: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value


def _at_least(config: Any, least: float, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise ValueError(f"`{name}` must be at least {least}, got {getattr(config, name)}")
