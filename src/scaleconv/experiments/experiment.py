"""What an experiment is: frozen dataclasses, filled from one TOML file per item (`items.py` reads it).

An experiment is a set of points, each with its own settings. At every point every model is trained on every fold. A
table has one point, a curve has many.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..models import DENSE, UNSUPERVISED
from ..ops.checks import check_choice
from .config import LARGEST_SEED, TITLES, Settings, check_least, check_most

FIGURES = ("lines", "bars")
MOST_DRAWS = 10**6  # folds where each is a draw of its own


@dataclass(frozen=True)
class Point:
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


@dataclass(frozen=True)
class FigureConfig:
    """Axes of an item's figure and table; `kind` is `lines`, or `bars` where x is no quantity."""

    x: str = ""
    y: str = "test error (%)"
    kind: str = "lines"
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        check_choice("figure.kind", self.kind, FIGURES)


class Item(Protocol):
    """What every item of the suite has, whether it trains networks (`Experiment`) or times a layer.

    How an item is run, drawn and described is decided by its class: `run_item`, `make_panels` and `footnotes` are
    `functools.singledispatch` functions, to which a class adds its own.
    """

    @property
    def item(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def checks(self) -> tuple[str, ...]: ...
    @property
    def paper(self) -> dict[str, tuple[float, ...]]: ...


@dataclass(frozen=True)
class Experiment:
    """One item of the paper under one preset.

    Attributes:
        item, preset: the file and the preset the settings come from.
        title: heading of its table and figure.
        models: names in `TITLES`.
        baseline: the model the others are compared with.
        folds: the repeats: sets of the digits, or draws of them.
        points: what is varied, one group of runs each.
        claim: what the paper says about it, in a sentence.
        checks: which claims are checked against the records: names in `claims.py`.
        seed: of the weights and of the order of the digits, shared by all networks.
        reuse: items whose trained networks are used where settings, fold and seed are the same.
        figure: axes.
        paper: the paper's numbers: mean and, if given, standard deviation for each model, others by name.
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
            if misfits := [name for name in self.models if (name in DENSE) != bool(data.scene)]:
                kind = "predict every pixel where `data.scene` is above 0" if data.scene else "predict one label"
                raise ValueError(f"`models` must {kind}, got {misfits[0]!r}")
            for name in self.models:
                if name not in UNSUPERVISED:
                    point.settings.network.check_stages(name)
            for fold in self.folds:
                most = MOST_DRAWS if data.test else data.sets - 1
                if not 0 <= fold <= most:
                    raise ValueError(f"`folds` must lie between 0 and {most}, got {fold}")
        check_least(self, 0, "seed")
        check_most(self, LARGEST_SEED, "seed")

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
