"""Which scales each layer should have, and what that costs in time, measured on the user's own images.

For a converted network: those that win often enough. For a plain one: what `convert` does by default. The network of
the user is never trained and never changed: what would change it runs on copies.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.convert import convert, copy_network
from ..nn.observe import (
    Call,
    batches_of,
    check_call,
    check_module,
    evaluating,
    find_layers,
    images_of,
    run,
    watching,
)
from ..nn.rerouted import ScaleInvariantLayer
from ..ops.checks import as_number, check_count
from ..ops.torch_private import tree_leaves
from ..table import Table
from ..timing import repeated, time_interleaved
from .pictures import Figure, Tabled, make_figure, name_the_layers
from .winner_maps import Shares, scale_usage

TIMES = ("ms now", "ms then", "then / now")


@dataclass(frozen=True)
class Cost:
    """Milliseconds on the first batch: as the network is, and as it is proposed."""

    ms: float
    kept_ms: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes then; 1 for a layer that is not called."""
        return self.kept_ms / self.ms if self.ms else 1.0

    def cells(self) -> tuple[str, ...]:
        return _ms(self.ms), _ms(self.kept_ms), f"{self.ratio:.2f}"


@dataclass(frozen=True)
class Advice(Cost):
    """For one layer, with the time of a call, 0 if it is not called.

    Attributes:
        kept: the scales to keep; for a plain layer, those to convert it with.
        shares: of the outputs that each scale won, as `scale_usage` counts them; empty for a plain layer.
    """

    kept: tuple[float, ...]
    shares: Shares


@dataclass(frozen=True, repr=False)
class Recommendation(Tabled):
    """What `recommend` proposes. It shows itself as a table.

    Attributes:
        layers: the numbers behind it, by the name of the layer.
        least: the share below which a scale is dropped.
        images: how many the network saw.
        network: for a plain network, the time of its "forward pass" and of its "training step"; empty for another.
    """

    layers: dict[str, Advice]
    least: float
    images: int
    network: dict[str, Cost] = field(default_factory=dict)

    @property
    def scales(self) -> dict[str, tuple[float, ...]]:
        """The scales of each layer, as `convert` takes them."""
        return {name: layer.kept for name, layer in self.layers.items()}

    def table(self) -> Table:
        layers = self.layers.values()
        totals = {"all layers": Cost(sum(layer.ms for layer in layers), sum(layer.kept_ms for layer in layers))}
        totals |= {f"network, {part}": cost for part, cost in self.network.items()}
        rows = [(name, _listed(layer.kept), _dropped(layer), *layer.cells()) for name, layer in self.layers.items()]
        rows += [(name, "", "", *cost.cells()) for name, cost in totals.items()]
        if not self.network:
            title = (
                f"Scales that win at least {100 * self.least:g} % of the outputs of a layer, on {self.images} images"
            )
            return Table(title, ("layer", "keep", "drop (% won)", *TIMES), rows)
        title = f"Layers that `convert(model, images=…)` swaps, timed on {self.images} images"
        return Table(title, ("layer", "scales", *TIMES), [(name, scales, *ms) for name, scales, _, *ms in rows])

    def plot(self) -> Figure:
        """Draw the time of each layer, and of the network if it was measured, now and then."""
        groups: list[dict[str, Any]] = [self.layers, *([self.network] if self.network else [])]
        figure, axes = make_figure(len(groups), width=2.5 + 0.35 * max(map(len, groups)), height=3.6)
        for axis, costs in zip(axes, groups, strict=True):
            places = range(len(costs))
            axis.bar([place - 0.2 for place in places], [each.ms for each in costs.values()], 0.4, label="now")
            axis.bar([place + 0.2 for place in places], [each.kept_ms for each in costs.values()], 0.4, label="then")
            name_the_layers(axis, list(costs))
        axes[0].set_ylabel("ms per call")
        axes[0].legend()
        return figure


def recommend(
    model: nn.Module, images: Tensor | Iterable[Any], *, least: float = 0.05, repeats: int = 3, call: Call | None = None
) -> Recommendation:
    """Propose scales for the layers of a network, and measure what they cost.

    For a network with scale-invariant layers, these are its scales without those that hardly ever win. The winners are
    counted as by `scale_usage`, so ties go to scale 1, which is always kept.

    For a plain network, they are the layers and scales that `convert(model, images=first_batch, call=call)` takes by
    default. The whole network is timed, too, as it is and converted: a forward pass in evaluation mode, and a training
    step, which is forward and backward in training mode, without an optimiser. Its loss is the sum of squares of all
    floating-point outputs. Where none of them has a gradient, there is no training step.

    Times are taken on the first batch, on the device it is on; now and then take turns. A layer is timed in its forward
    pass; one that is called several times, on its last input. The network itself is not changed.

    Args:
        model: a network, converted or not.
        images: (N, C, H, W), as the network takes them, like those it will see; or an iterable of batches, such as a
            `DataLoader`. A batch may be a tuple, a list or a mapping: the first tensor like images in it is taken. A
            plain network sees the first batch only.
        least: the share of a layer's outputs that a scale has to win to be kept, from 0 to 1. It says nothing about a
            plain network.
        repeats: timings of each layer and of the network, of which the median counts.
        call: a function of the model and a batch that runs the network, if it takes more than images. For a plain
            network it is called in training mode, too, and the training step is that of what it returns. Otherwise
            what it returns does not matter.

    Returns:
        A table, of which `scales` goes into `convert`: `convert(model, scales=recommendation.scales)`.

    Raises:
        TypeError: an argument of the wrong type, or a batch without images.
        ValueError: an argument that breaks its rule, or a network without a layer that `convert` would take.

    Example:
        >>> import torch
        >>> plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        >>> advice = recommend(plain, torch.rand(8, 1, 20, 20))
        >>> convert(plain, scales=advice.scales)[2].scales == advice.layers["2"].kept == (0.5, 2**-0.5, 1)
        True
        >>> list(advice.network)
        ['forward pass', 'training step']
        >>> network = convert(plain, include="*")
        >>> advice = recommend(network, torch.rand(8, 1, 20, 20), least=0.1)
        >>> cheaper = convert(network, scales=advice.scales)
        >>> cheaper[0].scales == advice.layers["0"].kept
        True
    """
    check_module(model)
    check_call(call)
    check_count("repeats", repeats)
    if not 0 <= as_number(least, f"`least` must be a number, got {least!r}") <= 1:
        raise ValueError(f"`least` must be from 0 to 1, got {least}")
    converted = any(isinstance(layer, ScaleInvariantLayer) for layer in model.modules())
    return (_drop_scales if converted else _propose_layers)(model, images, least, repeats, call)


