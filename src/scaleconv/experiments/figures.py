"""Figures of panels by matplotlib: as PNG and SVG files, and as the text of an SVG for a page.

A model has the same colour in every figure. The same records give the same bytes. What an RBM learned is drawn from its
weights, which are kept on the machine that trained it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..drawing import (
    COLOURS,
    INK,
    MARKERS,
    ON_DARK,
    ON_LIGHT,
    PAPER,
    RESPONSES,
    SITE_WIDTH,
    add_title,
    make_figure,
    save_figure,
    style,
    svg_text,
    wrap_evenly,
)
from ..metrics import Summary, summarise
from ..models.unsupervised import STEPS
from .checkpoint import load_checkpoint
from .items import Item
from .methods import TITLES
from .records import Record
from .tables import Line, Panel, make_panels, paired, relative_change, signed_percent

STYLES = ("-", "--", ":")  # of the panels that are drawn into one
FORMATS = ("png", "svg")
FEW = 20  # values of a line that have a mark and a bar each; more have a band
PANEL, SINGLE = 3.1, 4.2  # inches: the height of a row of panels, and of a panel alone
HOLLOW = {"markerfacecolor": PAPER, "linestyle": "none", "markersize": 7}  # numbers of others
PUBLISHED = "published"
LETTERS_BESIDE = 30  # of a label at the side of a panel, in a line
FEW_PLACES = 2  # with so many values of x at most, every repeat has a mark
MOST_TICKS = 6  # with a label on a logarithmic axis
LETTERS_BELOW = 24  # of all labels under half of the width
LETTERS = 40  # that fit under an axis
GAP = 1  # pixels between two filters
COLUMNS = 10  # of filters and of samples
SHOWN = 100  # filters, the first ones and not the best

Paint = Callable[[Any], None]  # into an axis


def draw(
    item: Item, records: Sequence[Record], folder: Path, name: str, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw the figure of an item into a folder, in every format."""
    paths = [folder / f"{name}.{kind}" for kind in formats]
    draw_panels(make_panels(item, records), item.title, item.claim, paths)
    return paths


def draw_panels(panels: Sequence[Panel], title: str, claim: str, paths: Sequence[Path]) -> None:
    """Write all parts of a figure side by side, in the formats that the endings of the paths name."""
    with style():
        save_figure(_paint(panels), title, claim, paths)


def draw_svg(item: Item, records: Sequence[Record]) -> str:
    """The figure of an item as SVG: the text of the file that `draw` writes."""
    with style():
        figure = _paint(make_panels(item, records))
        add_title(figure, item.title, item.claim)
        return svg_text(figure)


