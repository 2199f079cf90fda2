"""One page about the networks that were trained on a folder of images, from their records alone.

Accuracy at every scale with its spread, differences to the plain network with their intervals, cost, and the sentence
that says which one to take, with the rule behind it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from ..data.loading import ImageData
from ..metrics import Interval, interval, summarise
from ..table import Table, terminal_width, wrapped
from .evaluate import BY_SCALE, BY_SIZE, IOU_BY_SCALE
from .figures import FORMATS, draw_panels
from .panels import Line, Panel, of_model, series_values
from .records import Record, Series, run_file, writing
from .report import counted

TITLES = {
    "plain": "plain",
    "plain-scale": "plain + scale augmentation",
    "converted": "converted",
    "converted-scale": "converted + scale augmentation",
    "pyramid": "pyramid",
    "pyramid-scale": "pyramid + scale augmentation",
}
BASELINE = "plain"
RULE = (
    "Rule: of each method, the mean {measure} over all test scales. Methods count as equal to the best one where their "
    "difference to it, paired by seed, has a 95 % interval that includes 0. Of those, take the one that trains in the "
    "least time."
)


def title(model: str) -> str:
    return TITLES.get(model, model)


def measure_name(record: Record) -> str:
    """What a record is judged by: mean IoU, where pixels were labelled."""
    return "mean IoU" if IOU_BY_SCALE in record.series else "accuracy"


def mean_accuracy(record: Record) -> float:
    """Over all test scales, in percent; of the mean IoU, where pixels were labelled."""
    return fmean(_by_scale(record).y)


def accuracy_panels(records: Sequence[Record]) -> list[Panel]:
    """Mean IoU and accuracy by scale, and accuracy by size where the test images had several."""
    scale, size = "scale of the test images", "shorter side of the test images (pixels)"
    axes = {
        IOU_BY_SCALE: (scale, "mean IoU (%)"),
        BY_SCALE: (scale, "accuracy (%)"),
        BY_SIZE: (size, "accuracy (%)"),
    }
    panels = []
    for series, (x, y) in axes.items():
        if any(series in record.series for record in records):
            lines = [
                Line(model, title(model), series_values(of_model(records, model), series)) for model in _models(records)
            ]
            panels.append(Panel("", x, y, lines, log_x=True))
    return panels


def accuracy_tables(records: Sequence[Record]) -> list[Table]:
    """A row for each scale, or size, with every method; under the scales of the first, their mean."""
    tables = []
    for number, panel in enumerate(accuracy_panels(records)):
        rows = [
            (panel.label(x), *(_cell(list(line.values.get(x, {}).values())) for line in panel.lines)) for x in panel.xs
        ]
        if number == 0:
            means = [[mean_accuracy(record) for record in of_model(records, line.model)] for line in panel.lines]
            rows.append(("mean", *map(_cell, means)))
        repeats = " / ".join(map(str, sorted({len(of_model(records, line.model)) for line in panel.lines})))
        heading = f"{panel.y[:1].upper()}{panel.y[1:]} by {panel.x}, mean ± std, n = {repeats}"
        tables.append(Table(heading, (panel.x, *(line.title for line in panel.lines)), rows))
    return tables


def cost_table(records: Sequence[Record]) -> Table:
    """What each method costs: parameters, operations and memory are counted, times are means over the seeds."""
    rows = []
    for model in _models(records):
        own = of_model(records, model)
        cost = {name: fmean(record.cost[name] for record in own) for name in own[0].cost}
        needed = [f"{cost['kept_mib']:.3g}", *([f"{cost['peak_mib']:.0f}"] if "peak_mib" in cost else [])]
        rows.append(
            (
                title(model),
                f"{own[0].parameters:,}",
                f"{cost['macs'] / 1e6:,.1f}",
                *needed,
                f"{fmean(record.seconds_per_epoch for record in own):.3g}",
                f"{fmean(record.seconds for record in own):.3g}",
                f"{cost['ms']:.3g}",
            )
        )
    peak = ["peak MiB of the GPU in training"] if "peak_mib" in records[0].cost else []
    memory = ("MiB kept for backward / image", *peak)
    header = ("method", "parameters", "million MACs / image", *memory, "s / epoch", "s in all", "ms / image")
    return Table("Cost", header, rows)


def difference_table(records: Sequence[Record]) -> Table | None:
    """Every method against the plain one, paired by seed; None without a plain one or without others."""
    rows = []
    for model in _models(records):
        pairs = _pairs(records, model, BASELINE)
        if model != BASELINE and pairs:
            at_one = [_at_scale(a, 1.0) - _at_scale(b, 1.0) for a, b in pairs]
            overall = [mean_accuracy(a) - mean_accuracy(b) for a, b in pairs]
            rows.append((title(model), _signed(at_one), _signed(overall), str(len(pairs))))
    header = ("method", "at scale 1", "mean over all scales", "n")
    measure = measure_name(records[0])
    heading = f"{measure[:1].upper()}{measure[1:]} against {BASELINE}, points [95 % interval], paired by seed"
    return Table(heading, header, rows) if rows else None


def verdict(records: Sequence[Record]) -> str:
    """The sentence that says which method to take, by `RULE`."""
    models = _models(records)
    means = {model: fmean(mean_accuracy(record) for record in of_model(records, model)) for model in models}
    seconds = {model: fmean(record.seconds for record in of_model(records, model)) for model in models}
    best = max(models, key=lambda model: means[model])
    if len(models) == 1:
        return f"{title(best)} has {means[best]:.1f} % over all scales. There is nothing to compare it with."
    behind = {model: _gap(records, best, model) for model in models if model != best}
    if all(gap is None for gap in behind.values()):
        return (
            f"{title(best)} has the highest {measure_name(records[0])} over all scales, {means[best]:.1f} %, but one "
            "seed cannot tell whether that is chance: scaleconv compare trains several."
        )
    equal = [best, *(model for model, gap in behind.items() if gap is not None and gap.low <= 0)]
    chosen = min(equal, key=lambda model: seconds[model])
    text = f"Take **{title(chosen)}**: {means[chosen]:.1f} % over all scales, {seconds[chosen]:.3g} s of training."
    if gap := behind.get(chosen):
        text += (
            f" {title(best)} has {means[best]:.1f} %, but no difference was found between the two ({_bounds(gap)}), "
            f"and it takes {seconds[best]:.3g} s."
        )
    elif len(equal) > 1:
        others = " or ".join(title(model) for model in equal if model != chosen)
        text += f" No difference was found to {others}, which takes longer to train."
    if BASELINE in models and BASELINE not in equal and (gain := _gap(records, chosen, BASELINE)):
        times = seconds[chosen] / seconds[BASELINE]
        text += f" Against {BASELINE} it gains {_bounds(gain)}, for {times:.1f} times its training time."
    return text


def is_of_images(records: Sequence[Record]) -> bool:
    """Whether records are those of networks trained on a folder of images, not of an item of the paper."""
    return bool(records) and "fingerprint" in records[0].config.get("data", {})


def summary_text(records: Sequence[Record], *, as_json: bool = False) -> str:
    """The tables and the verdict as text; or, as JSON, mean, std and n of the test error of each method."""
    if as_json:
        errors = {model: [record.error for record in records if record.model == model] for model in _models(records)}
        return json.dumps({model: asdict(summarise(values)) for model, values in errors.items()}, indent=1)
    width = terminal_width()
    tables = (*accuracy_tables(records), difference_table(records), cost_table(records))
    shown = [f"{table.text(width)}\n" for table in tables if table]
    return "\n".join([*shown, wrapped(verdict(records).replace("**", ""), width)])


def write_page(records: Sequence[Record], data: ImageData, folder: Path) -> list[Path]:
    """Write the figure, the page and the list of what was left out into the folder of the records."""
    panels = accuracy_panels(records)
    figures = [folder / f"accuracy.{kind}" for kind in FORMATS]
    name = data.folder.root.resolve().name
    draw_panels(panels, f"Accuracy on {name}", "", figures)
    skipped = folder / "skipped.txt"
    with writing(skipped) as part:
        part.write_text("".join(f"{each}\n" for each in data.folder.skipped), encoding="utf-8")
    page = folder / "page.md"
    with writing(page) as part:
        part.write_text(_page(records, data, name), encoding="utf-8")
    return [page, *figures, skipped]


def _page(records: Sequence[Record], data: ImageData, name: str) -> str:
    first = records[0]
    settings, network = first.config["settings"], first.config["network"]
    size = "their own sizes" if data.size is None else f"{data.size[0]}×{data.size[1]} pixels ({data.fit})"
    images = first.config["data"]["images"]
    channels = counted(str(data.channels), "channel")
    threads = counted(str(first.environment["threads"]), "thread")
    tables = [*accuracy_tables(records), difference_table(records), cost_table(records)]
    weights = "\n".join(f"- {title(r.model)}, seed {r.seed}: `{recipe(r)}`" for r in records)
    blocks = [
        f"# {name}: which network to take",
        verdict(records),
        RULE.format(measure=measure_name(first).removeprefix("mean ")),
        "![Accuracy at every scale of the test images](accuracy.png)",
        *(f"**{table.title}**\n\n{table.markdown()}" for table in tables if table),
        f"{network['name']} on {images['train']} training and {images['test']} test images of "
        f"{len(data.folder.classes)} classes, {size}, {channels}; {len(data.folder.skipped)} files left out "
        f"(skipped.txt). {settings['epochs']} epochs, batch {settings['batch']}, {settings['optimizer']}, rate "
        f"{settings['lr']:g}; {first.environment['device']}, {threads}. Test images are rescaled about their centre on "
        "a canvas of the same size, with the edge repeated around smaller ones. The spread is over seeds of training, "
        "on one set of test images.",
        f"Load a network (in the folder of the records):\n\n{weights}",
    ]
    return "\n\n".join(blocks) + "\n"


def recipe(record: Record, folder: Path | None = None) -> str:
    """One line of Python that loads the network of a record."""
    path = run_file(Path(record.name), "weights")
    name = record.config["network"]["name"]
    factory = f', "{name}"' if ":" in name else ""  # which a file alone does not get called
    return f'network = scaleconv.experiments.load("{path if folder is None else folder / path}"{factory})'


def _models(records: Sequence[Record]) -> list[str]:
    present = {record.model for record in records}
    return [*(model for model in TITLES if model in present), *sorted(present - set(TITLES))]


def _pairs(records: Sequence[Record], model: str, other: str) -> list[tuple[Record, Record]]:
    by_seed = {record.seed: record for record in of_model(records, other)}
    return [(record, by_seed[record.seed]) for record in of_model(records, model) if record.seed in by_seed]


def _by_scale(record: Record) -> Series:
    """What the record is judged by."""
    return record.series.get(IOU_BY_SCALE, record.series[BY_SCALE])


def _at_scale(record: Record, scale: float) -> float:
    series = _by_scale(record)
    return series.y[series.x.index(scale)]


def _gap(records: Sequence[Record], model: str, other: str) -> Interval | None:
    """By how much a method is ahead of another over all scales; None where fewer than two seeds have both."""
    pairs = _pairs(records, model, other)
    return interval([mean_accuracy(a) - mean_accuracy(b) for a, b in pairs]) if pairs else None


def _bounds(gap: Interval) -> str:
    return f"{gap.mean:+.1f} points, 95 % interval {gap.low:+.1f} to {gap.high:+.1f}".replace("-", "−")


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    found = summarise(values)
    return f"{found.mean:.1f}" + ("" if found.std is None else f" ± {found.std:.1f}")


def _signed(differences: Sequence[float]) -> str:
    mean = f"{fmean(differences):+.1f}"
    found = interval(differences)
    return (mean if found is None else f"{mean} [{found.low:+.1f}, {found.high:+.1f}]").replace("-", "−")
