"""Runs a bench from its settings, with progress on a terminal; writes nothing."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..experiments.records import describe_environment
from .layers import LayerRow, measure_layers
from .network_shapes import NETWORKS
from .networks import EpochRow, StepRow, measure_epochs, measure_steps, step_tasks
from .settings import Settings
from .timing import Tick


@dataclass(frozen=True)
class Result:
    """All that was measured, and where.

    Attributes:
        environment: versions, hardware, commit.
        settings: what was asked for, and the flags of PyTorch that speed depends on.
        rows: the single layers.
        epochs: the networks of the paper.
        steps: training and inference of larger networks, plain and converted.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    rows: list[LayerRow] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_bench(settings: Settings, tick: Tick = lambda _: None) -> Result:
    """Measure what the settings name.

    Args:
        settings: what, where and how often.
        tick: called after every repeat, with what was measured.
    """
    here = torch.cuda.device(settings.device) if settings.on_gpu else nullcontext()
    with here:
        rows = measure_layers(settings, tick) if settings.layers else []
        epochs = measure_epochs(settings, tick) if settings.end_to_end else []
        steps = measure_steps(settings, tick) if settings.end_to_end else []
    return Result(describe_environment(settings.device), settings.as_dict(), rows, epochs, steps)


def run_on_terminal(settings: Settings) -> Result:
    """Run a bench with a progress bar; silent where the output is not a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        return run_bench(settings, _ticks(bar, count_ticks(settings)))


def _ticks(bar: Progress, total: int) -> Callable[[str], None]:
    task = bar.add_task("warming up", total=total)
    return lambda what: bar.update(task, advance=1, description=what)


def count_ticks(settings: Settings) -> int:
    """How many repeats `run_bench` reports."""
    pairs = len(settings.dtypes) * len(settings.layouts)
    layers = len(settings.shapes) * pairs if settings.layers else 0
    networks = 1 + len(NETWORKS) * pairs * len(step_tasks(settings)) if settings.end_to_end else 0
    return settings.repeats * (layers + networks)
