"""Tables from records: for a terminal, as Markdown, as CSV and as JSON. No number is typed in here.

Table 1 has a row per method, ours beside the paper's numbers. A curve has a row per x and a column per line.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..metrics import MOST_PAIRS, Summary, sign_flip_test, summarise
from ..models import UNSUPERVISED
from ..table import Table
from .config import TITLES
from .experiment import Experiment, Item
from .panels import Panel, Repeat, make_panels, model_summaries, relative_change, signed_percent
from .records import Record

METHOD_COLUMNS = (
    "model",
    "paper_mean",
    "paper_std",
    "mean",
    "std",
    "n",
    "error_change_percent",
    "p",
    "seconds_per_epoch",
)
MOST_ROWS = 16  # of a table of a curve
PANEL_COLUMNS = ("panel", "quantity", "model", "line", "axis", "x", "label", "mean", "std", "n", "error_change_percent")


def make_tables(item: Item, records: Sequence[Record]) -> list[Table]:
    """The table of methods, or a table for each panel."""
    if isinstance(item, Experiment) and item.is_table:
        rows = make_rows(records, item.paper, item.baseline)
        return [Table(item.title, method_header(item), [cells(row) for row in rows])]
    return [panel_table(panel) for panel in make_panels(item, records)]


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
            for x in panel.xs:
                if found := line.at(x):
                    about = [panel.title, panel.y, line.model, line.title, panel.x, x, panel.label(x)]
                    change = panel.change(line, x) if line in panel.compared else None
                    writer.writerow([*about, found.mean, found.std, found.n, change])
    return stream.getvalue()


def summaries(item: Item, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """For each model mean, std and n; for curves of the mean over x, and the same at every point.

    Repeats that lack a point are left out of the mean; if all do, there is none.
    """
    if isinstance(item, Experiment) and item.is_table:
        models = sorted({record.model for record in records})
        return {m: asdict(summarise([record.error for record in records if record.model == m])) for m in models}
    panels = make_panels(item, records)
    means = {model: asdict(summary) for model, summary in model_summaries(panels).items()}
    found: dict[str, dict[str, Any]] = {}
    for panel in panels:
        for line in panel.lines:
            entry = {**means.get(line.model, {"mean": None, "std": None, "n": 0}), "points": []}
            points = found.setdefault(line.model, entry)["points"]
            for x in panel.xs:
                if summary := line.at(x):
                    about = {"panel": panel.title, "quantity": panel.y, "line": line.title, "x": x}
                    points.append({**about, "label": panel.label(x), **asdict(summary)})
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
    """Rows of the methods that were run, in the order of the paper's table, then those it does not have."""
    errors = run_errors(records)
    times: dict[str, list[float]] = {}
    for record in records:
        times.setdefault(record.model, []).append(record.seconds_per_epoch / record.runs_together)
    rows = []
    for model in [model for model in (*TITLES, *sorted(set(errors) - set(TITLES))) if model in errors]:
        ours = errors[model]
        pairs = [(value, errors[baseline][run]) for run, value in ours.items() if run in errors.get(baseline, {})]
        alike = (model in UNSUPERVISED) == (baseline in UNSUPERVISED)  # networks are compared with networks only
        compared = alike and model != baseline and any(error > 0 for _, error in pairs)
        rows.append(
            Row(
                model=model,
                paper=paper.get(model, ()),
                ours=summarise(list(ours.values())),
                change=relative_change(sum(a for a, _ in pairs), sum(b for _, b in pairs)) if compared else None,
                p=sign_flip_test([a - b for a, b in pairs]) if compared and len(pairs) <= MOST_PAIRS else None,
                seconds=median(times[model]),
            )
        )
    return rows


def method_header(experiment: Experiment) -> tuple[str, ...]:
    return "method", "paper", "ours", "n", f"error vs {TITLES[experiment.baseline]}", "p", "s / epoch"


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `method_header`."""
    spread = f" ± {row.ours.std:.2f}" if row.ours.std is not None else ""
    p = "–" if row.p is None else f"{row.p:.3f}"
    ours = f"{row.ours.mean:.2f}{spread}"
    return row.title, as_stated(row.paper), ours, str(row.ours.n), signed_percent(row.change), p, f"{row.seconds:.2g}"


def panel_table(panel: Panel) -> Table:
    """A row per x with each line and its change against the baseline, and one for the mean over all x.

    Of more than `MOST_ROWS` numbers every second, third, … is shown; the CSV file has all.
    """
    compared, step = panel.compared, 1 if panel.labels else -(-len(panel.xs) // MOST_ROWS)
    changes = [f"{line.title}: error vs {panel.baseline_title}" for line in compared]
    header = (panel.x, *(line.title for line in panel.lines), *changes)
    rows = [
        (
            panel.label(x),
            *(mean_and_std(line.at(x)) for line in panel.lines),
            *(signed_percent(panel.change(line, x)) for line in compared),
        )
        for x in panel.xs[::step]
    ]
    if compared:
        totals = {model: f"{summary.mean:.2f}" for model, summary in model_summaries([panel]).items()}
        means = [signed_percent(panel.mean_change(line)) for line in compared]
        rows.append(("mean", *(totals.get(line.model, "–") for line in panel.lines), *means))
    title = ": ".join(part for part in (panel.title, panel.y) if part)
    shown = f", {len(panel.xs[::step])} of {len(panel.xs)} points" if step > 1 else ""
    return Table(title + shown, header, rows)


def as_stated(paper: Sequence[float]) -> str:
    """A number of the paper as text: a mean, and its deviation if the paper gives one.

    Example:
        >>> as_stated((2.1, 0.05)), as_stated((2.1,)), as_stated(())
        ('2.10 ± 0.05', '2.10', '–')
    """
    return " ± ".join(f"{value:.2f}" for value in paper) or "–"


def mean_and_std(summary: Summary | None) -> str:
    """A value of a curve as text."""
    if summary is None:
        return "–"
    return f"{summary.mean:.2f}" + (f" ± {summary.std:.2f}" if summary.std else "")  # counted numbers do not vary
