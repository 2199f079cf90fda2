"""Tables from a result: every contender, the ratios that matter with their goals, the networks. Text only."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..models import TITLES
from .layers import LayerRow
from .networks import EpochRow, StepRow
from .runner import Result
from .timing import Memory, Timing

NOTHING = "–"


@dataclass(frozen=True)
class Sheet:
    """One table: a title, the columns, the lines."""

    title: str
    header: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [self.header, ("---",) * len(self.header), *self.lines]
        return "\n".join([f"## {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


class Comparison:
    """The rows of a result, found by what they measured."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self.settings = list(dict.fromkeys((row.shape, row.dtype, row.layout) for row in rows))
        self._rows = {(row.shape, row.dtype, row.layout, row.contender, row.scales): row for row in rows}

    def find(self, setting: tuple[str, str, str], contender: str, scales: str = "default") -> LayerRow | None:
        return self._rows.get((*setting, contender, scales))


def time_ratio(row: LayerRow | None, other: LayerRow | None) -> float | None:
    """Of forward and backward together; None where one was not measured."""
    both = (row and row.both, other and other.both)
    return both[0].median_ms / both[1].median_ms if both[0] and both[1] else None


def memory_ratio(row: LayerRow | None, other: LayerRow | None) -> float | None:
    """Of the peaks; None where one was not measured."""
    memory = (row and row.memory, other and other.memory)
    return memory[0].peak_mib / memory[1].peak_mib if memory[0] and memory[1] else None


def sheets(result: Result) -> list[Sheet]:
    """What is printed: the ratios, then the networks; parts that were not measured are left out."""
    made = [
        ratio_sheet(result.rows) if result.rows else None,
        epoch_sheet(result.epochs) if result.epochs else None,
        step_sheet(result.steps) if result.steps else None,
    ]
    return [sheet for sheet in made if sheet]


def ratio_sheet(rows: Sequence[LayerRow]) -> Sheet:
    """The layer against plain convolutions, a line per setting."""
    header = (
        *("shape", "dtype", "layout", "si, ms"),
        *("si / conv2d_wide (goal ≤ 1)", "si / conv2d", "memory si / conv2d (goal ≤ 2)"),
        *("si wide / default (goal ≤ 1.3)", "direct wide / default", "direct / si"),
    )
    compared = Comparison(rows)
    lines = []
    for setting in compared.settings:
        plain, wide, si, direct = (compared.find(setting, name) for name in ("conv2d", "conv2d_wide", "si", "direct"))
        ratios = (
            time_ratio(si, wide),
            time_ratio(si, plain),
            memory_ratio(si, plain),
            time_ratio(compared.find(setting, "si", "wide"), si),
            time_ratio(compared.find(setting, "direct", "wide"), direct),
            time_ratio(direct, si),
        )
        lines.append((*setting, _ms(si.both if si else None), *map(_ratio, ratios)))
    return Sheet("Forward and backward, ratios", header, lines)


def layer_sheet(rows: Sequence[LayerRow]) -> Sheet:
    """Every contender in every setting."""
    header = (
        *("shape", "dtype", "layout", "batch", "contender", "scales"),
        *("forward, ms", "backward, ms", "both, ms", "peak, MiB", "both / conv2d_wide", "memory / conv2d"),
    )
    compared = Comparison(rows)
    lines = []
    for row in rows:
        setting = (row.shape, row.dtype, row.layout)
        ratios = (
            time_ratio(row, compared.find(setting, "conv2d_wide")),
            memory_ratio(row, compared.find(setting, "conv2d")),
        )
        times = (row.error or _ms(row.forward), _ms(row.backward), _ms(row.both), _peak(row.memory))
        lines.append((*setting, str(row.batch), row.contender, row.scales, *times, *map(_ratio, ratios)))
    return Sheet("Single layers", header, lines)


def epoch_sheet(rows: Sequence[EpochRow]) -> Sheet:
    """The paper's networks, each beside the ConvNet trained in the same company."""
    plain = {row.runs: row.seconds for row in rows if row.model == "convnet"}
    lines = []
    for row in rows:
        ratio = row.seconds / plain[row.runs] if row.runs in plain and row.model != "convnet" else None
        seconds = (_three_digits(row.seconds), _three_digits(row.seconds_per_run))
        lines.append((TITLES[row.model], str(row.runs), *seconds, _ratio(ratio)))
    note = "".join(f", from {row.batches_timed} of its {row.batches} batches" for row in rows[:1] if row.partial)
    header = ("network", "runs together", "s / epoch", "s / epoch and run", "/ ConvNet (goal ≤ 5 on 2 CPU cores)")
    return Sheet(f"A training epoch of the paper's networks{note}", header, lines)


def step_sheet(rows: Sequence[StepRow]) -> Sheet:
    """ResNet-18, plain and converted."""
    plain = {(row.dtype, row.layout): row for row in rows if row.network == "plain"}
    lines = []
    for row in rows:
        other = plain[row.dtype, row.layout]
        time = row.step.median_ms / other.step.median_ms if row is not other else None
        memory = row.memory.peak_mib / other.memory.peak_mib if row.memory and other.memory and time else None
        images = f"{row.batch} of {row.size}×{row.size}"
        measured = (_ms(row.step), _ratio(time), _peak(row.memory), _ratio(memory))
        lines.append((row.network, row.dtype, row.layout, images, *measured))
    header = ("network", "dtype", "layout", "images", "ms / step", "/ plain", "peak, MiB", "memory / plain")
    return Sheet("A training step of ResNet-18", header, lines)


def footnotes(result: Result) -> list[str]:
    """How the numbers came about."""
    where, asked = result.environment, result.settings
    calls = "replays of a CUDA graph" if asked["graph"] else "calls"
    tf32 = "on" if asked["flags"]["cudnn_allow_tf32"] else "off"
    precision = f", TF32 in convolutions {tf32}" if asked["device"].startswith("cuda") else ""
    scales = ", ".join(f"{scale:.3g}" for scale in asked["scales"])
    return [
        f"Medians over {asked['repeats']} repeats in which all contenders take turns, {calls}, on {where['device']}, "
        f"{where['threads']} CPU threads, PyTorch {where['torch']}{precision}.",
        f"Scales {scales}; wide: their squares. conv2d_wide has {len(asked['scales'])} times the maps. "
        "direct is the layer written plainly with F.interpolate, si_torch the layer without fused kernels.",
        f"Memory is the peak of forward and backward on the device; commit {where['commit'] or 'unknown'}.",
    ]


def _ms(timing: Timing | None) -> str:
    return _three_digits(timing.median_ms) if timing else NOTHING


def _peak(memory: Memory | None) -> str:
    return f"{memory.peak_mib:.0f}" if memory else NOTHING


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else NOTHING


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
