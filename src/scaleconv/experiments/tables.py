"""The table of methods from records: one row each, ours beside the paper's numbers. No number is typed in here."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from ..metrics import MOST_PAIRS, Summary, relative_reduction, sign_flip_test, summarise
from ..models import UNSUPERVISED
from .config import Experiment
from .records import Record
from .titles import TITLES

HEADER = ("method", "paper", "ours", "n", "under {}", "p", "s / epoch")


@dataclass(frozen=True)
class Row:
    """One method: what the paper reports, what the records say, and how it compares with the baseline.

    Attributes:
        paper: mean, and standard deviation if the paper gives one; empty if it does not have the method.
        ours: over the records; None if there are none.
        reduction: percent under the baseline, over the folds both have; None for the baseline itself.
        p: of the paired differences to the baseline; None if they are too many to enumerate.
        seconds: of the device for one epoch of one run, median over the records.
    """

    model: str
    paper: tuple[float, ...]
    ours: Summary | None
    reduction: float | None
    p: float | None
    seconds: float | None

    @property
    def title(self) -> str:
        return TITLES.get(self.model, self.model)


def summaries(records: Sequence[Record]) -> dict[str, dict[str, float | int | None]]:
    """Mean, std and n of the test error for each model."""
    models = sorted({record.model for record in records})
    return {m: asdict(summarise([record.error for record in records if record.model == m])) for m in models}


def make_rows(records: Sequence[Record], paper: dict[str, tuple[float, ...]], baseline: str) -> list[Row]:
    """Rows in the order of the paper's table, then the methods it does not have."""
    errors: dict[str, dict[tuple[int, int], float]] = {}
    times: dict[str, list[float]] = {}
    for record in records:
        errors.setdefault(record.model, {})[record.fold, record.seed] = record.error
        times.setdefault(record.model, []).append(record.seconds_per_epoch / record.runs_together)
    rows = []
    for model in [*TITLES, *sorted(set(errors) - set(TITLES))]:
        if model not in paper and model not in errors:
            continue
        ours = errors.get(model, {})
        pairs = [(value, errors[baseline][run]) for run, value in ours.items() if run in errors.get(baseline, {})]
        alike = (model in UNSUPERVISED) == (baseline in UNSUPERVISED)  # networks are not compared with what is none
        compared = alike and model != baseline and any(error > 0 for _, error in pairs)
        rows.append(
            Row(
                model=model,
                paper=paper.get(model, ()),
                ours=summarise(list(ours.values())) if ours else None,
                reduction=relative_reduction(sum(a for a, _ in pairs), sum(b for _, b in pairs)) if compared else None,
                p=sign_flip_test([a - b for a, b in pairs]) if compared and len(pairs) <= MOST_PAIRS else None,
                seconds=median(times[model]) if ours else None,
            )
        )
    return rows


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `HEADER`."""
    paper = " ± ".join(f"{value:.2f}" for value in row.paper) if row.paper else "–"
    if row.ours is None:
        return row.title, paper, "–", "0", "–", "–", "–"
    spread = f" ± {row.ours.std:.2f}" if row.ours.std is not None else ""
    reduction = "–" if row.reduction is None else f"{row.reduction:.1f} %"
    p = "–" if row.p is None else f"{row.p:.3f}"
    return row.title, paper, f"{row.ours.mean:.2f}{spread}", str(row.ours.n), reduction, p, f"{row.seconds:.2g}"


def header(experiment: Experiment) -> tuple[str, ...]:
    return tuple(name.format(TITLES[experiment.baseline]) for name in HEADER)


def markdown(rows: Sequence[Row], experiment: Experiment) -> str:
    """The table as Markdown."""
    lines = [line(header(experiment)), line(["---"] * len(HEADER)), *(line(cells(row)) for row in rows)]
    return "\n".join(lines)


def comma_separated(rows: Sequence[Row]) -> str:
    """The table as CSV, unrounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["model", "paper_mean", "paper_std", "mean", "std", "n", "reduction_percent", "p", "seconds_per_epoch"]
    )
    for row in rows:
        ours = (row.ours.mean, row.ours.std, row.ours.n) if row.ours else (None, None, 0)
        writer.writerow([row.model, *(*row.paper, None, None)[:2], *ours, row.reduction, row.p, row.seconds])
    return stream.getvalue()


def line(items: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(items)} |"
