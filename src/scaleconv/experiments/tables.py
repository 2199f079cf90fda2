"""From records to panels, and from panels to tables: for a terminal, as Markdown, as CSV and as JSON.

A panel has an axis and lines; a line has, at each x, one value per repeat. Tables list panels, figures draw them and
claims are checked on them. A table of methods, as Table 1 is, has a row per method, ours beside the paper's numbers. No
number is typed in here.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import singledispatch
from operator import sub
from statistics import fmean, median
from typing import Any

from ..metrics import MOST_PAIRS, Interval, Summary, interval, relative_reduction, sign_flip_test, summarise
from ..models import UNSUPERVISED
from ..table import Table
from .items import Experiment, Item
from .methods import TITLES
from .records import Record

METHOD_COLUMNS = (
    *("model", "paper_mean", "paper_std", "mean", "std", "n"),
    *("error_change_percent", "p", "seconds_per_epoch"),
)
PANEL_COLUMNS = ("panel", "quantity", "model", "line", "axis", "x", "label", "mean", "std", "n", "error_change_percent")
MOST_ROWS = 16  # of a table of a curve

Repeat = tuple[int, int]  # fold and seed
ByRepeat = Mapping[Repeat, float]
Values = dict[float, dict[Repeat, float]]  # by x


def mean_and_std(found: Summary) -> str:
    """A value of a curve as text; numbers that were counted do not vary."""
    return f"{found.mean:.2f}" + (f" ± {found.std:.2f}" if found.std else "")


@dataclass(frozen=True)
class Line:
    """One method in a panel.

    Attributes:
        model: decides the colour.
        title: in the legend and above the column.
        values: by x and repeat.
        control: drawn in the background, and not compared with the baseline.
        paper: by x, what was published of this method: a mean and, if there is one, a standard deviation.
    """

    model: str
    title: str
    values: Values
    control: bool = False
    paper: dict[float, tuple[float, ...]] = field(default_factory=dict)

    @property
    def summaries(self) -> dict[float, Summary]:
        """By x, the mean and the deviation of the repeats."""
        return {x: summarise([*self.values[x].values()]) for x in sorted(self.values)}


@dataclass(frozen=True)
class Panel:
    """Lines over one axis.

    Attributes:
        title: distinguishes it from the other panels; empty if there is one.
        x, y: what the axes are.
        lines: in the order of `TITLES` or of what is measured.
        labels: for values of x that are not to be read as numbers.
        kind: `lines`, `bars`, `shares` (lines that add up to 100 %) or `methods` (each line has one value of x).
        baseline: the model that others are compared with; empty if none is.
        log_x, log_y: axes.
        group: panels of one group are drawn into one, each with a line style of its own.
        write: a value as text.
        paper: by x, what the paper states: a mean and, if it has one, a standard deviation.
        paper_change: by x, the change against the baseline in percent that the paper states.
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
    write: Callable[[Summary], str] = mean_and_std
    paper: dict[float, tuple[float, ...]] = field(default_factory=dict)
    paper_change: dict[float, float] = field(default_factory=dict)

    @property
    def xs(self) -> list[float]:
        return sorted({x for line in self.lines for x in line.values})

    @property
    def compared(self) -> list[Line]:
        """The lines that are compared with the baseline."""
        return [line for line in self.lines if self.baseline and line.model != self.baseline and not line.control]

    @property
    def base(self) -> Line:
        """The line of the baseline; an empty one where it was not run."""
        return next((line for line in self.lines if line.model == self.baseline), Line("", self.baseline, {}))

    def label(self, x: float) -> str:
        return self.labels.get(x) or f"{x:g}"

    def means(self, line: Line) -> dict[Repeat, float]:
        """The mean of a line over all x, for each repeat that has every x."""
        return mean_over_points({x: line.values.get(x, {}) for x in self.xs})

    def change(self, line: Line, x: float) -> float | None:
        """A line against the baseline at x."""
        return change_of_mean(line.values.get(x, {}), self.base.values.get(x, {}))

    def mean_change(self, line: Line) -> float | None:
        """A line against the baseline on average over all x."""
        return change_of_mean(self.means(line), self.means(self.base))


def mean_over_points(values: Mapping[float, ByRepeat]) -> dict[Repeat, float]:
    """For each repeat that has every point, since some points are harder than others.

    Example:
        >>> mean_over_points({1.0: {(0, 0): 2.0, (1, 0): 3.0}, 2.0: {(0, 0): 4.0}})
        {(0, 0): 3.0}
    """
    whole = set.intersection(*map(set, values.values())) if values else set()
    return {repeat: fmean(repeats[repeat] for repeats in values.values()) for repeat in sorted(whole)}


