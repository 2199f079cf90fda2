"""Features learned without labels, then a classifier: whole runs on small images."""

from dataclasses import replace

import pytest
import torch

from scaleconv.models import unsupervised
from scaleconv.models.contrastive import Recipe
from scaleconv.models.rbm import RBM
from scaleconv.models.softmax import choose_softmax
from scaleconv.models.unsupervised import UNSUPERVISED, Fold, UnsupervisedSettings, train_unsupervised

SETTINGS = UnsupervisedSettings(
    hidden=16,
    scales=(1.0, 1.5),
    recipe=Recipe(epochs=5, batch=20, learning_rate=0.1, sparsity_target=0.1),
    penalties=(1e-2, 1e-4),
)


def make_fold(seed, train=200, test=150):
    """Ten bars at three places each, five rows and five columns, in noise."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(train + test) % 10
    images = torch.zeros(train + test, 1, 8, 8)
    for image, label in zip(images[:, 0], labels.tolist(), strict=True):
        place = int(torch.randint(3, (1,), generator=random))
        line = label % 5 + 1
        part = slice(2 * place, 2 * place + 4)
        image[(line, part) if label < 5 else (part, line)] = 1
    images = (0.8 * images + 0.2 * torch.rand(images.shape, generator=random)).clamp(0, 1)
    return Fold(images[:train], labels[:train], images[train:], labels[train:])


FOLDS = [make_fold(0), make_fold(1)]


@pytest.mark.parametrize("name", UNSUPERVISED)
def test_every_model_learns_and_folds_end_as_they_would_alone(name):
    together = train_unsupervised(name, FOLDS, SETTINGS, seed=3)
    for run, fold in zip(together, FOLDS, strict=True):
        (alone,) = train_unsupervised(name, [fold], SETTINGS, seed=3)
        assert run.test_error < 50  # guessing is 90
        assert run.test_error == pytest.approx(alone.test_error, abs=2)
        assert run.penalty == min(run.held_out_losses, key=run.held_out_losses.get)
        assert set(run.held_out_errors) == {1e-2, 1e-4}
        assert len(run.reconstruction) == len(run.epoch_seconds) == (0 if name == "pixels" else 5)
        assert run.reconstruction == pytest.approx(alone.reconstruction, rel=1e-3)
        assert run.seconds > 0


@pytest.mark.parametrize("count", [2, 3])
def test_folds_may_be_classified_together(monkeypatch, count):
    folds = [*FOLDS, make_fold(2)]
    alone = train_unsupervised("rbm", folds, SETTINGS)
    monkeypatch.setattr(unsupervised, "_together", lambda *_: count)
    together = train_unsupervised("rbm", folds, SETTINGS)
    for one, other in zip(together, alone, strict=True):
        assert one.penalty == other.penalty
        assert one.held_out_losses == pytest.approx(other.held_out_losses, rel=1e-3)
        assert one.test_error == pytest.approx(other.test_error, abs=1)
        assert torch.equal(one.weights["rbm.weight"], other.weights["rbm.weight"])


def test_parameters_are_those_learned():
    counts = {name: train_unsupervised(name, FOLDS[:1], SETTINGS)[0].parameters for name in UNSUPERVISED}
    assert counts["pixels"] == 64 * 10 + 10
    assert counts["rbm"] == 16 * 64 + 16 + 64 + 16 * 10 + 10
    assert counts["si_rbm"] == counts["rbm"] + 16  # biases of the second scale


def test_the_test_error_is_that_of_the_written_weights():
    (run,) = train_unsupervised("rbm", FOLDS[:1], SETTINGS)
    rbm = RBM(16).load(**{name.removeprefix("rbm."): t for name, t in run.weights.items() if name.startswith("rbm.")})
    features = rbm.transform(FOLDS[0].test_images.flatten(1))
    scores = features @ run.weights["classifier.weight"] + run.weights["classifier.bias"]
    wrong = (scores.argmax(1) != FOLDS[0].test_labels).double().mean()
    assert run.test_error == pytest.approx(100 * wrong.item())


def test_samples_are_those_of_the_learned_machine():
    for name in UNSUPERVISED:
        (run,) = train_unsupervised(name, FOLDS[:1], SETTINGS)
        if name == "rbm":
            parts = {part: run.weights[f"rbm.{part}"] for part in ("weight", "hidden_bias", "visible_bias")}
            start = FOLDS[0].test_images[:100].flatten(1)
            assert torch.equal(run.samples, RBM(16).load(**parts).sample(100, 10, start=start))
        assert (run.samples is None) == (name == "pixels")


def test_test_digits_change_nothing_but_the_test_error():
    fold = FOLDS[0]
    blind = Fold(fold.train_images, fold.train_labels, torch.zeros_like(fold.test_images), fold.test_labels)
    (run,), (other,) = (train_unsupervised("si_rbm", [one], SETTINGS) for one in (fold, blind))
    assert run.test_error != other.test_error
    assert (run.penalty, run.held_out_losses) == (other.penalty, other.held_out_losses)
    assert all(torch.equal(run.weights[name], other.weights[name]) for name in run.weights)


def test_pixels_are_the_classifier_alone():
    fold = FOLDS[0]
    (run,) = train_unsupervised("pixels", [fold], replace(SETTINGS, held_out=0.5), seed=5)
    pixels = fold.train_images.flatten(1)
    (choice,) = choose_softmax(pixels[None], fold.train_labels[None], SETTINGS.penalties, held_out=0.5, seed=5)
    assert torch.equal(run.weights["classifier.weight"], choice.classifier.weight)
    assert run.held_out_losses == choice.losses


def test_the_scales_matter_to_the_si_rbm_only():
    other = replace(SETTINGS, scales=(1.0, 2.0))
    for name, changes in (("pixels", False), ("rbm", False), ("si_rbm", True)):
        (one,), (two,) = (train_unsupervised(name, FOLDS[:1], settings) for settings in (SETTINGS, other))
        same = torch.equal(one.weights["classifier.weight"], two.weights["classifier.weight"])
        assert same != changes


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`name` must be one of pixels, rbm, si_rbm, got 'dbn'"):
        train_unsupervised("dbn", FOLDS, SETTINGS)
    with pytest.raises(ValueError, match=r"`folds` must have equally many training digits, got \[200, 100\]"):
        train_unsupervised("rbm", [FOLDS[0], make_fold(1, train=100)], SETTINGS)
    with pytest.raises(ValueError, match=r"`folds` must have equally many training digits, got \[\]"):
        train_unsupervised("rbm", [], SETTINGS)
    with pytest.raises(ValueError, match="`hidden` must be at least 1, got 0"):
        replace(SETTINGS, hidden=0)
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        replace(SETTINGS, scales=(2.0,))
    with pytest.raises(ValueError, match=r"`penalties` must name at least one, .* got \[\] and 0.2"):
        replace(SETTINGS, penalties=())
    with pytest.raises(ValueError, match=r"`held_out` lie between 0 and 1, got .* and 2"):
        replace(SETTINGS, held_out=2)
