"""The protocol is the paper's, and what does not belong in a file is refused by name."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from scaleconv.experiments import load_experiment, load_item, read_records
from scaleconv.experiments.config import Settings
from scaleconv.experiments.parsing import build
from scaleconv.metrics import sign_flip_test

ROOT = Path(__file__).parents[2]


def test_the_paper_preset_is_the_protocol_of_the_paper():
    experiment = load_experiment("table1", "paper")
    training, data, network = experiment.settings.training, experiment.settings.data, experiment.settings.network
    assert (training.epochs, training.batch, training.learning_rate) == (700, 128, 0.01)
    assert (training.momentum, training.weight_decay, training.bias_rate) == (0.9, 1e-4, 2)
    assert (data.train, data.sets, experiment.folds) == (10_000, 6, (0, 1, 2, 3, 4, 5))
    assert network.scales == tuple(2 ** (k / 3) for k in range(-2, 4))
    assert (network.maps, network.kernel, network.hidden) == ((36, 64), 7, 150)
    assert experiment.paper["convnet"] == (3.48, 0.23)


def test_the_quick_preset_needs_no_data_and_has_repeats_enough_to_be_significant():
    experiment = load_experiment("table1", "quick")
    assert experiment.settings.data.dataset == "embedded"
    assert sign_flip_test([1.0] * len(experiment.folds)) < 0.05  # if all folds agree; more do not fit in five minutes
    assert {"convnet", "si_convnet"} <= set(experiment.models)


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_both_rbms_have_one_recipe_and_as_many_units(preset):
    settings = load_experiment("table1", preset).settings
    assert asdict(settings.si_rbm) == {**asdict(settings.rbm), "scales": settings.si_rbm.scales}
    assert settings.si_rbm.scales == pytest.approx([2 ** (k / 3) for k in range(6)])


def test_the_curves_of_the_paper_vary_what_the_paper_varies():
    maps = [point.settings.network.maps for point in load_experiment("fig4a").points]
    assert maps == [(9, 16), (18, 32), (36, 64), (54, 96), (72, 128)]
    sizes = [point.settings.data.train for point in load_experiment("fig4b").points]
    assert sizes == [1000, 2000, 3000, 5000, 7000, 10_000, 20_000, 50_000]
    ranges = [point.settings.data.scales for point in load_experiment("fig5b").points]
    assert (ranges[0], ranges[-1], len(ranges)) == ("uniform:0.85,1.15", "uniform:0.4,1.6", 4)
    unfamiliar = load_experiment("fig5a").settings
    assert unfamiliar.measure.scales == tuple(k / 10 for k in range(4, 17))
    for settings in (unfamiliar, load_experiment("fig5b").settings):
        assert (settings.data.size, settings.network.kernel, settings.data.truncate) == (40, 9, "allow")
        assert settings.network.scales == pytest.approx([2.7 ** (k / 3) for k in range(-2, 4)])
    for item in ("fig4a", "fig4b", "fig5a", "fig5b"):
        assert {point.settings.data.test for point in load_experiment(item).points} == {10_000}
        assert {point.x for point in load_experiment(item).points} != {None} or item == "fig5a"


@pytest.mark.parametrize("item", ["fig3", "winners", "equivariance"])
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_what_is_measured_on_networks_of_table_1_has_its_very_settings(item, preset):
    measured, table = load_experiment(item, preset), load_experiment("table1", preset)
    for model in measured.models:
        assert measured.settings.of_weights(model) == table.settings.of_weights(model)
    assert measured.reuse[0] == "table1"
    assert set(measured.models) <= set(table.models)
    assert set(measured.folds) <= set(table.folds)
    assert measured.seed == table.seed


def test_scales_are_compared_without_the_test_digits():
    search, table = load_experiment("scales"), load_experiment("table1")
    assert {point.settings.data.held_out for point in search.points} == {2000}
    assert replace(search.settings.data, held_out=0) == table.settings.data
    assert search.settings.network == table.settings.network
    assert len({point.settings.network for point in search.points}) == len(search.points)


def test_both_rbms_have_as_many_recipes_to_choose_from():
    search, table = load_experiment("recipes"), load_experiment("table1").settings
    assert search.points[0].settings.rbm == table.rbm
    recipes = [point.settings for point in search.points]
    assert len({settings.rbm for settings in recipes}) == len({settings.si_rbm for settings in recipes}) == len(recipes)
    for settings in recipes:
        assert settings.data.held_out == 2000
        assert asdict(settings.si_rbm) == {**asdict(settings.rbm), "scales": table.si_rbm.scales}


def test_the_committed_records_of_table_1_are_of_these_settings():
    for folder, epochs, count in (("table1", 700, 42), ("table1-100", 100, 24)):
        now = load_experiment("table1", "paper", {"training.epochs": epochs}).settings
        records = read_records(ROOT / "results" / folder)
        assert len(records) == count
        for found in records:
            assert build(Settings, found.config, "the record").of_result(found.model) == now.of_result(found.model)


def test_nothing_is_measured_on_what_is_no_network():
    with pytest.raises(ValueError, match="`models` must be networks where something is measured on them, got 'rbm'"):
        load_experiment("fig3", "quick", {"models": ["convnet", "rbm"]})


def test_one_point_can_be_chosen():
    curve = load_experiment("fig4a", "quick", {"points": [{"name": "maps2"}, {"name": "maps3"}]})
    assert [point.name for point in curve.at_point("maps3").points] == ["maps3"]
    assert [point.name for point in curve.at_point(None).points] == ["maps2"]
    with pytest.raises(ValueError, match="`point` must be one of maps2, maps3 in fig4a, got 'maps9'"):
        curve.at_point("maps9")


WRONG = {
    "figure": (("table1", "quick", {"figure.kind": "pie"}), "`figure.kind` must be one of 'lines', 'bars', got 'pie'"),
    "none to train": (("table1", "quick", {"data.held_out": 500}), r"`held_out` \(=500\) must leave .* \(=500\)"),
    "maps of two": (("field", "quick", {"network.maps": [3, 4]}), r"`maps` must be 3 numbers for cnn, got \[3, 4\]"),
    "maps of three": (
        ("table1", "quick", {"network.maps": [3, 4, 5]}),
        r"`maps` must be 2 numbers for convnet, got \[3, 4, 5\]",
    ),
    "val alone": (("table1", "quick", {"data.val": 5}), r"`test` must be above 0 with `val` \(=5\)"),
    "part": (("field", "quick", {"data.part": "half"}), "`part` must be one of 'train', 'test', 'all', got 'half'"),
    "optimizer": (
        ("field", "quick", {"training.optimizer": "lbfgs"}),
        "`optimizer` must be one of 'sgd', 'adam', 'adamw'",
    ),
    "keep": (
        ("field", "quick", {"training.keep": "worst"}),
        "`keep` must be one of 'last', 'best', 'average', got 'worst'",
    ),
    "two schedules": (
        ("field", "quick", {"training.cosine": True}),
        r"`cosine` must be off with `drops` \(=\[2\]\) or `settled` \(=0\)",
    ),
    "dropout": (("field", "quick", {"network.dropout": 1.0}), "`dropout` must lie between 0 and 1, below 1, got 1.0"),
    "pool": (("lead", "quick", {"network.pool": "sum"}), "`pool` must be one of 'max', 'logsumexp', 'mean', got 'sum'"),
    "item": (("table9", "quick", {}), "`item` must be one of .*table1.*, got 'table9'"),
    "preset": (("table1", "fast", {}), "`preset` must be one of quick, paper, got 'fast'"),
    "key": (("table1", "quick", {"training.foo": 1}), r"`foo` in table1.toml, \[training\] is unknown"),
    "top key": (("table1", "quick", {"foo": 1}), "`foo` in table1.toml is unknown"),
    "kind": (("table1", "quick", {"training.epochs": "many"}), "`epochs` in .* must be int, got 'many'"),
    "boolean": (("table1", "quick", {"training.epochs": True}), "`epochs` in .* must be int, got True"),
    "fraction": (("table1", "quick", {"training.batch": 1.5}), "`batch` in .* must be int, got 1.5"),
    "list": (("table1", "quick", {"folds": 3}), "`folds` in .* must be tuple.*, got 3"),
    "table": (("table1", "quick", {"training": 3}), r"\[training\] must be a table, got 3"),
    "baseline": (("table1", "quick", {"baseline": "nope"}), "`baseline` must be among .*, got 'nope'"),
    "model": (("table1", "quick", {"models": ["resnet"]}), "`models` must be among .*, got 'resnet'"),
    "no model": (("table1", "quick", {"models": []}), "`models` must name at least one"),
    "fold twice": (("table1", "quick", {"folds": [1, 1]}), r"`folds` must name .* none twice, got \[1, 1\]"),
    "fold": (("table1", "paper", {"folds": [6]}), "`folds` must lie between 0 and 5, got 6"),
    "epochs": (("table1", "quick", {"training.epochs": 0}), "`epochs` must be at least 1, got 0"),
    "rate": (("table1", "quick", {"training.learning_rate": -1}), "`learning_rate` must be at least 0, got -1.0"),
    "NaN": (("table1", "quick", {"training.momentum": float("nan")}), "`momentum` must be at least 0, got nan"),
    "infinite rate": (
        ("table1", "quick", {"training.learning_rate": float("inf")}),
        "`learning_rate` must be finite, got inf",
    ),
    "infinite noise": (("table1", "quick", {"data.noise": float("inf")}), "`noise` must be finite, got inf"),
    "infinite factor": (
        ("table1", "quick", {"training.rescale": [1, float("inf")]}),
        r"`rescale` must be two finite factors above 0, the smaller first, got \[1.0, inf\]",
    ),
    "drops": (
        ("field", "quick", {"training.drops": [2, -3]}),
        r"`drops` must be epochs, from 1 on, got \[2, -3\]",
    ),
    "precision": (("table1", "quick", {"training.precision": "int8"}), "`precision` must be one of .*, got 'int8'"),
    "scales": (("table1", "quick", {"network.scales": [2.0]}), "`scales` must contain 1"),
    "digit scales": (("table1", "quick", {"data.scales": "uniform"}), "`scales` .*must be uniform:LOW,HIGH"),
    "points": (("table1", "quick", {"points": [{"name": "A b"}]}), "`name` of a point must be of .*, got 'A b'"),
    "point twice": (("fig4a", "quick", {"points": [{}, {}]}), "`points` must hold .* no name twice"),
    "no point": (("fig4a", "quick", {"points": []}), "`points` must hold at least one"),
    "point": (("fig4a", "quick", {"points": [3]}), "`points` in fig4a.toml must be tables .*, got 3"),
    "measure": (("fig3", "quick", {"measure.kind": "luck"}), "`kind` must be one of 'test_scales', .*, got 'luck'"),
    "infinite scale": (
        ("fig3", "quick", {"measure.scales": [1, float("inf")]}),
        r"`scales` must hold positive, finite factors for invariance, got \[1.0, inf\]",
    ),
    "measured scales": (("fig3", "quick", {"measure.scales": [0]}), r"`scales` must hold positive, .*, got \[0.0\]"),
    "firing": (("fig3", "quick", {"measure.firing": 0}), "`firing` must lie above 0 and not above 1, got 0.0"),
    "truncate": (("fig5a", "quick", {"data.truncate": "no"}), "`truncate` must be one of 'error', 'allow', got 'no'"),
    "test": (("fig5a", "quick", {"data.test": -1}), "`test` must be at least 0, got -1"),
    "drawn fold": (("fig5a", "quick", {"folds": [-1]}), "`folds` must lie between 0 and 1000000, got -1"),
    "fold seed": (("fig5a", "quick", {"data.fold_seed": -1}), "`fold_seed` must be at least 0, got -1"),
    "cost": (("cost", "quick", {"calls": 0}), "`calls` must be at least 1, got 0"),
    "cost scales": (("cost", "quick", {"largest": [1]}), r"`largest` must hold values above 1, got \[1.0\]"),
    "cost key": (("cost", "quick", {"training.epochs": 3}), "`training` in cost.toml is unknown"),
    "units": (("table1", "quick", {"rbm.hidden": 0}), "`hidden` must be at least 1, got 0"),
    "rbm scales": (("table1", "quick", {"si_rbm.scales": [2.0]}), "`scales` must contain 1"),
    "rbm key": (("table1", "quick", {"rbm.scales": [1.0]}), r"`scales` in table1.toml, \[rbm\] is unknown"),
    "penalties": (("table1", "quick", {"softmax.penalties": []}), r"`penalties` must hold at least one, .* got \[\]"),
    "infinite penalty": (
        ("table1", "quick", {"softmax.penalties": [float("inf")]}),
        r"`penalties` must hold at least one, all finite and none below 0, got \[inf\]",
    ),
    "held out": (("table1", "quick", {"softmax.held_out": 1}), "`held_out` must lie between 0 and 1, got 1.0"),
    "maps": (("table1", "quick", {"network.maps": [3]}), "`maps` must be two or three positive numbers"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_belong_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_item(*arguments)