def paired(ours: ByRepeat, base: ByRepeat, combine: Callable[[float, float], float] = sub) -> dict[Repeat, float]:
    """The difference, or another combination, for each repeat that both have."""
    return {repeat: combine(value, base[repeat]) for repeat, value in ours.items() if repeat in base}


def relative_change(value: float, baseline: float) -> float:
    """A value against the baseline in percent: −10 where it is a tenth lower."""
    return -relative_reduction(value, baseline)


def change_of_mean(ours: ByRepeat, base: ByRepeat) -> float | None:
    """The mean against that of the baseline in percent, over the repeats that both have.

    None where there are none, and where the baseline is 0.
    """
    both = [repeat for repeat in ours if repeat in base]
    total = sum(base[repeat] for repeat in both)
    return relative_change(sum(ours[repeat] for repeat in both), total) if total else None


@singledispatch
def make_panels(item: Any, records: Sequence[Record]) -> list[Panel]:
    """The panels of an item."""
    raise TypeError(f"`item` must be of a class with panels, got {type(item).__name__}")


@make_panels.register
def _panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    records = [record for record in records if record.model in TITLES]  # others have no colour
    if item.is_table:
        return _method_panels(item, records)
    kind = item.settings.measure.kind
    if not kind:
        return [_model_panel(item, records, "", "")]
    arrange = {"invariance": _invariance_panels, "winners": _winner_panels}.get(kind, _panel_per_series)
    if len(item.points) == 1:
        return arrange(item, records)
    # What is measured has an axis of its own, so every point has panels of its own. What others published is compared
    # with the first.
    return [
        replace(
            panel,
            title=": ".join(part for part in (point.title, panel.title) if part),
            paper=panel.paper if point is item.points[0] else {},
        )
        for point in item.points
        if (of_point := [record for record in records if record.point == point.name])
        for panel in arrange(item, of_point)
    ]


def _method_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """The errors of the methods beside the paper's; and by epoch, those of networks that were tested in several.

    The control on pixels is left out beside others, which its error would make small.
    """
    models, errors = models_of(records), run_errors(records)
    shown = [model for model in models if model != "pixels"] or models
    places = {float(place): model for place, model in enumerate(shown)}
    lines = [Line(model, TITLES[model], {x: errors[model]}) for x, model in places.items()]
    labels = {x: TITLES[model] for x, model in places.items()}
    paper = {x: item.paper[model] for x, model in places.items() if model in item.paper}
    panels = [Panel("", "method", item.figure.y, lines, labels, "methods", paper=paper)]
    tests = {model: _tests(of_model(records, model)) for model in models}
    if curves := [Line(model, TITLES[model], values) for model, values in tests.items() if len(values) > 1]:
        panels.append(Panel("during training", "epoch", item.figure.y, curves, log_y=True))
    return panels


def _tests(runs: Sequence[Record]) -> Values:
    """The test errors by epoch, at the epochs in which all runs were tested."""
    found: Values = {}
    for run in runs:
        for entry in run.history:
            if entry.test_error is not None:
                found.setdefault(float(entry.epoch), {})[run.fold, run.seed] = entry.test_error
    return {epoch: errors for epoch, errors in sorted(found.items()) if len(errors) == len(runs)}


def _panel_per_series(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """A panel for each series, in the order of the records; its title is the part of the name after the last dot."""
    kind, names = item.settings.measure.kind, _series_names(records)
    if kind == "test_scales":
        names = ["test_error"]
    panels = [_model_panel(item, records, name, name.rpartition(".")[2] if len(names) > 1 else "") for name in names]
    # These are 0 where nothing is rescaled, of which there is no change in percent.
    return [replace(each, baseline="") if kind in ("equivariance", "consistency") else each for each in panels]


def _series_names(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.series))


def _invariance_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """Bars for each layer, trained and before training."""
    before = model_lines(records, "random")
    controls = [replace(line, title=f"{line.title}, random weights", control=True) for line in before]
    labels = {float(x): name.partition(".")[2] for x, name in enumerate(item.settings.measure.layers, start=1)}
    lines = [*model_lines(records, "trained"), *controls]
    return [Panel("", item.figure.x, item.figure.y, lines, labels, kind="bars")]


