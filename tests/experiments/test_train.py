"""A whole run recomputed by hand; which digits each run sees; RBMs are runs of table 1 like the others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scaleconv.experiments.config import FEATURE_SECTIONS, TrainingConfig
from scaleconv.experiments.train import DigitStore, Silent, divide, train_networks
from torch.nn import functional as F

from helpers.runs import Diary
from scaleconv.data import embedded_digits, make_folds, make_scaled, parse_scales
from scaleconv.data.sets import shift, smooth
from scaleconv.experiments import load_experiment, plan_runs, read_records, run_experiment, train
from scaleconv.experiments.records import TIME_DIGITS
from scaleconv.models import RBM, SIRBM, UNSUPERVISED, Shape, make_model

SETTINGS = {
    "models": ["si_convnet"],
    "folds": [1],
    "seed": 5,
    "data.train": 200,
    "data.sets": 4,
    "data.seed": 3,
    "data.fold_seed": 2,
    "data.size": 30,
    "data.scales": "uniform:0.5,0.9",
    "network.maps": [2, 3],
    "network.hidden": 8,
    "network.scales": [0.8, 1.0, 1.3],
    "training.epochs": 2,
    "training.batch": 50,
    "training.learning_rate": 0.02,
}


def test_a_run_is_what_the_settings_say(tmp_path):
    experiment = load_experiment("table1", "quick", SETTINGS)
    (record,) = run_experiment(experiment, tmp_path / "table1-hand")

    digits = embedded_digits()
    scales = parse_scales("uniform:0.5,0.9").draw(10_000, 3)
    images = make_scaled(digits.images, torch.from_numpy(scales), 30)
    split = make_folds(digits.labels, 200, count=4, seed=2)[1]
    assert (len(split.train), len(split.test)) == (200, 600)
    mean = images[split.train].double().mean().item()
    train, test = images[split.train] - mean, images[split.test] - mean
    torch.manual_seed(5)
    network = make_model("si_convnet", Shape((2, 3), 7, 30, 8), (0.8, 1, 1.3))
    rates = [
        {
            "params": [p],
            "lr": 0.02 * (2 if n.endswith("bias") else 1),
            "weight_decay": 0 if n.endswith("bias") else 1e-4,
        }
        for n, p in network.named_parameters()
    ]
    optimiser = torch.optim.SGD(rates, momentum=0.9)
    for epoch in (1, 2):
        losses = []
        for chosen in np.random.default_rng([5, 1, epoch]).permutation(200).reshape(4, 50):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(train[chosen]), digits.labels[split.train][chosen])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert record.history[epoch - 1].train_loss == pytest.approx(sum(losses) / 4, rel=1e-4)
    with torch.no_grad():
        wrong = (network(test).argmax(1) != digits.labels[split.test]).sum().item()
    assert record.test_error == pytest.approx(100 * wrong / 600)
    (run,) = plan_runs(experiment)
    weights = load_file(run.weights(tmp_path / "table1-hand"))
    for name, value in network.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def test_networks_of_a_fold_start_from_the_same_weights():
    """The comparison is between layers: everything else about the two networks is the same."""
    weights = []
    for name in ("convnet", "si_convnet"):
        torch.manual_seed(0)
        weights.append(list(make_model(name).parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_below_zero_the_fold_seed_keeps_the_order_of_the_file():
    config = load_experiment("table1", "quick", {"data.fold_seed": -1}).settings.data
    assert divide(torch.arange(10_000) % 10, config, 1).train.tolist() == list(range(500, 1000))


def test_a_network_may_be_tested_on_the_first_of_its_test_digits_only():
    labels = torch.arange(10_000) % 10
    config = load_experiment("table1", "quick").settings.data
    for fold in (0, 2):
        whole, few = divide(labels, config, fold), divide(labels, replace(config, tested=1000), fold)
        assert torch.equal(few.train, whole.train)
        assert torch.equal(few.test, whole.test[:1000])


def test_only_the_network_with_augmentation_sees_its_digits_rescaled(tmp_path):
    """A range of one factor, 1, is no augmentation: the ConvNet with it ends where the other does."""
    weights = {}
    for name, rescale in (("as they are", [1.0, 1.0]), ("rescaled", [0.5, 2.0])):
        changes = {**SETTINGS, "models": ["convnet", "augmented"], "training.rescale": rescale}
        run_experiment(load_experiment("background", "quick", changes), tmp_path / name.replace(" ", ""))
        for model in ("convnet", "augmented"):
            path = tmp_path / name.replace(" ", "") / "weights" / f"{model}-fold1-seed5.safetensors"
            weights[name, model] = load_file(path)["classifier.fc1.weight"]
    plain = weights["as they are", "convnet"]
    torch.testing.assert_close(weights["as they are", "augmented"], plain, rtol=0, atol=1e-6)
    assert torch.equal(weights["rescaled", "convnet"], plain)
    assert not torch.allclose(weights["rescaled", "augmented"], plain, rtol=0, atol=1e-5)


def test_training_ends_ten_epochs_after_the_loss_has_settled():
    recipe = TrainingConfig(epochs=30, settled=0.5)
    settled = [2.0, *[0.5] * 9]
    assert not recipe.ended(settled)
    assert recipe.ended([*settled, 0.4])
    assert not recipe.ended([*settled, 0.6, *[0.4] * 9])  # not in a row
    assert recipe.ended([1.0] * 30)
    assert not recipe.ended([1.0] * 29)
    assert not TrainingConfig(epochs=30).ended([0.0] * 29)


def test_a_network_that_has_settled_is_kept_as_it_was_while_its_group_trains_on(tmp_path):
    def train(folds, **recipe):
        changes = {**SETTINGS, "models": ["convnet"], "folds": folds, "training.epochs": 12}
        runs = plan_runs(load_experiment("table1", "quick", {**changes, **recipe}))
        found = train_networks(runs, DigitStore("cpu"), tmp_path / f"{folds} {recipe}", Silent())
        return {run.fold: outcome for run, outcome in found.items()}

    highest = {fold: max(entry.train_loss for entry in outcome.history[:10]) for fold, outcome in train([1, 2]).items()}
    first, second = sorted(highest, key=highest.get)
    both = train([1, 2], **{"training.settled": highest[first]})
    assert len(both[first].history) == 10 < len(both[second].history)
    (alone,) = train([first], **{"training.epochs": 10}).values()
    assert both[first].history[-1].test_error == alone.history[-1].test_error
    assert all(torch.equal(both[first].weights[name], tensor) for name, tensor in alone.weights.items())


def test_with_test_digits_named_each_fold_is_a_draw_and_smaller_sets_are_part_of_larger_ones():
    labels = torch.arange(10_000) % 10
    small, large = (
        load_experiment("table1", "quick", {"data.train": train, "data.test": 300}).settings.data
        for train in (200, 500)
    )
    splits = [divide(labels, small, 0), divide(labels, large, 0), divide(labels, large, 1)]
    sets = [(set(split.train.tolist()), set(split.test.tolist())) for split in splits]
    assert [(len(train), len(test)) for train, test in sets] == [(200, 300), (500, 300), (500, 300)]
    assert sets[0][0] < sets[1][0]
    assert sets[0][1] == sets[1][1] != sets[2][1]
    assert not sets[1][0] & sets[1][1]


def test_held_out_digits_take_the_place_of_the_test_digits():
    labels = torch.arange(10_000) % 10
    config = load_experiment("table1", "quick", {"data.held_out": 300}).settings.data
    split, whole = divide(labels, config, 1), divide(labels, replace(config, held_out=0), 1)
    assert (len(split.train), len(split.test)) == (200, 300)
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == whole.train.tolist()


@pytest.mark.parametrize("changes", [{"data.train": 100_000}, {"data.train": 5000, "data.test": 5001}])
def test_more_digits_than_there_are_is_refused_by_the_name_of_the_setting(changes):
    config = load_experiment("table1", "quick", changes).settings.data
    with pytest.raises(ValueError, match=rf"`data.train` \(={config.train}\) .* the 10000 digits of embedded, got"):
        divide(torch.arange(10_000) % 10, config, 0)


def curve(**changes):
    points = [{"name": f"maps{k}", "x": k, "set": {"network.maps": [k, 2]}} for k in (2, 3)]
    small = {"data.train": 100, "data.test": 100, "folds": [0, 1], "points": points}
    return load_experiment("fig4a", "quick", {**small, **changes})


def test_models_of_a_point_see_the_same_digits_and_folds_see_others(digits):
    runs = {(run.model, run.point.name, run.fold): run for run in plan_runs(curve())}

    def seen(*key):
        return digits.of(runs[key].settings.data, runs[key].fold)

    first = seen("convnet", "maps2", 0)
    for other in (seen("si_convnet", "maps2", 0), seen("convnet", "maps3", 0)):
        assert torch.equal(first.train, other.train)
        assert torch.equal(first.test, other.test)
    assert not torch.equal(first.test, seen("convnet", "maps2", 1).test)


def test_the_mean_is_that_of_the_training_digits(digits):
    seen = digits.of(curve().settings.data, 0)
    assert seen.train.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert seen.mean > 0.01
    assert torch.equal(seen.blank(), torch.full((1, 1, 28, 28), -seen.mean))
    config = curve().settings.data
    chosen = divide(embedded_digits().labels, config, 0).test[:3]
    scales = parse_scales(config.scales).draw(10_000, config.seed)[chosen]
    own = torch.stack([seen.at_scale(scale)[0][index] for index, scale in enumerate(scales)])
    torch.testing.assert_close(own, seen.test[:3])
    images, labels = seen.at_scale(0.5, 7)
    assert images.shape == (7, 1, 28, 28)
    assert torch.equal(labels, seen.test_labels[:7])


@pytest.mark.parametrize("antialias", [False, True])
def test_the_network_has_the_layers_its_settings_name(antialias):
    named = {"network.antialias": antialias, "network.scales": [1, 1.5], "models": ["si_convnet"]}
    stages = plan_runs(curve(**named))[0].network().stages
    assert [layer.antialias for layer in (stages.conv1, stages.conv2)] == [antialias, antialias]
    assert stages.conv1.scales == stages.conv2.scales == (1, 1.5)


def test_the_second_layer_may_have_scales_of_its_own():
    named = {"network.scales": [1, 1.5], "network.second_scales": [0.5, 1], "models": ["si_convnet"]}
    stages = plan_runs(curve(**named))[0].network().stages
    assert (stages.conv1.scales, stages.conv2.scales) == ((1, 1.5), (0.5, 1))
    with pytest.raises(ValueError, match="`second_scales` must contain 1"):
        curve(**named | {"network.second_scales": [0.5]})


EAGER = {"batch": 10, "sparsity_target": 0.2, "sparsity_cost": 0, "initial_std": 0.1}  # learns something in 3 epochs


FEATURES = {
    "data.sets": 4,
    "data.train": 300,
    "epochs": 3,
    "rbm.hidden": 30,
    "si_rbm.hidden": 30,
    **{f"{model}.{key}": value for model in ("rbm", "si_rbm") for key, value in EAGER.items()},
    "si_rbm.scales": [1.0, 2.0],
    "softmax.penalties": [1e-2, 1e-3],
    "folds": [0, 1],
    "models": ["rbm", "si_rbm", "pixels"],
}


def features(**changes):
    return load_experiment("table1", "quick", {**FEATURES, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits):
    """A folder of finished runs, and what a watcher was told meanwhile."""
    folder = tmp_path_factory.mktemp("results") / "table1-tiny"
    diary = Diary()
    run_experiment(features(), folder, watcher=diary)
    return folder, diary


def test_every_run_of_an_rbm_leaves_a_record_like_the_others(finished):
    folder, _ = finished
    records = read_records(folder)
    assert {(r.model, r.fold) for r in records} == {(model, fold) for model in UNSUPERVISED for fold in (0, 1)}
    for found in records:
        assert [entry.epoch for entry in found.history] == ([1] if found.model == "pixels" else [1, 2, 3])
        assert [entry.test_error for entry in found.history[:-1]] == [None] * (len(found.history) - 1)
        assert found.test_error == found.history[-1].test_error
        assert 0 < found.test_error < 85  # guessing is 90
        of_epochs = sum(entry.seconds for entry in found.history)
        assert found.seconds >= of_epochs * (1 - 10.0 ** (1 - TIME_DIGITS))  # each was rounded to so many digits
        assert found.runs_together == (1 if found.model == "pixels" else 2)
        assert set(found.series) == {"held_out_loss", "held_out_error"}
        assert found.series["held_out_loss"].x == [1e-2, 1e-3]
        assert {"torch", "device", "commit"} <= set(found.environment)


def test_a_record_holds_the_settings_of_its_model_only(finished):
    folder, _ = finished
    for found in read_records(folder):
        assert tuple(found.config) == FEATURE_SECTIONS[found.model]
    config = {found.model: found.config for found in read_records(folder)}
    assert (config["rbm"]["rbm"]["hidden"], config["rbm"]["rbm"]["epochs"]) == (30, 3)
    assert config["si_rbm"]["si_rbm"]["scales"] == [1.0, 2.0]
    assert "scales" not in config["rbm"]["rbm"]


def test_the_test_error_of_an_rbm_is_that_of_the_written_weights(finished, digits):
    folder, _ = finished
    machines = {"rbm": RBM(30), "si_rbm": SIRBM(30, 28, scales=[1.0, 2.0])}
    for found in read_records(folder):
        weights = load_file(folder / "weights" / f"{found.model}-fold{found.fold}-seed0.safetensors")
        assert found.parameters == sum(tensor.numel() for name, tensor in weights.items() if name != "samples")
        seen = digits.of(features().settings.data, found.fold)
        inputs = seen.pixels(seen.test).flatten(1)
        if machine := machines.get(found.model):
            parts = {name: weights[f"rbm.{name}"] for name in ("weight", "hidden_bias", "visible_bias")}
            inputs = machine.load(**parts).transform(inputs)
        scores = inputs @ weights["classifier.weight"] + weights["classifier.bias"]
        wrong = (scores.argmax(1) != seen.test_labels).double().mean()
        assert found.test_error == pytest.approx(100 * wrong.item(), abs=0.05)


def test_pixels_are_those_of_the_digits_before_the_mean_was_subtracted(digits):
    seen = digits.of(features().settings.data, 0)
    pixels = seen.pixels(seen.train)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert pixels.mean().item() == pytest.approx(seen.mean, rel=1e-4)


def test_all_folds_of_an_rbm_are_trained_at_once_and_every_epoch_is_reported(finished):
    _, diary = finished
    assert diary.begun[:2] == [("rbm", 0, 0), ("rbm", 1, 0)]
    told = [(model, fold, entry.epoch) for model, fold, entry in diary.epochs]
    assert told[:6] == [("rbm", fold, epoch) for epoch in (1, 2, 3) for fold in (0, 1)]
    assert told[-2:] == [("pixels", 0, 1), ("pixels", 1, 1)]
    assert [entry.test_error is None for _, _, entry in diary.epochs[:6]] == [True] * 4 + [False] * 2
    assert diary.ended[0] == "RBM, fold 0"
    assert len(diary.ended) == 6


def test_a_lost_run_of_an_rbm_is_made_again_alone(finished, tmp_path):
    folder = tmp_path / "table1-tiny"
    folder.mkdir()
    source, _ = finished
    for path in source.glob("*.json"):
        if path.name != "si_rbm-fold1-seed0.json":
            (folder / path.name).write_text(path.read_text())
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    diary = Diary()
    records = run_experiment(features(), folder, watcher=diary)
    assert diary.begun == [("si_rbm", 1, 0)]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    before = {(r.model, r.fold): r.test_error for r in read_records(source)}
    assert {(r.model, r.fold): r.test_error for r in records} == pytest.approx(before, abs=2)


class Interrupted(Diary):
    def epoch(self, run, entry):
        raise KeyboardInterrupt


def test_an_interrupted_rbm_leaves_nothing_and_starts_again(tmp_path):
    folder = tmp_path / "table1-tiny"
    small = features(models=["rbm"], folds=[0])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(small, folder, watcher=Interrupted())
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert len(run_experiment(small, folder)) == 1


def test_records_of_other_settings_of_the_same_model_are_refused_and_those_of_others_do_not_matter(finished):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"rbm-fold0-seed0.json was made with .*\(rbm.hidden was 30, now 31\)"):
        run_experiment(features(**{"rbm.hidden": 31}), folder)
    run_experiment(features(**{"training.batch": 7, "network.maps": [1, 1]}), folder)


def test_divergence_of_an_rbm_names_the_method_and_where_to_set_it(tmp_path):
    with pytest.raises(ValueError, match=r"^Scale-invariant RBM: training diverged .*learning_rate.*\[si_rbm\]"):
        run_experiment(features(**{"models": ["si_rbm"], "si_rbm.learning_rate": 1e30}), tmp_path / "table1-tiny")


def test_the_network_that_was_best_on_the_validation_digits_is_tested_and_kept(tmp_path, monkeypatch):
    """With the second of four epochs the best, a run ends with the network of a run of two epochs."""
    changes = {"models": ["cnn"], "folds": [1], "points": [{"name": "28"}], "training.drops": []}
    two = load_experiment("field", "quick", {**changes, "training.epochs": 2, "training.keep": "last"})
    (last,) = run_experiment(two, tmp_path / "two")
    errors = iter([30.0, 20.0, 25.0, 20.0])
    measured = train.error_rate
    of_validation = {100: lambda *_: next(errors)}  # there are 100 such digits
    monkeypatch.setattr(
        train, "error_rate", lambda net, images, labels: of_validation.get(len(images), measured)(net, images, labels)
    )
    four = load_experiment("field", "quick", {**changes, "training.epochs": 4})
    (best,) = run_experiment(four, tmp_path / "four")
    assert [entry.val_error for entry in best.history] == [30.0, 20.0, 25.0, 20.0]
    assert best.test_error == last.test_error
    weights = [load_file(plan_runs(each)[0].weights(tmp_path / name)) for each, name in ((two, "two"), (four, "four"))]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize(("point", "augment"), [("28", False), ("28p", True)])
def test_digits_are_rescaled_in_training_as_the_settings_say(point, augment, tmp_path, monkeypatch):
    made = []

    class Noted(train.Trainer):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(train, "Trainer", Noted)
    changes = {"models": ["cnn"], "folds": [0], "training.epochs": 1, "training.drops": []}
    run_experiment(load_experiment("field", "quick", changes).at_point(point), tmp_path / "field-tiny")
    assert [(trainer.augment, trainer.interpolation) for trainer in made] == [(augment, "bicubic")]
    assert (made[0].factors == 1).all() != augment


def test_digits_may_be_smoothed_and_lie_anywhere():
    small = {"data.size": 32, "data.train": 100, "points": [{"set": {"data.scales": "list:0.5,0.9"}}]}
    config = load_experiment("stir", "quick", {**small, "measure.scales": [1.0]}).settings.data
    centred, sharp = replace(config, shifted=False), replace(config, smoothed=False)
    store = DigitStore("cpu")
    whole, middle, plain = (store.of(each, 0) for each in (config, centred, sharp))
    scales = torch.from_numpy(parse_scales(config.scales).draw(10_000, config.seed))
    images = make_scaled(embedded_digits().images, scales, config.size, "bicubic")
    chosen = divide(embedded_digits().labels, config, 0).test
    moved = shift(images, scales, 28, config.seed)
    torch.testing.assert_close(plain.pixels(plain.test), moved[chosen], rtol=0, atol=1e-5)
    torch.testing.assert_close(middle.pixels(middle.test), smooth(images, scales)[chosen], rtol=0, atol=1e-5)
    torch.testing.assert_close(whole.pixels(whole.test), smooth(moved, scales)[chosen], rtol=0, atol=1e-5)
    other, _ = whole.at_scale(0.7, 20)
    expected = shift(make_scaled(whole.originals[:20], 0.7, config.size, "bicubic"), 0.7, 28, config.seed)
    torch.testing.assert_close(whole.pixels(other), smooth(expected, 0.7), rtol=0, atol=1e-5)


def test_a_killed_run_with_norms_and_moments_ends_the_same(tmp_path):
    changes = {"models": ["cnn"], "folds": [0], "points": [{"name": "28"}]}
    experiment = load_experiment("lead", "quick", changes)
    (whole,) = run_experiment(experiment, tmp_path / "whole")

    class KilledError(Exception):
        pass

    class Killer(Silent):
        def epoch(self, run, entry):
            if entry.epoch == 2:
                raise KilledError

    with pytest.raises(KilledError):
        run_experiment(experiment, tmp_path / "broken", watcher=Killer())
    (resumed,) = run_experiment(experiment, tmp_path / "broken")
    assert [entry.train_loss for entry in resumed.history] == [entry.train_loss for entry in whole.history]
    (one,) = plan_runs(experiment)
    first, second = (load_file(one.weights(tmp_path / name)) for name in ("whole", "broken"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_validation_digits_are_neither_trained_nor_tested_on():
    config = load_experiment("field", "quick").settings.data
    digits = embedded_digits()
    split = divide(digits.labels, config, 3)
    assert [len(part) for part in (split.train, split.val, split.test)] == [300, 100, 500]
    assert len(torch.cat([split.train, split.val, split.test]).unique()) == 900
    seen = DigitStore("cpu").of(config, 3)
    scales = torch.from_numpy(parse_scales(config.scales).draw(10_000, 0))
    images = make_scaled(digits.images, scales, 28, "bicubic")
    torch.testing.assert_close(seen.val, images[split.val] - images[split.train].double().mean().item())
