"""Every file in the package is read, and what does not belong in one is refused by name."""

import pytest

from scaleconv.experiments.config import items, load_experiment, parse_override


@pytest.mark.parametrize("item", items())
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_every_file_reads_under_every_preset(item, preset):
    experiment = load_experiment(item, preset)
    assert experiment.baseline in experiment.models
    assert experiment.preset == preset


def test_the_paper_preset_is_the_protocol_of_the_paper():
    experiment = load_experiment("table1", "paper")
    training = experiment.training
    assert (training.epochs, training.batch, training.learning_rate) == (700, 128, 0.01)
    assert (training.momentum, training.weight_decay, training.bias_rate) == (0.9, 1e-4, 2)
    assert (experiment.data.train, experiment.data.sets, experiment.folds) == (10_000, 6, (0, 1, 2, 3, 4, 5))
    assert experiment.network.scales == tuple(2 ** (k / 3) for k in range(-2, 4))
    assert (experiment.network.maps, experiment.network.kernel, experiment.network.hidden) == ((36, 64), 7, 150)
    assert experiment.paper["convnet"] == (3.48, 0.23)


def test_the_quick_preset_needs_no_data_and_three_repeats():
    experiment = load_experiment("table1", "quick")
    assert experiment.data.dataset == "embedded"
    assert len(experiment.folds) >= 3
    assert set(experiment.models) == {"convnet", "hierarchical", "si_convnet"}


def test_overrides_reach_any_depth():
    experiment = load_experiment("table1", "quick", {"training.epochs": 3, "folds": [1], "network.maps": [4, 5]})
    assert experiment.training.epochs == 3
    assert experiment.folds == (1,)
    assert experiment.network.shape(28).maps == (4, 5)


WRONG = {
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
    "precision": (("table1", "quick", {"training.precision": "int8"}), "`precision` must be one of .*, got 'int8'"),
    "scales": (("table1", "quick", {"network.scales": [2.0]}), "`scales` must contain 1"),
    "digit scales": (("table1", "quick", {"data.scales": "uniform"}), "`scales` .*must be uniform:LOW,HIGH"),
    "maps": (("table1", "quick", {"network.maps": [3]}), "`maps` must be two positive numbers"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_belong_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_experiment(*arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.epochs=3", ("training.epochs", 3)),
        ("network.maps=[4, 5]", ("network.maps", [4, 5])),
        ("data.dataset=mnist", ("data.dataset", "mnist")),
        ("training.momentum = 0.5", ("training.momentum", 0.5)),
    ],
)
def test_settings_of_the_command_line_are_toml_values(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["epochs", "=3", ""])
def test_settings_without_key_or_value_are_refused(text):
    with pytest.raises(ValueError, match="`set` must be KEY=VALUE"):
        parse_override(text)