def _paint(panels: Sequence[Panel]) -> Any:
    """All parts of a figure, in two columns unless they are rows of methods."""
    parts = make_parts(panels)
    count = len(parts)
    columns = min(count, 1 if panels[0].kind == "methods" else 2)
    rows = -(-count // columns)
    figure = make_figure(SITE_WIDTH, _height(panels) if rows == 1 and columns == 1 else PANEL * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (_, paint), axis in zip(parts, axes, strict=False):
        paint(axis)
        if len(axis.get_ylabel()) > LETTERS_BESIDE:
            what, _, spread = axis.get_ylabel().rpartition(", ")
            axis.set_ylabel("\n".join([*wrap_evenly(f"{what},", LETTERS_BESIDE + 4), spread]))
    for axis in axes[count:]:
        axis.set_axis_off()
    if count > 1:
        _share_legend(figure, axes[:count], axes[count:])
    return figure


def _height(panels: Sequence[Panel]) -> float:
    """Of a panel alone, in inches: one with a row for each method is as high as its rows."""
    panel = panels[0]
    rows = sum(len(line.values) for line in panel.lines) + len(panel.paper)
    return 1.4 + 0.5 * rows if panel.kind == "bars" and len(panel.xs) <= FEW_PLACES else SINGLE


def _share_legend(figure: Any, axes: Sequence[Any], empty: Sequence[Any]) -> None:
    """Write what the legends of all panels say once, in an empty place or under all: a method has one colour."""
    shown: dict[str, Any] = {}
    for axis in axes:
        if legend := axis.get_legend():
            shown |= _handles(axis)
            legend.remove()
    if PUBLISHED in shown:
        shown[PUBLISHED] = shown.pop(PUBLISHED)  # the last
    if empty:
        empty[0].legend(shown.values(), shown.keys(), loc="center", frameon=False)
    else:
        columns = 2 if max(map(len, shown), default=0) > LETTERS_BESIDE else 3
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=columns, frameon=False)


def make_parts(panels: Sequence[Panel]) -> list[tuple[str, Paint]]:
    """What is drawn into each axis, with a name: a panel, or those of a group; beside a single one, its changes."""
    groups: dict[object, list[Panel]] = {}
    for number, panel in enumerate(panels):
        groups.setdefault(panel.group or number, []).append(panel)
    parts: list[tuple[str, Paint]] = [(_about(drawn), partial(_draw_group, panels=drawn)) for drawn in groups.values()]
    if len(panels) == 1 and panels[0].kind == "lines" and panels[0].compared:
        parts.append((_about(panels, f" vs {panels[0].base.title}"), partial(_changes, panel=panels[0])))
    return parts


def describe(panels: Sequence[Panel]) -> str:
    """What a figure shows, for those who do not see it."""
    return "; ".join(about for about, _ in make_parts(panels))


def _about(panels: Sequence[Panel], suffix: str = "") -> str:
    return "; ".join(": ".join(filter(None, (p.title, f"{p.y}{suffix} against {p.x}"))) for p in panels)


def _draw_group(axis: Any, panels: Sequence[Panel]) -> None:
    for panel, dashes in zip(panels, STYLES, strict=False):
        if panel.kind == "lines":
            _lines(axis, panel, dashes)
        else:
            {"bars": _marks, "shares": _shares, "methods": _methods}[panel.kind](axis, panel)
    if len(panels) == 1 and panels[0].title:
        axis.set_title(panels[0].title)


def _methods(axis: Any, panel: Panel) -> None:
    """A row for each method: the mean with the deviation of its folds, and the paper's as a hollow mark."""
    for line in panel.lines:
        ((x, ours),) = line.summaries.items()
        axis.errorbar(ours.mean, x, xerr=ours.std or 0.0, **_mark(line))
        text, end = f"{ours.mean:.2f} (n = {ours.n})", ours.mean + (ours.std or 0.0)
        if x in panel.paper:
            mean, *std = panel.paper[x]
            axis.errorbar(mean, x + 0.3, xerr=std[0] if std else None, **{**_mark(line), **HOLLOW, "markersize": 5})
            text, end = f"{text}, paper {mean:.2f}", max(end, mean + sum(std))
        axis.annotate(text, (end, x + 0.15 * (x in panel.paper)), (6, 0), textcoords="offset points", va="center")
    axis.set_yticks(panel.xs, _labels(panel))
    axis.set_ylim(panel.xs[-1] + 0.7, panel.xs[0] - 0.5)  # the first above
    axis.margins(x=0.1)
    low, high = axis.get_xlim()
    axis.set_xlim(low, high + 0.45 * (high - low))  # beside the marks, for the numbers
    axis.set(xlabel=f"{panel.y}, mean ± std")
    axis.grid(alpha=0.3, axis="x")


def _lines(axis: Any, panel: Panel, dashes: str) -> None:
    layer = f", {panel.title.partition(':')[0]}" if panel.group else ""
    for line in panel.lines:
        repeats = " / ".join(map(str, sorted({found.n for found in line.summaries.values()})))
        label = f"{line.title}{layer}" if layer else f"{line.title} (n = {repeats})"
        _curve(axis, line, line.summaries, label=label, linestyle=dashes)
    axis.set(xlabel=panel.x, ylabel=f"{panel.y}, mean ± std")
    _published(axis, panel)
    if panel.log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}" if _span(panel) < 4 else _two_and_five)
    elif _span(panel) > 2:
        axis.set_ylim(bottom=0)  # else the difference between the lines is what there is to see
    axis.grid(alpha=0.3, which="both")
    _ticks(axis, panel)
    _legend(axis)


