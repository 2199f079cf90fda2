"""Tables and the figure of what was measured: how the layer compares with plain convolutions."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from ..drawing import FIXED, SITE_WIDTH, make_figure, save_figure, style
from ..table import Table
from ..timing import Timing
from .layer_costs import LayerRow
from .network_costs import StepRow

NOTHING = "–"
PEER_COLOURS = ("#aa7700", "#66ccee", "#aa3377", "#777777")

Row = TypeVar("Row")
Columns = dict[str, Callable[[Row], str]]  # heading, and the cell of a row


class Comparison:
    """The rows of single layers, found by what they measured."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self.rows = {(row.shape, row.dtype, row.layout, row.layer, row.scales): row for row in rows}
        self.clock = "graph_" if any(row.graph_both for row in rows) else ""  # of the device alone, where there is one

    def beside(self, row: LayerRow, layer: str, scales: str = "default") -> LayerRow | None:
        """Another layer in the setting of a row."""
        return self.rows.get((row.shape, row.dtype, row.layout, layer, scales))


def amount(row: object, field: str) -> float:
    """The median of a timing in ms, or the peak of a memory in MiB; NaN where it was not measured."""
    found = getattr(row, field, None)
    if found is None:
        return math.nan
    return float(found.median_ms if isinstance(found, Timing) else found.peak_mib)


def ratio(row: object, reference: object, field: str, reference_field: str = "") -> float:
    """Of a field of one row to that of another, or to another field; NaN where one was not measured."""
    return amount(row, field) / amount(reference, reference_field or field)


def ratio_table(rows: Sequence[LayerRow], scales: Sequence[float]) -> Table:
    """`SIConv2d` beside plain convolutions, a line per setting; on a GPU, graph replays unless it says eager."""
    found = Comparison(rows)
    both, forward = f"{found.clock}both", f"{found.clock}forward"
    settings = list({(row.shape, row.dtype, row.layout): row for row in reversed(rows)}.values())[::-1]

    def cell(ours: str, theirs: str, field: str, wide: str = "default") -> Callable[[LayerRow], str]:
        return lambda row: _ratio(ratio(found.beside(row, ours, wide), found.beside(row, theirs), field))

    columns: Columns[LayerRow] = {
        "SIConv2d, ms (graph)" if found.clock else "SIConv2d, ms": lambda row: _ms(found.beside(row, "si"), both),
        "/ wide (graph)": cell("si", "conv2d_wide", "graph_both"),
        "/ wide (eager)": cell("si", "conv2d_wide", "both"),
        "/ Conv2d": cell("si", "conv2d", both),
        "forward / wide": cell("si", "conv2d_wide", forward),
        "memory / Conv2d": cell("si", "conv2d", "memory"),
        f"scales to {max(scales) ** 2:.3g} / to {max(scales):.3g}": cell("si", "si", both, "wide"),
        "host, ms": lambda row: _ms(found.beside(row, "si"), "host_both"),
        "written plainly / SIConv2d": cell("direct", "si", both),
    }
    return _table("SIConv2d, forward and backward", ("shape", "dtype", "layout"), columns, settings)


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """Every layer in every setting."""
    found = Comparison(rows)

    def cell(layer: str, field: str) -> Callable[[LayerRow], str]:
        return lambda row: _ratio(ratio(row, found.beside(row, layer), field))

    columns: Columns[LayerRow] = {
        "forward, ms": lambda row: row.error or _ms(row, "forward"),
        "backward, ms": lambda row: _ms(row, "backward"),
        "both, ms": lambda row: _ms(row, "both"),
        "/ wide": cell("conv2d_wide", "both"),
        "forward, ms (graph)": lambda row: _ms(row, "graph_forward"),
        "both, ms (graph)": lambda row: _ms(row, "graph_both"),
        "/ wide (graph)": cell("conv2d_wide", "graph_both"),
        "host, ms": lambda row: _ms(row, "host_both"),
        "peak, MiB": _peak,
        "memory / Conv2d": cell("conv2d", "memory"),
    }
    return _table("All layers", ("shape", "dtype", "layout", "batch", "layer", "scales"), columns, rows)


