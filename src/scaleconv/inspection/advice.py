"""Which scales each layer needs, from how often they win on the user's own images, and what the rest cost."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..nn.convert import convert
from ..nn.observe import Call, batches_of, check_call, evaluating, find_layers, watching
from ..ops.checks import as_number, check_count
from ..table import Table
from ..timing import repeated, time_interleaved
from .pictures import Figure, Tabled, make_figure, name_the_layers
from .winner_maps import Shares, scale_usage


@dataclass(frozen=True)
class Advice:
    """For one layer.

    Attributes:
        shares: of the outputs that each scale won, as `scale_usage` counts them.
        kept: the scales to keep.
        ms, kept_ms: milliseconds of a call on the first batch, with all scales and with those.
    """

    shares: Shares
    kept: tuple[float, ...]
    ms: float
    kept_ms: float


@dataclass(frozen=True, repr=False)
class Recommendation(Tabled):
    """What `recommend` proposes. It shows itself as a table.

    Attributes:
        layers: the numbers behind it, by the name of the layer.
        least: the share below which a scale is dropped.
        images: how many the network saw.
    """

    layers: dict[str, Advice]
    least: float
    images: int

    @property
    def scales(self) -> dict[str, tuple[float, ...]]:
        """The scales of each layer, as `convert` takes them."""
        return {name: layer.kept for name, layer in self.layers.items()}

    def table(self) -> Table:
        rows = [
            (name, _listed(layer.kept), _dropped(layer), f"{layer.ms:.3g}", f"{layer.kept_ms:.3g}")
            for name, layer in self.layers.items()
        ]
        now, then = (sum(getattr(layer, name) for layer in self.layers.values()) for name in ("ms", "kept_ms"))
        rows.append(("all layers", "", "", f"{now:.3g}", f"{then:.3g}"))
        title = f"Scales that win at least {100 * self.least:g} % of the outputs of a layer, on {self.images} images"
        return Table(title, ("layer", "keep", "drop (% won)", "ms now", "ms then"), rows)

    def plot(self) -> Figure:
        """Draw the time of each layer, now and with the scales that are kept."""
        figure, (axis,) = make_figure(1, width=2.5 + 0.35 * len(self.layers), height=3.6)
        places = range(len(self.layers))
        axis.bar([place - 0.2 for place in places], [each.ms for each in self.layers.values()], 0.4, label="now")
        axis.bar([place + 0.2 for place in places], [each.kept_ms for each in self.layers.values()], 0.4, label="then")
        name_the_layers(axis, list(self.layers))
        axis.set_ylabel("ms per call")
        axis.legend()
        return figure


def recommend(
    model: nn.Module, images: Tensor | Iterable[Any], *, least: float = 0.05, repeats: int = 3, call: Call | None = None
) -> Recommendation:
    """Propose a cheaper set of scales for each layer: without those that hardly ever win.

    The winners are counted as by `scale_usage`, so ties go to scale 1, which is always kept. The layers are timed on
    the first batch, on the device it is on. A layer that is called several times is timed on its last input.

    Args:
        model: a network with `SIConv2d`, as `convert` returns it.
        images: (N, C, H, W), as the network takes them, like those it will see; or an iterable of batches, such as a
            `DataLoader`. A batch may be a tuple, a list or a mapping: the first tensor like images in it is taken.
        least: the share of a layer's outputs that a scale has to win to be kept, from 0 to 1.
        repeats: timings of each layer, of which the median counts.
        call: a function of the model and a batch that runs the network, if it takes more than images. What it returns
            does not matter.

    Raises:
        TypeError: an argument of the wrong type, or a batch without images.
        ValueError: an argument that breaks its rule, or a network without `SIConv2d`.

    Example:
        >>> import torch
        >>> network = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), include="*")
        >>> advice = recommend(network, torch.rand(8, 1, 20, 20), least=0.1)
        >>> cheaper = convert(network, scales=advice.scales)
        >>> cheaper[0].scales == advice.layers["0"].kept
        True
    """
    layers = find_layers(model)
    check_call(call)
    check_count("repeats", repeats)
    if not 0 <= as_number(least, f"`least` must be a number, got {least!r}") <= 1:
        raise ValueError(f"`least` must be from 0 to 1, got {least}")
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
        with evaluating(layer, cheaper):
            calls = {"now": repeated(partial(layer, input)), "then": repeated(partial(cheaper, input))}
            times = time_interleaved(calls, str(input.device), repeats)
        advice[name] = Advice(shares, kept, times["now"].median_ms, times["then"].median_ms)
    return Recommendation(advice, least, usage.images)


def _listed(scales: Iterable[float]) -> str:
    return ", ".join(f"{scale:.3g}" for scale in scales)


def _dropped(layer: Advice) -> str:
    gone = [scale for scale in layer.shares if scale not in layer.kept]
    return ", ".join(f"{scale:.3g} ({100 * layer.shares[scale]:.1f})" for scale in gone) or "–"
