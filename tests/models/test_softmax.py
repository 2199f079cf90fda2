"""The classifier on fixed features: its minimum, and how its penalty is chosen."""

import math
import re

import pytest
import torch
from torch.nn import functional as F

from scaleconv.models.softmax import SoftmaxClassifier, choose_softmax

RANDOM = torch.Generator().manual_seed(0)
FEATURES = torch.rand(300, 8, generator=RANDOM, dtype=torch.float64)
LABELS = ((FEATURES - 0.5) @ torch.randn(8, 3, generator=RANDOM, dtype=torch.float64)).argmax(1)


def choose(features, labels, *others, **options):
    """The choice for one training set."""
    (choice,) = choose_softmax(features[None], labels[None], *others, **options)
    return choice


def test_the_classifier_is_at_the_minimum():
    fitted = SoftmaxClassifier(0.01, 3).fit(FEATURES, LABELS)
    weight, bias = fitted.weight.clone().requires_grad_(), fitted.bias.clone().requires_grad_()
    loss = F.cross_entropy(FEATURES @ weight + bias, LABELS) + 0.005 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 1e-5
    assert fitted.weight.abs().max() > 0.1


def test_the_minimum_does_not_depend_on_the_start():
    cold = SoftmaxClassifier(0.01, 3).fit(FEATURES, LABELS)
    start = SoftmaxClassifier(1.0, 3).fit(FEATURES, LABELS)
    before = start.weight.clone()
    warm = SoftmaxClassifier(0.01, 3).fit(FEATURES, LABELS, start)
    torch.testing.assert_close(warm.weight, cold.weight, rtol=0, atol=1e-4)
    assert torch.equal(start.weight, before)


def test_predictions_are_the_largest_scores():
    fitted = SoftmaxClassifier(1e-4, 3).fit(FEATURES, LABELS)
    assert torch.equal(fitted.predict(FEATURES), (FEATURES @ fitted.weight + fitted.bias).argmax(1))
    assert (fitted.predict(FEATURES) == LABELS).double().mean() > 0.95


def test_the_penalty_is_the_one_with_the_lowest_loss_on_the_held_out_part():
    choice = choose(FEATURES, LABELS, (1e-4, 10.0, 1e-2), 3, held_out=0.25, seed=7)
    held = torch.randperm(300, generator=torch.Generator().manual_seed(7))[:75]
    rest = torch.tensor([index for index in range(300) if index not in held])
    for penalty in (1e-4, 10.0, 1e-2):
        scores = SoftmaxClassifier(penalty, 3).fit(FEATURES[rest], LABELS[rest]).scores(FEATURES[held])
        assert choice.losses[penalty] == pytest.approx(F.cross_entropy(scores, LABELS[held]).item(), rel=1e-3)
        assert choice.errors[penalty] == pytest.approx(100 * (scores.argmax(1) != LABELS[held]).double().mean().item())
    assert choice.classifier.penalty == min(choice.losses, key=choice.losses.get) == 1e-4
    whole = SoftmaxClassifier(1e-4, 3).fit(FEATURES, LABELS)
    torch.testing.assert_close(choice.classifier.weight, whole.weight, rtol=0, atol=2e-2)


def test_labels_without_meaning_get_the_strongest_penalty():
    """Nothing can be predicted, so the classifier that is least sure of itself loses least."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.rand(40, 30, generator=random), torch.randint(2, (40,), generator=random)
    choice = choose(features, labels, (1e-5, 1.0), 2, held_out=0.5)
    assert choice.classifier.penalty == 1.0
    assert choice.losses[1.0] < choice.losses[1e-5]


def test_the_held_out_part_takes_no_part_in_the_choice_of_weights():
    """Labels without meaning cannot be predicted where they were not learned, though they can be memorised."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.rand(60, 100, generator=random), torch.randint(2, (60,), generator=random)
    choice = choose(features, labels, (1e-6,), 2, held_out=0.5)
    assert (choice.classifier.predict(features) == labels).all()
    assert choice.errors[1e-6] > 25


def test_a_class_may_be_missing_from_a_part():
    labels = LABELS.clone()
    labels[0] = 3  # a single digit of its class, held out or not
    for seed in range(8):
        assert choose(FEATURES, labels, (1e-2,), 4, seed=seed).classifier.weight.shape == (8, 4)


def test_training_sets_at_once_are_chosen_for_as_if_alone():
    """The second is of labels without meaning, so that its penalty is another; the third lacks a class."""
    random = torch.Generator().manual_seed(3)
    labels = torch.stack([LABELS, torch.randint(3, LABELS.shape, generator=random), LABELS.clamp(max=1)])
    features = torch.stack([FEATURES, FEATURES, FEATURES.flip(0)])
    penalties = (1e-4, 1.0, 1e-2)
    together = choose_softmax(features, labels, penalties, 3, seed=2)
    assert [choice.classifier.penalty for choice in together][:2] == [1e-4, 1.0]
    for choice, some, truth in zip(together, features, labels, strict=True):
        alone = choose(some, truth, penalties, 3, seed=2)
        assert choice.classifier.penalty == alone.classifier.penalty
        assert choice.losses == pytest.approx(alone.losses, rel=1e-5)
        assert choice.errors == alone.errors
        torch.testing.assert_close(choice.classifier.weight, alone.classifier.weight, rtol=0, atol=1e-3)
        torch.testing.assert_close(choice.classifier.bias, alone.classifier.bias, rtol=0, atol=1e-3)


