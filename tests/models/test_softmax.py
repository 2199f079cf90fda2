"""The classifier on fixed features: its minimum against Newton's method, and how its penalty is chosen."""

import pytest
import torch
from torch.nn import functional as F

from scaleconv.models import SoftmaxClassifier
from scaleconv.models.softmax import choose_softmax

CLASSES = 3


def make(rows=120, width=4):
    """Features with means and sizes that differ widely, and labels that follow them with some error."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(rows, width, generator=random, dtype=torch.float64)
    scores = features @ torch.randn(width, CLASSES, generator=random, dtype=torch.float64)
    labels = (scores + torch.randn(scores.shape, generator=random, dtype=torch.float64)).argmax(-1)
    return features * torch.logspace(-1, 1, width, dtype=torch.float64) + torch.arange(width), labels


FEATURES, LABELS = make()


def newton(features, labels, penalty):
    """Weights and biases by Newton's method in its plainest form, the steps halved until the loss falls."""
    shape = (features.shape[1] + 1, CLASSES)

    def loss(flat):
        weights = flat.view(shape)
        return (
            F.cross_entropy(features @ weights[:-1] + weights[-1], labels) + penalty / 2 * weights[:-1].square().sum()
        )

    flat = torch.zeros(shape, dtype=torch.float64).flatten()
    for _ in range(30):
        slope = torch.autograd.functional.jacobian(loss, flat)
        # The pseudo-inverse, since equal changes of all biases change nothing.
        step = torch.linalg.pinv(torch.autograd.functional.hessian(loss, flat), hermitian=True) @ slope
        while loss(flat - step) > loss(flat) and step.norm() > 1e-12:
            step = step / 2
        flat = flat - step
    return flat.view(shape)[:-1], flat.view(shape)[-1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("penalty", [0.1, 1e-3])
def test_the_classifier_is_at_the_minimum_wherever_it_starts(penalty, dtype):
    features = FEATURES.to(dtype)
    start = SoftmaxClassifier(10, CLASSES).fit(features, LABELS)
    weight, bias = newton(FEATURES, LABELS, penalty)
    before = start.weight.clone()
    for begin in (None, start):
        fitted = SoftmaxClassifier(penalty, CLASSES).fit(features, LABELS, begin)
        torch.testing.assert_close(fitted.weight, weight.to(dtype), rtol=0, atol=1e-6 / penalty + 1e-5)
        expected = FEATURES @ weight + bias
        scores = fitted.scores(features).double()
        torch.testing.assert_close(scores.log_softmax(1), expected.log_softmax(1), rtol=0, atol=1e-3)
        assert torch.equal(fitted.predict(features), expected.argmax(1))
    assert torch.equal(start.weight, before)
    assert weight.abs().max() > 0.1


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_separable_classes_end_in_finite_weights(size):
    labels = torch.arange(30) % CLASSES
    features = size * F.one_hot(labels, CLASSES).float()
    fitted = SoftmaxClassifier(1e-9, CLASSES).fit(features, labels)
    assert fitted.weight.isfinite().all()
    assert torch.equal(fitted.predict(features), labels)


def test_the_penalty_is_the_one_with_the_lowest_loss_on_the_held_out_part():
    penalties = (1e-4, 10.0, 1e-2)
    classifier, losses, errors = choose_softmax(FEATURES, LABELS, penalties, CLASSES, held_out=0.25, seed=7)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(7))
    held, rest = order[:30], order[30:]
    for penalty in penalties:
        weight, bias = newton(FEATURES[rest], LABELS[rest], penalty)
        scores = FEATURES[held] @ weight + bias
        assert losses[penalty] == pytest.approx(F.cross_entropy(scores, LABELS[held]).item(), abs=1e-4)
        assert errors[penalty] == pytest.approx(100 * (scores.argmax(1) != LABELS[held]).double().mean().item())
    assert list(losses) == list(errors) == [10.0, 1e-2, 1e-4]
    assert classifier.penalty == min(losses, key=losses.get) != 10.0
    weight, _ = newton(FEATURES, LABELS, classifier.penalty)  # from all rows
    torch.testing.assert_close(classifier.weight, weight, rtol=0, atol=1e-3)
