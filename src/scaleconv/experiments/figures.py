"""Figures of items, from their records alone, by matplotlib; the HTML report draws the same panels as SVG (`svg`).

A model has the same colour in every figure. Figures are written as PNG and SVG, and the same records give the same
bytes. What an RBM learned is drawn from its weights, which are kept on the machine that trained it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..drawing import make_figure, save_figure
from ..metrics import summarise
from ..models.unsupervised import STEPS
from .checkpoint import load_checkpoint
from .config import TITLES
from .experiment import Experiment, Item
from .panels import Line, Panel, learning_curves, make_panels, of_model, relative_change, shows_change, signed_percent
from .records import Record

COLOURS = {
    "convnet": "#4477aa",
    "si_convnet": "#cc3311",
    "hierarchical": "#228833",
    "ensemble": "#aa7700",
    "tiled": "#aa3377",
    "multi_stage": "#332288",
    "multi_column": "#117733",
    "augmented": "#77aadd",
    "fcn": "#004488",
    "si_fcn": "#bb5566",
    "unet": "#88ccee",
    "si_unet": "#ddaa33",
    "cnn": "#4477aa",
    "cropped_cnn": "#999933",
    "si_cnn": "#cc3311",
    "pyramid_cnn": "#aa7700",
    "deep_cnn": "#332288",
    "pyramid_deep_cnn": "#aa3377",
    "rbm": "#66ccee",
    "si_rbm": "#ee6677",
    "pixels": "#999999",
    # The layers alone, where those are compared: as the networks made of them.
    "conv2d": "#4477aa",
    "si_conv2d": "#cc3311",
    "direct": "#228833",
    "formula": "#777777",
    # On images of your own: as the networks of the paper, lighter where training images were rescaled.
    "plain": "#4477aa",
    "plain-scale": "#88bbdd",
    "converted": "#cc3311",
    "converted-scale": "#ee8877",
    "pyramid": "#aa7700",
    "pyramid-scale": "#ddbb66",
    "own": "#555555",
    "own-scale": "#aaaaaa",
}
MARKERS = {
    **{"convnet": "s", "si_convnet": "o", "hierarchical": "^", "ensemble": "D"},
    **{"plain": "s", "plain-scale": "s", "pyramid": "D", "pyramid-scale": "D"},
    **{"fcn": "s", "unet": "^"},
    **{"cnn": "s", "cropped_cnn": "^", "pyramid_cnn": "D", "pyramid_deep_cnn": "D"},
}
STYLES = ("-", "--", ":")  # of the panels that are drawn into one
FORMATS = ("png", "svg")
FEW = 20  # tests of a run that are marked on its line
LETTERS = 50  # that fit under an axis
GAP = 1  # pixels between two filters
COLUMNS = 10  # of filters and of samples
SHOWN = 100  # filters, the first ones and not the best


def draw(item: Item, records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Draw the figure of an item into a folder, in every format."""
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    if isinstance(item, Experiment) and item.is_table:
        draw_errors(records, item.paper, item.title, item.claim, paths)
    else:
        draw_panels(make_panels(item, records), item.title, item.claim, paths)
    return paths


def draw_errors(
    records: Sequence[Record], paper: Mapping[str, Sequence[float]], title: str, claim: str, paths: Sequence[Path]
) -> None:
    """The errors of the methods beside the paper's, and where networks were tested on the way, those against the epoch.

    The control on pixels is left out of the bars beside others, which its error would make small.
    """
    models = [name for name in TITLES if any(record.model == name for record in records)]
    learned = learning_curves(records)
    figure = make_figure(11.5 if learned else 7.0, 4.8)
    bars, *curves = figure.subplots(1, 1 + bool(learned), squeeze=False).flat
    shown = [model for model in models if model != "pixels"] or models
    _error_bars(bars, {model: [record.error for record in of_model(records, model)] for model in shown}, paper)
    for axis in curves:
        _error_curves(axis, learned)
    save_figure(figure, title, claim, paths)


def _error_bars(axis: Any, errors: Mapping[str, Sequence[float]], paper: Mapping[str, Sequence[float]]) -> None:
    """A bar for each method with the deviation of its folds, and the paper's under it."""
    for place, (model, values) in enumerate(errors.items()):
        ours = summarise(values)
        both = [(ours.mean, ours.std or 0.0, {"color": COLOURS[model]}, f"{ours.mean:.2f} (n = {ours.n})")]
        if model in paper:
            mean, *std = paper[model]
            style = {"color": "white", "edgecolor": COLOURS[model], "hatch": "///"}
            both.append((mean, std[0] if std else 0.0, style, f"{mean:.2f} (paper)"))
        height = 0.8 / len(both)
        for row, (mean, spread, style, label) in enumerate(both):
            at = place + (row - (len(both) - 1) / 2) * height
            axis.barh(at, mean, height, xerr=spread, capsize=2, **style)
            axis.text(mean + spread, at, f"  {label}", va="center", fontsize=7)
    axis.set_yticks(range(len(errors)), [TITLES[model] for model in errors])
    axis.invert_yaxis()
    axis.margins(x=0.25)  # room for the numbers
    axis.set(xlabel="test error (%), mean ± std")
    axis.grid(alpha=0.3, axis="x")