def _drop_scales(
    model: nn.Module, images: Tensor | Iterable[Any], least: float, repeats: int, call: Call | None
) -> Recommendation:
    layers = find_layers(model)
    inputs: dict[str, Tensor] = {}
    seen = 0

    def counted() -> Iterator[Any]:
        nonlocal seen
        for batch in batches_of(images):
            yield batch
            seen += 1

    def keep(name: str, _: nn.Module, given: Tensor, __: Tensor) -> None:
        if not seen:
            inputs[name] = given

    with watching(layers, keep):
        usage = scale_usage(model, counted(), call=call)
    advice = {}
    for name, input in inputs.items():
        layer, shares = layers[name], usage.shares[name]
        kept = tuple(scale for scale in layer.scales if scale == 1 or shares[scale] >= least)
        cheaper = convert(layer, scales=kept)  # the same layer with fewer scales
        advice[name] = Advice(*_time_layer(layer, cheaper, input, repeats), kept, shares)
    return Recommendation(advice, least, usage.images)


def _propose_layers(
    model: nn.Module, images: Tensor | Iterable[Any], least: float, repeats: int, call: Call | None
) -> Recommendation:
    batch = next(batches_of(images))
    pictures = images_of(batch, "images[0]")
    now = copy_network(model)
    then = convert(now, images=batch, call=call)
    proposed = {name: layer for name, layer in then.named_modules() if isinstance(layer, ScaleInvariantLayer)}
    plain = {name: now.get_submodule(name) for name in proposed}
    inputs: dict[str, Tensor] = {}
    with watching(plain, lambda name, _, given, __: inputs.update({name: given})), evaluating(now):
        run(now, batch, call)
    advice = {}
    for name, layer in proposed.items():
        ms = _time_layer(plain[name], layer, inputs[name], repeats) if name in inputs else (0.0, 0.0)
        advice[name] = Advice(*ms, layer.scales, {})

    time = partial(_time, device=str(pictures.device), repeats=repeats)
    with evaluating(now, then):
        network = {"forward pass": Cost(*time(partial(run, now, batch, call), partial(run, then, batch, call)))}
    now.train()
    then.train()
    with torch.enable_grad():
        if _differentiate(now, batch, call):
            steps = partial(_differentiate, now, batch, call), partial(_differentiate, then, batch, call)
            network["training step"] = Cost(*time(*steps))
    return Recommendation(advice, least, len(pictures), network)


def _differentiate(network: nn.Module, batch: Any, call: Call | None) -> bool:
    """Compute the gradients of the parameters for the sum of squares of all outputs; return whether there are any.

    They are not added to any `grad`: `call` may hold parameters of the user, and images may have a gradient.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    outputs = [leaf for leaf in tree_leaves(run(network, batch, call)) if isinstance(leaf, Tensor)]
    losses = [leaf.square().sum() for leaf in outputs if leaf.is_floating_point() and leaf.requires_grad]
    if not parameters or not losses:
        return False
    torch.autograd.grad(losses, parameters, allow_unused=True)
    return True


def _time_layer(now: nn.Module, then: nn.Module, input: Tensor, repeats: int) -> tuple[float, float]:
    with evaluating(now, then):
        return _time(partial(now, input), partial(then, input), str(input.device), repeats)


def _time(now: Callable[[], Any], then: Callable[[], Any], device: str, repeats: int) -> tuple[float, float]:
    times = time_interleaved({"now": repeated(now), "then": repeated(then)}, device, repeats)
    return times["now"].median_ms, times["then"].median_ms


def _ms(ms: float) -> str:
    return f"{ms:.3g}" if ms < 999.5 else f"{ms:,.0f}"


def _listed(scales: Iterable[float]) -> str:
    return ", ".join(f"{scale:.3g}" for scale in scales)


def _dropped(layer: Advice) -> str:
    gone = [scale for scale in layer.shares if scale not in layer.kept]
    return ", ".join(f"{scale:.3g} ({100 * layer.shares[scale]:.1f})" for scale in gone) or "–"
