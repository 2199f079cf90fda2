"""Runs of the last rows of Table 1: features learned without labels, then a softmax classifier on them.

All folds of a model are trained together, in one batch of matrix products; each fold ends as if it were alone. On a GPU
their classifiers are trained together too, as many as fit into its memory. Every model gets the same classifier and the
same choice of penalties. `pixels` is the control without any features.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..ops.call import check_scales
from ..ops.checks import check_count, check_number
from .contrastive import Progress, Recipe
from .rbm import RBM
from .si_rbm import ENLARGING_SCALES, SIRBM
from .softmax import Choice, choose_softmax

UNSUPERVISED = {"pixels": "Softmax on pixels", "rbm": "RBM", "si_rbm": "Scale-invariant RBM"}
PENALTIES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
SAMPLES, STEPS = 100, 10  # drawn from an RBM to be looked at, and Gibbs steps of each
CHUNK = 5000  # test images at a time: bounds the memory of their features
TOGETHER = 2**32  # bytes of features: more of them are classified one fold after the other on a GPU


@dataclass(frozen=True)
class UnsupervisedSettings:
    """How a model is trained; those of a comparison share the units, the penalties and the held-out part.

    Attributes:
        hidden: units of an RBM.
        scales: of the SI-RBM.
        recipe: of an RBM.
        penalties: of the classifier, to choose from.
        held_out: the part of the training digits on which the penalty is chosen.
    """

    hidden: int = 1000
    scales: tuple[float, ...] = ENLARGING_SCALES
    recipe: Recipe = field(default_factory=Recipe)
    penalties: tuple[float, ...] = PENALTIES
    held_out: float = 0.2

    def __post_init__(self) -> None:
        check_count("hidden", self.hidden)
        check_scales(self.scales)
        for penalty in self.penalties:
            check_number("penalties", penalty)
        if not self.penalties or not 0 < check_number("held_out", self.held_out) < 1:
            got = f"{list(self.penalties)} and {self.held_out}"
            raise ValueError(f"`penalties` must name at least one, and `held_out` lie between 0 and 1, got {got}")


@dataclass(frozen=True)
class Fold:
    """The digits of a run: images (N, 1, H, W) in [0, 1], without the mean subtracted, and labels (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class UnsupervisedRun:
    """What came out of a fold.

    Attributes:
        test_error: in percent.
        penalty: that was chosen.
        held_out_losses, held_out_errors: of the held-out part for each penalty; the losses decided.
        reconstruction: mean squared error of reconstructions after each epoch; empty for pixels.
        epoch_seconds: of each epoch, for all folds together; empty for pixels.
        weights: by name, of the RBM and of the classifier.
        samples: (N, V) drawn from the RBM, by short chains that start at the first test digits; None for pixels.
        parameters: numbers learned.
        seconds: of training, for all folds together, and this fold's share of those of the choice of classifiers.
    """

    test_error: float
    penalty: float
    held_out_losses: dict[float, float]
    held_out_errors: dict[float, float]
    reconstruction: list[float]
    epoch_seconds: list[float]
    weights: dict[str, Tensor]
    samples: Tensor | None
    parameters: int
    seconds: float


def train_unsupervised(
    name: str,
    folds: Sequence[Fold],
    settings: UnsupervisedSettings,
    *,
    seed: int = 0,
    watch: Callable[[Progress], None] | None = None,
) -> list[UnsupervisedRun]:
    """Learn the features of each fold together, then one classifier for each.

    Args:
        name: one of `UNSUPERVISED`.
        folds: on one device, with equally many training digits.
        settings: how to train.
        seed: of all that is random.
        watch: told of every epoch.
    """
    if name not in UNSUPERVISED:
        raise ValueError(f"`name` must be one of {', '.join(UNSUPERVISED)}, got {name!r}")
    counts = [len(fold.train_images) for fold in folds]
    if len(set(counts)) != 1:
        raise ValueError(f"`folds` must have equally many training digits, got {counts}")
    start = time.perf_counter()
    height, width = folds[0].train_images.shape[-2:]
    model = _make(name, settings, (height, width), seed)
    if model:
        model.fit(torch.stack([fold.train_images.flatten(1) for fold in folds]), watch)
    seconds = time.perf_counter() - start
    parts = [(model and model.run(index), fold) for index, fold in enumerate(folds)]
    count = _together(folds[0].train_images, settings.hidden if model else height * width)
    groups = [parts[first : first + count] for first in range(0, len(parts), count)]
    return [run for group in groups for run in _classify(group, settings, seed, seconds)]


def _make(name: str, settings: UnsupervisedSettings, size: tuple[int, int], seed: int) -> RBM | None:
    if name == "pixels":
        return None
    if name == "rbm":
        return RBM(settings.hidden, settings.recipe, seed=seed)
    return SIRBM(settings.hidden, size, settings.recipe, scales=settings.scales, seed=seed)


def _together(images: Tensor, features: int) -> int:
    """How many folds of so many images and features are classified at once."""
    return max(1, TOGETHER // (len(images) * features * images.element_size())) if images.is_cuda else 1


def _classify(
    parts: Sequence[tuple[RBM | None, Fold]], settings: UnsupervisedSettings, seed: int, seconds: float
) -> list[UnsupervisedRun]:
    begun = time.perf_counter()
    choices = choose_softmax(
        torch.stack([_features(model, fold.train_images) for model, fold in parts]),
        torch.stack([fold.train_labels for _, fold in parts]),
        settings.penalties,
        held_out=settings.held_out,
        seed=seed,
    )
    seconds += (time.perf_counter() - begun) / len(parts)
    return [_judge(model, fold, choice, seconds) for (model, fold), choice in zip(parts, choices, strict=True)]


def _features(model: RBM | None, images: Tensor) -> Tensor:
    return model.transform(images.flatten(1)) if model else images.flatten(1)


def _judge(model: RBM | None, fold: Fold, choice: Choice, seconds: float) -> UnsupervisedRun:
    classifier = choice.classifier
    wrong = 0
    for images, labels in zip(fold.test_images.split(CHUNK), fold.test_labels.split(CHUNK), strict=True):
        wrong += int((classifier.predict(_features(model, images)) != labels).sum())
    weights = {"classifier.weight": classifier.weight, "classifier.bias": classifier.bias}
    history = model.history if model else []
    start = fold.test_images[:SAMPLES].flatten(1)
    if model:
        weights |= {f"rbm.{parameter}": tensor for parameter, tensor in model.state().items()}
    return UnsupervisedRun(
        test_error=100 * wrong / len(fold.test_labels),
        penalty=classifier.penalty,
        held_out_losses=choice.losses,
        held_out_errors=choice.errors,
        reconstruction=[float(entry.reconstruction) for entry in history],
        epoch_seconds=[entry.seconds for entry in history],
        weights=weights,
        samples=model.sample(len(start), STEPS, start=start) if model else None,
        parameters=sum(tensor.numel() for tensor in weights.values()),
        seconds=seconds,
    )
