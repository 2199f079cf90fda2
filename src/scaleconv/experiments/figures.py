"""Figures of panels by matplotlib: as PNG and SVG files, and as SVG elements for a page.

A model has the same colour in every figure. The same records give the same bytes. What an RBM learned is drawn from its
weights, which are kept on the machine that trained it.
"""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..drawing import make_figure, save_figure
from ..metrics import Summary, summarise
from ..models.unsupervised import STEPS
from .checkpoint import load_checkpoint
from .items import Item
from .methods import TITLES
from .records import Record
from .tables import Line, Panel, make_panels, relative_change, signed_percent

PALETTE = ("#cc3311", "#aa7700", "#228833", "#aa3377", "#66ccee", "#332288", "#999933", "#ee6677", "#004488", "#777777")


class Colours(dict[str, str]):
    """Of methods and layers; a method of a user's own gets the next of `PALETTE` when it is first drawn."""

    def __missing__(self, model: str) -> str:
        own = len(self) - len(FIXED)
        return self.setdefault(model, PALETTE[own % len(PALETTE)])


# By colour, the methods and layers that have it: no two that are compared have the same.
FIXED = {
    name: colour
    for colour, names in {
        "#4477aa": ("convnet", "cnn", "plain", "conv2d"),
        "#cc3311": ("si_convnet", "si_cnn", "converted", "si_conv2d"),
        "#aa7700": ("ensemble", "pyramid_cnn", "pyramid"),
        "#aa3377": ("tiled", "pyramid_deep_cnn"),
        "#332288": ("multi_stage", "deep_cnn"),
        "#228833": ("hierarchical", "direct"),
        "#117733": ("multi_column",),
        "#77aadd": ("augmented",),
        "#004488": ("fcn",),
        "#bb5566": ("si_fcn",),
        "#88ccee": ("unet",),
        "#ddaa33": ("si_unet",),
        "#999933": ("cropped_cnn",),
        "#66ccee": ("rbm",),
        "#ee6677": ("si_rbm",),
        "#999999": ("pixels",),
        "#777777": ("formula",),
        "#555555": ("own",),
        "#117755": ("late",),
        # Lighter where training images were rescaled.
        "#88bbdd": ("plain-scale",),
        "#ee8877": ("converted-scale",),
        "#66bb99": ("late-scale",),
        "#ddbb66": ("pyramid-scale",),
        "#aaaaaa": ("own-scale",),
    }.items()
    for name in names
}
COLOURS = Colours(FIXED)
MARKERS = {
    **dict.fromkeys(("convnet", "plain", "plain-scale", "fcn", "cnn"), "s"),
    **dict.fromkeys(("hierarchical", "unet", "cropped_cnn"), "^"),
    **dict.fromkeys(("ensemble", "pyramid", "pyramid-scale", "pyramid_cnn", "pyramid_deep_cnn"), "D"),
}  # of the others, "o"
STYLES = ("-", "--", ":")  # of the panels that are drawn into one
FORMATS = ("png", "svg")
FEW = 20  # values of a line that have a mark and a bar each; more have a band
LETTERS = 50  # that fit under an axis
GAP = 1  # pixels between two filters
COLUMNS = 10  # of filters and of samples
SHOWN = 100  # filters, the first ones and not the best
WIDTH, HEIGHT = 4.6, 4.2  # inches of an `<svg>` element: a phone can show it
ON_DARK, ON_LIGHT = "#f5f5f5", "#222222"  # numbers on a colour: not black and white, which follow the page

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
    parts = make_parts(panels)
    count = len(parts)
    columns = min(count, 2 if count == 4 else 3)
    rows = -(-count // columns)
    figure = make_figure(max(7.0, 4.2 * columns if count > 2 else 5.2 * columns), 4.6 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (_, paint), axis in zip(parts, axes, strict=False):
        paint(axis)
    for axis in axes[count:]:
        axis.set_axis_off()
    save_figure(figure, title, claim, paths)


def draw_inline(panels: Sequence[Panel], name: str) -> list[str]:
    """Each part of a figure as an `<svg>` element of a page, which may be light or dark.

    Black and white are the colours of the page, `currentColor` and `--back`. Of a model's colour the page takes the
    share `--ink`, the rest is white. Two figures of a page have different names, so that no element has the id of
    another.
    """
    from matplotlib import rc_context

    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    ours = re.compile("|".join(sorted(set(COLOURS.values()))))
    drawn = []
    for number, (about, paint) in enumerate(make_parts(panels)):
        figure, stream = make_figure(WIDTH, HEIGHT), io.StringIO()
        paint(figure.subplots())
        with rc_context({"svg.hashsalt": f"{name} {number}", "svg.fonttype": "none"}):
            figure.savefig(stream, format="svg", transparent=True, bbox_inches="tight", metadata=nothing)
        text = stream.getvalue().partition("<svg ")[2]
        text = re.sub(r'<g id="[^"]*"', "<g", text)
        text = text.replace("#000000", "currentColor").replace("#ffffff", "var(--back)")
        text = ours.sub(r"color-mix(in srgb, \g<0> var(--ink), white)", text)
        drawn.append(f'<svg role="img" aria-label="{escape(about)}" {text}')
    return drawn


def make_parts(panels: Sequence[Panel]) -> list[tuple[str, Paint]]:
    """What is drawn into each axis, with a name: a panel, or those of a group; beside a single one, its changes."""
    groups: dict[object, list[Panel]] = {}
    for number, panel in enumerate(panels):
        groups.setdefault(panel.group or number, []).append(panel)
    parts: list[tuple[str, Paint]] = [(_about(drawn), partial(_draw_group, panels=drawn)) for drawn in groups.values()]
    if len(panels) == 1 and panels[0].kind == "lines" and panels[0].compared:
        parts.append((_about(panels, f" vs {panels[0].baseline_title}"), partial(_changes, panel=panels[0])))
    return parts


def _about(panels: Sequence[Panel], suffix: str = "") -> str:
    return "; ".join(": ".join(filter(None, (p.title, f"{p.y}{suffix} against {p.x}"))) for p in panels)


def _draw_group(axis: Any, panels: Sequence[Panel]) -> None:
    for panel, style in zip(panels, STYLES, strict=False):
        if panel.kind == "lines":
            _lines(axis, panel, style)
        else:
            {"bars": _marks, "shares": _shares, "methods": _methods}[panel.kind](axis, panel)
    if len(panels) == 1 and panels[0].title:
        axis.set_title(panels[0].title, fontsize=9)


def _methods(axis: Any, panel: Panel) -> None:
    """A bar for each method with the deviation of its folds, and the paper's under it."""
    for line in panel.lines:
        ((x, ours),), colour = line.summaries.items(), COLOURS[line.model]
        both = [(ours.mean, ours.std or 0.0, {"color": colour}, f"{ours.mean:.2f} (n = {ours.n})")]
        if x in panel.paper:
            mean, *std = panel.paper[x]
            hollow = {"color": "none", "edgecolor": colour, "hatch": "///"}
            both.append((mean, std[0] if std else 0.0, hollow, f"{mean:.2f} (paper)"))
        height = 0.8 / len(both)
        for row, (mean, spread, kind, label) in enumerate(both):
            at = x + (row - (len(both) - 1) / 2) * height
            axis.barh(at, mean, height, xerr=spread, capsize=2, **kind)
            axis.annotate(label, (mean + spread, at), (4, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set_yticks(panel.xs, _labels(panel))
    axis.invert_yaxis()
    axis.margins(x=0.35)  # beside the bars, for the numbers
    axis.set(xlabel=f"{panel.y}, mean ± std")
    axis.grid(alpha=0.3, axis="x")


def _lines(axis: Any, panel: Panel, style: str) -> None:
    layer = f", {panel.title.partition(':')[0]}" if panel.group else ""
    for line in panel.lines:
        repeats = " / ".join(map(str, sorted({found.n for found in line.summaries.values()})))
        label = f"{line.title}{layer}" if layer else f"{line.title} (n = {repeats})"
        _curve(axis, line, line.summaries, label=label, linestyle=style)
    axis.set(xlabel=panel.x, ylabel=f"{panel.y}, mean ± std")
    if panel.log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}" if _span(panel) < 8 else _two_and_five)
    elif _span(panel) > 2:
        axis.set_ylim(bottom=0)  # else the difference between the lines is what there is to see
    axis.grid(alpha=0.3, which="both")
    _ticks(axis, panel)
    _legend(axis, panel.log_x)


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
                spread = summarise([relative_change(a, b) for a, b in panel.pairs(line, x)])
                found[x] = Summary(change, spread.std, spread.n)
        mean = panel.mean_change(line)
        label = f"{line.title}: mean error {signed_percent(mean, 0)}" if mean is not None else line.title
        _curve(axis, line, found, label=label)
    axis.axhline(0, color=COLOURS[panel.baseline], linewidth=1)
    axis.set(xlabel=panel.x, ylabel=f"{panel.y.partition(' (')[0]} vs {panel.baseline_title} (%), ± std")
    axis.grid(alpha=0.3)
    _ticks(axis, panel)
    _legend(axis, panel.log_x)


def _marks(axis: Any, panel: Panel) -> None:
    """A mark with its deviation for each value where x is no quantity; labels that do not fit below stand at the side.

    Not bars: those begin at 0, and hide a difference that is small beside the values.
    """
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
            markerfacecolor="white" if line.control else COLOURS[line.model],
            label=f"{line.title} (n = {max((each.n for each in found.values()), default=0)})",
        )
    axis.set(**{f"{named}ticks": range(len(labels)), f"{named}ticklabels": labels, f"{named}label": panel.x})
    axis.set(**{f"{named}lim": (-0.5, len(labels) - 0.5), f"{measured}label": f"{panel.y}, mean ± std"})
    if named == "y":
        axis.invert_yaxis()  # the first label above
    axis.grid(alpha=0.3)
    _legend(axis)


def _shares(axis: Any, panel: Panel) -> None:
    """Each column adds up to 100 %: a map of the means."""
    means = [[found[x].mean if x in found else 0.0 for x in panel.xs] for found in (y.summaries for y in panel.lines)]
    image = axis.imshow(means, origin="lower", cmap="magma_r", aspect="auto", vmin=0)
    axis.figure.colorbar(image, ax=axis, label=panel.y)
    most = max(map(max, means))
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            colour = ON_DARK if value > most / 2 else ON_LIGHT
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(panel.xs)), _labels(panel))
    axis.set_yticks(range(len(panel.lines)), [line.title for line in panel.lines])
    repeats = max(found.n for line in panel.lines for found in line.summaries.values())
    axis.set(xlabel=panel.x, ylabel=f"level (n = {repeats})")


def _mark(line: Line) -> dict[str, Any]:
    return {"color": COLOURS[line.model], "marker": MARKERS.get(line.model, "o"), "markersize": 4, "capsize": 3}


def _legend(axis: Any, long_ticks: bool = False) -> None:
    """Under the axis and the labels of its ticks, where it covers nothing."""
    below = -0.26 if long_ticks else -0.16
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, below), ncols=2, frameon=False, handlelength=3.5)


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
    if panel.log_x:
        axis.set_xscale("log")
    if panel.labels or panel.log_x:
        axis.set_xticks(panel.xs, _labels(panel), rotation=45 if panel.log_x else 0)
        axis.set_xticks([], minor=True)


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
        ("filters", tile(filters / largest, COLUMNS, 0.0), "RdBu_r", -1),
        (f"samples, {STEPS} Gibbs steps from test digits", tile(samples, COLUMNS, 1.0), "gray", 0),
    ]
    figure = make_figure(12, 6.4)
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
