"""The rows of Table 1 that learn features without labels, then a softmax classifier on them.

The RBMs of all folds are trained at once, in one batch of matrix products; then each fold gets its classifier. Every
method has the same classifier and the same choice of penalties. `pixels` is the control without learned features.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .rbm import ENLARGING_SCALES, RBM, SIRBM, Progress, Recipe
from .softmax import choose_softmax

UNSUPERVISED = {"pixels": "Softmax on pixels", "rbm": "RBM", "si_rbm": "Scale-invariant RBM"}
PENALTIES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
SAMPLES, STEPS = 100, 10  # images drawn from an RBM for its figure, and Gibbs steps of each


@dataclass(frozen=True)
class UnsupervisedSettings:
    """How a method is trained; The values are checked where settings are read."""

    hidden: int = 1000  # units of an RBM
    scales: tuple[float, ...] = ENLARGING_SCALES  # of the SI-RBM
    recipe: Recipe = field(default_factory=Recipe)
    penalties: tuple[float, ...] = PENALTIES  # of the classifier, to choose from
    held_out: float = 0.2  # the part of the training digits on which the penalty is chosen


@dataclass(frozen=True)
class Fold:
    """The digits of a run: images (N, 1, H, W) in [0, 1], without the mean subtracted, and labels (N,).

    `start` is the seed of the filters of its RBM; None for that of everything else.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    start: int | None = None


@dataclass(frozen=True)
class UnsupervisedRun:
    """The result of a fold. The control `pixels` has no epochs and no samples."""

    test_error: float  # in percent
    penalty: float  # that was chosen, by the losses
    held_out_losses: dict[float, float]  # of the held-out part, for each penalty
    held_out_errors: dict[float, float]
    reconstruction: list[float]  # mean squared error of reconstructions after each epoch
    epoch_seconds: list[float]  # of each epoch, for all folds together
    weights: dict[str, Tensor]  # by name, of the RBM and of the classifier
    samples: Tensor | None  # (N, V) drawn from the RBM, by short chains that start at the first test digits
    parameters: int  # numbers learned
    seconds: float  # of training the RBMs of all folds, and of choosing the classifier of this one


def train_unsupervised(
    name: str,
    folds: Sequence[Fold],
    settings: UnsupervisedSettings,
    *,
    seed: int = 0,
    watch: Callable[[Progress], None] | None = None,
) -> list[UnsupervisedRun]:
    """Learn the features of all folds together, then a classifier for each.

    Args:
        name: one of `UNSUPERVISED`.
        folds: on one device, with equally many training digits.
        settings: how to train.
        seed: of all that is random, but of filters where a fold has a seed for them.
        watch: called after every epoch.
    """
    if name not in UNSUPERVISED:
        raise ValueError(f"`name` must be one of {', '.join(UNSUPERVISED)}, got {name!r}")
    counts = [len(fold.train_images) for fold in folds]
    if len(set(counts)) != 1:
        raise ValueError(f"`folds` must have equally many training digits, got {counts}")
    if name == "pixels":
        return [_classify(None, fold, settings, seed, 0.0) for fold in folds]
    start = time.perf_counter()
    images = torch.stack([fold.train_images.flatten(1) for fold in folds])
    height, width = folds[0].train_images.shape[-2:]
    if name == "rbm":
        model = RBM(settings.hidden, settings.recipe, seed=seed)
    else:
        model = SIRBM(settings.hidden, (height, width), settings.recipe, scales=settings.scales, seed=seed)
    model.fit(images, watch, starts=[seed if fold.start is None else fold.start for fold in folds])
    seconds = time.perf_counter() - start
    return [_classify(model.run(index), fold, settings, seed, seconds) for index, fold in enumerate(folds)]


def _classify(
    model: RBM | None, fold: Fold, settings: UnsupervisedSettings, seed: int, seconds: float
) -> UnsupervisedRun:
    start = time.perf_counter()
    train, test = fold.train_images.flatten(1), fold.test_images.flatten(1)
    features = model.transform(train) if model else train
    classifier, losses, errors = choose_softmax(
        features, fold.train_labels, settings.penalties, held_out=settings.held_out, seed=seed
    )
    seconds += time.perf_counter() - start
    predictions = classifier.predict(model.transform(test) if model else test)
    weights = {"classifier.weight": classifier.weight, "classifier.bias": classifier.bias}
    if model:
        weights |= {f"rbm.{name}": tensor for name, tensor in model.state().items()}
    history, first = model.history if model else [], test[:SAMPLES]
    return UnsupervisedRun(
        test_error=100 * int((predictions != fold.test_labels).sum()) / len(fold.test_labels),
        penalty=classifier.penalty,
        held_out_losses=losses,
        held_out_errors=errors,
        reconstruction=[float(entry.reconstruction) for entry in history],
        epoch_seconds=[entry.seconds for entry in history],
        weights=weights,
        samples=model.sample(first, STEPS) if model else None,
        parameters=sum(tensor.numel() for tensor in weights.values()),
        seconds=seconds,
    )