def _winner_panels(item: Experiment, records: Sequence[Record]) -> list[Panel]:
    """A panel per layer; its lines are the levels."""
    layers: dict[str, list[Line]] = {}
    for name in _series_names(records):
        layer, _, level = name.rpartition(" ")
        layers.setdefault(layer, []).append(Line("si_convnet", f"×{level}", series_values(records, name)))
    axes = item.figure
    return [Panel(layer.partition(".")[2], axes.x, axes.y, lines, kind="shares") for layer, lines in layers.items()]


def _model_panel(item: Experiment, records: Sequence[Record], series: str, title: str) -> Panel:
    labels = {} if series else {record.x: record.label for record in records if record.x is not None and record.label}
    axes = item.figure
    lines = model_lines(records, series)
    panel = Panel(title, axes.x, axes.y, lines, labels, axes.kind, item.baseline, log_x=axes.log_x, log_y=axes.log_y)
    named = {x: panel.label(x) for x in panel.xs}

    def stated(form: str) -> dict[float, tuple[float, ...]]:
        return {x: item.paper[name] for x, label in named.items() if (name := form.format(label)) in item.paper}

    return replace(
        panel,
        lines=[replace(line, paper=stated(f"{line.model}, {{}}")) for line in lines],
        paper=stated("{}"),
        paper_change={x: -reduction for x, (reduction, *_) in stated("reduction at {}").items()},
    )


def model_lines(records: Sequence[Record], series: str) -> list[Line]:
    """A line per model: the values of a series, or the test errors by point if none is named."""
    titles = {model: TITLES.get(model, model) for model in models_of(records)}
    return [Line(model, title, series_values(of_model(records, model), series)) for model, title in titles.items()]


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


def models_of(records: Sequence[Record]) -> list[str]:
    """The methods that were run, in the order of `METHODS`, then those that it does not have."""
    present = {record.model for record in records}
    return [*(model for model in TITLES if model in present), *sorted(present - set(TITLES))]


def make_tables(item: Item, records: Sequence[Record]) -> list[Table]:
    """The table of methods, or a table for each panel."""
    if isinstance(item, Experiment) and item.is_table:
        header = ("method", "paper", "ours", "n", f"error vs {TITLES[item.baseline]}", "p", "s / epoch")
        return [Table(item.title, header, [cells(row) for row in make_rows(records, item.paper, item.baseline)])]
    return [panel_table(panel) for panel in make_panels(item, records)]


