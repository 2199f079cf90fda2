"""The curves of an item, from its records: what its table lists and its figure draws.

A panel has an axis and lines; a line has, at each x, one value per repeat. Every item but table 1 is a few panels. No
number is typed in here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from ..metrics import Summary, relative_reduction, summarise
from .config import Experiment
from .cost import METHODS, SWEEPS, CostStudy
from .records import Record
from .titles import TITLES

UNITS = {"operations": "operations (Conv2d = 1)", "milliseconds": "forward + backward (ms)"}

Repeat = tuple[int, int]  # fold and seed
Values = dict[float, dict[Repeat, float]]  # by x


@dataclass(frozen=True)
class Line:
    """One method in a panel.

    Attributes:
        model: whose colour it has.
        title: for people.
        values: by x and repeat.
        control: drawn behind the others.
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
        title: what sets it apart from the other panels; empty if there is one.
        x, y: what the axes are.
        lines: in the order of `TITLES` or of what is measured.
        labels: for values of x that are not to be read as numbers.
        kind: `lines`, `bars` or `shares` (lines that add up to 100 %).
        baseline: the line that others are compared with; empty if none is.
        log_x, log_y: axes.
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

    @property
    def xs(self) -> list[float]:
        return sorted({x for line in self.lines for x in line.values})

    def label(self, x: float) -> str:
        return self.labels.get(x) or f"{x:g}"

    def pairs(self, line: Line, x: float) -> list[tuple[float, float]]:
        """The values of a line and of the baseline at x, for each repeat that both have."""
        base = next((other.values.get(x, {}) for other in self.lines if other.model == self.baseline), {})
        return [(value, base[repeat]) for repeat, value in line.values.get(x, {}).items() if base.get(repeat)]

    def reduction(self, line: Line, x: float) -> float | None:
        """By how many percent a line lies under the baseline at x, over the repeats that both have."""
        pairs = self.pairs(line, x)
        return relative_reduction(sum(a for a, _ in pairs), sum(b for _, b in pairs)) if pairs else None

    def mean_reduction(self, line: Line) -> float | None:
        """The mean of the reductions over all x; none where one is missing, since some x are harder than others."""
        found = [value for x in self.xs if (value := self.reduction(line, x)) is not None]
        return fmean(found) if found and len(found) == len(self.xs) else None

    def compared(self) -> list[Line]:
        """The lines that are compared with the baseline."""
        return [line for line in self.lines if self.baseline and line.model != self.baseline and not line.control]


def is_table(item: Experiment | CostStudy) -> bool:
    """Whether an item is a table of methods, as table 1, and not a set of curves."""
    return isinstance(item, Experiment) and not item.points[0].name and not item.settings.measure.kind


def make_panels(item: Experiment | CostStudy, records: Sequence[Record]) -> list[Panel]:
    """The panels of an item that is not a table."""
    if isinstance(item, CostStudy):
        return _cost_panels(item, records)
    kind = item.settings.measure.kind
    if kind == "winners":
        return _winner_panels(item, records)
    if kind == "equivariance":
        layers = [name for name in item.settings.measure.layers if any(name in r.series for r in records)]
        # Not compared in percent: where nothing is rescaled both are 0.
        return [replace(_panel(item, records, name, name.partition(".")[2]), baseline="") for name in layers]
    if kind == "invariance":
        return [_invariance_panel(item, records)]
    return [_panel(item, records, "test_error" if kind else "", "")]


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


def _values(records: Sequence[Record], series: str) -> Values:
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


def _models(records: Sequence[Record]) -> list[str]:
    present = {record.model for record in records}
    return [model for model in TITLES if model in present]


def _of(records: Sequence[Record], model: str) -> list[Record]:
    return [record for record in records if record.model == model]


def _panel(item: Experiment, records: Sequence[Record], series: str, title: str) -> Panel:
    """One line per model."""
    lines = [Line(model, TITLES[model], _values(_of(records, model), series)) for model in _models(records)]
    labels = {record.x: record.label for record in records if record.x is not None and record.label}
    words = item.figure
    return Panel(
        title, words.x, words.y, lines, labels, words.kind, item.baseline, log_x=words.log_x, log_y=words.log_y
    )


def _invariance_panel(item: Experiment, records: Sequence[Record]) -> Panel:
    lines = []
    for name, suffix in (("trained", ""), ("random", ", random weights")):
        for model in _models(records):
            values = _values(_of(records, model), name)
            lines.append(Line(model, f"{TITLES[model]}{suffix}", values, control=name == "random"))
    layers = enumerate(item.settings.measure.layers, start=1)
    labels = {float(number): name.partition(".")[2] for number, name in layers}
    return Panel("", item.figure.x, item.figure.y, lines, labels, kind="bars")


def _winner_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """A panel per layer; its lines are the levels."""
    names = list(dict.fromkeys(name for record in records for name in record.series))
    layers = list(dict.fromkeys(name.rpartition(" ")[0] for name in names))
    panels = []
    for layer in layers:
        levels = [name for name in names if name.rpartition(" ")[0] == layer]
        lines = [Line("si_convnet", f"×{name.rpartition(' ')[2]}", _values(records, name)) for name in levels]
        panels.append(Panel(layer.partition(".")[2], item.figure.x, item.figure.y, lines, kind="shares"))
    return panels


def _cost_panels(study: CostStudy, records: Sequence[Record]) -> list[Panel]:
    """For each layer operations and time, against the largest scale and against the number of scales."""
    panels = []
    for layer in study.layers:
        of_layer = [record for record in records if record.point == layer.name]
        for sweep, axis in SWEEPS.items():
            for quantity, unit in UNITS.items():
                lines = []
                for method, title in METHODS.items():
                    values = _values(_of(of_layer, method), f"{quantity} {sweep}")
                    if values:
                        lines.append(Line(method, title, values))
                if lines:
                    panels.append(Panel(layer.title, axis, unit, lines, log_y=True))
    return panels
