"""Every file is an item; base, item, presets, points and the command line change its settings in this order."""

from importlib import resources

import pytest

from scaleconv.experiments import ITEMS, SEARCHES, Experiment, check_name, load_experiment, load_item, parse_override
from scaleconv.experiments import items as module
from scaleconv.experiments.claims import CHECKS
from scaleconv.experiments.items import folder_name, read_items
from scaleconv.experiments.methods import METHODS, epochs_of


def test_every_file_is_an_item():
    files = resources.files("scaleconv").joinpath("configs").iterdir()
    assert sorted(file.name for file in files if file.name.endswith(".toml")) == sorted(f"{i}.toml" for i in ITEMS)
    assert ITEMS[:7] == ("table1", "fig3", "fig4a", "fig4b", "fig5a", "fig5b", "cost")
    assert set(SEARCHES) < set(ITEMS)


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_every_file_reads_under_both_presets(preset):
    for item in ITEMS:
        loaded = load_item(item, preset)
        assert (loaded.item, loaded.preset) == (item, preset)
        assert len(loaded.folds) >= 3
        assert set(loaded.checks) <= set(CHECKS)
        if isinstance(loaded, Experiment):
            assert loaded.baseline in loaded.models
            assert all(ITEMS.index(other) < ITEMS.index(item) for other in loaded.reuse)
            named = {"fashion": "fashion", "fashion7": "fashion", "emoji": "emoji"}
            dataset = "embedded" if preset == "quick" else named.get(item, "mnist")
            assert {point.settings.data.dataset for point in loaded.points} == {dataset}