def _curve(axis: Any, line: Line, found: dict[float, Summary], **look: Any) -> None:
    """Means with their deviations, by x: a mark and a bar each, or a band where they are many."""
    xs, means = list(found), [summary.mean for summary in found.values()]
    spread = [summary.std or 0.0 for summary in found.values()]
    if len(xs) <= FEW:
        axis.errorbar(xs, means, spread, **_mark(line), **look)
        return
    axis.plot(xs, means, color=COLOURS[line.model], **look)
    low, high = ([mean + sign * std for mean, std in zip(means, spread, strict=True)] for sign in (-1, 1))
    axis.fill_between(xs, low, high, color=COLOURS[line.model], alpha=0.15, linewidth=0)


def _changes(axis: Any, panel: Panel) -> None:
    """Error against the baseline in percent: over all repeats, and the deviation between repeats."""
    for line in panel.compared:
        found = {}
        for x in panel.xs:
            if (change := panel.change(line, x)) is not None:
                base = {repeat: error for repeat, error in panel.base.values[x].items() if error}
                spread = summarise([*paired(line.values[x], base, relative_change).values()])
                found[x] = Summary(change, spread.std, spread.n)
        mean = panel.mean_change(line)
        label = f"{line.title}: mean error {signed_percent(mean, 0)}" if mean is not None else line.title
        _curve(axis, line, found, label=label)
    axis.axhline(0, color=COLOURS[panel.baseline], linewidth=1)
    if panel.paper_change:
        axis.plot([*panel.paper_change], [*panel.paper_change.values()], "o", color=INK, label=PUBLISHED, **HOLLOW)
    axis.set(xlabel=panel.x, ylabel=f"{panel.y.partition(' (')[0]} vs {panel.base.title} (%), ± std")
    axis.grid(alpha=0.3)
    _ticks(axis, panel)
    _legend(axis)


def _marks(axis: Any, panel: Panel) -> None:
    """A mark with its deviation for each value where x is no quantity; labels that do not fit below stand at the side.

    Not bars: those begin at 0, and hide a difference that is small beside the values.
    """
    if len(panel.xs) <= FEW_PLACES:
        _repeats(axis, panel)
        return
    labels = _labels(panel)
    named, measured = ("y", "x") if sum(map(len, labels)) > LETTERS else ("x", "y")  # axes
    width = 0.6 / len(panel.lines)
    for index, line in enumerate(panel.lines):
        found = line.summaries
        places = [panel.xs.index(x) + (index - (len(panel.lines) - 1) / 2) * width for x in found]
        means, spread = [each.mean for each in found.values()], [each.std or 0 for each in found.values()]
        axis.errorbar(
            **{named: places, measured: means, f"{measured}err": spread},
            **{**_mark(line), "linestyle": "none", "markersize": 6},
            markerfacecolor=PAPER if line.control else COLOURS[line.model],
            label=f"{line.title} (n = {max((each.n for each in found.values()), default=0)})"
            + f", hollow: {PUBLISHED}" * bool(line.paper),
        )
        beside = [panel.xs.index(x) + (index + 0.35 - (len(panel.lines) - 1) / 2) * width for x in line.paper]
        stated = [mean for mean, *_ in line.paper.values()]
        across, up = (beside, stated) if named == "x" else (stated, beside)
        axis.plot(across, up, MARKERS.get(line.model, "o"), color=COLOURS[line.model], **{**HOLLOW, "markersize": 6})
    _published(axis, panel, named)
    axis.set(**{f"{named}ticks": range(len(labels)), f"{named}ticklabels": labels, f"{named}label": panel.x})
    axis.set(**{f"{named}lim": (-0.5, len(labels) - 0.5), f"{measured}label": f"{panel.y}, mean ± std"})
    if named == "y":
        axis.invert_yaxis()  # the first label above
    axis.grid(alpha=0.3)
    _legend(axis)


