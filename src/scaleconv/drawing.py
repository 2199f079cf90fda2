"""Figures of matplotlib: an empty one, and a finished one as files. Matplotlib is imported where something is drawn."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .data.files import atomic_path


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

    whole = claim.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")  # a mean stays with its deviation
    lines = [title, *textwrap.wrap(whole, int(13 * figure.get_figwidth()))]  # so many letters fit into an inch
    figure.suptitle("\n".join(lines), fontsize=10)
    for path in paths:
        kind = path.suffix.removeprefix(".")
        # Without a date and with fixed names inside, the same records give the same file.
        with atomic_path(path) as part, rc_context({"svg.hashsalt": "scaleconv", "svg.fonttype": "none"}):
            figure.savefig(part, dpi=130, format=kind, metadata={"Date": None} if kind == "svg" else None)
