"""Tables from a result: the ratios that matter, every layer, the networks. Text only."""

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
        self._rows = {(row.shape, row.dtype, row.layout, row.layer, row.scales): row for row in rows}

    def find(self, setting: tuple[str, str, str], layer: str, scales: str = "default") -> LayerRow | None:
        return self._rows.get((*setting, layer, scales))


def has_graphs(rows: Sequence[LayerRow]) -> bool:
    """Whether the rows are from a GPU, with replays of CUDA graphs beside eager calls."""
    return any(row.graph_both for row in rows)


def time_ratio(row: LayerRow | None, other: LayerRow | None, field: str = "both") -> float | None:
    """Of one timing of two rows; None where one was not measured."""
    times: list[Timing | None] = [getattr(each, field, None) for each in (row, other)]
    return _time_ratio(*times)


def memory_ratio(row: LayerRow | StepRow | None, other: LayerRow | StepRow | None) -> float | None:
    """Of the peaks; None where one was not measured."""
    memory = (row and row.memory, other and other.memory)
    return memory[0].peak_mib / memory[1].peak_mib if memory[0] and memory[1] else None


def sheets(result: Result) -> list[Sheet]:
    """What is printed: the ratios, then the networks; parts that were not measured are left out."""
    made = [
        ratio_sheet(result.rows, result.settings["scales"]) if result.rows else None,
        epoch_sheet(result.epochs) if result.epochs else None,
        step_sheet(result.steps) if result.steps else None,
    ]
    return [sheet for sheet in made if sheet]


def ratio_sheet(rows: Sequence[LayerRow], scales: Sequence[float]) -> Sheet:
    """`SIConv2d` beside plain convolutions, a line per setting; on a GPU, graph replays unless it says eager."""
    on_gpu = has_graphs(rows)
    both, forward = ("graph_both", "graph_forward") if on_gpu else ("both", "forward")
    compared = Comparison(rows)
    lines = []
    for setting in compared.settings:
        plain, wide, si, direct = (compared.find(setting, name) for name in ("conv2d", "conv2d_wide", "si", "direct"))
        cells = {
            "SIConv2d, ms (graph)" if on_gpu else "SIConv2d, ms": _ms(getattr(si, both, None)),
            "/ wide (graph)": _ratio(time_ratio(si, wide, "graph_both")),
            "/ wide (eager)": _ratio(time_ratio(si, wide)),
            "/ Conv2d": _ratio(time_ratio(si, plain, both)),
            "forward / wide": _ratio(time_ratio(si, wide, forward)),
            "memory / Conv2d": _ratio(memory_ratio(si, plain)),
            _spread(scales): _ratio(time_ratio(compared.find(setting, "si", "wide"), si, both)),
            "host, ms": _ms(si.host_both if si else None),
            "written plainly / SIConv2d": _ratio(time_ratio(direct, si, both)),
        }
        if not on_gpu:
            for column in ("/ wide (graph)", "memory / Conv2d", "host, ms"):
                del cells[column]
        lines.append((*setting, *cells.values()))
    return Sheet("SIConv2d, forward and backward", ("shape", "dtype", "layout", *cells), lines)


def layer_sheet(rows: Sequence[LayerRow]) -> Sheet:
    """Every layer in every setting."""
    on_gpu = has_graphs(rows)
    compared = Comparison(rows)
    lines = []
    for row in rows:
        setting = (row.shape, row.dtype, row.layout)
        wide, plain = (compared.find(setting, name) for name in ("conv2d_wide", "conv2d"))
        cells = {
            "forward, ms": row.error or _ms(row.forward),
            "backward, ms": _ms(row.backward),
            "both, ms": _ms(row.both),
            "/ wide": _ratio(time_ratio(row, wide)),
        }
        if on_gpu:
            cells |= {
                "forward, ms (graph)": _ms(row.graph_forward),
                "both, ms (graph)": _ms(row.graph_both),
                "/ wide (graph)": _ratio(time_ratio(row, wide, "graph_both")),
                "host, ms": _ms(row.host_both),
                "peak, MiB": _peak(row.memory),
                "memory / Conv2d": _ratio(memory_ratio(row, plain)),
            }
        lines.append((*setting, str(row.batch), row.layer, row.scales, *cells.values()))
    return Sheet("All layers", ("shape", "dtype", "layout", "batch", "layer", "scales", *cells), lines)


def epoch_sheet(rows: Sequence[EpochRow]) -> Sheet:
    """The paper's networks, each compared with ConvNet trained in equally many runs."""
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
    """The larger networks, a line per setting with the plain and the converted network."""
    pairs: dict[tuple[str, ...], dict[str, StepRow]] = {}
    for row in rows:
        pairs.setdefault((row.network, row.task, row.dtype, row.layout, str(row.batch)), {})[row.variant] = row
    on_gpu = any(row.graph for row in rows)
    lines = []
    for setting, pair in pairs.items():
        plain, converted = pair["plain"], pair["converted"]
        cells = {
            "plain, ms": plain.error or _ms(plain.eager),
            "converted, ms": converted.error or _ms(converted.eager),
            "converted / plain": _ratio(_time_ratio(converted.eager, plain.eager)),
        }
        if on_gpu:
            cells |= {
                "plain, ms (graph)": _ms(plain.graph),
                "converted, ms (graph)": _ms(converted.graph),
                "converted / plain (graph)": _ratio(_time_ratio(converted.graph, plain.graph)),
                "converted, eager / graph": _ratio(_time_ratio(converted.eager, converted.graph)),
                "converted peak, MiB": _peak(converted.memory),
                "memory / plain": _ratio(memory_ratio(converted, plain)),
            }
        lines.append((*setting, *cells.values()))
    title = f"Networks, plain and converted, images of {rows[0].size}×{rows[0].size}"
    return Sheet(title, ("network", "task", "dtype", "layout", "batch", *cells), lines)


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
        "times the maps; written plainly, or direct, is the layer with F.interpolate. Forward and backward include the "
        "gradient of the input.",
    ]
    if on_gpu:
        notes.append(
            "graph: replays of a CUDA graph, the time of the device alone; eager: calls, as a user makes them; host: "
            "wall time to issue forward and backward on an idle device, without waiting for it. Columns that name "
            "neither are graph. Memory is the peak of forward and backward on the device."
        )
    return notes


def _spread(scales: Sequence[float]) -> str:
    return f"scales to {max(scales) ** 2:.3g} / to {max(scales):.3g}"


def _time_ratio(timing: Timing | None, other: Timing | None) -> float | None:
    return timing.median_ms / other.median_ms if timing and other else None


def _ms(timing: Timing | None) -> str:
    return _three_digits(timing.median_ms) if timing else NOTHING


def _peak(memory: Memory | None) -> str:
    return f"{memory.peak_mib:.0f}" if memory else NOTHING


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else NOTHING


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
