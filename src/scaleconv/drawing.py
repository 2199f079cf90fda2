"""How every picture looks: the colours of scales, angles and responses; an empty figure, and a finished one as files.

A winning scale has one colour in every picture, from blue for the smallest to yellow for the largest. It fades to black
where the response is weak. A response is white at 0, red above and blue below. Matplotlib is imported where something
is drawn.
"""

import textwrap
from collections.abc import Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCALES = ("#4c6fff", "#1fa8e0", "#35c98a", "#b5d733", "#ffe45c")  # of the winning scale, the smallest first
RESPONSES = "RdBu_r"  # of which the middle is 0
ANGLES = "hsv"  # ends where it begins


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
    lines = [title, *textwrap.wrap(whole, int(13 * figure.get_figwidth()))]  # so many letters fit into an inch
    figure.suptitle("\n".join(lines), fontsize=10)
    for path in paths:
        kind = path.suffix.removeprefix(".")
        # Without a date and with fixed names inside, the same records give the same file.
        with atomic_path(path) as part, rc_context({"svg.hashsalt": "scaleconv", "svg.fonttype": "none"}):
            figure.savefig(part, dpi=130, format=kind, metadata={"Date": None} if kind == "svg" else None)
