"""What the layer costs: operations by the paper's formula and by count, and measured time (paper, appendix B).

Two questions for each layer of the paper's network: what happens when the largest of six scales grows, and what when
there are more scales up to the same largest one. Each in the direct order, in which the paper and others evaluate the
layer, and as `SIConv2d` does it. Time is measured by `metrics.timing`, as `scaleconv bench` measures it.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..metrics.timing import LayerPass, captured, repeated, time_interleaved
from ..models.direct import DirectSIConv2d
from ..nn import SIConv2d
from ..ops import macs
from .checkpoint import check_settings
from .engine import Engine
from .items import STUDIES
from .panels import Line, Panel, make_panels, of_model, series_values
from .records import Record, Series, describe_environment, read_record, record_name, write_record
from .report import counted, footnotes, joined, repeats
from .run import run_item
from .train import Silent, Watcher

# What is compared; the keys stand where the name of a model stands in other records.
METHODS = {
    "conv2d": "Conv2d",
    "formula": "paper's formula",
    "direct": "direct order",
    "si_conv2d": "SIConv2d",
}
SWEEPS = {"largest": "largest of six scales", "count": "number of scales from 1 to 2"}
UNITS = {"operations": "operations (Conv2d = 1)", "milliseconds": "forward + backward (ms)"}


@dataclass(frozen=True)
class LayerShape:
    """A layer to measure; its name goes into file names, and a first layer needs no gradient of its input."""

    name: str
    title: str
    channels: int
    maps: int
    size: int
    kernel: int
    input_grad: bool = True


@dataclass(frozen=True)
class CostStudy:
    """The item `cost` under one preset.

    Attributes:
        layers: what is measured.
        batch: images in a call that is timed.
        largest: the largest of the six scales L^(k/3), k = −2 … 3, each value a call.
        counts: numbers of scales from 1 to 2 in equal ratios, each value a call.
        folds: repeats of the timing.
        calls: timings in a repeat, of which the median is taken.
    """

    item: str
    preset: str
    title: str
    layers: tuple[LayerShape, ...]
    batch: int
    largest: tuple[float, ...]
    counts: tuple[int, ...]
    folds: tuple[int, ...]
    calls: int = 10
    claim: str = ""
    checks: tuple[str, ...] = ()
    paper: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        for name, least in (("largest", 1), ("counts", 0)):
            if not getattr(self, name) or min(getattr(self, name)) <= least:
                raise ValueError(f"`{name}` must hold values above {least}, got {list(getattr(self, name))}")
        if not self.folds or len(set(self.folds)) < len(self.folds):
            raise ValueError(f"`folds` must name at least one, and none twice, got {list(self.folds)}")

    def scales(self, sweep: str) -> dict[float, tuple[float, ...]]:
        """The calls of a sweep: where each lies on the axis, and its scales."""
        if sweep == "largest":
            return {largest: tuple(largest ** (k / 3) for k in range(-2, 4)) for largest in self.largest}
        return {float(n): tuple(2 ** (k / max(1, n - 1)) for k in range(n)) for n in self.counts}


def run_cost(study: CostStudy, folder: Path, *, device: str = "cpu", watcher: Watcher | None = None) -> list[Record]:
    """Measure what is not measured yet; one record per layer, method and repeat."""
    watcher = watcher or Silent()
    wanted = [(layer, method, fold) for layer in study.layers for method in METHODS for fold in study.folds]
    watcher.plan(study.item, len(wanted))
    records = []
    for layer, method, fold in wanted:
        path = folder / record_name(method, layer.name, fold, 0)
        if not path.exists():
            write_record(folder, _measure(study, layer, method, fold, folder.name, device))
        watcher.end(f"{METHODS[method]}, {layer.title}, repeat {fold}")
        records.append(record := read_record(path))
        check_settings(path, record.config, _config(study))
    return records


def formula(scales: Sequence[float]) -> float:
    """Convolutions of a layer in units of one, by the paper's appendix B: L² (1 − rⁿ) / (1 − r), r = 1 / step².

    Example:
        >>> round(formula([2 ** (k / 3) for k in range(-2, 4)]), 1)
        10.1
    """
    if len(scales) == 1:
        return scales[0] ** 2
    step = (max(scales) / min(scales)) ** (1 / (len(scales) - 1))
    r = step**-2.0
    return float(max(scales) ** 2 * (1 - r ** len(scales)) / (1 - r))


def _measure(study: CostStudy, layer: LayerShape, method: str, fold: int, experiment: str, device: str) -> Record:
    series = {}
    start = time.perf_counter()
    for sweep in SWEEPS:
        calls = study.scales(sweep)
        positions = list(calls)
        counted = [_operations(study, layer, method, scales, device) for scales in calls.values()]
        series[f"operations {sweep}"] = Series(positions, counted)
        if method != "formula":
            timed = [_time(study, layer, method, scales, device) for scales in calls.values()]
            series[f"milliseconds {sweep}"] = Series(positions, timed)
    seconds = time.perf_counter() - start
    return Record(
        experiment=experiment,
        model=method,
        fold=fold,
        seed=0,
        test_error=None,
        config=_config(study),
        environment=describe_environment(device),
        history=[],
        parameters=layer.maps * (layer.channels * layer.kernel**2 + 1),
        seconds=seconds,
        seconds_per_epoch=seconds,
        runs_together=1,
        point=layer.name,
        series=series,
    )


def _operations(study: CostStudy, layer: LayerShape, method: str, scales: Sequence[float], device: str) -> float:
    """Multiply-accumulates as the device does them, resampling counted, in units of the plain convolution."""
    if method == "formula":
        return formula(scales)
    images, weight = (layer.channels, layer.size, layer.size), (layer.maps, layer.channels, layer.kernel, layer.kernel)
    cost = macs((study.batch, *images), weight, scales=scales, gpu=not device.startswith("cpu"))
    counted = {"conv2d": cost.conv2d, "direct": cost.direct, "si_conv2d": cost.planned}[method]
    return counted.total / cost.conv2d.total


def _time(study: CostStudy, layer: LayerShape, method: str, scales: Sequence[float], device: str) -> float:
    """Milliseconds of forward and backward; on a GPU the replay of a CUDA graph, without the host."""
    shape = (layer.channels, layer.maps, layer.kernel)
    torch.manual_seed(0)
    module: nn.Module
    if method == "conv2d":
        module = nn.Conv2d(*shape)
    elif method == "direct":
        module = DirectSIConv2d(*shape, scales=scales)
    else:
        module = SIConv2d(*shape, scales=scales)
    images = torch.rand(study.batch, layer.channels, layer.size, layer.size, device=device)
    both = LayerPass(module.to(device), images, input_grad=layer.input_grad)
    workload = repeated(captured(both) if images.is_cuda else both)
    return time_interleaved({method: workload}, device, study.calls)[method].median_ms


def _config(study: CostStudy) -> dict[str, Any]:
    kept = ("layers", "batch", "largest", "counts", "calls")
    values: dict[str, Any] = json.loads(json.dumps({name: asdict(study)[name] for name in kept}))
    return {"cost": values}


STUDIES["cost"] = CostStudy


@run_item.register
def _run(
    item: CostStudy, folder: Path, device: str, data_dir: Path | None, watcher: Watcher, engine: Engine
) -> list[Record]:
    return run_cost(item, folder, device=device, watcher=watcher)


@make_panels.register
def _panels(item: CostStudy, records: Sequence[Record]) -> list[Panel]:
    """For each layer operations and time, against the largest scale and against the number of scales."""
    panels = []
    for layer in item.layers:
        of_layer = [record for record in records if record.point == layer.name]
        for sweep, axis in SWEEPS.items():
            for quantity, unit in UNITS.items():
                lines = []
                for method, title in METHODS.items():
                    values = series_values(of_model(of_layer, method), f"{quantity} {sweep}")
                    if values:
                        lines.append(Line(method, title, values))
                if lines:
                    panels.append(Panel(layer.title, axis, unit, lines, log_y=True, group=f"{quantity} {sweep}"))
    return panels


@footnotes.register
def _footnotes(item: CostStudy, records: Sequence[Record]) -> list[str]:
    calls, batch = (joined(record.config["cost"][key] for record in records) for key in ("calls", "batch"))
    devices = joined(record.environment["device"] for record in records)
    return [
        f"Batches of {batch}, on {devices}.",
        f"Time is the median of {calls} calls, on a GPU replays of a CUDA graph, which leave out the host; "
        f"mean ± standard deviation over {counted(repeats(records), 'repeat')}.",
        "Operations count the resampling too; the paper's formula does not.",
        *_changed_since(item, records),
    ]


def _changed_since(item: CostStudy, records: Sequence[Record]) -> list[str]:
    """Whether the layer takes other operations today than when they were counted."""
    layers, calls = {layer.name: layer for layer in item.layers}, item.scales("largest")
    changed = []
    for record in records:
        series = record.series["operations largest"]
        known = [(scales, y) for x, y in zip(series.x, series.y, strict=True) if (scales := calls.get(x))]
        made = (layers[record.point], record.model)
        now = [_operations(item, *made, scales, record.environment["device"]) for scales, _ in known]
        if any(abs(before - after) > 1e-3 for (_, before), after in zip(known, now, strict=True)):
            changed.append(str(record.environment.get("commit") or "unknown")[:10])
    if not changed:
        return []
    return [
        f"The layer has changed since its operations were counted and timed (commit {joined(changed)}); "
        "scaleconv.macs counts those of today, and scaleconv reproduce cost --name NEW measures them."
    ]
