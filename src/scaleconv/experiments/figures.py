"""Figures from records. The only room of the package, with the preview of the data, that draws."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from ..data.atomic import atomic_path
from ..models import TITLES
from .records import Record

COLOURS = {"convnet": "#4477aa", "si_convnet": "#cc3311", "hierarchical": "#228833", "ensemble": "#aa7700"}


def draw_errors(records: Sequence[Record], title: str, path: Path) -> None:
    """Test error against epoch, one line per method: the mean over its runs, and the range they span."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[figures]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.add_subplot()
    for model in [name for name in TITLES if any(record.model == name for record in records)]:
        runs = [record for record in records if record.model == model]
        by_epoch: dict[int, list[float]] = {}
        for record in runs:
            for entry in record.history:
                if entry.test_error is not None:
                    by_epoch.setdefault(entry.epoch, []).append(entry.test_error)
        epochs = sorted(epoch for epoch, errors in by_epoch.items() if len(errors) == len(runs))
        means = [fmean(by_epoch[epoch]) for epoch in epochs]
        label = f"{TITLES[model]}: {means[-1]:.2f} % (n = {len(runs)})"
        axis.plot(epochs, means, color=COLOURS[model], label=label, marker="o" if len(epochs) == 1 else None)
        low, high = ([end(by_epoch[epoch]) for epoch in epochs] for end in (min, max))
        axis.fill_between(epochs, low, high, color=COLOURS[model], alpha=0.15, linewidth=0)
    axis.set(title=title, xlabel="epoch", ylabel="test error (%), mean and range over folds", yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    with atomic_path(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))