def _error_curves(axis: Any, tests: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    """Test error against the epoch, one line per network: the mean over its runs, and their range."""
    for model, errors in tests.items():
        marker = "o" if len(errors) <= FEW else None
        means = [fmean(values) for values in errors.values()]
        axis.plot(list(errors), means, color=COLOURS[model], label=TITLES[model], marker=marker, markersize=4)
        low, high = ([end(values) for values in errors.values()] for end in (min, max))
        axis.fill_between(list(errors), low, high, color=COLOURS[model], alpha=0.15, linewidth=0)
    axis.set(xlabel="epoch", ylabel="test error (%), mean and range over folds", yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.grid(alpha=0.3, which="both")
    _legend(axis)


def draw_panels(panels: Sequence[Panel], title: str, claim: str, paths: Sequence[Path]) -> None:
    """All panels of an item; beside a single panel of errors, their change against the baseline."""
    compare = shows_change(panels)
    groups: dict[object, list[Panel]] = {}
    for number, panel in enumerate(panels):
        groups.setdefault(panel.group or number, []).append(panel)
    count = len(groups) + compare
    columns = min(count, 2 if count == 4 else 3)
    rows = -(-count // columns)
    figure = make_figure(max(7.0, 4.2 * columns if count > 2 else 5.2 * columns), 4.6 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for drawn, axis in zip(groups.values(), axes, strict=False):
        for panel, style in zip(drawn, STYLES, strict=False):
            {"lines": _lines, "bars": _marks, "shares": _shares}[panel.kind](axis, panel, style)
        if len(drawn) == 1 and drawn[0].title:
            axis.set_title(drawn[0].title, fontsize=9)
    if compare:
        _changes(axes[1], panels[0])
    for axis in axes[count:]:
        axis.set_axis_off()
    save_figure(figure, title, claim, paths)


def _lines(axis: Any, panel: Panel, style: str) -> None:
    layer = f", {panel.title.partition(':')[0]}" if panel.group else ""
    for line in panel.lines:
        xs = [x for x in panel.xs if x in line.values]
        found = [summarise(list(line.values[x].values())) for x in xs]
        repeats = sorted({summary.n for summary in found})
        axis.errorbar(
            xs,
            [summary.mean for summary in found],
            [summary.std or 0 for summary in found],
            label=f"{line.title}{layer}" if layer else f"{line.title} (n = {' / '.join(map(str, repeats))})",
            **{**_style(line), "linestyle": style},
        )
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


def _changes(axis: Any, panel: Panel) -> None:
    """Error against the baseline in percent: over all repeats, and the deviation between repeats."""
    for line in panel.compared:
        found = {x: panel.pairs(line, x) for x in panel.xs}
        xs = [x for x in panel.xs if found[x]]
        spread = [summarise([relative_change(a, b) for a, b in found[x]]).std or 0 for x in xs]
        mean = panel.mean_change(line)
        label = f"{line.title}: {signed_percent(mean, 0)} on average" if mean is not None else line.title
        axis.errorbar(xs, [panel.change(line, x) for x in xs], spread, label=label, **_style(line))
    axis.axhline(0, color=COLOURS[panel.baseline], linewidth=1)
    axis.set(xlabel=panel.x, ylabel=f"{panel.y.partition(' (')[0]} vs {panel.baseline_title} (%), ± std")
    axis.grid(alpha=0.3)
    _ticks(axis, panel)
    _legend(axis, panel.log_x)


def _marks(axis: Any, panel: Panel, style: str) -> None:
    """A mark with its deviation for each value where x is no quantity; labels that do not fit below stand at the side.

    Not bars: those begin at 0, and hide a difference that is small beside the values.
    """
    labels = _labels(panel)
    sideways = sum(map(len, labels)) > LETTERS
    width = 0.6 / len(panel.lines)
    for index, line in enumerate(panel.lines):
        found = {x: summary for x in panel.xs if (summary := line.at(x))}
        places = [panel.xs.index(x) + (index - (len(panel.lines) - 1) / 2) * width for x in found]
        means = [summary.mean for summary in found.values()]
        spread = [summary.std or 0 for summary in found.values()]
        axis.errorbar(
            *((means, places) if sideways else (places, means)),
            **{"xerr" if sideways else "yerr": spread},
            **{**_style(line), "linestyle": "none", "markersize": 6},
            markerfacecolor="white" if line.control else COLOURS[line.model],
            label=f"{line.title} (n = {max((summary.n for summary in found.values()), default=0)})",
        )
    ends = (-0.5, len(panel.xs) - 0.5)
    if sideways:
        axis.set_yticks(range(len(panel.xs)), labels)
        axis.set(ylim=ends[::-1], ylabel=panel.x, xlabel=f"{panel.y}, mean ± std")
    else:
        axis.set_xticks(range(len(panel.xs)), labels)
        axis.set(xlim=ends, xlabel=panel.x, ylabel=f"{panel.y}, mean ± std")
    axis.grid(alpha=0.3)
    _legend(axis)


def _shares(axis: Any, panel: Panel, style: str) -> None:
    """Each column adds up to 100 %: a map of the means."""
    means = [[summary.mean if (summary := line.at(x)) else 0.0 for x in panel.xs] for line in panel.lines]
    image = axis.imshow(means, origin="lower", cmap="magma_r", aspect="auto", vmin=0)
    axis.figure.colorbar(image, ax=axis, label=panel.y)
    most = max(max(row) for row in means)
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            colour = "white" if value > most / 2 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(panel.xs)), _labels(panel))
    axis.set_yticks(range(len(panel.lines)), [line.title for line in panel.lines])
    repeats = max((len(repeats) for line in panel.lines for repeats in line.values.values()), default=0)
    axis.set(xlabel=panel.x, ylabel=f"level (n = {repeats})")


def _style(line: Line) -> dict[str, Any]:
    return {
        "color": COLOURS[line.model],
        "marker": MARKERS.get(line.model, "o"),
        "markersize": 4,
        "capsize": 3,
        "linewidth": 1.5,
    }


def _legend(axis: Any, long_ticks: bool = False) -> None:
    """Under the axis and the labels of its ticks, where it covers nothing."""
    below = -0.26 if long_ticks else -0.16
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, below), ncols=2, frameon=False, handlelength=3.5)


