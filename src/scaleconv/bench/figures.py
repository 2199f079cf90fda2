"""The picture of a bench: time of forward and backward per shape, and memory beside it where it was measured."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..data.atomic import atomic_path
from .layers import LayerRow
from .tables import Comparison, memory_ratio, time_ratio

COLOURS = {"conv2d": "#bbbbbb", "conv2d_wide": "#777777", "direct": "#aa7700", "si_torch": "#ee8866", "si": "#cc3311"}
PEER_COLOURS = ("#4477aa", "#228833", "#66ccee", "#aa3377")


def draw_layers(rows: Sequence[LayerRow], path: Path) -> None:
    """Draw a line of panels for each dtype and layout; the format is that of the path's ending."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[figures]'") from None
    kinds = list(dict.fromkeys((row.dtype, row.layout) for row in rows))
    columns = 2 if any(row.memory for row in rows) else 1
    figure = Figure(figsize=(7.5 * columns, 4.2 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), columns, squeeze=False)
    for (dtype, layout), line in zip(kinds, axes, strict=True):
        some = [row for row in rows if (row.dtype, row.layout, row.scales) == (dtype, layout, "default")]
        _draw_times(line[0], some, f"forward + backward, {dtype}, {layout}")
        if columns == 2:
            _draw_memory(line[1], some, f"peak memory, {dtype}, {layout}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside upper center", ncols=len(labels), frameon=False)
    with atomic_path(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))


def _draw_times(axis: Any, rows: Sequence[LayerRow], title: str) -> None:
    """Medians as bars, least to most as whiskers, above them the ratio to the wide convolution."""
    compared = Comparison(rows)

    def bar(row: LayerRow) -> tuple[float, tuple[float, float], str]:
        timing = row.both
        if timing is None:
            return float("nan"), (0, 0), ""
        ratio = time_ratio(row, compared.find((row.shape, row.dtype, row.layout), "conv2d_wide"))
        whiskers = (timing.median_ms - timing.min_ms, timing.max_ms - timing.median_ms)
        return timing.median_ms, whiskers, "" if ratio is None else f"{ratio:.2g}×"

    _draw_bars(axis, rows, bar)
    axis.set(title=title, ylabel="ms; above the bars, times conv2d_wide", yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")


def _draw_memory(axis: Any, rows: Sequence[LayerRow], title: str) -> None:
    """Peaks in units of the plain convolution's."""
    compared = Comparison(rows)

    def bar(row: LayerRow) -> tuple[float, tuple[float, float], str]:
        ratio = memory_ratio(row, compared.find((row.shape, row.dtype, row.layout), "conv2d"))
        return (float("nan"), (0, 0), "") if ratio is None else (ratio, (0, 0), f"{ratio:.2g}×")

    _draw_bars(axis, rows, bar)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(title=title, ylabel="times conv2d")


def _draw_bars(
    axis: Any, rows: Sequence[LayerRow], bar: Callable[[LayerRow], tuple[float, tuple[float, float], str]]
) -> None:
    """A group of bars per shape, a colour per contender."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    contenders = list(dict.fromkeys(row.contender for row in rows))
    peers = [name for name in contenders if name not in COLOURS]
    width = 0.85 / len(contenders)
    for place, contender in enumerate(contenders):
        bars = [(shapes.index(row.shape), *bar(row)) for row in rows if row.contender == contender]
        colour = COLOURS.get(contender) or PEER_COLOURS[peers.index(contender) % len(PEER_COLOURS)]
        lefts = [group + (place - (len(contenders) - 1) / 2) * width for group, *_ in bars]
        whiskers = list(zip(*(spread for _, _, spread, _ in bars), strict=True))
        drawn = axis.bar(lefts, [height for _, height, _, _ in bars], width, yerr=whiskers, color=colour)
        drawn.set_label(contender)
        axis.bar_label(drawn, [text for *_, text in bars], fontsize=7, padding=2)
    axis.set_xticks(range(len(shapes)), shapes)
    axis.margins(y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
