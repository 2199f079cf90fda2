"""Rows of a bench with round numbers."""

from dataclasses import replace

from scaleconv.bench.layer_costs import LayerRow
from scaleconv.bench.network_costs import EpochRow, StepRow
from scaleconv.timing import Memory, Timing

MIB = {"conv2d": 100, "conv2d_wide": 600, "direct": 900, "si": 150}


def timing(ms):
    return Timing(ms, ms * 0.9, ms * 1.2, 3)


def row(layer, ms, scales="default", **others):
    """A layer on a CPU: forward takes a quarter of the time."""
    kind = {"shape": "res14", "dtype": "float32", "layout": "contiguous", "batch": 4} | others
    return LayerRow(**kind, layer=layer, scales=scales, forward=timing(ms / 4), backward=timing(ms), both=timing(ms))


def gpu_row(layer, graph, eager, scales="default", **others):
    """A layer on a GPU: forward takes a fifth of the time in a graph, the host half of the eager time."""
    fields = {"graph_forward": graph / 5, "graph_both": graph, "host_both": eager / 2}
    timings = {name: timing(ms) for name, ms in fields.items()}
    return replace(row(layer, eager, scales, **others), **timings, memory=Memory(10, MIB[layer]))


ROWS = [
    row("conv2d", 2),
    row("conv2d_wide", 10),
    row("direct", 40),
    row("direct", 100, "wide"),
    row("si", 8),
    row("si", 9, "wide"),
]
GPU_ROWS = [
    gpu_row("conv2d", 2, 3),
    gpu_row("conv2d_wide", 10, 12),
    gpu_row("direct", 40, 44),
    gpu_row("direct", 100, 110, "wide"),
    gpu_row("si", 8, 30),
    gpu_row("si", 9, 35, "wide"),
]
FAILED = LayerRow("res14", "float32", "contiguous", 4, "peers:Layer", "default", error="RuntimeError: no kernel")
EPOCHS = [EpochRow("convnet", 6, 1.5, 1.4, 1.6, 0.25, 78, 78), EpochRow("si_convnet", 6, 6, 5, 7, 1, 78, 78)]


def step(variant, task, eager, graph=None, mib=None, **others):
    kind = {"network": "resnet18", "dtype": "float32", "layout": "contiguous", "batch": 32, "size": 224} | others
    memory = Memory(1, mib) if mib else None
    return StepRow(
        **kind, variant=variant, task=task, eager=timing(eager), graph=graph and timing(graph), memory=memory
    )


GPU_STEPS = [
    step("plain", "training", 50, 40, 1000),
    step("converted", "training", 200, 80, 1700),
    step("plain", "inference", 1, mib=100, batch=1),
    step("converted", "inference", 15, mib=110, batch=1),
]
STEPS = [
    step("plain", "inference", 10, batch=1),
    step("converted", "inference", 60, batch=1),
    step("plain", "inference", 70, batch=8),
    step("converted", "inference", 280, batch=8),
]
FAILED_STEP = replace(STEPS[1], eager=None, error="RuntimeError: out of memory")