def test_weights_and_biases_share_no_memory():
    """Or they could not be written to one file."""
    for fitted in (
        SoftmaxClassifier(0.01, 3).fit(FEATURES, LABELS),
        choose(FEATURES, LABELS, (0.01,), 3).classifier,
    ):
        assert fitted.weight.untyped_storage().data_ptr() != fitted.bias.untyped_storage().data_ptr()


WRONG = {
    "rank": ((FEATURES[0], LABELS), "`features` must be of shape (N, F), none of them 0, got (8,)"),
    "none": ((FEATURES[:0], LABELS[:0]), "`features` must be of shape (N, F), none of them 0, got (0, 8)"),
    "NaN": ((FEATURES * torch.nan, LABELS), "`features` must be finite"),
    "too few labels": (
        (FEATURES, LABELS[1:]),
        "`labels` must be 300 numbers of int64, got torch.int64 of shape (299,)",
    ),
    "labels of floats": ((FEATURES, LABELS.double()), "`labels` must be 300 numbers of int64, got torch.float64"),
    "labels too high": ((FEATURES, LABELS + 1), "`labels` must lie between 0 and 2, got 1 to 3"),
    "negative labels": ((FEATURES, LABELS - 1), "`labels` must lie between 0 and 2, got -1 to 1"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_features_and_labels_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SoftmaxClassifier(0.1, 3).fit(*arguments)
    with pytest.raises(ValueError, match=re.escape(message)):
        choose(*arguments, (0.1,), 3)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`penalty` must be at least 0, got -1"):
        SoftmaxClassifier(-1)
    with pytest.raises(ValueError, match="`penalty` must be finite, got inf"):
        SoftmaxClassifier(math.inf)
    with pytest.raises(TypeError, match="`penalty` must be a number, got 'a'"):
        SoftmaxClassifier("a")
    with pytest.raises(RuntimeError, match="this SoftmaxClassifier has not learned anything: call `fit` first"):
        SoftmaxClassifier(0.1, 3).predict(FEATURES)
    learned = SoftmaxClassifier(0.1, 3).fit(FEATURES, LABELS)
    with pytest.raises(ValueError, match="`features` must be finite"):
        learned.predict(FEATURES * torch.nan)
    with pytest.raises(ValueError, match=r"`features` must be torch.float64 on cpu, as learned, got torch.float32"):
        learned.predict(FEATURES.float())
    with pytest.raises(TypeError, match=r"`features` must be of a floating-point type, got torch.int64"):
        SoftmaxClassifier(0.1, 3).fit(FEATURES.long(), LABELS)
    with pytest.raises(TypeError, match="`labels` must be a tensor, got ndarray"):
        SoftmaxClassifier(0.1, 3).fit(FEATURES, LABELS.numpy())
    with pytest.raises(ValueError, match="`penalties` must be at least 0, got -1"):
        choose(FEATURES, LABELS, (-1, 0.1), 3)
    with pytest.raises(ValueError, match=r"`held_out` \(=0.9\) must leave some of the 2 rows to learn from"):
        choose(FEATURES[:2], LABELS[:2], (0.1,), 3, held_out=0.9)
    with pytest.raises(ValueError, match="`labels` must be of 2 training sets, as `features` are, got 1"):
        choose_softmax(torch.stack([FEATURES, FEATURES]), LABELS[None], (0.1,), 3)
    with pytest.raises(ValueError, match="`classes` must be at least 1, got 0"):
        SoftmaxClassifier(0.1, 0)
    with pytest.raises(ValueError, match="`held_out` must lie between 0 and 1, got 1"):
        choose(FEATURES, LABELS, (0.1,), 3, held_out=1)
    with pytest.raises(ValueError, match="`penalties` must name at least one, got none"):
        choose(FEATURES, LABELS, (), 3)
    with pytest.raises(ValueError, match="`features` must have 8 columns, as learned, got 7"):
        SoftmaxClassifier(0.1, 3).fit(FEATURES, LABELS).predict(FEATURES[:, 1:])
    start = SoftmaxClassifier(0.1, 3).fit(FEATURES[:, 1:], LABELS)
    with pytest.raises(ValueError, match=re.escape("`start` must have weights of shape (8, 3), got (7, 3)")):
        SoftmaxClassifier(0.1, 3).fit(FEATURES, LABELS, start)