def test_every_network_of_the_paper_trains_for_the_same_steps_of_128():
    for item in ("table1", "fig4a", "fig4b", "fig5a", "fig5b"):
        for point in load_experiment(item).points:
            training, data = point.settings.training, point.settings.data
            assert training.epochs * (training.steps or data.train // training.batch) == 54_600
            assert (training.batch, training.learning_rate, training.smoothing) == (128, 0.01, 0)


LEAST = 'title = "t"\nmodels = ["convnet"]\nbaseline = "convnet"\nfolds = [0]\n'


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write files as the items there are."""

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.toml").write_text(text)
        monkeypatch.setattr(module, "_FILES", read_items(tmp_path))

    return write


def test_the_last_of_base_item_their_presets_point_and_command_line_counts(files):
    keys = ("epochs", "batch", "steps", "evaluate_every", "learning_rate", "momentum")

    def setting(value, count):
        """The first so many keys; each place sets fewer than the one before it."""
        return "\n".join(f"{key} = {value}" for key in keys[:count])

    base = f"{LEAST}[training]\ncosine = false\nmomentum = 0.9\n{setting(90, 5)}"
    base += f"\n[presets.quick.training]\n{setting(80, 4)}\n[presets.quick.data]\ntrain = 80\n[presets.other]\n"
    item = f"base = 'base'\n{LEAST}[training]\n{setting(70, 5)}\n[presets.quick.training]\n{setting(60, 3)}\n"
    item += '[[points]]\nname = "a"\nset = { "training.epochs" = 50, "training.batch" = 50 }\n[[points]]\nname = "b"\n'
    files(base=base.replace('"t"', '"of the base"'), item=item)
    found = load_experiment("item", "quick", {"training.epochs": 40})
    a, b = (point.settings.training for point in found.points)
    assert [getattr(a, key) for key in keys] == [40, 50, 60, 80, 70, 0.9]
    assert [getattr(b, key) for key in keys] == [40, 60, 60, 80, 70, 0.9]
    assert (a.cosine, found.title, found.settings.data.train) == (False, "t", 80)
    with pytest.raises(ValueError, match=r"`preset` must be one of paper, quick, got 'other', in item.toml"):
        load_experiment("item", "other")  # presets of the base are not those of the item


def test_items_come_by_their_order_then_by_name(files):
    files(a=LEAST, b="order = 2\n" + LEAST, c="order = 1\n" + LEAST, d="order = 2\n" + LEAST)
    assert list(module._FILES) == ["c", "b", "d", "a"]


WRONG_FILES = {
    "no TOML": ("title = ", "not valid TOML"),
    "nested": ("a = " + "[" * 100_000, "not valid TOML"),
    "bytes": ("title = '\udcff'", "not valid TOML"),
    "order": ("order = 'first'", "`order` must be .*got 'first'"),
    "presets": ("presets = [1]", r"`presets` must be .*got \[1\]"),
    "preset": ("presets.quick = 1", "`presets.*` must be .*got .*1"),
    "base": ("base = 'nothing'", "`base` .*must be an item.*got 'nothing'"),
    "bases": ("base = ['a']", r"`base` must be .*got \['a'\]"),
    "circle": ("base = 'shifted'", "`base` .*must be an item that is not based on it, got 'shifted'"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path, text, message):
    (tmp_path / "shifted.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message) as refusal:
        read_items(tmp_path)
    assert "shifted.toml" in str(refusal.value)


WRONG_CHANGES = [
    ({"titel": 1}, "`titel` is unknown.*title"),
    ({"training.epoch": 1}, "`epoch` is unknown.*epochs"),
    ({"training.epochs": 0}, "`training.epochs` must be .*got 0"),
    ({"training": 3}, "`training` must be .*got 3"),
    ({"data": 3}, "`data` must be .*got 3"),
    ({"models": ["vgg"]}, r"`models` \(='vgg'\) must be among .*convnet"),
    ({"models": []}, r"`models` must name at least one.*got \[\]"),
    ({"models": ["convnet", "convnet"]}, "`models` must name .*none twice"),
    ({"models": ["unet"]}, "`model` must be .* for classification, got unet"),
    ({"data.source": "scenes"}, "`model` must be .* for segmentation, got convnet"),
    ({"baseline": "vgg"}, r"`baseline` \(='vgg'\) must be among .*convnet"),
    ({"folds": [10]}, "`folds` must lie between 0 and 9, got 10"),
    ({"folds": [-1]}, "`folds` must lie between 0 and 9, got -1"),
    ({"data.test": 5, "folds": [10**6 + 1]}, "`folds` must lie between 0 and 1000000, got 1000001"),
    ({"seeds": [1, 1]}, r"`seeds` must name .*none twice, got \[1, 1\]"),
    ({"network.maps": [1, 2, 3]}, r"`maps` must be 2 numbers for convnet, got \[1, 2, 3\]"),
    ({"models": ["rbm"], "measure.kind": "winners", "measure.scales": [1]}, "`models` must be networks.*got 'rbm'"),
    ({"models": ["rbm"], "data.source": "scenes"}, "`models` must be networks.*got 'rbm'"),
    ({"points": 3}, "`points` .*must be a list.*got 3"),
    ({"points": [3]}, "`points` .*must be tables.*got 3"),
    ({"points": []}, r"`points` must name at least one.*got \[\]"),
    ({"points": [{"name": "a"}, {"name": "a"}]}, "`points` must name .*none twice"),
    ({"points": [{"name": "A/b"}]}, "`name` of a point must be .*got 'A/b'"),
    ({"points": [{"set": {"data.sise": 1}}]}, "`sise` is unknown.*size"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_CHANGES, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_named_with_its_file(changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        load_experiment("table1", "quick", changes)
    assert "table1.toml" in str(refusal.value)


def test_unknown_items_presets_and_points_are_named():
    with pytest.raises(ValueError, match=r"`item` must be an item, such as table1 .*got 'table2'"):
        load_item("table2")
    with pytest.raises(ValueError, match="`preset` must be one of paper, quick, got 'slow'"):
        load_item("table1", "slow")
    with pytest.raises(ValueError, match="`point` must be one of near, range in scenes, got 'far'"):
        load_experiment("scenes").at_point("far")
    with pytest.raises(ValueError, match="`item` must be one that trains networks, got 'cost'"):
        load_experiment("cost")


def test_one_point_can_be_chosen():
    scenes = load_experiment("scenes")
    assert [scenes.at_point(name).points[0].name for name in ("range", "near", None)] == ["range", "near", "near"]
    assert [len(scenes.at_point(name).points) for name in ("range", None)] == [1, 1]
    assert [load_experiment(item).is_table for item in ("table1", "scenes", "fig5a")] == [True, False, False]


def test_epochs_of_the_command_line_reach_every_method_unless_one_is_set():
    settings = load_experiment("table1", "quick", {"epochs": 4, "rbm.epochs": 7}).settings
    assert [epochs_of(model, settings) for model in ("convnet", "rbm", "si_rbm", "pixels")] == [4, 7, 4, 1]
    assert set(METHODS) > {"convnet", "rbm", "si_rbm", "pixels"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.epochs=3", ("training.epochs", 3)),
        ("network.maps=[4, 5]", ("network.maps", [4, 5])),
        ("data.dataset=mnist", ("data.dataset", "mnist")),
        ("training.momentum = 0.5", ("training.momentum", 0.5)),
        ("title=a=b", ("title", "a=b")),
    ],
)
def test_settings_of_the_command_line_are_toml_values_or_text(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["epochs", "=3", "", "training.epochs=1\ntraining.batch=2", "data.seed=1\r2"])
def test_settings_without_key_or_value_and_two_in_one_are_refused(text):
    with pytest.raises(ValueError, match=r"`set` must be .*KEY=VALUE"):
        parse_override(text)


def test_a_name_that_leaves_the_results_is_refused():
    for name in ("", ".", "..", "../x", "/tmp/x", "a/b", "a\nb", "table1-**", "-x", "a b", "a\\b"):
        with pytest.raises(ValueError, match="`name` must be a folder's name"):
            check_name(name)
    assert [folder_name("table1", preset) for preset in ("paper", "quick")] == ["table1", "table1-quick"]
