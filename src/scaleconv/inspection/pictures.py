"""Figures for what was found. Only this module knows matplotlib, and imports it when something is drawn."""

from collections.abc import Sequence
from typing import Any

Figure = Any  # matplotlib's; the package does not need it unless something is drawn
Axes = Any

PANEL = 2.6  # inches
COLUMNS = 6  # panels side by side


def make_figure(panels: int, width: float = PANEL, height: float = PANEL) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, in rows; it belongs to no window, so that nothing has to be closed.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure as MatplotlibFigure
    except ImportError:
        raise ImportError("`plot` needs matplotlib: pip install 'scaleconv[experiments]'") from None
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    figure = MatplotlibFigure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    axes = [figure.add_subplot(rows, columns, 1 + index) for index in range(panels)]
    return figure, axes


def scale_colours(scales: Sequence[float]) -> list[tuple[float, ...]]:
    """A colour for each scale, dark for the least and light for the largest."""
    from matplotlib import colormaps

    steps = max(len(scales) - 1, 1)
    return [tuple(colormaps["viridis"](0.95 * index / steps)) for index in range(len(scales))]


def name_the_layers(axis: Axes, names: Sequence[str]) -> None:
    """The layers along the horizontal axis, each name written upwards."""
    axis.set_xticks(range(len(names)), names, rotation=90)