def _repeats(axis: Any, panel: Panel) -> None:
    """A row for each method at each x with every repeat, and their mean with its deviation."""
    names: list[str] = []
    for x in panel.xs:
        place = f"{panel.label(x)}: " if len(panel.xs) > 1 else ""
        for line in panel.lines:
            if x in line.values:
                _repeated(axis, line, x, len(names))
                names.append(f"{place}{line.title}\n(n = {line.summaries[x].n})")
        for mean in panel.paper.get(x, ())[:1]:
            axis.plot(mean, len(names), "o", color=INK, **HOLLOW)
            axis.annotate(f"{mean:.2f}", (mean, len(names) - 0.12), ha="center", va="bottom")
            names.append(f"{place}{PUBLISHED}")
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.7))
    axis.margins(x=0.15)
    where = f", {panel.x} {panel.label(panel.xs[0])}" if len(panel.xs) == 1 else ""
    axis.set(xlabel=f"{panel.y}{where}: each repeat, mean ± std")
    axis.grid(alpha=0.3, axis="x")


def _repeated(axis: Any, line: Line, x: float, row: int) -> None:
    values, found = [*line.values[x].values()], line.summaries[x]
    axis.plot(values, [row + 0.2] * len(values), "|", color=COLOURS[line.model], markersize=9)
    axis.errorbar(found.mean, row - 0.1, xerr=found.std or 0.0, **{**_mark(line), "markersize": 7})
    axis.annotate(f"{found.mean:.2f}", (found.mean, row - 0.22), ha="center", va="bottom")


def _published(axis: Any, panel: Panel, named: str = "x") -> None:
    """The numbers of others, by x, as hollow marks."""
    if panel.paper:
        bars = panel.kind == "bars"
        places = [panel.xs.index(x) if bars else x for x in panel.paper]
        means = [mean for mean, *_ in panel.paper.values()]
        across, up = (places, means) if named == "x" else (means, places)
        axis.plot(across, up, "o", color=INK, label=PUBLISHED, **HOLLOW)


def _shares(axis: Any, panel: Panel) -> None:
    """Each column adds up to 100 %: a map of the means."""
    means = [[found[x].mean if x in found else 0.0 for x in panel.xs] for found in (y.summaries for y in panel.lines)]
    image = axis.pcolormesh(means, cmap="magma_r", vmin=0, edgecolors="face", linewidth=0.3)
    axis.figure.colorbar(image, ax=axis, label=panel.y)
    most = max(map(max, means))
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            colour = ON_DARK if value > most / 2 else ON_LIGHT
            axis.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", color=colour)
    axis.set_xticks([column + 0.5 for column in range(len(panel.xs))], _labels(panel))
    axis.set_yticks([row + 0.5 for row in range(len(panel.lines))], [line.title for line in panel.lines])
    repeats = max(found.n for line in panel.lines for found in line.summaries.values())
    axis.set(xlabel=panel.x, ylabel=f"level (n = {repeats})")


def _mark(line: Line) -> dict[str, Any]:
    return {"color": COLOURS[line.model], "marker": MARKERS.get(line.model, "o"), "markersize": 4, "capsize": 3}


def _legend(axis: Any) -> None:
    """Under the axis and its labels, where it covers nothing."""
    shown = _handles(axis)
    look: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4, "handlelength": 2.5}
    axis.legend(shown.values(), shown.keys(), ncols=2, frameon=False, **look)


