"""What is measured on trained networks besides the test error.

A measure is one function, registered under the name that `kind` of a file's `[measure]` section gives. It takes what a
run has left, a `Trained`, and returns series for the record. Each series becomes a panel of the figure with a line per
method, unless `tables.py` arranges it otherwise. The mean of a series called `test_error` becomes the test error of the
run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.rescale import rescale
from ..metrics import equivariance_error, invariance_scores, top_mean
from ..models import Classifier
from ..nn import SIConv2d
from ..nn.observe import evaluating, hooked
from .records import Series
from .scores import Tally, by_size
from .settings import MeasureSettings
from .sources import FromFiles, InMemory, Source

BY_SCALE, BY_SIZE, IOU_BY_SCALE = "accuracy by scale", "accuracy by size", "mean IoU by scale"
TEST_SCALES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0)  # of images of your own


@dataclass(frozen=True)
class Trained:
    """What a run has left: what measures look at.

    Attributes:
        network: that counts, on its device.
        untrained: makes the same network with the weights it began with.
        source: its images.
        settings: of the measure.
        score: tests the network on examples, as the run's precision and processes want it.
    """

    network: Classifier
    untrained: Callable[[], Classifier]
    source: Source
    settings: MeasureSettings
    score: Callable[..., Tally]

    def at_scale(self, scale: float) -> InMemory:
        """The test images, of the number and size that the settings want, with their digits at one scale."""
        found = self.source.at_scale(scale, self.settings.digits or None, self.settings.size or None)
        if not isinstance(found, InMemory):
            raise ValueError(f"`kind` must be accuracy for images of your own, got {self.settings.kind!r}")
        return found


Measure = Callable[[Trained], dict[str, Series]]
MEASURES: dict[str, Measure] = {}


def register(name: str) -> Callable[[Measure], Measure]:
    """Register a function as the measure of this name."""

    def add(function: Measure) -> Measure:
        if name in MEASURES:
            raise ValueError(f"`name` of a measure must be new, got {name!r}")
        MEASURES[name] = function
        return function

    return add


def check_measure(settings: MeasureSettings, model: str, network: nn.Module) -> None:
    """Refuse what cannot be measured on the network of a run: before it is trained.

    Raises:
        ValueError: there is no such measure; or the network has no layer of a name, or none that is scale-invariant
            where their winners are counted.
    """
    if not settings.kind:
        return
    if settings.kind not in MEASURES:
        raise ValueError(f"`measure.kind` must be one of {', '.join(MEASURES)}, got {settings.kind!r}")
    modules = dict(network.named_modules())
    for layer in settings.layers:
        if layer not in modules:
            known = ", ".join(filter(None, modules))
            raise ValueError(f"`measure.layers` must be layers of {model} ({known}), got {layer!r}")
    if settings.kind == "winners" and not any(isinstance(module, SIConv2d) for module in modules.values()):
        raise ValueError(f"`models` must have scale-invariant layers for winners, got {model!r}")


@register("accuracy")
def _accuracy(trained: Trained) -> dict[str, Series]:
    """Accuracy in percent at each of the scales, with masks also the mean IoU.

    Where images had several sizes, also the accuracy by size at scale 1.
    """
    scales = list(trained.settings.scales)
    tallies = {scale: trained.score(trained.network, trained.source.at_scale(scale, None, None)) for scale in scales}
    found = {BY_SCALE: Series(scales, [100 - tally.error() for tally in tallies.values()])}
    if trained.source.images.task == "segmentation":
        found[IOU_BY_SCALE] = Series(scales, [tally.mean_iou() for tally in tallies.values()])
    test = trained.source.test
    if 1.0 in tallies and isinstance(test, FromFiles):
        sides = [min(file.size) for file in test.files.files]
        if len(set(sides)) > 1:
            found[BY_SIZE] = Series(*by_size(tallies[1.0], sides))
    return found


@register("test_scales")
def _test_scales(trained: Trained) -> dict[str, Series]:
    """The test error in percent with all test digits at one scale, for each of the scales."""
    scales = list(trained.settings.scales)
    return {"test_error": Series(scales, [trained.score(trained.network, trained.at_scale(s)).error() for s in scales])}


@register("invariance")
def _invariance(trained: Trained) -> dict[str, Series]:
    """The mean score of the most invariant neurons of each layer, after training and before.

    What is rescaled are the test digits of MNIST-Scale, each already at its own scale, or the same digits at one scale.
    """
    settings = trained.settings
    test = trained.at_scale(settings.digits_at) if settings.digits_at else trained.source.test
    images = test.tensors[0][: settings.digits or None]  # type: ignore[index]

    def rescaled(some: Tensor, factor: float) -> Tensor:
        return rescale(some, factor, antialias=False, border="zeros")

    layers = [f"network.{layer}" for layer in settings.layers]
    found = {}
    for name, subject in (("trained", trained.network), ("random", trained.untrained().to(images.device))):
        with evaluating(subject):
            scores = invariance_scores(
                subject, images, layers, rescaled, settings.scales, neuron=settings.neuron, firing=settings.firing
            )
        values = [top_mean(scores[layer], settings.top) for layer in layers]
        found[name] = Series([float(number) for number in range(1, len(values) + 1)], values)
    return found


@register("winners")
def _winners(trained: Trained) -> dict[str, Series]:
    """How often each level wins, in percent, against the true scale of the digits.

    Counted once per filter and image, at the position of the strongest response, if that exceeds the response to an
    empty image. On the empty background all levels tie.
    """
    config, network = trained.settings, trained.network
    layers = {name: layer for name, layer in network.network.named_modules() if isinstance(layer, SIConv2d)}
    counts = {name: torch.zeros(len(config.scales), len(layer.scales)) for name, layer in layers.items()}
    with evaluating(network):
        blank = _strongest(network, layers, torch.zeros_like(trained.at_scale(config.scales[0]).images[:1]))
        for index, scale in enumerate(config.scales):
            for some in trained.at_scale(scale).images.split(500):
                for name, (strength, winner) in _strongest(network, layers, some).items():
                    chosen = winner[strength > blank[name][0] + 1e-6]
                    counts[name][index] += chosen.bincount(minlength=len(layers[name].scales)).cpu()
    found: dict[str, Series] = {}
    for name, layer in layers.items():
        shares = (100 * counts[name].double() / counts[name].sum(1, keepdim=True).clamp(min=1)).T.tolist()
        found |= {f"{name} {scale:.3g}": Series(list(config.scales), shares[k]) for k, scale in enumerate(layer.scales)}
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
def _equivariance(trained: Trained) -> dict[str, Series]:
    """The relative distance between features of rescaled digits and rescaled features, layer by layer."""
    config = trained.settings
    images = trained.at_scale(1.0).images
    names = {f"network.{layer}": layer for layer in config.layers}
    curves: dict[str, list[float]] = {layer: [] for layer in config.layers}
    for scale in config.scales:
        rescaled, blank = trained.at_scale(scale).images, torch.zeros_like(images[:1])
        with evaluating(trained.network):
            errors = equivariance_error(trained.network, images, rescaled, scale, list(names), blank)
        for name, value in errors.items():
            curves[names[name]].append(value)
    return {layer: Series(list(config.scales), values) for layer, values in curves.items()}


@register("consistency")
@torch.no_grad()
def _consistency(trained: Trained) -> dict[str, Series]:
    """The outputs of a network for the same digits at each scale, against those at scale 1, in percent.

    The share of digits with the same class; the share with the same class at this scale and all larger ones; and the
    distance of the output, relative to its norm.
    """
    scales = sorted({*trained.settings.scales, 1.0}, reverse=True)
    outputs = {scale: _outputs(trained.network, trained.at_scale(scale).images) for scale in scales}
    there = outputs[1.0]
    always = torch.ones(len(there), dtype=torch.bool, device=there.device)
    found: dict[str, list[float]] = {"same class": [], "same class at all scales so far": [], "distance": []}
    for scale in scales:
        same = outputs[scale].argmax(1) == there.argmax(1)
        always &= same
        found["same class"].append(100 * float(same.float().mean()))
        found["same class at all scales so far"].append(100 * float(always.float().mean()))
        found["distance"].append(100 * float((outputs[scale] - there).norm() / there.norm()))
    return {name: Series(scales[::-1], values[::-1]) for name, values in found.items()}


def _outputs(network: nn.Module, images: Tensor) -> Tensor:
    with evaluating(network):
        return torch.cat([network(some) for some in images.split(1000)])
