"""What is measured on trained networks besides the test error.

A measure is one function, registered under the name that `kind` of a file's `[measure]` section gives. It takes a run,
its trained network and its digits, and returns series for the record. Each series becomes a panel of the figure with a
line per model, unless `panels.py` arranges it otherwise. The mean of a series called `test_error` becomes the test
error of the run.

Here are errors at unfamiliar scales (figure 5a), the invariance of neurons (figure 3), and three measures that the
paper does not have: which level wins, how equivariant features are, and how consistent predictions.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import make_scaled
from ..metrics import equivariance_error, invariance_scores, top_mean
from ..nn import SIConv2d
from ..nn.observe import hooked
from .config import MEASURES
from .records import Series
from .sgd import error_rate
from .train import Run, RunDigits

Measure = Callable[[Run, nn.Module, RunDigits], dict[str, Series]]


def register(name: str) -> Callable[[Measure], Measure]:
    """Register a function as the measure of this name."""

    def add(function: Measure) -> Measure:
        if name in MEASURES:
            raise ValueError(f"`name` of a measure must be new, got {name!r}")
        MEASURES[name] = function
        return function

    return add


def check_measure(run: Run) -> None:
    """Refuse what cannot be measured on the network of a run: before it is trained.

    Raises:
        ValueError: the network has no layer of a name, or none that is scale-invariant where their winners are counted.
    """
    config = run.settings.measure
    if not config.kind:
        return
    modules = dict(run.network().named_modules())
    for layer in config.layers:
        if layer not in modules:
            known = ", ".join(filter(None, modules))
            raise ValueError(f"`measure.layers` must be layers of {run.model} ({known}), got {layer!r}")
    if config.kind == "winners" and not any(isinstance(module, SIConv2d) for module in modules.values()):
        raise ValueError(f"`models` must have scale-invariant layers for winners, got {run.model!r}")


def measure(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """Measure what the run's settings name on its trained network."""
    found: dict[str, Series] = MEASURES[run.settings.measure.kind](run, network, digits)
    return found


@register("test_scales")
def _test_scales(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """The test error in percent with all test digits at one scale, for each of the scales."""
    config = run.settings.measure
    count, size = config.digits or None, config.size or None
    errors = [error_rate(network, *digits.at_scale(scale, count, size)) for scale in config.scales]
    return {"test_error": Series(list(config.scales), errors)}


@register("invariance")
def _invariance(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """The mean score of the most invariant neurons of each layer, after training and before.

    What is rescaled are the test digits of MNIST-Scale, each already at its own scale, or the same digits at one scale.
    """
    config = run.settings.measure
    count = config.digits or None
    images = digits.at_scale(config.digits_at, count)[0] if config.digits_at else digits.test[:count]

    def rescale(some: Tensor, factor: float) -> Tensor:
        return make_scaled(digits.pixels(some), factor, digits.config.size, truncate="allow") - digits.mean

    found = {}
    for name, subject in (("trained", network), ("random", run.network().to(images.device))):
        scores = invariance_scores(
            subject, images, config.layers, rescale, config.scales, neuron=config.neuron, firing=config.firing
        )
        values = [top_mean(scores[layer], config.top) for layer in config.layers]
        found[name] = Series([float(number) for number in range(1, len(values) + 1)], values)
    return found


@register("winners")
@torch.no_grad()
def _winners(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """How often each level wins, in percent, against the true scale of the digits.

    Counted once per filter and image, at the position of the strongest response, if that exceeds the response to an
    empty image. On the empty background all levels tie.
    """
    config = run.settings.measure
    layers = {name: module for name, module in network.named_modules() if isinstance(module, SIConv2d)}
    counts = {name: [[0] * len(layer.scales) for _ in config.scales] for name, layer in layers.items()}
    blank = _strongest(network, layers, digits.blank())
    for index, scale in enumerate(config.scales):
        for some in digits.at_scale(scale, config.digits or None)[0].split(500):
            for name, (strength, winner) in _strongest(network, layers, some).items():
                chosen = winner[strength > blank[name][0] + 1e-6]
                votes = F.one_hot(chosen, len(layers[name].scales)).sum(0).tolist()
                counts[name][index] = [a + b for a, b in zip(counts[name][index], votes, strict=True)]
    found = {}
    for name, layer in layers.items():
        for level, scale in enumerate(layer.scales):
            shares = [100 * row[level] / max(1, sum(row)) for row in counts[name]]
            found[f"{name} {scale:.3g}"] = Series(list(config.scales), shares)
    return found


def _strongest(network: nn.Module, layers: dict[str, SIConv2d], images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """For each layer the strongest response of each filter to each image, and the level it came from: both (N, M)."""
    inputs: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_pre_hook(lambda _, given, name=name: inputs.__setitem__(name, given[0]))
        for name, layer in layers.items()
    ]
    with hooked(handles):
        network(images)
    found = {}
    for name, layer in layers.items():
        output, winner = layer(inputs[name], return_winner=True)
        strength, position = output.flatten(2).max(2)
        found[name] = strength, winner.flatten(2).gather(2, position.unsqueeze(2)).squeeze(2).long()
    return found


@register("equivariance")
def _equivariance(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """The relative distance between features of rescaled digits and rescaled features, layer by layer."""
    config = run.settings.measure
    images, _ = digits.at_scale(1.0, config.digits or None)
    curves: dict[str, list[float]] = {layer: [] for layer in config.layers}
    for scale in config.scales:
        rescaled, _ = digits.at_scale(scale, config.digits or None)
        for layer, value in equivariance_error(network, images, rescaled, scale, config.layers, digits.blank()).items():
            curves[layer].append(value)
    return {layer: Series(list(config.scales), values) for layer, values in curves.items()}


@register("consistency")
@torch.no_grad()
def _consistency(run: Run, network: nn.Module, digits: RunDigits) -> dict[str, Series]:
    """What a network answers to the same digits at each scale, against its answers at scale 1, in percent.

    The share of digits with the same class; the share with the same class at this scale and all larger ones; and the
    distance of the output, relative to its norm.
    """
    config = run.settings.measure
    scales = sorted({*config.scales, 1.0}, reverse=True)
    answers = {scale: _answers(network, digits.at_scale(scale, config.digits or None)[0]) for scale in scales}
    there, always = answers[1.0], torch.ones(len(answers[1.0]), dtype=torch.bool, device=digits.test.device)
    found: dict[str, list[float]] = {"same class": [], "same class at all scales so far": [], "distance": []}
    for scale in scales:
        same = answers[scale].argmax(1) == there.argmax(1)
        always &= same
        found["same class"].append(100 * float(same.float().mean()))
        found["same class at all scales so far"].append(100 * float(always.float().mean()))
        found["distance"].append(100 * float((answers[scale] - there).norm() / there.norm()))
    return {name: Series(scales[::-1], values[::-1]) for name, values in found.items()}


def _answers(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network.eval()(some) for some in images.split(1000)])