def _handles(axis: Any) -> dict[str, Any]:
    """By label, what a legend shows: methods in their order, and published numbers after them."""
    shown = {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    return dict(sorted(shown.items(), key=lambda entry: entry[0] == PUBLISHED))


def _two_and_five(value: float, _position: int) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _span(panel: Panel) -> float:
    """The largest value in units of the smallest one above 0."""
    by_x = [repeats for line in panel.lines for repeats in line.values.values()]
    values = [value for repeats in by_x for value in repeats.values() if value > 0]
    return max(values) / min(values) if values else 1.0


def _labels(panel: Panel) -> list[str]:
    return [panel.label(x) for x in panel.xs]


def _ticks(axis: Any, panel: Panel) -> None:
    """A tick at every x; on a logarithmic axis those with few digits are labelled, as 0.5 and 2 among powers of √2."""
    if panel.log_x:
        axis.set_xscale("log")
    if panel.log_x and not panel.labels:
        plain = [x for x in panel.xs if float(f"{x:.2g}") == x]
        shown = plain if len(plain) > 2 else panel.xs
        if len(shown) > MOST_TICKS:
            shown = [x for x in shown if f"{x:e}"[0] in "125"]
        labels = [f"{x:.2g}" if x < 100 else f"{x:,.0f}" for x in shown]
        axis.set_xticks(shown, labels, rotation=_rotation(labels))
        axis.set_xticks([x for x in panel.xs if x not in shown], [], minor=True)
        axis.xaxis.set_minor_formatter("")
    elif panel.labels or panel.log_x:
        labels = _labels(panel)
        axis.set_xticks(panel.xs, labels, rotation=_rotation(labels))
        axis.set_xticks([], minor=True)


def _rotation(labels: Sequence[str]) -> int:
    """Degrees, so that labels below an axis do not touch."""
    return 30 if len("".join(labels)) > LETTERS_BELOW else 0


def draw_learned_filters(results: Path, folder: Path, name: str) -> list[Path]:
    """Draw what the RBMs in a folder of results learned, each from its first run whose weights are there.

    The names of the pictures begin with `name`.
    """
    written = []
    for model in ("rbm", "si_rbm"):
        for weights in sorted((results / "weights").glob(f"{model}-*.safetensors"))[:1]:
            found = load_checkpoint(weights)
            size = (found.run["config"]["data"]["size"],) * 2
            filters, samples = (found.tensors[part].unflatten(-1, size) for part in ("rbm.weight", "samples"))
            shown = filters[:SHOWN]
            title = f"{TITLES[model]}, fold {found.run['fold']}: the first {len(shown)} of {len(filters)} filters"
            written.append(folder / f"{name}-{model}.png")  # pixels, which an SVG would only wrap
            draw_filters(shown, samples, title, written[-1])
    return written


def draw_filters(filters: Tensor, samples: Tensor, title: str, path: Path) -> None:
    """Write a picture of filters, red where they are positive and blue where negative, beside samples.

    Args:
        filters: (J, height, width), each scaled by its own largest value, so that weak ones can be seen too.
        samples: (N, height, width) in [0, 1], as `train_unsupervised` draws them.
        title: above both.
        path: the picture.
    """
    largest = filters.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(filters.dtype).tiny)
    panels = [
        ("filters", tile(filters / largest, COLUMNS, 0.0), RESPONSES, -1),
        (f"samples, {STEPS} Gibbs steps from test digits", tile(samples, COLUMNS, 1.0), "gray", 0),
    ]
    with style():
        figure = make_figure(SITE_WIDTH, 4.2)
        for axis, (heading, sheet, colours, lowest) in zip(figure.subplots(1, 2), panels, strict=True):
            axis.imshow(sheet.cpu().numpy(), cmap=colours, vmin=lowest, vmax=1, interpolation="nearest")
            axis.set_title(heading)
            axis.set_axis_off()
        save_figure(figure, title, "", [path])


def tile(images: Tensor, columns: int, frame: float) -> Tensor:
    """Lay images (N, H, W) out in rows, a line of the value `frame` between them; the last row is filled with it."""
    framed = F.pad(images, (0, GAP, 0, GAP, 0, -len(images) % columns), value=frame)
    rows = framed.unflatten(0, (-1, columns)).transpose(1, 2)  # (rows, height, columns, width)
    tiled: Tensor = rows.flatten(2).flatten(0, 1)[:-GAP, :-GAP]
    return tiled