def step_table(rows: Sequence[StepRow]) -> Table:
    """Every network, with ratios to its first variant, which has plain convolutions."""
    setting = ("network", "task", "dtype", "layout", "batch", "size")
    plain = {tuple(getattr(row, key) for key in setting): row for row in reversed(rows)}

    def cell(field: str) -> Callable[[StepRow], str]:
        return lambda row: _ratio(ratio(row, plain[tuple(getattr(row, key) for key in setting)], field))

    columns: Columns[StepRow] = {
        "ms": lambda row: row.error or _ms(row, "eager"),
        "/ plain": cell("eager"),
        "ms (graph)": lambda row: _ms(row, "graph"),
        "/ plain (graph)": cell("graph"),
        "eager / graph": lambda row: _ratio(ratio(row, row, "eager", "graph")),
        "peak, MiB": _peak,
        "memory / plain": cell("memory"),
    }
    return _table("Networks, a training step or the inference of a batch", (*setting, "variant"), columns, rows)


def _table(title: str, labels: tuple[str, ...], columns: Columns[Any], rows: Sequence[Any]) -> Table:
    """A line per row. Columns of graphs, the host and memory are left out where none was measured, as on a CPU."""
    cells = {heading: [make(row) for row in rows] for heading, make in columns.items()}
    gpu_only = ("graph", "host", "memory", "peak")
    kept = {
        heading: column
        for heading, column in cells.items()
        if set(column) != {NOTHING} or not any(word in heading for word in gpu_only)
    }
    lines = [
        (*(str(getattr(row, label)) for label in labels), *(column[k] for column in kept.values()))
        for k, row in enumerate(rows)
    ]
    return Table(title, (*labels, *kept), lines, labels=len(labels))


def _ms(row: object, field: str) -> str:
    return _text(amount(row, field), "#.3g").rstrip(".")


def _peak(row: LayerRow | StepRow) -> str:
    return _text(amount(row, "memory"), ".0f")


def _ratio(value: float) -> str:
    return _text(value, ".2f")


def _text(value: float, form: str) -> str:
    return NOTHING if math.isnan(value) else f"{value:{form}}"


def draw_layers(rows: Sequence[LayerRow], title: str, paths: Sequence[Path]) -> None:
    """Draw time and, where it was measured, memory, a panel for each dtype and layout; suffixes name the formats."""
    rows = [row for row in rows if row.scales == "default"]
    clock = Comparison(rows).clock
    kinds = {f"{clock}both": ("conv2d_wide", f"forward + backward ({'CUDA graph' if clock else 'eager'}), ms")}
    if any(row.memory for row in rows):
        kinds["memory"] = ("conv2d", "peak memory, MiB")
    panels = list(product(dict.fromkeys((row.dtype, row.layout) for row in rows), kinds.items()))
    with style():
        figure = make_figure(max(SITE_WIDTH, 1.3 * len({row.shape for row in rows})), 4.2 * len(panels))
        axes = figure.subplots(len(panels), 1, squeeze=False)
        for ((dtype, layout), (field, (reference, unit))), (axis,) in zip(panels, axes, strict=True):
            _draw_bars(axis, [row for row in rows if (row.dtype, row.layout) == (dtype, layout)], field, reference)
            axis.set(title=f"{unit}, {dtype}, {layout}", ylabel=f"above the bars: / {reference}", yscale="log")
            axis.yaxis.set_major_formatter("{x:g}")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        save_figure(figure, title, "", paths)


def _draw_bars(axis: Any, rows: Sequence[LayerRow], field: str, reference: str) -> None:
    """A group of bars per shape, a colour per layer; minimum to maximum as whiskers, ratios above the bars."""
    compared = Comparison(rows)
    shapes, layers = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("shape", "layer"))
    peers = [name for name in layers if name not in FIXED]
    width = 0.85 / len(layers)
    for place, layer in enumerate(layers):
        bars = [row for row in rows if row.layer == layer]
        lefts = [shapes.index(row.shape) + (place - (len(layers) - 1) / 2) * width for row in bars]
        heights = [amount(row, field) for row in bars]
        timings = [getattr(row, field) for row in bars]
        spread = [
            (t.median_ms - t.min_ms, t.max_ms - t.median_ms) if isinstance(t, Timing) else (0.0, 0.0) for t in timings
        ]
        ratios = [ratio(row, compared.beside(row, reference), field) for row in bars]
        colour = FIXED.get(layer) or PEER_COLOURS[peers.index(layer) % len(PEER_COLOURS)]
        drawn = axis.bar(lefts, heights, width, yerr=list(zip(*spread, strict=True)), color=colour, label=layer)
        axis.bar_label(drawn, ["" if math.isnan(r) else f"{r:.2g}×" for r in ratios], padding=2)
    axis.set_xticks(range(len(shapes)), shapes)
    axis.margins(y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
