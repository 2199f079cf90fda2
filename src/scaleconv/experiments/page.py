"""What `train --data` and `compare` say about networks that were trained on a folder of images, from their records.

Accuracy at every scale with its spread, differences to the plain network with their intervals, cost, and the sentence
that says which one to take, with the rule behind it. Panels, tables and figures are made as those of an item are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from statistics import fmean

from ..data.loading import ImageData
from ..metrics import MOST_RUNS, Interval, Summary, chance_of_sample, interval, runs_needed, summarise
from ..table import Table
from .figures import FORMATS, draw_panels
from .measures import BY_SCALE, IOU_BY_SCALE, SCORES
from .methods import TITLES
from .records import Record, run_file
from .report import counted, joined, markdown_blocks, numbers, terminal_text, write_text
from .tables import Panel, Repeat, model_lines, models_of, of_model, paired, panel_table, signed_mean

BASELINE = "plain"
AXES = {  # by series
    f"{name} by {axis}": (x, f"{name} (%)")
    for axis, x in (("scale", "scale of the test images"), ("size", "size (pixels)"))
    for name in SCORES
}
WIDEST = 5.0  # points: a wider interval decides nothing
RULE = (
    "Rule: of each method, the mean {measure} over all test scales. One is taken if it is ahead of every other: of the "
    f"difference, paired by seed, the 95 % interval lies above 0 and is at most {WIDEST:g} points wide; and it is "
    "larger than what the choice of the test images alone could do. Otherwise none is taken, and the one of the fewest "
    "operations is named."
)


def title(model: str) -> str:
    return TITLES.get(model, model)


def is_of_images(records: Sequence[Record]) -> bool:
    """Whether records are those of networks trained on a folder of images, not of an item of the paper."""
    return bool(records) and "fingerprint" in records[0].config.get("data", {})


def measure_name(record: Record) -> str:
    """What a record is judged by: mean IoU, where pixels were labelled."""
    return "mean IoU" if IOU_BY_SCALE in record.series else "accuracy"


def mean_accuracy(record: Record) -> float:
    """Over all test scales, in percent; of the mean IoU, where pixels were labelled."""
    return fmean(record.series.get(IOU_BY_SCALE, record.series[BY_SCALE]).y)


def accuracy_panels(records: Sequence[Record]) -> list[Panel]:
    """Mean IoU, Dice and accuracy by scale, and by size where the test images have several."""
    found = {series: axes for series, axes in AXES.items() if any(series in record.series for record in records)}
    return [
        Panel("", x, y, model_lines(records, series), log_x=True, write=_mean_and_std)
        for series, (x, y) in found.items()
    ]


def make_page_tables(records: Sequence[Record]) -> list[Table]:
    """All tables: accuracies, differences if there are some, and cost."""
    return [*accuracy_tables(records), *difference_tables(records), cost_table(records)]


def accuracy_tables(records: Sequence[Record]) -> list[Table]:
    """A row for each scale, or size, with every method; under the scales of the first, their mean."""
    tables = []
    for panel in accuracy_panels(records):
        repeats = numbers(len(of_model(records, line.model)) for line in panel.lines)
        heading = f"{_capital(panel.y)} by {panel.x}, mean ± std, n = {repeats}"
        tables.append(replace(panel_table(panel), title=heading))
        if len(tables) == 1:
            means = [panel.write(summarise([*_means(records, line.model).values()])) for line in panel.lines]
            tables = [replace(tables[0], rows=[*tables[0].rows, ("mean", *means)])]
    return tables


def difference_tables(records: Sequence[Record]) -> list[Table]:
    """Every method against the plain one, paired by seed; no table without a plain one or without others."""
    lines = {line.model: line for line in accuracy_panels(records)[0].lines}
    rows = []
    for model in [model for model in lines if model != BASELINE and BASELINE in lines]:
        if overall := paired(_means(records, model), _means(records, BASELINE)):
            at_one = paired(lines[model].values[1.0], lines[BASELINE].values[1.0])
            differences = (signed_mean([*each.values()], 1) for each in (at_one, overall))
            rows.append((title(model), *differences, str(len(overall))))
    heading = f"{_capital(measure_name(records[0]))} against {BASELINE}, points [95 % interval], paired by seed"
    return [Table(heading, ("method", "at scale 1", "mean over all scales", "n"), rows)] if rows else []


def cost_table(records: Sequence[Record]) -> Table:
    """What each method costs: parameters, operations and memory are counted, times are means over the seeds."""
    optional = {"step_ms": "ms / training step", "peak_mib": "peak MiB of the GPU in training"}
    shown = [key for key in optional if key in records[0].cost]
    header = ("method", "parameters", "million MACs / image", "MiB kept for backward / image")
    rows = []
    for model in models_of(records):
        own = of_model(records, model)
        cost = {name: fmean(record.cost[name] for record in own) for name in own[0].cost}
        counts = (f"{own[0].parameters:,}", f"{cost['macs'] / 1e6:,.1f}", f"{cost['kept_mib']:.3g}")
        seconds = (fmean(record.seconds_per_epoch for record in own), fmean(record.seconds for record in own))
        times = (*seconds, cost["ms"], *(cost[key] for key in shown))
        rows.append((title(model), *counts, *(f"{each:,.0f}" if each >= 1000 else f"{each:.3g}" for each in times)))
    columns = ("s / epoch", "s in all", "ms / image", *(optional[key] for key in shown))
    return Table("Cost", (*header, *columns), rows)


def verdict(records: Sequence[Record]) -> str:
    """The sentences that say which method to take, or why none, by `RULE`."""
    models = models_of(records)
    means = {model: fmean(_means(records, model).values()) for model in models}
    best = max(means, key=lambda model: means[model])
    if len(models) == 1:
        return f"{title(best)} has {means[best]:.1f} % over all scales. There is nothing to compare it with."
    images = int(records[0].config["data"]["test"])
    chance = chance_of_sample(means[best], images)
    rivals = [model for model in models if model != best and not _is_ahead(_gap(records, best, model), chance)]
    if rivals:
        return _undecided(records, best, sorted(rivals, key=lambda model: -means[model]), means)
    text = f"Take **{title(best)}**: {means[best]:.1f} % over all scales, ahead of every other."
    if BASELINE in models and best != BASELINE and (gain := _gap(records, best, BASELINE)):
        ratio = _operations(records, best) / _operations(records, BASELINE)
        text += f" Against {BASELINE} it gains {_bounds(gain)}, for {ratio:.1f} times its operations."
    return text


def _is_ahead(gap: Interval | None, chance: float) -> bool:
    if gap is None or gap.mean <= chance:
        return False
    return gap.low > 0 and gap.high - gap.low <= WIDEST


def _undecided(records: Sequence[Record], best: str, rivals: Sequence[str], means: Mapping[str, float]) -> str:
    """Which methods are not told apart, which of them is the cheapest, and what would decide."""
    gaps = {model: _gap(records, best, model) for model in rivals}
    listed = "; ".join(f"{title(model)} ({_bounds(gap) if gap else 'one seed'})" for model, gap in gaps.items())
    cheapest = min([best, *rivals], key=lambda model: (_operations(records, model), -means[model]))
    lead, images = means[best] - means[rivals[0]], int(records[0].config["data"]["test"])
    differences = [*paired(_means(records, best), _means(records, rivals[0])).values()]
    seeds = runs_needed(differences, WIDEST) if len(differences) > 1 else None
    needed = max(images, images * (chance_of_sample(means[best], images) / lead) ** 2) if lead > 0 else None
    wanted = [
        "at least three seeds" if len(differences) < 2 else f"{seeds} seeds" if seeds else f"over {MOST_RUNS} seeds",
        f"{ceil(float(f'{needed:.2g}')):,} test images" if needed else "more test images",
    ]
    return (
        f"Undecided: {title(best)} has the highest {measure_name(records[0])} over all scales, {means[best]:.1f} %, "
        f"but is not clearly ahead of {listed}. Of these, {title(cheapest)} takes the fewest operations. About "
        f"{' and '.join(wanted)} would tell it from {title(rivals[0])}, if the difference stays as it is; here there "
        f"are {counted(len(differences), 'seed')} and {counted(images, 'test image')}."
    )


def _operations(records: Sequence[Record], model: str) -> float:
    return fmean(record.cost["macs"] for record in of_model(records, model))


def summary_text(records: Sequence[Record], *, as_json: bool = False) -> str:
    """The tables and the verdict as text; or, as JSON, mean, std and n of the test error of each method."""
    if as_json:
        errors = {model: summarise([r.error for r in of_model(records, model)]) for model in models_of(records)}
        return json.dumps({model: asdict(found) for model, found in errors.items()}, indent=1)
    return terminal_text(make_page_tables(records), [verdict(records).replace("**", "")])


def write_page(records: Sequence[Record], data: ImageData, folder: Path) -> list[Path]:
    """Write the figure, the page and the list of what was left out, if anything was, into the folder of the records."""
    figures = [folder / f"accuracy.{kind}" for kind in FORMATS]
    name = data.folder.root.resolve().name
    draw_panels(accuracy_panels(records), f"Accuracy on {name}", "", figures)
    page, skipped = write_text(folder / "page.md", _page(records, data, name)), folder / "skipped.txt"
    if not data.folder.skipped:
        skipped.unlink(missing_ok=True)  # of an earlier run
        return [page, *figures]
    return [page, *figures, write_text(skipped, "".join(f"{each}\n" for each in data.folder.skipped))]


def _page(records: Sequence[Record], data: ImageData, name: str) -> str:
    first = records[0]

    def each(section: str, key: str) -> str:
        """The values of a setting; a plan may give its methods different ones."""
        return joined(record.config[section][key] for record in records)

    size = "their own sizes" if data.size is None else f"{data.size[0]}×{data.size[1]} pixels ({data.fit})"
    images = first.config["data"]
    channels, threads = counted(data.channels, "channel"), counted(first.environment["threads"], "thread")
    skipped = f"{counted(len(data.folder.skipped), 'file')} left out" + " (skipped.txt)" * bool(data.folder.skipped)
    weights = "\n".join(f"- {title(r.model)}, seed {r.seed}: `{recipe(r)}`" for r in records)
    blocks = [
        f"# {name}: which network to take",
        verdict(records),
        RULE.format(measure=measure_name(first).removeprefix("mean ")),
        "![Accuracy at every scale of the test images](accuracy.png)",
        *markdown_blocks(make_page_tables(records)),
        f"{each('network', 'name')} on {images['train']} training and {images['test']} test images of "
        f"{len(data.folder.classes)} classes, {size}, {channels}; {skipped}. "
        f"{counted(each('training', 'epochs'), 'epoch')}, batch {each('training', 'batch')}, "
        f"{each('training', 'optimizer')}, rate {each('training', 'learning_rate')}; "
        f"{first.environment['device']}, {threads}. Test images are rescaled about "
        "their centre on a canvas of the same size, with the edge repeated around smaller ones. The "
        "spread is over seeds of training, on one set of test images.",
        f"Load a network (in the folder of the records):\n\n{weights}",
    ]
    return "\n\n".join(blocks) + "\n"


def recipe(record: Record, folder: Path | None = None) -> str:
    """One line of Python that loads the network of a record."""
    path = run_file(folder or Path(), record.name, "weights")
    name = record.config["network"]["name"]
    factory = f', "{name}"' if ":" in name else ""  # which a file alone does not get called
    return f'network = scaleconv.experiments.load("{path}"{factory})'


def _means(records: Sequence[Record], model: str) -> dict[Repeat, float]:
    return {(record.fold, record.seed): mean_accuracy(record) for record in of_model(records, model)}


def _gap(records: Sequence[Record], model: str, other: str) -> Interval | None:
    """By how much a method is ahead of another over all scales; None where fewer than two seeds have both."""
    ahead = paired(_means(records, model), _means(records, other))
    return interval([*ahead.values()]) if ahead else None


def _bounds(gap: Interval) -> str:
    return f"{gap.mean:+.1f} points, 95 % interval {gap.low:+.1f} to {gap.high:+.1f}".replace("-", "−")


def _mean_and_std(found: Summary) -> str:
    return f"{found.mean:.1f}" + ("" if found.std is None else f" ± {found.std:.1f}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
