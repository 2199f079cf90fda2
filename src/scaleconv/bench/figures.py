"""The figure of a bench: time of forward and backward per shape, and memory below it where it was measured."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..data.atomic import atomic_path
from .layers import LayerRow
from .tables import Comparison, has_graphs, memory_ratio, time_ratio
from .timing import Timing

COLOURS = {"conv2d": "#bbbbbb", "conv2d_wide": "#777777", "direct": "#aa7700", "si": "#cc3311"}
PEER_COLOURS = ("#4477aa", "#228833", "#66ccee", "#aa3377")


def draw_layers(rows: Sequence[LayerRow], path: Path) -> None:
    """Draw the panels of each dtype and layout; the suffix of `path` names the format."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[figures]'") from None
    rows = [row for row in rows if row.scales == "default"]
    kinds = list(dict.fromkeys((row.dtype, row.layout) for row in rows))
    panels = [(*kind, draw) for kind in kinds for draw in (_draw_times, _draw_memory)]
    if not any(row.memory for row in rows):
        panels = [panel for panel in panels if panel[-1] is _draw_times]
    width = max(7.5, 1.3 * len({row.shape for row in rows}))
    figure = Figure(figsize=(width, 4.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)
    for (dtype, layout, draw), (axis,) in zip(panels, axes, strict=True):
        draw(axis, [row for row in rows if (row.dtype, row.layout) == (dtype, layout)], f"{dtype}, {layout}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside upper center", ncols=len(labels), frameon=False)
    with atomic_path(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))


def _draw_times(axis: Any, rows: Sequence[LayerRow], title: str) -> None:
    """Medians as bars, least to most as whiskers, above them the ratio to the wide convolution."""
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
