"""Single layers: forward alone, backward alone, both, and the peak memory of both.

The forward pass is that of training, with what it keeps for the backward pass. Gradients are those of the parameters,
and of the input where the shape asks for it; that of the output is a fixed random tensor.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..experiments.capture import captured
from .contenders import check_peer, make_layer
from .settings import DTYPES, LAYOUTS, SHAPES, Settings
from .timing import WARM_UP, Memory, Run, Tick, Timing, Work, peak_memory, repeated, time_in_turns

WITH_SCALES = ("direct", "si")  # measured at the wide scales as well


@dataclass(frozen=True)
class LayerRow:
    """What was measured of one contender in one setting.

    Attributes:
        shape, dtype, layout, batch: the setting.
        contender: its name, or MODULE:CLASS of a peer.
        scales: `default`, or `wide` for their squares.
        forward, backward, both: None where it was not measured.
        memory: of forward and backward; None on a CPU.
        error: why there is nothing else; None if all went well.
    """

    shape: str
    dtype: str
    layout: str
    batch: int
    contender: str
    scales: str
    forward: Timing | None = None
    backward: Timing | None = None
    both: Timing | None = None
    memory: Memory | None = None
    error: str | None = None


class Pass:
    """A layer with its input, and the passes to be timed."""

    def __init__(self, layer: nn.Module, images: Tensor, layout: torch.memory_format) -> None:
        self.layer, self.images = layer, images
        self.inputs = [*layer.parameters(), *([images] if images.requires_grad else [])]
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
        """The backward passes of forward passes that were not timed."""
        outputs = [self.forward() for _ in range(count)]

        def run() -> None:
            while outputs:
                self.backward(outputs.pop())

        return run

    def works(self, graph: bool) -> dict[str, Work]:
        """What to time, by the field of `LayerRow` it ends in; a graph holds no backward pass alone."""
        if graph:
            return {"forward": repeated(captured(self.forward)), "both": repeated(captured(self.both))}
        return {
            "forward": repeated(self.forward),
            "backward": self.only_backward,
            "both": repeated(self.both),
        }


def measure_layers(settings: Settings, tick: Tick) -> list[LayerRow]:
    """Measure every contender in every setting; peers are checked first."""
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
    """One setting: the memory of each contender while it is alone, then the times of all in turns."""
    entrants = list(_entrants(settings))
    memory: dict[tuple[str, str], Memory | None] = {}
    works: dict[tuple[str, str, str], Work] = {}
    errors: dict[tuple[str, str], str] = {}
    for entrant in entrants:
        try:
            memory[entrant] = _peak(_make_pass(settings, shape, dtype, layout, *entrant), settings.device)
        except RuntimeError as error:
            errors[entrant] = _one_line(error)
    for entrant in entrants:
        if entrant not in errors:
            try:
                work = _make_pass(settings, shape, dtype, layout, *entrant).works(settings.graph)
                works |= {(*entrant, measure): prepare for measure, prepare in work.items()}
            except RuntimeError as error:
                errors[entrant] = _one_line(error)
    times = time_in_turns(works, settings.device, settings.repeats, lambda: tick(f"{shape}, {dtype}, {layout}"))
    batch = settings.batch_of(SHAPES[shape])
    rows = []
    for entrant in entrants:
        forward, backward, both = (times.get((*entrant, measure)) for measure in ("forward", "backward", "both"))
        peak, failure = memory.get(entrant), errors.get(entrant)
        rows.append(LayerRow(shape, dtype, layout, batch, *entrant, forward, backward, both, peak, failure))
    return rows


def _entrants(settings: Settings) -> Iterable[tuple[str, str]]:
    """(contender, scales) of all that take part."""
    for contender in (*settings.contenders, *settings.peers):
        yield contender, "default"
        if settings.wide and contender in WITH_SCALES:
            yield contender, "wide"


def _make_pass(settings: Settings, shape: str, dtype: str, layout: str, contender: str, scales: str) -> Pass:
    sizes, memory_format, kind = SHAPES[shape], LAYOUTS[layout], DTYPES[dtype]
    factors = settings.wide_scales if scales == "wide" else settings.scales
    layer = make_layer(contender, sizes, factors)
    layer = layer.to(settings.device, kind, memory_format=memory_format)  # type: ignore[call-overload]
    random = torch.Generator(settings.device).manual_seed(0)
    size = (settings.batch_of(sizes), sizes.in_channels, sizes.size, sizes.size)
    images = torch.randn(size, generator=random, device=settings.device).to(kind, memory_format=memory_format)
    return Pass(layer, images.requires_grad_(sizes.input_grad), memory_format)


def _peak(layer: Pass, device: str) -> Memory | None:
    """The memory of forward and backward, once all that is made on the first calls is made."""
    for _ in range(WARM_UP if layer.images.is_cuda else 1):
        layer.both()
    return peak_memory(layer.both, device)


def _one_line(error: RuntimeError) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
