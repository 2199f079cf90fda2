"""Every file in the package is an item; presets, points and the command line change its settings in this order."""

from importlib import resources

import pytest

from scaleconv.experiments import (
    ITEMS,
    SEARCHES,
    Experiment,
    check_name,
    load_experiment,
    load_item,
    parse_override,
)
from scaleconv.experiments.claims import CHECKS
from scaleconv.experiments.items import read_items


def test_every_file_is_an_item():
    files = resources.files("scaleconv").joinpath("configs").iterdir()
    assert sorted(file.name for file in files if file.name.endswith(".toml")) == sorted(f"{i}.toml" for i in ITEMS)


def test_items_come_in_the_order_of_the_paper_and_after_those_whose_networks_they_use():
    assert ITEMS[:7] == ("table1", "fig3", "fig4a", "fig4b", "fig5a", "fig5b", "cost")
    reused = [(other, item) for item in ITEMS for other in getattr(load_item(item), "reuse", ())]
    assert {other for other, _ in reused} >= {"table1"}
    assert all(ITEMS.index(other) < ITEMS.index(item) for other, item in reused)


WRONG_FILES = {
    "no TOML": ("title = ", "is not valid TOML"),
    "nested": ("a = " + "[" * 100_000, "is not valid TOML"),
    "bytes": ("title = '\udcff'", "is not valid TOML"),
    "order": ("order = 'first'", "`order` in shifted.toml must be int, got first"),
    "presets": ("presets = [1]", "`presets` in shifted.toml must be tables"),
    "preset": ("presets.quick = 1", "`presets` in shifted.toml must be tables"),
    "base": ("base = 'nothing'", "`base` in shifted.toml must be an item"),
    "bases": ("base = ['a']", "`base` in shifted.toml must be str"),
    "circle": ("base = 'shifted'", "`base` in shifted.toml must be an item that is not based on it, got 'shifted'"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path, text, message):
    (tmp_path / "shifted.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message) as refusal:
        read_items(tmp_path)
    assert "shifted.toml" in str(refusal.value)


def test_a_value_that_breaks_a_rule_is_named_with_its_file_and_section():
    with pytest.raises(ValueError, match=r"`size` must be at least 1, got 0, in table1.toml, \[data\]"):
        load_item("table1", overrides={"data.size": 0})
    with pytest.raises(ValueError, match=r"`learning_rate` in table1.toml, \[training\] must be float"):
        load_item("table1", overrides={"training.learning_rate": 10**400})


@pytest.mark.parametrize("item", ITEMS)
def test_every_claim_that_a_file_names_can_be_checked(item):
    assert set(load_item(item).checks) <= set(CHECKS)


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_every_file_reads_under_every_preset(item, preset):
    loaded = load_item(item, preset)
    assert (loaded.item, loaded.preset) == (item, preset)
    assert len(loaded.folds) >= 3
    if isinstance(loaded, Experiment):
        assert loaded.baseline in loaded.models
        dataset = "embedded" if preset == "quick" else "fashion" if item == "fashion" else "mnist"
        assert {point.settings.data.dataset for point in loaded.points} == {dataset}


def test_overrides_reach_any_depth():
    experiment = load_experiment("table1", "quick", {"training.epochs": 3, "folds": [1], "network.maps": [4, 5]})
    assert experiment.settings.training.epochs == 3
    assert experiment.folds == (1,)
    assert experiment.settings.network.shape(28).maps == (4, 5)


def test_points_change_settings_and_the_command_line_changes_them_last():
    points = [{"name": "a", "x": 1, "set": {"training.epochs": 7, "network.maps": [2, 3]}}, {"name": "b", "x": 2}]
    found = load_experiment("table1", "quick", {"points": points, "network.maps": [4, 5]})
    assert [(p.name, p.settings.training.epochs, p.settings.network.maps) for p in found.points] == [
        ("a", 7, (4, 5)),
        ("b", 60, (4, 5)),
    ]


def test_presets_of_an_item_are_stronger_than_what_it_takes_over():
    """The order is base, item, preset of the base, preset of the item."""
    quick = load_experiment("fig5b", "quick").settings
    assert (quick.data.dataset, quick.data.size) == ("embedded", 40)
    assert quick.training.evaluate_every == load_experiment("table1", "quick").settings.training.evaluate_every == 20
    assert quick.training.epochs < load_experiment("fig5b").settings.training.epochs
    assert [load_experiment(item, "quick").settings.training.steps for item in ITEMS if item != "cost"] == [0] * (
        len(ITEMS) - 1
    )


@pytest.mark.parametrize("item", ["table1", "fig4a", "fig4b", "fig5a", "fig5b"])
def test_every_network_of_the_paper_trains_for_the_same_steps_of_128(item):
    loaded = load_experiment(item)
    assert len(loaded.folds) == 6
    for point in loaded.points:
        training, data = point.settings.training, point.settings.data
        assert training.epochs * (training.steps or data.train // training.batch) == 54_600
        assert (training.batch, training.learning_rate) == (128, 0.01)


def test_what_compares_settings_is_not_run_with_all():
    held_out = {item for item in ITEMS if item != "cost" and load_experiment(item).settings.data.held_out}
    assert held_out == {"scales", "recipes", "ideas"}
    assert set(SEARCHES) == held_out | {"unfamiliar", "neurons", "folds", "alignment"}


def test_epochs_of_the_command_line_reach_every_method_unless_one_is_set():
    settings = load_experiment("table1", "quick", {"epochs": 4, "rbm.epochs": 7}).settings
    assert [settings.epochs(model) for model in ("convnet", "rbm", "si_rbm", "pixels")] == [4, 7, 4, 1]


def test_an_item_that_trains_nothing_is_no_experiment():
    with pytest.raises(ValueError, match="`item` must be one that trains networks, got 'cost'"):
        load_experiment("cost")


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


@pytest.mark.parametrize("text", ["training.epochs=1\ntraining.batch=2", "data.seed=1\r2", "data.dataset=mnist\n"])
def test_two_settings_in_one_are_refused_instead_of_dropping_the_second(text):
    with pytest.raises(ValueError, match="`set` must be one KEY=VALUE on one line"):
        parse_override(text)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/tmp/x", "a/b", "a\nb", "table1-**", "-x", "a b", "a\\b"])
def test_a_name_that_leaves_the_results_is_refused(name):
    with pytest.raises(ValueError, match="`name` must be a folder's name"):
        check_name(name)
