"""Tables and the figure of what was measured: how the layer compares with plain convolutions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..drawing import make_figure, save_figure
from ..experiments.figures import COLOURS as MODEL_COLOURS
from ..metrics.timing import Memory, Timing
from ..models import TITLES
from ..table import Table
from .layer_costs import LayerRow
from .network_costs import EpochRow, StepRow

NOTHING = "–"
# A layer has the colour that it has in the figures of the experiments.
COLOURS = {
    "conv2d": MODEL_COLOURS["conv2d"],
    "conv2d_wide": "#223355",
    "direct": MODEL_COLOURS["direct"],
    "si": MODEL_COLOURS["si_conv2d"],
}
PEER_COLOURS = ("#aa7700", "#66ccee", "#aa3377", "#777777")


class Comparison:
    """The rows of a result, found by what they measured."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self.settings = list(dict.fromkeys((row.shape, row.dtype, row.layout) for row in rows))
        self._rows = {(row.shape, row.dtype, row.layout, row.layer, row.scales): row for row in rows}

    def find(self, setting: tuple[str, str, str], layer: str, scales: str = "default") -> LayerRow | None:
        return self._rows.get((*setting, layer, scales))


def has_graphs(rows: Sequence[LayerRow]) -> bool:
    """Whether the rows are from a GPU, with replays of CUDA graphs beside eager calls."""
    return any(row.graph_both for row in rows)


def time_ratio(row: LayerRow | None, other: LayerRow | None, field: str = "both") -> float | None:
    """Of one timing of two rows; None where one was not measured."""
    times: list[Timing | None] = [getattr(each, field, None) for each in (row, other)]
    return _time_ratio(*times)


def memory_ratio(row: LayerRow | StepRow | None, other: LayerRow | StepRow | None) -> float | None:
    """Of the peaks; None where one was not measured."""
    memory = (row and row.memory, other and other.memory)
    return memory[0].peak_mib / memory[1].peak_mib if memory[0] and memory[1] else None


def ratio_table(rows: Sequence[LayerRow], scales: Sequence[float]) -> Table:
    """`SIConv2d` beside plain convolutions, a line per setting; on a GPU, graph replays unless it says eager."""
    on_gpu = has_graphs(rows)
    both, forward = ("graph_both", "graph_forward") if on_gpu else ("both", "forward")
    compared = Comparison(rows)
    lines = []
    for setting in compared.settings:
        plain, wide, si, direct = (compared.find(setting, name) for name in ("conv2d", "conv2d_wide", "si", "direct"))
        cells = {
            "SIConv2d, ms (graph)" if on_gpu else "SIConv2d, ms": _ms(getattr(si, both, None)),
            "/ wide (graph)": _ratio(time_ratio(si, wide, "graph_both")),
            "/ wide (eager)": _ratio(time_ratio(si, wide)),
            "/ Conv2d": _ratio(time_ratio(si, plain, both)),
            "forward / wide": _ratio(time_ratio(si, wide, forward)),
            "memory / Conv2d": _ratio(memory_ratio(si, plain)),
            _spread(scales): _ratio(time_ratio(compared.find(setting, "si", "wide"), si, both)),
            "host, ms": _ms(si.host_both if si else None),
            "written plainly / SIConv2d": _ratio(time_ratio(direct, si, both)),
        }
        if not on_gpu:
            for column in ("/ wide (graph)", "memory / Conv2d", "host, ms"):
                del cells[column]
        lines.append((*setting, *cells.values()))
    return Table("SIConv2d, forward and backward", ("shape", "dtype", "layout", *cells), lines, labels=3)


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """Every layer in every setting."""
    on_gpu = has_graphs(rows)
    compared = Comparison(rows)
    lines = []
    for row in rows:
        setting = (row.shape, row.dtype, row.layout)
        wide, plain = (compared.find(setting, name) for name in ("conv2d_wide", "conv2d"))
        cells = {
            "forward, ms": row.error or _ms(row.forward),
            "backward, ms": _ms(row.backward),
            "both, ms": _ms(row.both),
            "/ wide": _ratio(time_ratio(row, wide)),
        }
        if on_gpu:
            cells |= {
                "forward, ms (graph)": _ms(row.graph_forward),
                "both, ms (graph)": _ms(row.graph_both),
                "/ wide (graph)": _ratio(time_ratio(row, wide, "graph_both")),
                "host, ms": _ms(row.host_both),
                "peak, MiB": _peak(row.memory),
                "memory / Conv2d": _ratio(memory_ratio(row, plain)),
            }
        lines.append((*setting, str(row.batch), row.layer, row.scales, *cells.values()))
    return Table("All layers", ("shape", "dtype", "layout", "batch", "layer", "scales", *cells), lines, labels=6)


def epoch_table(rows: Sequence[EpochRow]) -> Table:
    """The paper's networks, each compared with ConvNet trained in equally many runs."""
    plain = {row.runs: row.seconds for row in rows if row.model == "convnet"}
    lines = []
    for row in rows:
        ratio = row.seconds / plain[row.runs] if row.runs in plain and row.model != "convnet" else None
        seconds = (_three_digits(row.seconds), _three_digits(row.seconds_per_run))
        lines.append((TITLES[row.model], str(row.runs), *seconds, _ratio(ratio)))
    note = "".join(f", from {row.batches_timed} of its {row.batches} batches" for row in rows[:1] if row.partial)
    header = ("network", "runs at once", "s / epoch", "s / epoch and run", "/ ConvNet")
    return Table(f"A training epoch of the paper's networks{note}", header, lines)


