"""Methods that learn features without labels, as runs: the RBMs of the paper's table, and the control on pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch import Tensor

from ..models import Fold, Recipe, UnsupervisedSettings, train_unsupervised
from .methods import TITLES
from .records import Epoch, Series
from .settings import Settings
from .sources import Source


@dataclass(frozen=True)
class Learned:
    """What a run has learned.

    Attributes:
        history: of its epochs; the classifier is trained once, after the last, so only that one has a test error.
        series: loss and error of the held-out digits for each penalty.
        tensors: the weights by name, and samples, since drawing them takes digits.
        parameters: numbers learned.
        together: how many runs shared the device.
        other_seconds: of training outside of the epochs.
    """

    history: list[Epoch]
    series: dict[str, Series]
    tensors: dict[str, Tensor]
    parameters: int
    together: int
    other_seconds: float


def learn_features(
    model: str, settings: Settings, sources: Sequence[Source], seed: int, watch: Callable[[Any], None]
) -> list[Learned]:
    """Train one method on several folds at once; `watch` is told of every epoch.

    Raises:
        ValueError: training diverged.
    """
    folds = []
    for source in sources:
        (train, labels), (test, test_labels) = (part.tensors for part in (source.train, source.test))  # type: ignore[misc]
        folds.append(Fold(train, labels, test, test_labels))
    try:
        found = train_unsupervised(model, folds, _feature_settings(model, settings), seed=seed, watch=watch)
    except ValueError as error:
        raise ValueError(f"{TITLES[model]}: {error}, in the settings [{model}]") from None
    learned = []
    for result in found:
        losses, errors = result.held_out_losses, result.held_out_errors
        series = {
            "held_out_loss": Series(list(losses), list(losses.values())),
            "held_out_error": Series(list(errors), list(errors.values())),
        }
        pairs = zip(result.reconstruction, result.epoch_seconds, strict=True)
        history = [Epoch(number, loss, None, seconds) for number, (loss, seconds) in enumerate(pairs, start=1)]
        other = result.seconds - sum(result.epoch_seconds)
        if not history:  # pixels: a classifier only
            history, other = [Epoch(1, losses[result.penalty], None, result.seconds)], 0.0
        history[-1] = msgspec.structs.replace(history[-1], test_error=result.test_error)
        tensors = dict(result.weights) if result.samples is None else {**result.weights, "samples": result.samples}
        together = len(folds) if result.reconstruction else 1
        learned.append(Learned(history, series, tensors, result.parameters, together, other))
    return learned


def _feature_settings(model: str, settings: Settings) -> UnsupervisedSettings:
    """What `train_unsupervised` is told of a method's settings."""
    classifier = UnsupervisedSettings(penalties=settings.softmax.penalties, held_out=settings.softmax.held_out)
    if model == "pixels":
        return classifier
    machine = settings.rbm if model == "rbm" else settings.si_rbm
    values = msgspec.structs.asdict(machine)
    hidden, scales = values.pop("hidden"), values.pop("scales", None)
    found = replace(classifier, hidden=hidden, recipe=Recipe(**values))
    return found if scales is None else replace(found, scales=scales)
