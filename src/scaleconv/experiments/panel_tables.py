"""Panels as text: Markdown, CSV and JSON, with mean, standard deviation and number of repeats."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..metrics import Summary
from .panels import Panel, model_summaries
from .tables import line

NOTHING = {"mean": None, "std": None, "n": 0}


def header(panel: Panel) -> list[str]:
    """The columns: x, a column per line, and for those that are compared how far they lie under the baseline."""
    under = [f"{each.title} under {_title(panel, panel.baseline)}" for each in panel.compared()]
    return [panel.x, *(each.title for each in panel.lines), *under]


def rows(panel: Panel) -> list[list[str]]:
    """A row per x, and one for the mean over all x where lines are compared and have them all."""
    texts = []
    for x in panel.xs:
        found = [_text(each.at(x)) for each in panel.lines]
        under = [_percent(panel.reduction(each, x)) for each in panel.compared()]
        texts.append([panel.label(x), *found, *under])
    if panel.compared():
        totals = {model: f"{summary.mean:.2f}" for model, summary in model_summaries([panel]).items()}
        means = [_percent(panel.mean_reduction(each)) for each in panel.compared()]
        texts.append(["mean", *(totals.get(each.model, "–") for each in panel.lines), *means])
    return texts


def markdown(panels: Sequence[Panel]) -> str:
    """A table per panel."""
    blocks = []
    for panel in panels:
        heading = f"**{panel.title}: {panel.y}**" if panel.title else f"**{panel.y}**"
        columns = header(panel)
        table = [line(columns), line(["---"] * len(columns)), *(line(row) for row in rows(panel))]
        blocks.append("\n".join([heading, "", *table]))
    return "\n\n".join(blocks)


def comma_separated(panels: Sequence[Panel]) -> str:
    """All panels, unrounded, a line per value: the mean over the repeats."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["panel", "quantity", "model", "line", "axis", "x", "label", "mean", "std", "n", "reduction_percent"]
    )
    for panel in panels:
        for each in panel.lines:
            for x in panel.xs:
                if (found := each.at(x)) is None:
                    continue
                reduction = panel.reduction(each, x) if each in panel.compared() else None
                about = [panel.title, panel.y, each.model, each.title, panel.x, x, panel.label(x)]
                writer.writerow([*about, found.mean, found.std, found.n, reduction])
    return stream.getvalue()


def as_json(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """For each model mean, std and n over the repeats of its mean over x, and the same at every point.

    Repeats that lack a point are left out of the mean; if all do, there is none.
    """
    summaries = model_summaries(panels)
    models = dict.fromkeys(each.model for panel in panels for each in panel.lines)
    found: dict[str, dict[str, Any]] = {
        model: {**(asdict(summaries[model]) if model in summaries else NOTHING), "points": []} for model in models
    }
    for panel in panels:
        for each in panel.lines:
            for x in panel.xs:
                if (summary := each.at(x)) is not None:
                    about = {"panel": panel.title, "quantity": panel.y, "line": each.title, "x": x}
                    found[each.model]["points"].append({**about, "label": panel.label(x), **asdict(summary)})
    return found


def _title(panel: Panel, model: str) -> str:
    return next((each.title for each in panel.lines if each.model == model), model)


def _text(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    return f"{summary.mean:.2f}" + (f" ± {summary.std:.2f}" if summary.std else "")  # what is counted does not vary


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"
