"""The tables and the figure of docs/photographs.md, from the records of the plans in examples/plans.

    python benchmarks/gains.py

Every row is a method beside the one that it changes, paired by seed: the points gained at scale 1 and on average over
test scales from 0.5 to 2, with 95 % intervals (Student's t).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from msgspec.structs import asdict

from scaleconv.drawing import COLOURS, GRID, SITE_WIDTH, make_figure, save_figure, style
from scaleconv.experiments import read_records
from scaleconv.experiments.measures import BY_SCALE, count_macs
from scaleconv.experiments.records import Record
from scaleconv.experiments.settings import NetworkSettings, read
from scaleconv.metrics import Interval, interval
from scaleconv.models import Images, make_network
from scaleconv.table import Table

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs" / "photographs.md", ROOT / "docs" / "figures" / "photographs.svg"
LOW, HIGH = 0.5, 2.0  # test scales of the mean

Measure = Callable[[Record], float]


@dataclass(frozen=True)
class Row:
    """A method, and the one of the same records that it changes."""

    records: str
    method: str
    against: str
    name: str


SETS = {
    "signs": "Traffic signs",
    "tiny": "Tiny ImageNet",
    "fashion-late": "Fashion-MNIST",
    "cifar": "CIFAR-10",
    "cifar-small": "CIFAR-10, 1,000 images",
    "far-signs": "Far signs",
}
NETWORKS = {"plain": "ResNet", "mobilenet": "MobileNet", "convnext": "ConvNeXt"}
LATE = {"plain": "late", "mobilenet": "mobilenet-late", "convnext": "convnext-late"}
CHOSEN = [
    Row(part, LATE[plain], plain, f"{title}, {network}")
    for part, title in SETS.items()
    for plain, network in NETWORKS.items()
]
DEEPER = [Row(part, "deeper", "plain", f"{title}, ResNet") for part, title in SETS.items()]
RIVALS = [
    Row(part, method, against, f"{title}: {name}")
    for part, title, (plain, late, deeper, deeper_late) in (
        ("cifar-controls", "CIFAR-10, held out", ("deep", "deep-shrinking", "deepest", "deepest-shrinking")),
        *((part, title, ("plain", "late", "deeper", "deeper-late")) for part, title in SETS.items()),
    )
    for method, against, name in (
        (deeper, plain, "two more blocks"),
        (late, deeper, "converted, against two more blocks"),
        (deeper_late, deeper, "converted, both with two more blocks"),
    )
]
LAYERS = [
    Row("cifar-layers", "first", "plain", "the first layer"),
    Row("cifar-layers", "stage1", "plain", "the first stage"),
    Row("cifar-layers", "stage2", "plain", "the second stage"),
    Row("cifar-layers", "stage3", "plain", "the last stage"),
    Row("cifar-layers", "stages23", "plain", "the last two stages"),
    Row("cifar-layers", "stages23-shrinking", "plain", "the last two stages, at 0.5, 0.71, 1"),
    Row("cifar-layers", "all-shrinking", "plain", "all layers, at 0.5, 0.71, 1"),
]
SCALES = [
    Row("cifar-scales", "half", "plain", "0.5, 1"),
    Row("cifar-scales", "two", "plain", "0.71, 1"),
    Row("cifar-scales", "shrinking", "plain", "**0.5, 0.71, 1**"),
    Row("cifar-scales", "four-shrinking", "plain", "0.35, 0.5, 0.71, 1"),
    Row("cifar-layers", "stage3", "plain", "0.71, 1, 1.41"),
    Row("cifar-scales", "enlarging", "plain", "1, 1.41, 2"),
    Row("cifar-scales", "five", "plain", "0.5, 0.71, 1, 1.41, 2"),
    Row("cifar-scales", "five-fine", "plain", "0.63, 0.79, 1, 1.26, 1.59"),
    Row("cifar-scales", "six", "plain", "0.63, 0.79, 1, 1.26, 1.59, 2"),
    Row("cifar-scales", "shrinking-unscaled", "plain-unscaled", "0.5, 0.71, 1, both without scale augmentation"),
]
CONTROLS = [
    Row("cifar-scales", "shrinking", "plain", "**last stage at 0.5, 0.71, 1**"),
    Row("cifar-controls", "dilated", "plain", "last stage dilated by 2"),
    Row("cifar-controls", "branches", "plain", "last stage at dilations 1 and 2, with a maximum"),
    Row("cifar-controls", "aspp", "plain", "ASPP behind the last stage"),
    Row("cifar-controls", "wider", "plain", "last stage 1.5 times as wide"),
    Row("cifar-controls", "deeper", "plain", "one more block in the last stage"),
    Row("cifar-controls", "longer", "plain", "1.5 times as many epochs"),
    Row("cifar-controls", "longer-shrinking", "longer", "last stage at 0.5, 0.71, 1, both 1.5 times as many epochs"),
    Row("cifar-controls", "pyramids", "plain", "`ScaleInvariant` around the network"),
    Row("cifar-controls", "pyramids-shrinking", "pyramids", "last stage at 0.5, 0.71, 1, both in `ScaleInvariant`"),
]
TRAINED = [
    Row("trained", "late", "plain", "converted"),
    Row("trained", "late-five", "plain", "converted at five scales from 0.5 to 2"),
    Row("trained", "calibrated", "plain", "converted, then calibrated"),
    Row("trained", "annealed", "plain", "converted, the other scales fade in"),
    Row("trained", "level-norms", "plain", "converted, a BatchNorm for every level"),
    Row("trained", "gated", "plain", "converted, a learned gate for each layer that starts closed"),
    Row("trained", "gated-channels", "plain", "converted, a learned gate for each channel that starts closed"),
    Row("trained", "longer-late", "longer", "converted, both with three times the epochs"),
]


@cache
def runs(records: str, method: str) -> dict[int, Record]:
    """The records of a method, by seed."""
    return {record.seed: record for record in read_records(ROOT / "results" / records) if record.model == method}


def at_one(record: Record) -> float:
    series = record.series[BY_SCALE]
    return series.y[series.x.index(1.0)]


def over_scales(record: Record) -> float:
    series = record.series[BY_SCALE]
    return fmean(y for x, y in zip(series.x, series.y, strict=True) if LOW <= x <= HIGH)


def parameters(record: Record) -> float:
    return record.parameters


def memory(record: Record) -> float:
    """What a training step keeps for its backward pass."""
    return record.cost["kept_mib"]


def operations(record: Record) -> float:
    """Of one image, counted on a CPU: on a GPU the layer may be evaluated in another order."""
    data = record.config["data"]
    images = Images(tuple(data["size"]), data["channels"], len(data["classes"]), data["task"])
    settings = read(NetworkSettings, record.config["network"], "network")  # an older record lacks newer settings
    network = make_network(images, **asdict(settings)).eval()
    return count_macs(network, torch.zeros(1, data["channels"], *data["size"]))


def seeds(row: Row) -> list[int]:
    return sorted(runs(row.records, row.method).keys() & runs(row.records, row.against).keys())


def measured(rows: Sequence[Row]) -> list[Row]:
    """Those whose records are there."""
    return [row for row in rows if seeds(row)]


def gain(row: Row, measure: Measure) -> Interval:
    """How far the method is ahead, paired by seed."""
    ours, theirs = runs(row.records, row.method), runs(row.records, row.against)
    found = interval([measure(ours[seed]) - measure(theirs[seed]) for seed in seeds(row)])
    if found is None:
        raise ValueError(f"{row.records} must have two seeds of {row.method} and {row.against}")
    return found


def ratio(row: Row, of: Measure) -> str:
    first = seeds(row)[0]
    return f"{of(runs(row.records, row.method)[first]) / of(runs(row.records, row.against)[first]):.2f}"


def step_ratio(row: Row, device: str, kind: str) -> str:
    """Of the times of a training step, which benchmarks/plans.py measured interleaved."""
    steps = json.loads((ROOT / "results" / "bench" / f"plans-{device}.json").read_text())["plans"]
    plan = row.records.removesuffix("-late")
    times = {step["how"]: step[f"{kind}_ms"] for step in steps if step["network"] == plan}
    return f"{times[row.method] / times[row.against]:.2f}" if row.method in times else "–"


def points(found: Interval) -> str:
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]".replace("-", "−")


def set_table() -> Table:
    rows = []
    for row in measured(CHOSEN):
        accuracy = fmean(at_one(record) for record in runs(row.records, row.against).values())
        gains = (points(gain(row, measure)) for measure in (at_one, over_scales))
        steps = (step_ratio(row, "cpu", "called"), step_ratio(row, "h200", "graph"))
        rows.append((row.name, f"{accuracy:.1f}", *gains, *steps, ratio(row, memory), str(len(seeds(row)))))
    header = (
        "set, network",
        "plain at 1 (%)",
        "gain at 1",
        "gain over 0.5 … 2",
        "step, CPU",
        "step, H200",
        "memory",
        "n",
    )
    return Table("", header, rows)


def gain_table(rows: Sequence[Row], first: str, **ratios: Measure) -> Table:
    cells = [
        (
            row.name,
            *(points(gain(row, measure)) for measure in (at_one, over_scales)),
            *(ratio(row, of) for of in ratios.values()),
        )
        for row in measured(rows)
    ]
    return Table("", (first, "gain at 1", "gain over 0.5 … 2", *ratios), cells)


def series_table(records: str, series: str, first: str, methods: Mapping[str, str]) -> Table:
    """A series of several methods, and what the later ones gain over the first."""
    found = {name: records_of for method, name in methods.items() if (records_of := runs(records, method))}
    plain, *others = found.values()
    rows = []
    for place, x in enumerate(next(iter(plain.values())).series[series].x):

        def value(record: Record, place: int = place) -> float:
            return record.series[series].y[place]

        means = (f"{fmean(map(value, each.values())):.1f}" for each in found.values())
        gains = (interval([value(each[seed]) - value(plain[seed]) for seed in sorted(each)]) for each in others)
        rows.append((f"{x:g}", *means, *(points(each) for each in gains if each)))
    return Table("", (first, *found, *(f"gain, {name}" for name in [*found][1:])), rows)


def draw() -> None:
    """What the default of `convert` gains on every set, beside two more blocks."""
    rows = measured(CHOSEN)
    with style():
        figure = make_figure(SITE_WIDTH, 1.6 + 0.36 * len(rows))
        axes = figure.subplots(1, 2, sharey=True)
        for axis, where, measure in zip(
            axes, ("at scale 1", f"mean over {LOW:g} … {HIGH:g}"), (at_one, over_scales), strict=True
        ):
            _draw_gains(axis, rows, measure, -0.12, "late", marker="o", label="late layers converted")
            _draw_gains(axis, measured(DEEPER), measure, 0.18, "deeper", marker="s", label="two more blocks instead")
            axis.axvline(0, color=GRID, linewidth=1)
            axis.set(yticks=range(len(rows)), yticklabels=[row.name for row in rows], ylim=(len(rows) - 0.5, -0.5))
            axis.set_xlabel(f"points gained, {where}")
            axis.grid(alpha=0.3, axis="x")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        counts = " / ".join(map(str, sorted({len(seeds(row)) for row in rows})))
        claim = f"Both networks trained with scale augmentation; n = {counts}, 95 % intervals"
        save_figure(figure, "What convert(network) gains in accuracy", claim, [FIGURE])


def _draw_gains(axis: Any, rows: Sequence[Row], measure: Measure, down: float, method: str, **look: Any) -> None:
    names = [row.name for row in measured(CHOSEN)]
    places = [names.index(row.name) + down for row in rows]
    gains = [gain(row, measure) for row in rows]
    ends = [[each.mean - each.low for each in gains], [each.high - each.mean for each in gains]]
    means = [each.mean for each in gains]
    axis.errorbar(means, places, xerr=ends, capsize=2.5, linestyle="none", color=COLOURS[method], **look)


def blocks() -> dict[str, str]:
    """The parts of the page that are written here, by name."""
    late, both = {"plain": "plain", "late": "late"}, {"plain": "plain", "late": "late", "deeper": "two more blocks"}
    tables = {
        "sets": set_table(),
        "rivals": gain_table(RIVALS, "", operations=operations, parameters=parameters),
        "layers": gain_table(LAYERS, "converted, at 0.71, 1, 1.41", operations=operations),
        "scales": gain_table(SCALES, "scales of the last stage", operations=operations),
        "controls": gain_table(CONTROLS, "", operations=operations, parameters=parameters),
        "trained": gain_table(TRAINED, "last stage"),
        "far": series_table("far-signs", "accuracy by size", "size (pixels)", both),
        "nuclei": series_table("nuclei", "Dice by size", "size (pixels)", late),
        "scenes": series_table("scenes-late", "Dice by scale", "scale", late),
    }
    return {name: table.markdown() for name, table in tables.items()}


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name, content in blocks().items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text, encoding="utf-8")
    draw()
