"""A softmax classifier on fixed features, its penalty chosen on a part of the training set.

It is trained on the features of the RBMs and, as a control, on raw pixels. The loss is convex with a single minimum, so
nothing is random but the choice of the held-out part.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

# No derivative of the loss is larger at the end, in float64. Features in [0, 1] and penalties down to 3e-6 leave the
# loss within 1e-6 of its minimum.
TOLERANCE = 1e-6
ITERATIONS = 2000


class SoftmaxClassifier:
    """Multinomial logistic regression: mean cross-entropy + penalty/2 · ‖weight‖², minimised by L-BFGS.

    Args:
        penalty: of the squared weights; biases have none.
        classes: how many there are.

    Attributes:
        weight: (features, classes)
        bias: (classes,)

    Example:
        >>> features, labels = torch.eye(3), torch.tensor([0, 1, 2])
        >>> SoftmaxClassifier(0.01, 3).fit(features, labels).predict(features)
        tensor([0, 1, 2])
    """

    def __init__(self, penalty: float, classes: int = 10) -> None:
        self.penalty, self.classes = penalty, classes
        self.weight, self.bias = torch.empty(0, classes), torch.empty(classes)

    def fit(self, features: Tensor, labels: Tensor, start: "SoftmaxClassifier | None" = None) -> Self:
        """Learn from features (N, F) and labels (N,), from the weights of another classifier if one is given."""
        inputs = features.detach().double()
        centre = inputs.mean(0)
        inputs = inputs - centre  # which makes the problem well conditioned; the bias makes up for it
        weight = start.weight.to(inputs) if start else inputs.new_zeros(features.shape[1], self.classes)
        bias = start.bias.to(inputs) + centre @ weight if start else inputs.new_zeros(self.classes)
        weight, bias = weight.clone().requires_grad_(), bias.requires_grad_()
        optimiser = torch.optim.LBFGS(
            [weight, bias],
            max_iter=ITERATIONS,
            max_eval=10 * ITERATIONS,
            tolerance_grad=TOLERANCE,
            tolerance_change=0,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> Tensor:
            optimiser.zero_grad()
            loss = F.cross_entropy(inputs @ weight + bias, labels) + self.penalty / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimiser.step(evaluate)
        self.weight = weight.detach().to(features.dtype)
        self.bias = (bias - centre @ weight).detach().to(features.dtype)
        return self

    def predict(self, features: Tensor) -> Tensor:
        """The most probable class of each row of features."""
        return self.scores(features).argmax(-1)

    def scores(self, features: Tensor) -> Tensor:
        """Log-probabilities of the classes, up to a constant of each row: (N, F) → (N, classes)."""
        scores: Tensor = features @ self.weight + self.bias
        return scores


def choose_softmax(
    features: Tensor,
    labels: Tensor,
    penalties: Sequence[float],
    classes: int = 10,
    *,
    held_out: float = 0.2,
    seed: int = 0,
) -> tuple[SoftmaxClassifier, dict[float, float], dict[float, float]]:
    """Choose the penalty on a random part of the training set, then learn from the whole.

    The loss decides, not the error: of a few hundred digits the error is a count of a few dozen, too coarse to rank
    penalties by. Penalties are tried from the largest to the smallest, each from the weights of the one before.

    Args:
        features: (N, F)
        labels: (N,)
        penalties: to choose from, at least one.
        classes: how many there are.
        held_out: the part of the training set that is held out, between 0 and 1.
        seed: of that part.

    Returns:
        The classifier with the penalty of the lowest held-out loss, trained on all rows; and for each penalty, the
        largest first, the mean cross-entropy of the held-out rows and their error in percent.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held, rest = order.tensor_split([max(1, round(held_out * len(order)))])
    tried: list[SoftmaxClassifier] = []
    losses, errors = {}, {}
    for penalty in sorted(set(penalties), reverse=True):
        classifier = SoftmaxClassifier(penalty, classes)
        tried.append(classifier.fit(features[rest], labels[rest], tried[-1] if tried else None))
        scores = classifier.scores(features[held])
        losses[penalty] = float(F.cross_entropy(scores, labels[held]))
        errors[penalty] = 100 * float((scores.argmax(-1) != labels[held]).double().mean())
    best = min(tried, key=lambda classifier: losses[classifier.penalty])
    return SoftmaxClassifier(best.penalty, classes).fit(features, labels, best), losses, errors
