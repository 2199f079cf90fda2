"""A softmax classifier on fixed features, its regularisation chosen on a part of the training set.

The loss is convex with a single minimum, so nothing is random but the choice of the held-out part. Used on the features
of the RBMs and, as a control, on raw pixels. All penalties are tried at once, on all sets of features that are given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.checks import check_count, check_number
from .images import check_parameter
from .logistic import minimise

ITERATIONS = 400


class SoftmaxClassifier:
    """Multinomial logistic regression: mean cross-entropy + penalty/2 · ‖weight‖², minimised by L-BFGS.

    Args:
        penalty: of the squared weights; biases have none.
        classes: how many there are.
        iterations: of the search for the minimum, at most.

    Attributes:
        weight: (features, classes)
        bias: (classes,)

    Example:
        >>> features, labels = torch.eye(3), torch.tensor([0, 1, 2])
        >>> SoftmaxClassifier(0.01, 3).fit(features, labels).predict(features)
        tensor([0, 1, 2])
    """

    def __init__(self, penalty: float, classes: int = 10, *, iterations: int = ITERATIONS) -> None:
        self.penalty = check_number("penalty", penalty)
        self.classes, self.iterations = check_count("classes", classes), check_count("iterations", iterations)
        self.weight, self.bias = torch.empty(0, self.classes), torch.empty(self.classes)

    def fit(self, features: Tensor, labels: Tensor, start: "SoftmaxClassifier | None" = None) -> Self:
        """Learn from features (N, F) and labels (N,), from the weights of another classifier if one is given."""
        _check_labelled(features, labels, self.classes)
        shape = (features.shape[1], self.classes)
        if start and start.weight.shape != shape:
            raise ValueError(f"`start` must have weights of shape {shape}, got {tuple(start.weight.shape)}")
        penalties = features.new_tensor([[self.penalty]])
        known = torch.cat([start.weight, start.bias.unsqueeze(0)])[None, None] if start else None
        return self._take(minimise(features[None], labels[None], penalties, self.classes, self.iterations, known)[0, 0])

    def _take(self, weights: Tensor) -> Self:
        """Weights (features + 1, classes), biases last; copied, since a file holds no tensors that share memory."""
        self.weight, self.bias = weights[:-1].clone(), weights[-1].clone()
        return self

    def predict(self, features: Tensor) -> Tensor:
        """The most probable class of each row of features."""
        return self.scores(features).argmax(-1)

    def scores(self, features: Tensor) -> Tensor:
        """Log-probabilities of the classes, up to a constant of each row: (N, F) → (N, classes)."""
        if len(self.weight) == 0:
            raise RuntimeError("this SoftmaxClassifier has not learned anything: call `fit` first")
        check_parameter("features", features, 1)
        if features.shape[-1] != len(self.weight):
            raise ValueError(f"`features` must have {len(self.weight)} columns, as learned, got {features.shape[-1]}")
        if features.dtype != self.weight.dtype or features.device != self.weight.device:
            learned = f"{self.weight.dtype} on {self.weight.device}"
            raise ValueError(f"`features` must be {learned}, as learned, got {features.dtype} on {features.device}")
        scores: Tensor = features @ self.weight + self.bias
        return scores


@dataclass(frozen=True)
class Choice:
    """A classifier and how its penalty was chosen.

    Attributes:
        classifier: learned from all training features with the penalty of the lowest held-out loss.
        losses: mean cross-entropy of the held-out part for each penalty.
        errors: of the held-out part in percent, for each penalty.
    """

    classifier: SoftmaxClassifier
    losses: dict[float, float]
    errors: dict[float, float]


def choose_softmax(
    features: Tensor,
    labels: Tensor,
    penalties: Sequence[float],
    classes: int = 10,
    *,
    held_out: float = 0.2,
    seed: int = 0,
) -> list[Choice]:
    """Choose the penalty on a random part of a training set, then learn from the whole, for R sets of one size at once.

    The loss decides, not the error: of a few hundred digits the error is a count of a few dozen, too coarse to rank
    penalties by. Each set has a choice of its own, as if it were alone.

    Args:
        features: (R, N, F) of the training sets.
        labels: (R, N)
        penalties: to choose from.
        classes: how many there are.
        held_out: the part of a training set that is held out.
        seed: of that part.
    """
    if len(features) != len(labels):
        raise ValueError(f"`labels` must be of {len(features)} training sets, as `features` are, got {len(labels)}")
    for some, truth in zip(features, labels, strict=True):
        _check_labelled(some, truth, classes)
    if not 0 < check_number("held_out", held_out) < 1:
        raise ValueError(f"`held_out` must lie between 0 and 1, got {held_out}")
    tried = sorted({check_number("penalties", penalty) for penalty in penalties}, reverse=True)
    if not tried:
        raise ValueError("`penalties` must name at least one, got none")
    order = torch.randperm(labels.shape[1], generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held, rest = order.tensor_split([max(1, round(held_out * len(order)))])
    if not len(rest):
        raise ValueError(f"`held_out` (={held_out}) must leave some of the {len(order)} rows to learn from")
    every = features.new_tensor(tried).expand(len(features), -1)  # (R, P)
    path = minimise(features[:, rest], labels[:, rest], every, classes, ITERATIONS)  # (R, P, F + 1, classes)
    scores = features[:, held].unsqueeze(1) @ path[:, :, :-1] + path[:, :, -1:]  # (R, P, held out, classes)
    truth = labels[:, held].unsqueeze(1).expand(scores.shape[:-1])
    losses = F.cross_entropy(scores.movedim(-1, 1), truth, reduction="none").mean(-1)  # (R, P)
    errors = 100 * (scores.argmax(-1) != truth).double().mean(-1)
    best = losses.argmin(1, keepdim=True)
    start = path.take_along_dim(best[..., None, None], 1)
    found = minimise(features, labels, every.gather(1, best), classes, ITERATIONS, start).squeeze(1)
    choices = []
    for weights, index, *both in zip(found, best.flatten().tolist(), losses.tolist(), errors.tolist(), strict=True):
        classifier = SoftmaxClassifier(tried[index], classes)._take(weights)
        choices.append(Choice(classifier, *(dict(zip(tried, numbers, strict=True)) for numbers in both)))
    return choices


def _check_labelled(features: Tensor, labels: Tensor, classes: int) -> None:
    check_parameter("features", features, 0)
    if features.dim() != 2 or 0 in features.shape:
        raise ValueError(f"`features` must be of shape (N, F), none of them 0, got {tuple(features.shape)}")
    if not isinstance(labels, Tensor):
        raise TypeError(f"`labels` must be a tensor, got {type(labels).__name__}")
    if labels.shape != features.shape[:1] or labels.dtype != torch.long:
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(f"`labels` must be {len(features)} numbers of int64, got {got}")
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(f"`labels` must lie between 0 and {classes - 1}, got {low} to {high}")
