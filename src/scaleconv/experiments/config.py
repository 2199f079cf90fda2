"""What an experiment is: frozen dataclasses, filled from one TOML file per paper item (`loading.py`).

An experiment is a set of points, each with its own settings; at every point every model is trained on every fold. A
table has one point, a curve many. All that a result depends on is in `Settings`, which goes into its record.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..data import parse_scales
from ..data.scaled import TRUNCATIONS
from ..models import UNSUPERVISED, Shape
from ..ops.signature import DEFAULT_SCALES, check_scales
from .feature_config import RBMConfig, SIRBMConfig, SoftmaxConfig
from .titles import TITLES

PRECISIONS = ("float32", "bfloat16")
FIGURES = ("lines", "bars")
MEASURES = ("", "test_scales", "invariance", "winners", "equivariance")

# What the result of a model depends on: these for the networks, and others for those that learn features first.
OF_NETWORKS = ("data", "network", "training", "measure")
OF_FEATURES = {
    "rbm": ("data", "rbm", "softmax"),
    "si_rbm": ("data", "si_rbm", "softmax"),
    "pixels": ("data", "softmax"),
}


@dataclass(frozen=True)
class DataConfig:
    """The digits and how they are divided.

    Attributes:
        dataset: `mnist`, `fashion` or `embedded`.
        scales: distribution of the digits' scales, as `parse_scales` reads it.
        size: of the canvas.
        seed: of the scales.
        train: digits to train on.
        test: digits to test on; each fold draws its own, and its training digits among the others. 0 divides all digits
            into sets of `train` instead: fold k trains on set k and tests on the other sets.
        sets: how many sets.
        fold_seed: of the order in which digits are drawn; below 0, sets are filled in the order of the file.
        truncate: `error` refuses to cut off foreground at the edge of the canvas, `allow` cuts it.
        held_out: so many of the training digits are tested on in place of the test digits, and not trained on: for
            choosing settings. 0 for none.
    """

    dataset: str = "mnist"
    scales: str = "uniform:0.3,1"
    size: int = 28
    seed: int = 0
    train: int = 10_000
    test: int = 0
    sets: int = 6
    fold_seed: int = 0
    truncate: str = "error"
    held_out: int = 0

    def __post_init__(self) -> None:
        parse_scales(self.scales)
        _at_least(self, 1, "size", "train")
        _at_least(self, 0, "test", "held_out", *(("fold_seed",) if self.test else ()))
        if self.held_out >= self.train:
            raise ValueError(f"`held_out` (={self.held_out}) must leave some of the digits to train on (={self.train})")
        _at_least(self, 2, "sets")
        if self.truncate not in TRUNCATIONS:
            raise ValueError(f"`truncate` must be one of {', '.join(TRUNCATIONS)}, got {self.truncate!r}")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the networks, and their scales.

    Attributes:
        maps: feature maps of the two stages.
        kernel: side of the first kernel.
        hidden: units of the fully connected layer.
        scales: of the networks that have any.
        second_scales: of the second layer of the SI-ConvNet, if not `scales`.
        antialias: whether its layers smooth what they shrink.
    """

    maps: tuple[int, ...] = (36, 64)
    kernel: int = 7
    hidden: int = 150
    scales: tuple[float, ...] = DEFAULT_SCALES
    second_scales: tuple[float, ...] = ()
    antialias: bool = False

    def __post_init__(self) -> None:
        check_scales(self.scales)
        if self.second_scales:
            check_scales(self.second_scales)
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
        checkpoint_every: epochs between two checkpoints; more if they take less than five seconds.
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
class MeasureConfig:
    """What is measured on a trained network besides its test error (`measures.py`).

    Attributes:
        kind: one of `MEASURES`; empty for nothing.
        scales: factors by which digits are rescaled for it.
        layers: names of the modules whose output is looked at.
        digits: how many of the test digits it is measured on; 0 for all.
        firing: of invariance, the least part of the images a neuron fires to.
        top: of invariance, the part of a layer's neurons, the best first, that is averaged.
    """

    kind: str = ""
    scales: tuple[float, ...] = ()
    layers: tuple[str, ...] = ()
    digits: int = 0
    firing: float = 0.01
    top: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in MEASURES:
            raise ValueError(f"`kind` must be one of {', '.join(MEASURES[1:])}, got {self.kind!r}")
        _at_least(self, 0, "digits")
        for name in ("firing", "top"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must lie above 0 and not above 1, got {getattr(self, name)}")
        if self.kind and not (self.scales and min(self.scales) > 0):
            raise ValueError(f"`scales` must hold positive factors for {self.kind}, got {list(self.scales)}")


@dataclass(frozen=True)
class Settings:
    """All that the result of a run depends on, besides its model, fold and seed; each model uses some of it."""

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    rbm: RBMConfig = field(default_factory=RBMConfig)
    si_rbm: SIRBMConfig = field(default_factory=SIRBMConfig)
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)

    def plain(self, model: str) -> dict[str, Any]:
        """Those that a model has a use for, as plain values, the way they go into records."""
        used = {name: asdict(getattr(self, name)) for name in OF_FEATURES.get(model, OF_NETWORKS)}
        values: dict[str, Any] = json.loads(json.dumps(used))
        return values

    def deciding(self, model: str) -> dict[str, Any]:
        """Those that change the result: not how often a run is tested and saved on the way."""
        values = self.plain(model)
        for name in ("evaluate_every", "checkpoint_every"):
            values.get("training", {}).pop(name, None)
        return values

    def of_training(self, model: str) -> dict[str, Any]:
        """Those that the trained weights depend on: not what is measured on them."""
        return {name: values for name, values in self.deciding(model).items() if name != "measure"}

    def epochs(self, model: str) -> int:
        """How many entries the history of a model's run has; the control on pixels is trained in one go."""
        if model == "pixels":
            return 1
        return {"rbm": self.rbm, "si_rbm": self.si_rbm}.get(model, self.training).epochs