def _two_and_five(value: float, _position: int) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _span(panel: Panel) -> float:
    values = [
        value for line in panel.lines for repeats in line.values.values() for value in repeats.values() if value > 0
    ]
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
    """Draw what the RBMs of an experiment learned, each from its first run whose weights are there.

    Args:
        results: folder of the experiment.
        folder: of the pictures.
        name: how their names begin.
    """
    written = []
    for model in ("rbm", "si_rbm"):
        for weights in sorted((results / "weights").glob(f"{model}-*.safetensors"))[:1]:
            found = load_checkpoint(weights)
            size = (found.run["config"]["data"]["size"],) * 2
            filters, samples = (found.tensors[part].unflatten(-1, size) for part in ("rbm.weight", "samples"))
            shown = filters[:SHOWN]
            title = f"{TITLES[model]}, fold {found.run['fold']}: the first {len(shown)} of {len(filters)} filters"
            path = folder / f"{name}-{model}.png"  # it is all pixels: an SVG would only wrap them
            draw_filters(shown, samples, title, [path])
            written.append(path)
    return written


def draw_filters(filters: Tensor, samples: Tensor, title: str, paths: Sequence[Path]) -> None:
    """Write a picture of filters, red where they are positive and blue where negative, beside samples.

    Args:
        filters: (J, height, width), each scaled by its own largest value, so that weak ones can be seen too.
        samples: (N, height, width) in [0, 1], as `train_unsupervised` draws them.
        title: above both.
        paths: their endings name the formats, such as `.png`.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing to draw.
    """
    for name, tiles in (("filters", filters), ("samples", samples)):
        if tiles.dim() != 3 or 0 in tiles.shape:
            raise ValueError(f"`{name}` must be of shape (N, height, width), none of them 0, got {tuple(tiles.shape)}")
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
    save_figure(figure, title, "", paths)


def tile(images: Tensor, columns: int, frame: float) -> Tensor:
    """Lay images (N, H, W) out in rows, a line of the value `frame` between them; the last row is filled with it."""
    count, height, width = images.shape
    rows = -(-count // columns)
    sheet = torch.full((rows * columns, height + GAP, width + GAP), frame, dtype=images.dtype, device=images.device)
    sheet[:count, :height, :width] = images
    lines = sheet.view(rows, columns, height + GAP, width + GAP).transpose(1, 2)
    return lines.reshape(rows * (height + GAP), -1)[:-GAP, :-GAP]
