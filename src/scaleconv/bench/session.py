"""One bench from its settings to its files: runs it, with progress on a terminal, then prints and writes the result.

A result is one JSON file; the tables in Markdown and the figure are made from it. Each file is written whole or not at
all.
"""

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from ..data.files import atomic_path
from ..data.progress import make_progress
from ..environment import describe_environment
from ..table import Table, terminal_width, wrapped
from .layer_costs import LayerRow, measure_layers
from .network_costs import VARIANTS, StepRow, measure_steps, step_tasks
from .ratios import draw_layers, layer_table, ratio_table, step_table
from .shapes import Settings, Tick


@dataclass(frozen=True)
class Result:
    """All that was measured, and where.

    Attributes:
        environment: versions, hardware, commit.
        settings: what was asked for, and the flags of PyTorch that speed depends on.
        rows: the single layers.
        steps: training and inference of whole networks.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    rows: list[LayerRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"Benchmark on {self.environment['device']}"


def run_bench(settings: Settings, tick: Tick = lambda _: None) -> Result:
    """Measure what the settings name.

    Args:
        settings: what, where and how often.
        tick: called after every repeat, with what was measured.
    """
    with torch.cuda.device(settings.device) if settings.on_gpu else nullcontext():
        rows = measure_layers(settings, tick) if settings.layers else []
        steps = measure_steps(settings, tick) if settings.end_to_end else []
    return Result(describe_environment(settings.device), settings.as_dict(), rows, steps)


def run_on_terminal(settings: Settings) -> Result:
    """Run a bench with a progress bar; silent where the output is not a terminal."""
    with make_progress(Console(stderr=True)) as bar:
        return run_bench(settings, show_ticks(bar, count_ticks(settings)))


def show_ticks(bar: Progress, total: int) -> Tick:
    """Reports repeats to a bar: what is measured, and how many repeats in a second."""
    task = bar.add_task("warming up", total=total, figures="")

    def tick(what: str) -> None:
        bar.update(task, advance=1, description=what)
        bar.update(task, figures=f"{bar.tasks[0].finished_speed or bar.tasks[0].speed or 0:.2g} repeats/s")

    return tick


def count_ticks(settings: Settings) -> int:
    """How many repeats `run_bench` reports."""
    layers = len(settings.shapes) if settings.layers else 0
    steps = sum(len(step_tasks(settings, network)) for network in VARIANTS) if settings.end_to_end else 0
    return settings.repeats * len(settings.dtypes) * len(settings.layouts) * (layers + steps)


def make_tables(result: Result, *, every_layer: bool) -> list[Table]:
    """The ratios, every layer if wanted, and the networks; parts that were not measured are left out."""
    layers = [ratio_table(result.rows, result.settings["scales"])] if result.rows else []
    layers += [layer_table(result.rows)] if layers and every_layer else []
    return layers + ([step_table(result.steps)] if result.steps else [])


def print_result(result: Result) -> None:
    """Print the tables and how they were measured; a narrow terminal cuts no number."""
    width = terminal_width()
    for table in make_tables(result, every_layer=False):
        print(table.text(width), end="\n\n")
    for note in footnotes(result):
        print(wrapped(note, width))


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write NAME.json, NAME.md and, if layers were measured, NAME.png and NAME.svg."""
    name = result.settings["name"]
    texts = {
        folder / f"{name}.json": json.dumps(asdict(result), indent=1, allow_nan=False) + "\n",
        folder / f"{name}.md": markdown(result),
    }
    for path, text in texts.items():
        with atomic_path(path) as part:
            part.write_text(text, encoding="utf-8")
    pictures = [folder / f"{name}.{kind}" for kind in ("png", "svg")] if any(row.both for row in result.rows) else []
    if pictures:
        draw_layers(result.rows, result.title, pictures)
    return [*texts, *pictures]


def markdown(result: Result) -> str:
    """The page: all tables, and how they were measured."""
    parts = [f"## {table.title}\n\n{table.markdown()}\n" for table in make_tables(result, every_layer=True)]
    return "\n".join([f"# {result.title}", "", *parts, *footnotes(result), ""])


def footnotes(result: Result) -> list[str]:
    """How the numbers were measured."""
    where, asked = result.environment, result.settings
    on_gpu = asked["device"].startswith("cuda")
    tf32 = "on" if asked["flags"]["cudnn_allow_tf32"] else "off"
    precision = f", TF32 in convolutions {tf32}" if on_gpu else ""
    scales = ", ".join(f"{scale:.3g}" for scale in asked["scales"])
    notes = [
        f"Medians of {asked['repeats']} interleaved repeats on {where['device']}, {where['threads']} CPU threads, "
        f"PyTorch {where['torch']}{precision}; commit {where['commit'] or 'unknown'}.",
        f"Scales {scales}; wide scales are their squares. wide, or conv2d_wide, is Conv2d with {len(asked['scales'])} "
        "times the maps; written plainly, or direct, is the layer level by level, in the order of the paper. "
        "Forward and backward include the gradient of the input.",
    ]
    if on_gpu:
        notes.append(
            "graph: replays of a CUDA graph, the time of the device alone; eager: calls, as a user makes them; host: "
            "wall time to issue forward and backward on an idle device, without waiting for it. Columns that name "
            "neither are graph. Memory is the peak of forward and backward on the device."
        )
    return notes


def failures(result: Result) -> list[str]:
    """A line for each layer and network that could not be measured."""
    named: list[tuple[LayerRow | StepRow, str]]
    named = [(row, f"{row.layer} ({row.scales} scales) on {row.shape}") for row in result.rows]
    named += [(row, f"{row.network} ({row.variant}), {row.task}") for row in result.steps]
    return [f"{name}, {row.dtype}, {row.layout}: {row.error}" for row, name in named if row.error]