def panel_table(panel: Panel) -> Table:
    """A row per x with each line and its change against the baseline, and one for the mean over all x.

    Of more than `MOST_ROWS` numbers every second, third, … is shown; the CSV file has all.
    """
    compared, step = panel.compared, 1 if panel.labels else -(-len(panel.xs) // MOST_ROWS)
    changes = [f"{line.title}: error vs {panel.base.title}" for line in compared]
    written = [{x: panel.write(found) for x, found in line.summaries.items()} for line in panel.lines]
    rows = [
        (
            panel.label(x),
            *(values.get(x, "–") for values in written),
            *(signed_percent(panel.change(line, x)) for line in compared),
        )
        for x in panel.xs[::step]
    ]
    if compared:
        means = [list(panel.means(line).values()) for line in panel.lines]
        totals = [f"{fmean(values):.2f}" if values else "–" for values in means]
        rows.append(("mean", *totals, *(signed_percent(panel.mean_change(line)) for line in compared)))
    title = ": ".join(part for part in (panel.title, panel.y) if part)
    shown = f", {len(panel.xs[::step])} of {len(panel.xs)} points" if step > 1 else ""
    return Table(title + shown, (panel.x, *(line.title for line in panel.lines), *changes), rows)


def csv_text(item: Item, records: Sequence[Record]) -> str:
    """The tables of an item as CSV, unrounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if isinstance(item, Experiment) and item.is_table:
        writer.writerow(METHOD_COLUMNS)
        for row in make_rows(records, item.paper, item.baseline):
            ours = (row.ours.mean, row.ours.std, row.ours.n)
            writer.writerow([row.model, *(*row.paper, None, None)[:2], *ours, row.change, row.p, row.seconds])
        return stream.getvalue()
    writer.writerow(PANEL_COLUMNS)
    for panel in make_panels(item, records):
        for line in panel.lines:
            for x, found in line.summaries.items():
                about = [panel.title, panel.y, line.model, line.title, panel.x, x, panel.label(x)]
                change = panel.change(line, x) if line in panel.compared else None
                writer.writerow([*about, found.mean, found.std, found.n, change])
    return stream.getvalue()


def summaries(item: Item, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """For each model mean, std and n; for curves of the mean over x in its first line, and the same at every point.

    Repeats that lack a point are left out of the mean; if all do, there is none.
    """
    if isinstance(item, Experiment) and item.is_table:
        return {model: asdict(summarise([*errors.values()])) for model, errors in sorted(run_errors(records).items())}
    found: dict[str, dict[str, Any]] = {}
    for panel in make_panels(item, records):
        for line in panel.lines:
            entry = found.setdefault(line.model, {"mean": None, "std": None, "n": 0, "points": []})
            if not entry["n"] and (whole := list(panel.means(line).values())):
                entry.update(asdict(summarise(whole)))
            for x, summary in line.summaries.items():
                about = {"panel": panel.title, "quantity": panel.y, "line": line.title, "x": x}
                entry["points"].append({**about, "label": panel.label(x), **asdict(summary)})
    return found


@dataclass(frozen=True)
class Row:
    """One method: what the paper reports, what the records say, and how it compares with the baseline.

    Attributes:
        model: its name in records.
        paper: mean, and standard deviation if the paper gives one; empty if it does not have the method.
        ours: over the records.
        change: of the error against the baseline in percent, over the folds both have; None for the baseline.
        p: of the paired differences to the baseline; None if they are too many to enumerate.
        seconds: of the device for one epoch of one run, median over the records.
    """

    model: str
    paper: tuple[float, ...]
    ours: Summary
    change: float | None
    p: float | None
    seconds: float

    @property
    def title(self) -> str:
        return TITLES.get(self.model, self.model)


def run_errors(records: Sequence[Record]) -> dict[str, dict[Repeat, float]]:
    """The test error of each model in each repeat."""
    errors: dict[str, dict[Repeat, float]] = {}
    for record in records:
        errors.setdefault(record.model, {})[record.fold, record.seed] = record.error
    return errors


def make_rows(records: Sequence[Record], paper: dict[str, tuple[float, ...]], baseline: str) -> list[Row]:
    """A row for each method that was run."""
    errors, rows = run_errors(records), []
    for model in models_of(records):
        alike = (model in UNSUPERVISED) == (baseline in UNSUPERVISED)  # networks are compared with networks only
        base = errors.get(baseline, {}) if alike and model != baseline else {}
        change, differences = change_of_mean(errors[model], base), [*paired(errors[model], base).values()]
        rows.append(
            Row(
                model=model,
                paper=paper.get(model, ()),
                ours=summarise(list(errors[model].values())),
                change=change,
                p=None if change is None or len(differences) > MOST_PAIRS else sign_flip_test(differences),
                seconds=median(run.seconds_per_epoch / run.runs_together for run in of_model(records, model)),
            )
        )
    return rows


def cells(row: Row) -> tuple[str, ...]:
    """A row of a table of methods as text."""
    spread = f" ± {row.ours.std:.2f}" if row.ours.std is not None else ""
    p = "–" if row.p is None else f"{row.p:.3f}"
    ours = f"{row.ours.mean:.2f}{spread}"
    return row.title, as_stated(row.paper), ours, str(row.ours.n), signed_percent(row.change), p, f"{row.seconds:.2g}"


def stated_for(model: str, paper: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """The published numbers of a method by its title: that of the table, and others, whose names say where they stand.

    Example:
        >>> stated_for("convnet", {"convnet": (3.48,), "convnet, elsewhere": (3.5,), "rbm": (6.1,)})
        {'ConvNet': (3.48,), 'ConvNet, elsewhere': (3.5,)}
    """
    named = {name: name.partition(", ") for name in paper}
    title = TITLES.get(model, model)
    return {title + comma + where: paper[name] for name, (of, comma, where) in named.items() if of == model}


def as_stated(paper: Sequence[float]) -> str:
    """A number of the paper as text: a mean, and its deviation if the paper gives one.

    Example:
        >>> as_stated((2.1, 0.05)), as_stated((2.1,)), as_stated(())
        ('2.10 ± 0.05', '2.10', '–')
    """
    return " ± ".join(f"{value:.2f}" for value in paper) or "–"


def signed_mean(values: Sequence[float], digits: int) -> str:
    """The mean of differences, with its 95 % interval where there are several.

    Example:
        >>> signed_mean([-1.0, -3.0], 1), signed_mean([0.25], 2)
        ('−2.0 [−14.7, +10.7]', '+0.25')
    """
    found = interval(values)
    return f"{fmean(values):+.{digits}f}{bounds(found, f'+.{digits}f')}".replace("-", "−")


def bounds(found: Interval | None, form: str = ".2f") -> str:
    """A 95 % interval behind a mean; a single value has none."""
    return f" [{found.low:{form}}, {found.high:{form}}]" if found else ""


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
