"""Single layers: forward alone, backward alone, both, and the peak memory of both.

The layers that are compared are made with the arguments of `Conv2d`. On a GPU the passes are timed as eager calls,
which is what a user sees; as replays of a CUDA graph, which is the time of the device alone; and by the host, which is
the time to launch them.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..models.direct import DirectSIConv2d
from ..nn import SIConv2d
from ..timing import LayerPass, Memory, Timing, Workload, captured, compare, repeated
from .shapes import DTYPES, LAYOUTS, SHAPES, LayerShape, Settings, Tick

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
        host_both: time of the host to launch forward and backward; None on a CPU.
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


def make_layer(name: str, shape: LayerShape, scales: tuple[float, ...]) -> nn.Module:
    """Make one of `COMPARED`, or the class MODULE:CLASS; layers with equally many weights get the same ones."""
    torch.manual_seed(0)
    sizes = (shape.in_channels, shape.out_channels, shape.kernel)
    options: dict[str, Any] = {"stride": shape.stride, "padding": shape.padding, "groups": shape.groups}
    if name == "conv2d":
        return nn.Conv2d(*sizes, **options)
    if name == "conv2d_wide":
        return nn.Conv2d(shape.in_channels, len(scales) * shape.out_channels, shape.kernel, **options)
    if name in WITH_SCALES:
        return (SIConv2d if name == "si" else DirectSIConv2d)(*sizes, **options, scales=scales)
    peer = load_peer(name)
    try:
        return peer(*sizes, **options)
    except TypeError as error:
        raise ValueError(
            f"`peer` (={name}) must take the arguments of Conv2d "
            f"(in_channels, out_channels, kernel_size, stride=…, padding=…, groups=…), but says: {error}"
        ) from None


def load_peer(peer: str) -> type[nn.Module]:
    """The class that MODULE:CLASS names."""
    module, _, name = peer.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"`peer` (={peer}) must name a module that can be imported: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"`peer` must name a torch.nn.Module of `{module}`, got {name!r}")
    return kind


def check_peer(peer: str, shape: LayerShape, device: str) -> None:
    """Refuse a peer whose output does not have the shape of `Conv2d`'s, before anything is measured."""
    images = torch.zeros(2, shape.in_channels, shape.size, shape.size, device=device)
    with torch.no_grad():
        output = make_layer(peer, shape, ()).to(device)(images)
    expected = (2, shape.out_channels, shape.output_size, shape.output_size)
    got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if got != expected:
        raise ValueError(f"`peer` (={peer}) must return the shape of Conv2d, {expected}, got {got}")


def measure_layers(settings: Settings, tick: Tick) -> list[LayerRow]:
    """Measure every layer in every setting; peers are checked first."""
    for peer, shape in product(settings.peers, settings.shapes):
        check_peer(peer, SHAPES[shape], settings.device)
    layers = [
        (layer, scales)
        for layer in (*settings.compare, *settings.peers)
        for scales in (("default", "wide") if settings.wide and layer in WITH_SCALES else ("default",))
    ]
    rows: list[LayerRow] = []
    for setting in product(settings.shapes, settings.dtypes, settings.layouts):
        candidates = {layer: partial(_make_pass, settings, *setting, *layer) for layer in layers}
        timed = partial(_workloads, on_gpu=settings.on_gpu)
        found = compare(candidates, timed, settings.device, settings.repeats, partial(tick, ", ".join(setting)))
        batch = settings.batch_of(SHAPES[setting[0]])
        rows += [LayerRow(*setting, batch, *layer, **measured) for layer, measured in found.items()]
    return rows


def _make_pass(settings: Settings, shape: str, dtype: str, layout: str, name: str, scales: str) -> LayerPass:
    sizes, memory_format, kind = SHAPES[shape], LAYOUTS[layout], DTYPES[dtype]
    layer = make_layer(name, sizes, settings.wide_scales if scales == "wide" else settings.scales)
    layer = layer.to(settings.device, kind, memory_format=memory_format)  # type: ignore[call-overload]
    random = torch.Generator(settings.device).manual_seed(0)
    size = (settings.batch_of(sizes), sizes.in_channels, sizes.size, sizes.size)
    images = torch.randn(size, generator=random, device=settings.device).to(kind, memory_format=memory_format)
    return LayerPass(layer, images, memory_format)


def _workloads(make: Callable[[], LayerPass], *, on_gpu: bool) -> dict[str, Workload]:
    """What to time, by the field of `LayerRow` that holds it; a graph cannot hold the backward pass alone."""
    made = make()
    eager = {"forward": repeated(made.forward), "backward": Workload(made.only_backward), "both": repeated(made)}
    if not on_gpu:
        return eager
    graphs = {"graph_forward": repeated(captured(made.forward)), "graph_both": repeated(captured(made))}
    return eager | graphs | {"host_both": repeated(made, host=True)}