def step_table(rows: Sequence[StepRow]) -> Table:
    """The larger networks, a line per setting with the plain and the converted network."""
    pairs: dict[tuple[str, ...], dict[str, StepRow]] = {}
    for row in rows:
        pairs.setdefault((row.network, row.task, row.dtype, row.layout, str(row.batch)), {})[row.variant] = row
    on_gpu = any(row.graph for row in rows)
    lines = []
    for setting, pair in pairs.items():
        plain, converted = pair["plain"], pair["converted"]
        cells = {
            "plain, ms": plain.error or _ms(plain.eager),
            "converted, ms": converted.error or _ms(converted.eager),
            "converted / plain": _ratio(_time_ratio(converted.eager, plain.eager)),
        }
        if on_gpu:
            cells |= {
                "plain, ms (graph)": _ms(plain.graph),
                "converted, ms (graph)": _ms(converted.graph),
                "converted / plain (graph)": _ratio(_time_ratio(converted.graph, plain.graph)),
                "converted, eager / graph": _ratio(_time_ratio(converted.eager, converted.graph)),
                "converted peak, MiB": _peak(converted.memory),
                "memory / plain": _ratio(memory_ratio(converted, plain)),
            }
        lines.append((*setting, *cells.values()))
    title = f"Networks, plain and converted, images of {rows[0].size}×{rows[0].size}"
    return Table(title, ("network", "task", "dtype", "layout", "batch", *cells), lines, labels=5)


def _spread(scales: Sequence[float]) -> str:
    return f"scales to {max(scales) ** 2:.3g} / to {max(scales):.3g}"


def _time_ratio(timing: Timing | None, other: Timing | None) -> float | None:
    return timing.median_ms / other.median_ms if timing and other else None


def _ms(timing: Timing | None) -> str:
    return _three_digits(timing.median_ms) if timing else NOTHING


def _peak(memory: Memory | None) -> str:
    return f"{memory.peak_mib:.0f}" if memory else NOTHING


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else NOTHING


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def draw_layers(rows: Sequence[LayerRow], title: str, paths: Sequence[Path]) -> None:
    """Draw time and, where it was measured, memory, a panel for each dtype and layout; suffixes name the formats."""
    rows = [row for row in rows if row.scales == "default"]
    kinds = list(dict.fromkeys((row.dtype, row.layout) for row in rows))
    panels = [(*kind, draw) for kind in kinds for draw in (_draw_times, _draw_memory)]
    if not any(row.memory for row in rows):
        panels = [panel for panel in panels if panel[-1] is _draw_times]
    width = max(7.5, 1.3 * len({row.shape for row in rows}))
    figure = make_figure(width, 4.2 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)
    for (dtype, layout, draw), (axis,) in zip(panels, axes, strict=True):
        draw(axis, [row for row in rows if (row.dtype, row.layout) == (dtype, layout)], f"{dtype}, {layout}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=len(labels), frameon=False)
    save_figure(figure, title, "", paths)


def _draw_times(axis: Any, rows: Sequence[LayerRow], title: str) -> None:
    """Medians as bars, minimum to maximum as whiskers, above them the ratio to the wide convolution."""
    compared = Comparison(rows)
    field = "graph_both" if has_graphs(rows) else "both"

    def bar(row: LayerRow) -> tuple[float, tuple[float, float], str]:
        timing: Timing | None = getattr(row, field)
        if timing is None:
            return float("nan"), (0, 0), ""
        ratio = time_ratio(row, compared.find((row.shape, row.dtype, row.layout), "conv2d_wide"), field)
        whiskers = (timing.median_ms - timing.min_ms, timing.max_ms - timing.median_ms)
        return timing.median_ms, whiskers, "" if ratio is None else f"{ratio:.2g}×"

    _draw_bars(axis, rows, bar)
    clock = "CUDA graph" if has_graphs(rows) else "eager"
    axis.set(title=f"forward + backward ({clock}), {title}", ylabel="ms; above the bars: / conv2d_wide", yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")


def _draw_memory(axis: Any, rows: Sequence[LayerRow], title: str) -> None:
    """Peaks in units of the plain convolution's."""
    compared = Comparison(rows)

    def bar(row: LayerRow) -> tuple[float, tuple[float, float], str]:
        ratio = memory_ratio(row, compared.find((row.shape, row.dtype, row.layout), "conv2d"))
        return (float("nan"), (0, 0), "") if ratio is None else (ratio, (0, 0), f"{ratio:.2g}×")

    _draw_bars(axis, rows, bar)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(title=f"peak memory, {title}", ylabel="/ conv2d")


def _draw_bars(
    axis: Any, rows: Sequence[LayerRow], bar: Callable[[LayerRow], tuple[float, tuple[float, float], str]]
) -> None:
    """A group of bars per shape, a colour per layer."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    layers = list(dict.fromkeys(row.layer for row in rows))
    peers = [name for name in layers if name not in COLOURS]
    width = 0.85 / len(layers)
    for place, layer in enumerate(layers):
        bars = [(shapes.index(row.shape), *bar(row)) for row in rows if row.layer == layer]
        colour = COLOURS.get(layer) or PEER_COLOURS[peers.index(layer) % len(PEER_COLOURS)]
        lefts = [group + (place - (len(layers) - 1) / 2) * width for group, *_ in bars]
        whiskers = list(zip(*(spread for _, _, spread, _ in bars), strict=True))
        drawn = axis.bar(lefts, [height for _, height, _, _ in bars], width, yerr=whiskers, color=colour)
        drawn.set_label(layer)
        axis.bar_label(drawn, [text for *_, text in bars], fontsize=7, padding=2)
    axis.set_xticks(range(len(shapes)), shapes)
    axis.margins(y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
