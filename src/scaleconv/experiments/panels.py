"""The curves of an item, from its records: what its table lists and its figure draws.

A panel has an axis and lines; a line has, at each x, one value per repeat. Every item but Table 1 is a few panels. No
number is typed in here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from statistics import fmean
from typing import Any

from ..metrics import Summary, relative_reduction, summarise
from .config import TITLES
from .experiment import Experiment
from .records import Record

Repeat = tuple[int, int]  # fold and seed
Values = dict[float, dict[Repeat, float]]  # by x


@dataclass(frozen=True)
class Line:
    """One method in a panel.

    Attributes:
        model: decides the colour.
        title: in the legend and above the column.
        values: by x and repeat.
        control: drawn in the background, and not compared with the baseline.
    """

    model: str
    title: str
    values: Values
    control: bool = False

    def at(self, x: float) -> Summary | None:
        repeats = self.values.get(x)
        return summarise(list(repeats.values())) if repeats else None


@dataclass(frozen=True)
class Panel:
    """Lines over one axis.

    Attributes:
        title: distinguishes it from the other panels; empty if there is one.
        x, y: what the axes are.
        lines: in the order of `TITLES` or of what is measured.
        labels: for values of x that are not to be read as numbers.
        kind: `lines`, `bars` or `shares` (lines that add up to 100 %).
        baseline: the model that others are compared with; empty if none is.
        log_x, log_y: axes.
        group: panels of one group are drawn into one, each with a line style of its own.
    """

    title: str
    x: str
    y: str
    lines: list[Line]
    labels: dict[float, str] = field(default_factory=dict)
    kind: str = "lines"
    baseline: str = ""
    log_x: bool = False
    log_y: bool = False
    group: str = ""

    @property
    def xs(self) -> list[float]:
        return sorted({x for line in self.lines for x in line.values})

    @property
    def compared(self) -> list[Line]:
        """The lines that are compared with the baseline."""
        return [line for line in self.lines if self.baseline and line.model != self.baseline and not line.control]

    @property
    def baseline_title(self) -> str:
        return next((line.title for line in self.lines if line.model == self.baseline), self.baseline)

    def label(self, x: float) -> str:
        return self.labels.get(x) or f"{x:g}"

    def pairs(self, line: Line, x: float) -> list[tuple[float, float]]:
        """The values of a line and of the baseline at x, for each repeat that both have."""
        base = next((other.values.get(x, {}) for other in self.lines if other.model == self.baseline), {})
        return [(value, base[repeat]) for repeat, value in line.values.get(x, {}).items() if base.get(repeat)]

    def change(self, line: Line, x: float) -> float | None:
        """A line against the baseline at x in percent, below 0 where it is lower; over the repeats that both have."""
        pairs = self.pairs(line, x)
        return relative_change(sum(a for a, _ in pairs), sum(b for _, b in pairs)) if pairs else None

    def mean_change(self, line: Line) -> float | None:
        """The mean of the changes over all x; None where one is missing, since some x are harder than others."""
        found = [value for x in self.xs if (value := self.change(line, x)) is not None]
        return fmean(found) if found and len(found) == len(self.xs) else None


def shows_change(panels: Sequence[Panel]) -> bool:
    """Whether the change against the baseline is drawn too: beside a single panel of lines that has a baseline."""
    return len(panels) == 1 and panels[0].kind == "lines" and bool(panels[0].compared)


def learning_curves(records: Sequence[Record]) -> dict[str, dict[int, list[float]]]:
    """The test errors of the runs by model and epoch, where all runs of a model were tested in two epochs or more."""
    curves = {}
    for model in TITLES:
        runs, by_epoch = of_model(records, model), dict[int, list[float]]()
        for entry in (entry for record in runs for entry in record.history):
            if entry.test_error is not None:
                by_epoch.setdefault(entry.epoch, []).append(entry.test_error)
        shared = {epoch: errors for epoch, errors in sorted(by_epoch.items()) if len(errors) == len(runs)}
        if len(shared) > 1:
            curves[model] = shared
    return curves


def relative_change(value: float, baseline: float) -> float:
    """A value against the baseline in percent: −10 where it is a tenth lower."""
    return -relative_reduction(value, baseline)


def signed_percent(value: float | None, digits: int = 1) -> str:
    """A change as people read it.

    Example:
        >>> signed_percent(-12.34), signed_percent(3.0, 0), signed_percent(-0.01), signed_percent(None)
        ('−12.3 %', '+3 %', '0.0 %', '–')
    """
    if value is None:
        return "–"
    number = f"{value:+.{digits}f}"
    return f"{number.replace('-', '−') if float(number) else number[1:]} %"


@singledispatch
def make_panels(item: Any, records: Sequence[Record]) -> list[Panel]:
    """The panels of an item that is not a table."""
    raise TypeError(f"`item` must be of a class with panels, got {type(item).__name__}")


@make_panels.register
def _panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    kind = item.settings.measure.kind
    if not kind:
        return [model_panel(item, records, "", "")]
    arrange = ARRANGED.get(kind, _panel_per_series)
    if len(item.points) == 1:
        return arrange(item, records)
    # What is measured has an axis of its own, so every point has panels of its own.
    return [
        replace(panel, title=": ".join(part for part in (point.title, panel.title) if part))
        for point in item.points
        if (of_point := [record for record in records if record.point == point.name])
        for panel in arrange(item, of_point)
    ]


def _panel_per_series(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """A panel for each series, in the order of the records; its title is the part of the name after the last dot."""
    names = list(dict.fromkeys(name for record in records for name in record.series))
    return [model_panel(item, records, name, name.rpartition(".")[2] if len(names) > 1 else "") for name in names]


def _test_scale_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    return [model_panel(item, records, "test_error", "")]


def _equivariance_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """Not compared in percent: where nothing is rescaled both are 0."""
    return [replace(panel, baseline="") for panel in _panel_per_series(item, records)]


def _invariance_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """Bars for each layer, trained and before training."""
    lines = []
    for name, suffix in (("trained", ""), ("random", ", random weights")):
        for model in _models(records):
            values = series_values(of_model(records, model), name)
            lines.append(Line(model, f"{TITLES[model]}{suffix}", values, control=name == "random"))
    layers = enumerate(item.settings.measure.layers, start=1)
    labels = {float(number): name.partition(".")[2] for number, name in layers}
    return [Panel("", item.figure.x, item.figure.y, lines, labels, kind="bars")]


def _winner_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """A panel per layer; its lines are the levels."""
    names = list(dict.fromkeys(name for record in records for name in record.series))
    layers = list(dict.fromkeys(name.rpartition(" ")[0] for name in names))
    panels = []
    for layer in layers:
        levels = [name for name in names if name.rpartition(" ")[0] == layer]
        lines = [Line("si_convnet", f"×{name.rpartition(' ')[2]}", series_values(records, name)) for name in levels]
        panels.append(Panel(layer.partition(".")[2], item.figure.x, item.figure.y, lines, kind="shares"))
    return panels


# Measures whose series are not simply one panel each.
ARRANGED: dict[str, Callable[[Experiment, Sequence[Record]], list[Panel]]] = {
    "test_scales": _test_scale_panels,
    "invariance": _invariance_panels,
    "winners": _winner_panels,
    "equivariance": _equivariance_panels,
    "consistency": _equivariance_panels,
}


def model_panel(item: Experiment, records: Sequence[Record], series: str, title: str) -> Panel:
    """A line per model: the values of a series, or the test errors by point if none is named."""
    lines = [Line(model, TITLES[model], series_values(of_model(records, model), series)) for model in _models(records)]
    labels = {} if series else {record.x: record.label for record in records if record.x is not None and record.label}
    axes = item.figure
    return Panel(title, axes.x, axes.y, lines, labels, axes.kind, item.baseline, log_x=axes.log_x, log_y=axes.log_y)


def series_values(records: Sequence[Record], series: str) -> Values:
    """The values of a series, or the test errors by point if none is named."""
    values: Values = {}
    for record in records:
        repeat = (record.fold, record.seed)
        if series:
            found = record.series.get(series)
            for x, y in zip(found.x, found.y, strict=True) if found else ():
                values.setdefault(x, {})[repeat] = y
        elif record.x is not None:
            values.setdefault(record.x, {})[repeat] = record.error
    return values


def of_model(records: Sequence[Record], model: str) -> list[Record]:
    return [record for record in records if record.model == model]


def _models(records: Sequence[Record]) -> list[str]:
    present = {record.model for record in records}
    return [model for model in TITLES if model in present]


def model_summaries(panels: Sequence[Panel]) -> dict[str, Summary]:
    """Of each model's first line: the mean over x for each repeat, summarised over the repeats that have every x."""
    found: dict[str, Summary] = {}
    for panel in panels:
        for line in panel.lines:
            by_repeat: dict[Repeat, list[float]] = {}
            for repeats in line.values.values():
                for repeat, value in repeats.items():
                    by_repeat.setdefault(repeat, []).append(value)
            whole = [fmean(values) for values in by_repeat.values() if len(values) == len(panel.xs)]
            if line.model not in found and whole:
                found[line.model] = summarise(whole)
    return found
