"""How every picture looks: the colours of scales, angles and responses; an empty figure, and a finished one as files.

A winning scale has one colour in every picture, from blue for the smallest to yellow for the largest. It fades to black
where the response is weak. A response is white at 0, red above and blue below. Matplotlib is imported where something
is drawn.
"""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCALES = ("#4c6fff", "#1fa8e0", "#35c98a", "#b5d733", "#ffe45c")  # of the winning scale, the smallest first
RESPONSES = "RdBu_r"  # of which the middle is 0
ANGLES = "hsv"  # ends where it begins
SITE_WIDTH = 7.2  # inches: figures that are as wide as the text of the site have letters of one size
FONT = 9  # points
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
        "#4477aa": ("convnet", "cnn", "stir_cnn", "plain", "conv2d"),
        "#cc3311": ("si_convnet", "si_cnn", "si_stir_cnn", "converted", "si_conv2d", "si"),
        "#aa7700": ("ensemble", "pyramid_cnn", "pyramid_stir_cnn", "pyramid"),
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
        "#223355": ("conv2d_wide",),
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
    **dict.fromkeys(("convnet", "plain", "plain-scale", "fcn", "cnn", "stir_cnn"), "s"),
    **dict.fromkeys(("hierarchical", "unet", "cropped_cnn"), "^"),
    **dict.fromkeys(
        ("ensemble", "pyramid", "pyramid-scale", "pyramid_cnn", "pyramid_deep_cnn", "pyramid_stir_cnn"), "D"
    ),
}  # of the others, "o"


@cache
def scale_map() -> Any:
    """Colours of the winning scale, each lighter than the one before; none is as dark as a dimmed one."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("scales", SCALES)


def reach_of(scales: Sequence[float]) -> float:
    """How far the colours of these scales go to both sides of scale 1, in octaves.

    Example:
        >>> reach_of([0.25, 1, 2])
        2.0
    """
    return max((abs(log2(scale)) for scale in scales), default=0.0) or 1.0


def scale_colours(scales: Sequence[float]) -> list[tuple[float, ...]]:
    """The colour (red, green, blue, 1) of each scale; of scale 1, the middle of the map."""
    reach = reach_of(scales)
    return [tuple(scale_map()(0.5 + 0.5 * log2(scale) / reach)) for scale in scales]


def angle_colours(degrees: Sequence[float]) -> list[tuple[float, ...]]:
    """The colour (red, green, blue, 1) of each angle; 0° and 360° have the same."""
    from matplotlib import colormaps

    return [tuple(colormaps[ANGLES](angle % 360 / 360)) for angle in degrees]


def dimming(strength: Tensor) -> Tensor:
    """From 0 at the median and below to 1 at the largest, by the square root; 1 everywhere if all are alike.

    Example:
        >>> dimming(torch.tensor([[0.0, 1.0, 2.0, 5.0]]))
        tensor([[0.0000, 0.0000, 0.5000, 1.0000]])
    """
    strength = strength.detach().float()
    low, high = strength.median(), strength.max()
    if high - low <= 1e-5 * high.abs():  # what differs is rounding
        return torch.ones_like(strength)
    return ((strength - low) / (high - low)).clamp(0, 1).sqrt()


@contextmanager
def style() -> Iterator[None]:
    """Letters of one size in what is drawn inside."""
    from matplotlib import rc_context

    parts = ("font.size", *(f"{each}size" for each in ("axes.title", "axes.label", "xtick.label", "ytick.label")))
    sizes: dict[Any, Any] = dict.fromkeys((*parts, "legend.fontsize"), FONT)
    with rc_context(sizes):
        yield


def make_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[experiments]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, title: str, claim: str, paths: Sequence[Path]) -> None:
    """Write a figure in the formats that the endings of its paths name."""
    from matplotlib import rc_context

    from .data.files import atomic_path  # needs packages that a picture in a notebook does not

    whole = claim.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")  # a mean stays with its deviation
    fit = int(14 * figure.get_figwidth())  # so many letters fit
    rows = len(textwrap.wrap(whole, fit))
    lines = [title, *textwrap.wrap(whole, min(fit, len(whole) // max(rows, 1) + 12))]  # all about as long
    figure.suptitle("\n".join(lines), fontsize=FONT)
    for path in paths:
        kind = path.suffix.removeprefix(".")
        # Without a date and with fixed names inside, the same records give the same file.
        with atomic_path(path) as part, rc_context({"svg.hashsalt": "scaleconv", "svg.fonttype": "none"}):
            figure.savefig(part, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