@dataclass(frozen=True)
class Point:
    """One value of what an experiment varies.

    Attributes:
        name: goes into file names; empty for the only point of a table.
        x: where it lies on the axis.
        label: for people; the value of x if not given.
        settings: of its runs.
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


@dataclass(frozen=True)
class FigureConfig:
    """Words and axes of an item's figure and table; `kind` is `lines`, or `bars` where x is no quantity."""

    x: str = ""
    y: str = "test error (%)"
    kind: str = "lines"
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FIGURES:
            raise ValueError(f"`kind` of a figure must be one of {', '.join(FIGURES)}, got {self.kind!r}")


@dataclass(frozen=True)
class Experiment:
    """One item of the paper under one preset.

    Attributes:
        item, preset: where the settings come from.
        title: heading of its table and figure.
        models: names in `TITLES`, for which the runner has a procedure.
        baseline: the model the others are compared with.
        folds: which repeats are run: sets of the digits, or draws of them.
        points: what is varied, one group of runs each.
        claim: what the paper says about it.
        seed: of the weights and of the order of the digits, shared by all networks.
        reuse: items whose networks are taken, instead of trained again, where settings, fold and seed are the same.
        figure: words and axes.
        paper: what the paper reports: for a model the mean, and the standard deviation if it gives one; else by name.
    """

    item: str
    preset: str
    title: str
    models: tuple[str, ...]
    baseline: str
    folds: tuple[int, ...]
    points: tuple[Point, ...]
    claim: str = ""
    seed: int = 0
    reuse: tuple[str, ...] = ()
    figure: FigureConfig = field(default_factory=FigureConfig)
    paper: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, name in [*(("models", name) for name in self.models), ("baseline", self.baseline)]:
            if name not in TITLES:
                raise ValueError(f"`{key}` must be among {', '.join(TITLES)}, got {name!r}")
        for name in ("models", "folds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"`{name}` must name at least one, and none twice, got {list(values)}")
        features = [name for name in self.models if name in UNSUPERVISED]
        if features and any(point.settings.measure.kind for point in self.points):
            raise ValueError(f"`models` must be networks where something is measured on them, got {features[0]!r}")
        names = [point.name for point in self.points]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"`points` must hold at least one, and no name twice, got {names}")
        for point in self.points:
            data = point.settings.data
            for fold in self.folds:
                if fold < 0 or (not data.test and fold >= data.sets):
                    most = "" if data.test else f" and {data.sets - 1}"
                    rule = f"lie between 0{most}" if most else "be at least 0"
                    raise ValueError(f"`folds` must {rule}, got {fold}")
        _at_least(self, 0, "seed")

    @property
    def settings(self) -> Settings:
        """Those of the first point, for what is the same at all of them."""
        return self.points[0].settings

    def at_point(self, name: str | None) -> "Experiment":
        """The same with one point only, the first if none is named."""
        names = [point.name for point in self.points]
        if name is not None and name not in names:
            raise ValueError(f"`point` must be one of {', '.join(names) or 'none'} in {self.item}, got {name!r}")
        return replace(self, points=(self.points[names.index(name) if name is not None else 0],))


def _at_least(config: Any, least: float, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise ValueError(f"`{name}` must be at least {least}, got {getattr(config, name)}")
