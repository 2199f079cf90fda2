"""Features learned without labels, then a classifier: whole runs on small images."""

from dataclasses import replace

import pytest
import torch

from scaleconv.models import RBM, SIRBM, UNSUPERVISED, Fold, Recipe, UnsupervisedSettings, train_unsupervised
from scaleconv.models.softmax import choose_softmax

SETTINGS = UnsupervisedSettings(
    hidden=16,
    scales=(1.0, 1.5),
    recipe=Recipe(epochs=5, batch=20, learning_rate=0.1, sparsity_target=0.1, initial_std=0.3),
    penalties=(1e-2, 1e-4),
    held_out=0.3,
)


def make_fold(seed, train=200, test=150):
    """Ten bars at three places each, five rows and five columns, in noise; higher than wide."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(train + test) % 10
    images = torch.zeros(train + test, 1, 9, 8)
    for image, label in zip(images[:, 0], labels.tolist(), strict=True):
        place = int(torch.randint(3, (1,), generator=random))
        part = slice(2 * place, 2 * place + 4)
        image[(label + 1, part) if label < 5 else (part, label - 4)] = 1
    images = 0.8 * images + 0.2 * torch.rand(images.shape, generator=random)
    return Fold(images[:train], labels[:train], images[train:], labels[train:])


FOLDS = [make_fold(0), make_fold(1)]
MODELS = {
    "pixels": None,
    "rbm": RBM(16, SETTINGS.recipe, seed=3),
    "si_rbm": SIRBM(16, (9, 8), SETTINGS.recipe, scales=SETTINGS.scales, seed=3),
}


@pytest.mark.parametrize("name", UNSUPERVISED)
def test_a_run_is_the_features_then_the_classifier_of_its_fold(name):
    seen = []
    runs = train_unsupervised(name, FOLDS, SETTINGS, seed=3, watch=seen.append)
    machines = MODELS[name] and MODELS[name].fit(torch.stack([fold.train_images.flatten(1) for fold in FOLDS]))
    for index, (run, fold) in enumerate(zip(runs, FOLDS, strict=True)):
        train, test = fold.train_images.flatten(1), fold.test_images.flatten(1)
        learned = {}
        if machines:
            model = machines.run(index)
            assert torch.equal(run.samples, model.sample(test[:100], 10))
            assert run.reconstruction == [float(entry.reconstruction) for entry in model.history]
            learned = {f"rbm.{part}": tensor for part, tensor in model.state().items()}
            train, test = model.transform(train), model.transform(test)
        classifier, losses, errors = choose_softmax(train, fold.train_labels, (1e-2, 1e-4), held_out=0.3, seed=3)
        learned |= {"classifier.weight": classifier.weight, "classifier.bias": classifier.bias}
        assert run.weights.keys() == learned.keys()
        assert all(torch.equal(run.weights[part], tensor) for part, tensor in learned.items())
        assert (run.held_out_losses, run.held_out_errors, run.penalty) == (losses, errors, classifier.penalty)
        wrong = sum(classifier.predict(row) != label for row, label in zip(test, fold.test_labels, strict=True))
        assert run.test_error == pytest.approx(100 * wrong.item() / 150)
        assert run.test_error < 50  # guessing is 90
    assert [entry.epoch for entry in seen] == ([] if name == "pixels" else [1, 2, 3, 4, 5])


def test_a_fold_may_have_a_start_of_its_own():
    still = replace(SETTINGS, recipe=replace(SETTINGS.recipe, epochs=1, learning_rate=0.0))

    def filters(*starts):
        folds = [replace(fold, start=start) for fold, start in zip(FOLDS, starts, strict=True)]
        return [run.weights["rbm.weight"] for run in train_unsupervised("rbm", folds, still, seed=3)]

    same, (first, second) = filters(None, None), filters(3, 8)
    assert torch.equal(same[0], same[1])
    assert torch.equal(first, same[0])
    assert not torch.equal(second, same[1])


def test_parameters_are_those_learned():
    counts = {name: train_unsupervised(name, FOLDS[:1], SETTINGS)[0].parameters for name in UNSUPERVISED}
    assert counts["pixels"] == 72 * 10 + 10
    assert counts["rbm"] == 16 * 72 + 16 + 72 + 16 * 10 + 10
    assert counts["si_rbm"] == counts["rbm"] + 16  # biases of the second scale


def test_seconds_are_those_of_all_epochs_and_of_the_own_classifier(monkeypatch):
    """A clock that ticks once per look: two looks at each epoch and two around what is timed."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    for run in train_unsupervised("rbm", FOLDS, SETTINGS):
        assert run.epoch_seconds == [1] * 5
        assert run.seconds == 11 + 1
    for run in train_unsupervised("pixels", FOLDS, SETTINGS):
        assert run.epoch_seconds == run.reconstruction == []
        assert (run.seconds, run.samples) == (1, None)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`name` must be one of pixels, rbm, si_rbm, got 'dbn'"):
        train_unsupervised("dbn", FOLDS, SETTINGS)
    with pytest.raises(ValueError, match=r"`folds` must have equally many training digits, got \[200, 100\]"):
        train_unsupervised("rbm", [FOLDS[0], make_fold(1, train=100)], SETTINGS)
