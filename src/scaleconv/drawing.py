"""How every picture looks: the colours of scales, angles and responses; an empty figure, and a finished one as files.

A winning scale has one colour in every picture, from blue for the smallest to yellow for the largest. It fades to black
where the response is weak. A response is white at 0, red above and blue below. An SVG is light or dark, as the page is.
Matplotlib is imported where something is drawn.
"""

import io
import re
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
FAMILY = ("DejaVu Sans", "Verdana")  # the second has letters of the same widths
INK, PAPER, GRID = "#000000", "#ffffff", "#b0b0b0"  # letters and axes; what lies behind them; lines across an axis
DARK_INK, DARK_PAPER, DARK_GRID = "#e2e4e9", "#1e2129", "#808590"  # in dark mode; the second is that of the site
ON_DARK, ON_LIGHT = "#f5f5f5", "#222222"  # letters on a colour: not black, which follows the page
LIGHTER = 0.4  # white in a method's colour in dark mode
PALETTE = ("#228833", "#aa3377", "#2299bb", "#332288", "#999933", "#ee6677", "#004488", "#777777")


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
        "#5599cc": ("augmented",),
        "#004488": ("fcn",),
        "#bb5566": ("si_fcn",),
        "#3399aa": ("unet",),
        "#bb8800": ("si_unet",),
        "#999933": ("cropped_cnn",),
        "#2299bb": ("rbm",),
        "#ee6677": ("si_rbm",),
        "#888888": ("pixels",),
        "#223355": ("conv2d_wide",),
        "#777777": ("formula",),
        "#555555": ("own",),
        "#117755": ("late",),
        "#7a5195": ("deeper",),
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
    **dict.fromkeys(("convnet", "plain", "plain-scale", "fcn", "cnn", "stir_cnn", "conv2d"), "s"),
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


def winner_colours(scale: Tensor, strength: Tensor, reach: float) -> Any:
    """The colours (height, width, 3) of winning scales (height, width), dimmed by the response (height, width)."""
    shades = scale_map()((0.5 + 0.5 * scale.log2() / reach).numpy())[..., :3]
    return shades * dimming(strength).unsqueeze(-1).numpy()


@contextmanager
def style() -> Iterator[None]:
    """Letters of one size, and images of whole pixels, in what is drawn inside."""
    from matplotlib import rc_context

    parts = ("font.size", *(f"{each}size" for each in ("axes.title", "axes.label", "xtick.label", "ytick.label")))
    looks: dict[Any, Any] = dict.fromkeys((*parts, "legend.fontsize"), FONT)
    with rc_context({**looks, "grid.color": GRID, "image.interpolation": "none"}):
        yield


def make_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[experiments]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, title: str, claim: str, paths: Sequence[Path]) -> None:
    """Write a figure with a title in the formats that the endings of its paths name."""
    add_title(figure, title, claim)
    for path in paths:
        write_figure(figure, path)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format that the ending of its path names."""
    from .data.files import atomic_path  # needs packages that a picture in a notebook does not

    with atomic_path(path) as part:
        if path.suffix == ".svg":
            part.write_text(svg_text(figure), encoding="utf-8")
        else:
            figure.savefig(part, dpi=150, format=path.suffix.removeprefix("."))


def add_title(figure: Any, title: str, claim: str) -> None:
    """Write a title above a figure, and below it a claim in as few lines as it needs, all about as long."""
    claim = claim.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")  # a mean stays with its deviation
    figure.suptitle("\n".join([title, *wrap_evenly(claim, int(14 * figure.get_figwidth()))]), fontsize=FONT)


def wrap_evenly(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, as few as that needs, and all about as long.

    Example:
        >>> wrap_evenly("error on the pixels of digits", 26)
        ['error on the', 'pixels of digits']
    """
    rows = textwrap.wrap(text, width, break_on_hyphens=False)
    for narrower in range(len(text) // max(len(rows), 1), width):
        even = textwrap.wrap(text, max(narrower, 1), break_on_hyphens=False)
        if len(even) == len(rows):
            return even
    return rows


def svg_text(figure: Any) -> str:
    """A figure as SVG, for light and dark pages; the same figure gives the same text.

    It follows `prefers-color-scheme`, which in an `<img>` is the `color-scheme` of that element. It has a background of
    its own, so that it can be read as well where a viewer does not say which of the two the page is.
    """
    from matplotlib import rc_context

    file, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": "scaleconv", "svg.fonttype": "none", "font.sans-serif": FAMILY}):
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = "<svg " + text.partition("<svg ")[2]
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # which nothing refers to
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    return text.replace("</style>", f"\nimage{{image-rendering:pixelated}}\n{_dark_rules(text)}</style>", 1)


def darkened(colour: str) -> str:
    """The colour of a method in dark mode: the same with more white.

    Example:
        >>> darkened("#004488")
        '#668fb8'
    """
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + LIGHTER * (255 - part)):02x}" for part in parts)


def _dark_rules(text: str) -> str:
    """The colours of dark mode, as rules that come before those of the elements. Letters on a colour keep theirs."""
    used = sorted(colour for colour in {*COLOURS.values()} if colour in text)
    changed = {("stroke", INK): DARK_INK, ("fill", PAPER): DARK_PAPER, ("stroke", GRID): DARK_GRID}
    changed |= {(part, colour): darkened(colour) for colour in used for part in ("fill", "stroke")}
    rules = (f':not(text)[style*="{part}: {old}"]{{{part}:{new}!important}}' for (part, old), new in changed.items())
    return "\n".join(["@media (prefers-color-scheme: dark) {", f"text{{fill:{DARK_INK}}}", *rules, "}\n"])
