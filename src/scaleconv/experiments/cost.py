"""The item `cost`: what the layer costs against its scales, as records, panels and notes (paper, appendix B).

Two questions for each layer of the paper's network: what happens when the largest of six scales grows, and what when
there are more scales up to the same largest one. `bench.operations` counts and times.
"""

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..bench.operations import METHODS, SWEEPS, Layer, count_operations, measure_sweeps, sweep_scales
from ..environment import describe_environment
from .checkpoint import check_settings
from .engine import Silent, Watcher
from .items import STUDIES, check_list
from .records import Record, Series, read_records, run_name, write_record
from .report import counted, footnotes, joined, repeats
from .settings import Count
from .tables import Line, Panel, make_panels, of_model, series_values

UNITS = {"operations": "operations (Conv2d = 1)", "milliseconds": "forward + backward (ms)"}


class CostStudy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The item under one preset.

    Attributes:
        layers: what is measured.
        batch: images in a call that is timed.
        largest, counts: where each sweep measures, as of `sweep_scales`.
        folds: repeats of the timing.
        calls: timings in a repeat, of which the median is taken.
    """

    item: str
    preset: str
    title: str
    layers: tuple[Layer, ...]
    batch: Count
    largest: tuple[Annotated[float, Meta(gt=1)], ...]
    counts: tuple[Count, ...]
    folds: tuple[int, ...]
    calls: Count = 10
    claim: str = ""
    checks: tuple[str, ...] = ()
    paper: dict[str, tuple[float, ...]] = {}

    def __post_init__(self) -> None:
        for name in ("largest", "counts", "folds"):
            check_list(name, getattr(self, name))

    @property
    def config(self) -> dict[str, Any]:
        """What a record depends on."""
        named = ("layers", "batch", "largest", "counts", "calls")
        return {"cost": msgspec.json.decode(msgspec.json.encode({name: getattr(self, name) for name in named}))}

    @property
    def sweeps(self) -> dict[str, Sequence[float]]:
        return {"largest": self.largest, "count": self.counts}


STUDIES["cost"] = CostStudy


def run_cost(item: CostStudy, folder: Path, device: str = "cpu", watcher: Watcher | None = None) -> list[Record]:
    """Measure what is not measured yet; one record per layer, method and repeat."""
    watcher = watcher or Silent()
    watcher.plan(item.item, len(item.layers) * len(METHODS) * len(item.folds))
    found = {record.name: record for record in read_records(folder)}
    for record in found.values():
        check_settings(f"{record.name} in {folder.name}", record.config, item.config)
    for layer, method, fold in product(item.layers, METHODS, item.folds):
        name = run_name(method, layer.name, fold, 0)
        if name not in found:
            found[name] = _measure(item, layer, method, fold, folder.name, device)
            write_record(folder, found[name])
        watcher.end(f"{METHODS[method]}, {layer.title}, repeat {fold}")
    return list(found.values())


def _measure(item: CostStudy, layer: Layer, method: str, fold: int, experiment: str, device: str) -> Record:
    start = time.perf_counter()
    found = measure_sweeps(method, layer, item.batch, item.sweeps, device, item.calls)
    seconds = time.perf_counter() - start
    return Record(
        experiment=experiment,
        model=method,
        fold=fold,
        seed=0,
        test_error=None,
        config=item.config,
        environment=describe_environment(device),
        history=[],
        parameters=layer.parameters,
        seconds=seconds,
        seconds_per_epoch=seconds,
        runs_together=1,
        point=layer.name,
        series={name: Series(list(values), list(values.values())) for name, values in found.items()},
    )


@make_panels.register
def _panels(item: CostStudy, records: Sequence[Record]) -> list[Panel]:
    """For each layer operations and time, against the largest scale and against the number of scales."""
    panels = []
    for layer, (sweep, axis), (quantity, unit) in product(item.layers, SWEEPS.items(), UNITS.items()):
        of_layer, kind = [record for record in records if record.point == layer.name], f"{quantity} {sweep}"
        values = {method: series_values(of_model(of_layer, method), kind) for method in METHODS}
        lines = [Line(method, METHODS[method], found) for method, found in values.items() if found]
        if lines:
            panels.append(Panel(layer.title, axis, unit, lines, log_y=True, group=kind))
    return panels


@footnotes.register
def _footnotes(item: CostStudy, records: Sequence[Record]) -> list[str]:
    calls, batch = (joined(record.config["cost"][key] for record in records) for key in ("calls", "batch"))
    devices = joined(record.environment["device"] for record in records)
    notes = [
        f"Batches of {batch}, on {devices}.",
        f"Time is the median of {calls} calls, on a GPU replays of a CUDA graph, which leave out the host; "
        f"mean ± standard deviation over {counted(repeats(records), 'repeat')}.",
        "Operations count the resampling too; the paper's formula does not.",
    ]
    if changed := [str(record.environment.get("commit") or "unknown")[:10] for record in records if _old(item, record)]:
        notes.append(
            f"The layer has changed since its operations were counted and timed (commit {joined(changed)}); "
            "scaleconv.macs counts those of today, and scaleconv reproduce cost --name NEW measures them."
        )
    return notes


def _old(item: CostStudy, record: Record) -> bool:
    """Whether the layer takes other operations today than when they were counted."""
    (layer,) = (each for each in item.layers if each.name == record.point)
    series, device = record.series["operations largest"], record.environment["device"]
    return any(
        abs(y - count_operations(record.model, layer, item.batch, sweep_scales("largest", x), device)) > 1e-3
        for x, y in zip(series.x, series.y, strict=True)
        if x in item.largest
    )
