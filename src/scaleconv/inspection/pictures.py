"""How results show themselves: as tables of text, and as figures.

A result prints as its tables. A notebook or an error message shows its `repr`, which is the same tables with at most
`LONGEST` characters: rows in the middle are left out. Matplotlib is imported when something is drawn; `drawing` has the
colours.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from typing import Any

from torch import Tensor

from ..drawing import FONT, dimming, scale_map
from ..drawing import make_figure as empty_figure
from ..table import Table, terminal_width

Figure = Any  # matplotlib's; the package does not need it unless something is drawn
Axes = Any

LONGEST = 2000  # characters of a `repr`
MOST_ROWS = 100  # of a table in a `repr`; a row has 20 characters or more
PANEL = 2.6  # inches
COLUMNS = 6  # panels side by side
LONGEST_TITLE = 30  # characters that fit above a panel


class Tabled:
    """A result that shows itself as a table, or as several."""

    def table(self) -> Table:
        raise NotImplementedError

    def tables(self) -> list[Table]:
        return [self.table()]

    def __str__(self) -> str:
        return _text(self.tables())

    def __repr__(self) -> str:
        tables = self.tables()
        longest = max(range(len(tables)), key=lambda place: len(tables[place].rows))
        whole, text = tables[longest], _text(tables)
        rows = min(len(whole.rows), MOST_ROWS)
        while len(text) > LONGEST and rows > 2:
            rows -= 1
            tables[longest] = _shortened(whole, rows)
            text = _text(tables)
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _text(tables: Sequence[Table]) -> str:
    width = terminal_width()
    return "\n\n".join(table.text(width) for table in tables)


def _shortened(table: Table, rows: int) -> Table:
    """The first rows and the last one, which may be that of totals; between them, how many were left out."""
    missing = len(table.rows) - rows
    gap = (f"… {missing} more", *[""] * (len(table.header) - 1))
    return replace(table, rows=[*table.rows[: rows - 1], gap, table.rows[-1]])


def brief(kind: str, **parts: Any) -> str:
    """One line for an object: its numbers, and of its tensors the shapes.

    Example:
        >>> import torch
        >>> brief("LevelView", scale=0.5, image=torch.rand(3, 8, 8))
        'LevelView(scale=0.5, image=3 × 8 × 8)'
    """
    shown = {name: sizes_as_text(part.shape) if isinstance(part, Tensor) else part for name, part in parts.items()}
    return f"{kind}({', '.join(f'{name}={part}' for name, part in shown.items())})"


def sizes_as_text(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes)) or "1"


def make_figure(panels: int, width: float = PANEL, height: float = PANEL) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, in rows; it belongs to no window, so that nothing has to be closed."""
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    figure = empty_figure(width * columns, height * rows)
    figure.set_dpi(150)
    axes = [figure.add_subplot(rows, columns, 1 + index) for index in range(panels)]
    return figure, axes


def show_image(axis: Axes, image: Tensor, title: str) -> None:
    """An image (C, H, W) from its least value to its largest: three channels in colour, else their mean in grey."""
    pixels = image.detach().float().cpu()
    low, high = pixels.aminmax()
    pixels = (pixels - low) / (high - low).clamp(min=1e-6)
    shown = pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels.mean(0)
    axis.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    finish_panel(axis, title)


def show_scales(axis: Axes, scales: Tensor, reach: float, title: str, strength: Tensor | None = None) -> None:
    """The winning scales (H, W) as colours; black where the strength (H, W) is below its median."""
    alpha = None if strength is None else dimming(strength).cpu().numpy()
    axis.set_facecolor("black")
    octaves = scales.float().log2().cpu().numpy()
    axis.imshow(octaves, cmap=scale_map(), vmin=-reach, vmax=reach, alpha=alpha, interpolation="nearest")
    finish_panel(axis, title)


def scale_bar(figure: Figure, axes: Sequence[Axes], scales: Sequence[float], reach: float) -> None:
    """The colours of these scales, beside the first row of panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shown = ScalarMappable(Normalize(-reach, reach), scale_map())
    bar = figure.colorbar(shown, ax=list(axes[:COLUMNS]), label="winning scale", pad=0.01, aspect=30)
    bar.set_ticks([log2(scale) for scale in scales], labels=[f"{scale:.3g}" for scale in scales])


def finish_panel(axis: Axes, title: str) -> None:
    """A title that fits above the panel, of which the end counts; and no ticks."""
    short = title if len(title) <= LONGEST_TITLE else f"…{title[1 - LONGEST_TITLE :]}"
    axis.set_title(short, fontsize=FONT, parse_math=False)
    axis.set_xticks([])
    axis.set_yticks([])


def name_the_layers(axis: Axes, names: Sequence[str]) -> None:
    """The layers along the horizontal axis, each name written upwards."""
    axis.set_xticks(range(len(names)), names, rotation=90)
