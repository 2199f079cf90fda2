"""Single layers: forward alone, backward alone, both, and the peak memory of both.

The forward pass is that of training, with what it keeps for the backward pass. Gradients are those of the parameters
and of the input; the gradient of the output is a fixed random tensor. On a GPU the passes are timed twice: as eager
calls, which is what a user sees, and as replays of a CUDA graph, which is the time of the device alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..experiments.sgd import captured
from .compared_layers import check_peer, make_layer
from .settings import DTYPES, LAYOUTS, SHAPES, Settings
from .timing import WARM_UP, Memory, Run, Tick, Timing, Workload, peak_memory, repeated, time_host, time_interleaved

WITH_SCALES = ("direct", "si")  # measured with the wide scales as well


@dataclass(frozen=True)
class LayerRow:
    """What was measured of one layer in one setting.

    Attributes:
        shape, dtype, layout, batch: the setting.
        layer: its name in `COMPARED`, or MODULE:CLASS of a peer.
        scales: `default`, or `wide` for their squares.
        forward, backward, both: eager calls.
        graph_forward, graph_both: replays of a CUDA graph; None on a CPU.
        host_both: what the host needs to issue forward and backward; None on a CPU.
        memory: of forward and backward; None on a CPU.
        error: why nothing was measured; None if all went well.
    """

    shape: str
    dtype: str
    layout: str
    batch: int
    layer: str
    scales: str
    forward: Timing | None = None
    backward: Timing | None = None
    both: Timing | None = None
    graph_forward: Timing | None = None
    graph_both: Timing | None = None
    host_both: Timing | None = None
    memory: Memory | None = None
    error: str | None = None


class Pass:
    """A layer with its input, and the passes to be timed."""

    def __init__(self, layer: nn.Module, images: Tensor, layout: torch.memory_format) -> None:
        self.layer, self.images = layer, images.requires_grad_()
        self.inputs = [*layer.parameters(), images]
        with torch.no_grad():
            shape = layer(images).shape
        random = torch.Generator(images.device).manual_seed(1)
        grad = torch.randn(shape, generator=random, device=images.device)
        self.grad = grad.to(images.dtype, memory_format=layout)

    def forward(self) -> Tensor:
        output: Tensor = self.layer(self.images)
        return output

    def backward(self, output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, self.inputs, self.grad, allow_unused=True)

    def both(self) -> tuple[Tensor, ...]:
        return self.backward(self.forward())

    def only_backward(self, count: int) -> Run:
        """The backward passes of forward passes that are not timed."""
        outputs = [self.forward() for _ in range(count)]

        def run() -> None:
            while outputs:
                self.backward(outputs.pop())

        return run

    def workloads(self, graphs: bool) -> dict[str, Workload]:
        """What to time, by the field of `LayerRow` that holds it; a graph cannot hold the backward pass alone."""
        eager: dict[str, Workload] = {
            "forward": repeated(self.forward),
            "backward": self.only_backward,
            "both": repeated(self.both),
        }
        if not graphs:
            return eager
        return eager | {
            "graph_forward": repeated(captured(self.forward)),
            "graph_both": repeated(captured(self.both)),
        }


def measure_layers(settings: Settings, tick: Tick) -> list[LayerRow]:
    """Measure every layer in every setting; peers are checked first."""
    for peer in settings.peers:
        for shape in settings.shapes:
            check_peer(peer, SHAPES[shape], settings.device)
    rows: list[LayerRow] = []
    for shape in settings.shapes:
        for dtype in settings.dtypes:
            for layout in settings.layouts:
                rows += _measure(settings, shape, dtype, layout, tick)
    return rows


def _measure(settings: Settings, shape: str, dtype: str, layout: str, tick: Tick) -> list[LayerRow]:
    """One setting: the memory of each layer while it is alone, then the times of all, interleaved."""
    variants = list(_variants(settings))
    memory: dict[tuple[str, str], Memory | None] = {}
    passes: dict[tuple[str, str], Pass] = {}
    workloads: dict[tuple[tuple[str, str], str], Workload] = {}
    errors: dict[tuple[str, str], str] = {}
    for variant in variants:
        try:
            memory[variant] = _peak(_make_pass(settings, shape, dtype, layout, *variant), settings.device)
        except RuntimeError as error:
            errors[variant] = one_line(error)
    for variant in variants:
        if variant not in errors:
            try:
                made = _make_pass(settings, shape, dtype, layout, *variant)
                for field, workload in made.workloads(graphs=settings.on_gpu).items():
                    workloads[variant, field] = workload
                passes[variant] = made
            except RuntimeError as error:
                errors[variant] = one_line(error)
    progress = f"{shape}, {dtype}, {layout}"
    times = time_interleaved(workloads, settings.device, settings.repeats, lambda: tick(progress))
    calls = {variant: made.both for variant, made in passes.items()}
    host = time_host(calls, settings.repeats) if settings.on_gpu else {}
    rows = []
    for variant in variants:
        measured: dict[str, Any] = {field: timing for (timed, field), timing in times.items() if timed == variant}
        measured |= {"host_both": host.get(variant), "memory": memory.get(variant), "error": errors.get(variant)}
        rows.append(LayerRow(shape, dtype, layout, settings.batch_of(SHAPES[shape]), *variant, **measured))
    return rows


def _variants(settings: Settings) -> Iterable[tuple[str, str]]:
    """(layer, scales) of everything to be measured."""
    for layer in (*settings.compare, *settings.peers):
        yield layer, "default"
        if settings.wide and layer in WITH_SCALES:
            yield layer, "wide"


def _make_pass(settings: Settings, shape: str, dtype: str, layout: str, name: str, scales: str) -> Pass:
    sizes, memory_format, kind = SHAPES[shape], LAYOUTS[layout], DTYPES[dtype]
    factors = settings.wide_scales if scales == "wide" else settings.scales
    layer = make_layer(name, sizes, factors)
    layer = layer.to(settings.device, kind, memory_format=memory_format)  # type: ignore[call-overload]
    random = torch.Generator(settings.device).manual_seed(0)
    size = (settings.batch_of(sizes), sizes.in_channels, sizes.size, sizes.size)
    images = torch.randn(size, generator=random, device=settings.device).to(kind, memory_format=memory_format)
    return Pass(layer, images, memory_format)


def _peak(layer: Pass, device: str) -> Memory | None:
    """The memory of forward and backward, after the calls that plan and compile."""
    for _ in range(WARM_UP if layer.images.is_cuda else 1):
        layer.both()
    return peak_memory(layer.both, device)


def one_line(error: Exception) -> str:
    """The kind of error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
