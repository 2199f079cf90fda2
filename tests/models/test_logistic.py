"""The solver of many logistic regressions at once, against Newton's method, torch's optimiser and itself alone."""

import pytest
import torch
from torch.nn import functional as F

from scaleconv.models.logistic import Loss, minimise, softmax

CLASSES = 3
PENALTIES = torch.tensor([[0.1, 1e-3], [1e-2, 1e-4]], dtype=torch.float64)


def make(sets=2, rows=60, width=4, seed=0):
    """Features with means and sizes that differ widely, and labels that follow them, but not without error."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(sets, rows, width, generator=random, dtype=torch.float64)
    scores = features @ torch.randn(sets, width, CLASSES, generator=random, dtype=torch.float64)
    labels = (scores + torch.randn(scores.shape, generator=random, dtype=torch.float64)).argmax(-1)
    return features * torch.logspace(-1, 1, width, dtype=torch.float64) + torch.arange(width), labels


def value(weights, features, labels, penalty):
    """Of one problem, by the definition."""
    scores = features @ weights[:-1] + weights[-1]
    return F.cross_entropy(scores, labels) + penalty / 2 * weights[:-1].square().sum()


def newton(features, labels, penalty):
    """The minimum of one problem by Newton's method in its plainest form, the steps halved until the loss falls."""
    shape = (features.shape[1] + 1, CLASSES)

    def loss(flat):
        return value(flat.view(shape), features, labels, penalty)

    flat = torch.zeros(shape, dtype=torch.float64).flatten()
    for _ in range(50):
        leaf = flat.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(leaf), leaf)
        # The pseudo-inverse, since equal changes of all biases change nothing.
        step = torch.linalg.pinv(torch.autograd.functional.hessian(loss, flat), hermitian=True) @ slope
        while loss(flat - step) > loss(flat) and step.norm() > 1e-12:
            step = step / 2
        flat = flat - step
    return flat.view(shape)


def test_all_problems_reach_the_minimum_that_newtons_method_finds():
    features, labels = make()
    found = minimise(features, labels, PENALTIES, CLASSES, 400)
    for index in range(2):
        for number, penalty in enumerate(PENALTIES[index].tolist()):
            best = newton(features[index], labels[index], penalty)
            weights = found[index, number]
            loss, lowest = (value(some, features[index], labels[index], penalty) for some in (weights, best))
            assert lowest <= loss < lowest * (1 + 1e-7)
            torch.testing.assert_close(weights[:-1], best[:-1], rtol=0, atol=1e-3)
            biases, others = (some[-1] - some[-1].mean() for some in (weights, best))
            torch.testing.assert_close(biases, others, rtol=0, atol=1e-3)
    assert found[:, :, :-1].abs().max() > 1


def test_a_problem_ends_where_it_would_have_ended_alone():
    features, labels = make()
    start = torch.randn(2, 2, 5, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for begin in (None, start):
        together = minimise(features, labels, PENALTIES, CLASSES, 400, begin)
        for index in range(2):
            for number in range(2):
                one, some = slice(index, index + 1), slice(number, number + 1)
                known = None if begin is None else begin[one, some]
                alone = minimise(features[one], labels[one], PENALTIES[one, some], CLASSES, 400, known)
                assert alone.shape == (1, 1, 5, CLASSES)
                torch.testing.assert_close(together[index, number], alone[0, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [1e-2, 1e-4])
def test_float32_gets_as_low_as_torchs_optimiser(penalty):
    features, labels = make(1, 400, 30, seed=2)
    leaf = torch.zeros(31, CLASSES, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([leaf], max_iter=1000, tolerance_change=1e-13, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = value(leaf, features[0], labels[0], penalty)
        loss.backward()
        return loss

    optimiser.step(closure)
    weights = minimise(features.float(), labels, torch.tensor([[penalty]]), CLASSES, 400)[0, 0]
    assert weights.dtype == torch.float32
    assert value(weights.double(), features[0], labels[0], penalty) < 1.00001 * value(
        leaf, features[0], labels[0], penalty
    )


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_the_search_never_passes_the_minimum_of_a_direction(scale):
    features, labels = make(seed=3)
    random = torch.Generator().manual_seed(0)
    loss = Loss(features, labels, PENALTIES, CLASSES)
    weights = torch.randn(2, 2, 5, CLASSES, generator=random, dtype=torch.float64)
    logits = loss.logits(weights)
    gradient = loss.gradient(weights, logits.softmax(-1))
    direction = -scale * gradient * torch.rand(gradient.shape, generator=random, dtype=torch.float64)
    slope = (gradient * direction).sum((2, 3))
    length = loss.search(weights, direction, slope, logits, loss.logits(direction), logits.softmax(-1))
    assert (length > 0).all()
    reached = weights + length[..., None, None] * direction
    behind = (loss.gradient(reached, loss.logits(reached).softmax(-1)) * direction).sum((2, 3))
    assert (behind <= 1e-12).all()
    assert (behind > slope).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_separable_classes_end_in_finite_weights(dtype, size):
    labels = torch.arange(30).view(1, -1) % CLASSES
    features = size * F.one_hot(labels, CLASSES).to(dtype)
    for penalty in (0.0, 1e-9):
        weights = minimise(features, labels, torch.tensor([[penalty]], dtype=dtype), CLASSES, 400)[0, 0]
        assert weights.isfinite().all()
        assert torch.equal((features[0] @ weights[:-1] + weights[-1]).argmax(-1), labels[0])


def test_a_constant_feature_gets_no_weight_and_changes_no_other():
    features, labels = make(1)
    wider = torch.cat([features, torch.full((1, 60, 1), 5.0, dtype=torch.float64)], -1)
    without, found = (minimise(some, labels, PENALTIES[:1], CLASSES, 400) for some in (features, wider))
    assert found[:, :, 4].abs().max() < 1e-12
    torch.testing.assert_close(found[:, :, :4], without[:, :, :4], rtol=0, atol=1e-6)


def test_a_class_that_is_missing_in_one_set_gets_no_probability_there():
    features, labels = make()
    labels[1] = labels[1].clamp(max=1)
    found = minimise(features, labels, PENALTIES, CLASSES, 400)
    scores = features[:, None] @ found[:, :, :-1] + found[:, :, -1:]  # (F, P, N, C)
    assert found.isfinite().all()
    assert scores[1].softmax(-1)[..., 2].max() < 1e-3
    assert scores[0].softmax(-1)[..., 2].max() > 0.9


def test_one_class_alone_is_learned_at_once():
    features, labels = make()
    assert (minimise(features, 0 * labels, PENALTIES, 1, 400) == 0).all()


def test_iterations_are_counted_and_end_where_all_problems_are_done(monkeypatch):
    features, labels = make()
    counts = []
    real = Loss.search
    monkeypatch.setattr(Loss, "search", lambda *arguments: (counts.append(1), real(*arguments))[1])
    minimise(features, labels, PENALTIES, CLASSES, 7)
    assert len(counts) == 7
    counts.clear()
    minimise(features, labels, PENALTIES, CLASSES, 10_000)
    assert 7 < len(counts) < 200


def test_a_start_at_the_minimum_is_the_end():
    features, labels = make()
    found = minimise(features, labels, PENALTIES, CLASSES, 400)
    again = minimise(features, labels, PENALTIES, CLASSES, 1, found)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-4)


def test_probabilities_of_large_logits_are_those_of_torch():
    logits = torch.tensor([[1000.0, 0.0, 999.0], [-1000.0, -1001.0, -2000.0], [0.0, 0.5, -3.0]])
    torch.testing.assert_close(softmax(logits), logits.softmax(-1))
