"""Settings refuse what they cannot mean, by key, rule and value; the learning rate and the end of training by hand."""

import math

import pytest
from msgspec.structs import replace

from scaleconv.experiments.settings import (
    SETTLED_EPOCHS,
    DigitData,
    FolderData,
    IconData,
    MeasureSettings,
    NetworkSettings,
    SceneData,
    Settings,
    SIRBMSettings,
    SoftmaxSettings,
    TrainingSettings,
    brief,
    checked,
    read,
    task_of,
)

TASKS = ("classification", "segmentation")
# The table, then what the message must say besides the file: the key, the rule, the value.
WRONG = [
    (TrainingSettings, {"epochs": 0}, ("`epochs`", ">= 1", "got 0")),
    (TrainingSettings, {"epochs": 1.5}, ("`epochs`", "int", "got 1.5")),
    (TrainingSettings, {"batch": "3"}, ("`batch`", "int", "got '3'")),
    (TrainingSettings, {"learning_rate": -0.1}, ("`learning_rate`", ">= 0", "got -0.1")),
    (TrainingSettings, {"learning_rate": math.nan}, ("`learning_rate`", "finite", "got nan")),
    (TrainingSettings, {"learning_rate": 10**400}, ("`learning_rate`", "finite", "got 1000")),
    (TrainingSettings, {"rescale": [1.0, math.inf]}, ("`rescale`", "finite", "got inf")),
    (TrainingSettings, {"rescale": [2, 0.5]}, ("`rescale`", "smaller first", "got [2.0, 0.5]")),
    (TrainingSettings, {"smoothing": 1}, ("`smoothing`", "< 1", "got 1")),
    (TrainingSettings, {"optimizer": "lion"}, ("`optimizer`", "sgd, adam, adamw", "got 'lion'")),
    (TrainingSettings, {"augment": ["zoom"]}, ("`augment`", "scale, flip, crop", "got 'zoom'")),
    (TrainingSettings, {"drops": [2]}, ("`cosine`", "off", "`drops` (=[2])", "got True")),
    (TrainingSettings, {"settled": 0.1}, ("`cosine`", "off", "`settled` (=0.1)", "got True")),
    (TrainingSettings, {"rate": 1}, ("`rate` is unknown", "learning_rate")),
    (TrainingSettings, [], ("must be", "got []")),
    (NetworkSettings, {"name": "vgg"}, ("`model`", "resnet18", "got 'vgg'")),
    (NetworkSettings, {"scales": [0.5, 2]}, ("`scales`", "contain 1", "got (0.5, 2.0)")),
    (NetworkSettings, {"second_scales": [2]}, ("`second_scales`", "contain 1", "got (2.0,)")),
    (NetworkSettings, {"cropped_scales": []}, ("`cropped_scales`", "contain 1", "got ()")),
    (NetworkSettings, {"antialias": True, "align": "up"}, ("`antialias`", "off", "`align` (=up)")),
    (NetworkSettings, {"antialias": True, "border": "zeros"}, ("`antialias`", "off", "`border` (=zeros)")),
    (NetworkSettings, {"antialias": True, "normalise": "map"}, ("`antialias`", "off", "`normalise` (=map)")),
    (NetworkSettings, {"dropout": 1.0}, ("`dropout`", "< 1", "got 1.0")),
    (DigitData, {"size": 513}, ("`size`", "<= 512", "got 513")),
    (DigitData, {"scales": "uniform:2"}, ("`scales`", "uniform:LOW,HIGH", "'uniform:2'")),
    (DigitData, {"train": 10, "held_out": 10}, ("`held_out` (=10)", "leave", "(=10)")),
    (DigitData, {"test": 5, "fold_seed": -1}, ("`fold_seed`", "at least 0", "got -1")),
    (DigitData, {"val": 5}, ("`test`", "above 0", "`val` (=5)")),
    (DigitData, {"stratified": True}, ("`test`", "above 0", "`stratified` (=True)")),
    (DigitData, {"seen": 20_000}, ("`test`", "above 0", "`seen` (=20000)")),
    (DigitData, {"seen": 100, "train": 90, "val": 10, "test": 5}, ("`seen` (=100)", "above `train` and `val`", "100")),
    (IconData, {"sizes": [30, 20]}, ("`sizes`", "smaller first", "got [30, 20]")),
    (IconData, {"sizes": [17, 64]}, ("`sizes`", "leave one", "got [17, 64]")),
    (IconData, {"sizes": [16, 20]}, ("`sizes`", ">= 17", "got 16")),
    (MeasureSettings, {"kind": "winners"}, ("`scales`", "at least one", "got none")),
    (MeasureSettings, {"kind": "winners", "scales": [1], "size": 3}, ("`size`", "test_scales", "got 3")),
    (MeasureSettings, {"top": 0}, ("`top`", "> 0", "got 0")),
    (SIRBMSettings, {"scales": [2.0]}, ("`scales`", "contain 1", "got (2.0,)")),
    (SoftmaxSettings, {"penalties": []}, ("`penalties`", "length >= 1", "got []")),
    (Settings, {"training": {"epochs": 0}}, ("`training.epochs`", ">= 1", "got 0")),
    (Settings, {"training": {"drops": [0]}}, ("`training.drops`", ">= 1", "got 0")),
    (Settings, {"training": 3}, ("`training`", "must be", "got 3")),
    (Settings, {"data": {"source": "clouds"}}, ("`data.source`", "digits, scenes, icons, folder", "got 'clouds'")),
    (Settings, {"data": {"source": "digits", "scene": 1}}, ("`scene` is unknown", "held_out")),
    (Settings, {"data": {"source": "folder"}}, ("`fingerprint` is missing", "`data`")),
    (Settings, {"modelling": {}}, ("`modelling` is unknown", "data, network, training")),
]


@pytest.mark.parametrize(("kind", "table", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_refused_by_key_rule_and_value(kind, table, said):
    with pytest.raises(ValueError, match=r"in my\.toml") as refusal:
        read(kind, table, "my.toml")
    for part in said:
        assert part in str(refusal.value)


def test_limits_themselves_are_allowed():
    training = {"epochs": 1, "learning_rate": 0, "momentum": 0, "smoothing": 0, "rescale": [2, 2], "warmup": 0}
    assert read(TrainingSettings, training, "").rescale == (2.0, 2.0)
    assert read(DigitData, {"size": 512, "seed": 2**63 - 1, "sets": 2, "train": 2, "held_out": 1}, "").size == 512
    assert read(DigitData, {"test": 1, "val": 1, "stratified": True, "fold_seed": 0}, "").val == 1
    assert read(NetworkSettings, {"name": "package.module:factory", "antialias": True}, "").antialias
    assert read(MeasureSettings, {"kind": "test_scales", "scales": [1], "size": 3, "top": 1}, "").size == 3


def test_settings_that_python_made_are_checked_on_request():
    with pytest.raises(ValueError, match=r"`batch` must be .*got 0, in TrainingSettings"):
        checked(TrainingSettings(batch=0))
    assert checked(TrainingSettings(batch=1)) == TrainingSettings(batch=1)


def test_the_task_is_that_of_the_labels():
    folder = {"fingerprint": "", "train": 1, "val": 0, "test": 0, "classes": ["a"], "channels": 1, "size": None}
    photos, masks = (read(FolderData, {**folder, "source": "folder", "task": task}, "") for task in TASKS)
    assert [task_of(data) for data in (DigitData(), SceneData(), photos, masks)] == [*TASKS, *TASKS]


def test_what_a_message_quotes_is_one_line_of_bounded_length():
    assert brief("a\nb\x1b[31m") == "a b\\x1b[31m"
    assert len(brief(10_000 * "x")) == 301


PLAIN = TrainingSettings(epochs=5, warmup=0, cosine=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 5 epochs of 4 steps, at steps 0, 1, 3, 4, 7, 8, 12, 19
        ({}, [1] * 8),
        ({"drops": (1, 3)}, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        ({"warmup": 0.2}, [0.25, 0.5, 1, 1, 1, 1, 1, 1]),  # the first 4 of 20 steps
        ({"warmup": 0.17}, [0.25, 0.5, 1, 1, 1, 1, 1, 1]),  # 3.4 steps are 4
        ({"cosine": True}, [0.5 + 0.5 * math.cos(math.pi * k / 20) for k in (0, 1, 3, 4, 7, 8, 12, 19)]),
        (
            {"cosine": True, "warmup": 0.2},
            [0.25, 0.5, 1, *(0.5 + 0.5 * math.cos(math.pi * k / 16) for k in (0, 3, 4, 8, 15))],
        ),
        ({"warmup": 0.2, "drops": (2,)}, [0.25, 0.5, 1, 1, 1, 0.1, 0.1, 0.1]),
    ],
    ids=str,
)
def test_the_learning_rate_of_each_step(changes, expected):
    settings = replace(PLAIN, **changes)
    assert [settings.rate_at(step, 4) for step in (0, 1, 3, 4, 7, 8, 12, 19)] == pytest.approx(expected)
    assert settings.varies == (expected != [1] * 8)


@pytest.mark.parametrize(
    ("losses", "ended"),
    [
        ([0.5] * SETTLED_EPOCHS, True),
        ([0.5] * (SETTLED_EPOCHS - 1), False),
        ([0.5] * 3 + [0.51] + [0.5] * (SETTLED_EPOCHS - 1), False),  # not in a row
        ([9.0] * 5 + [0.5] * SETTLED_EPOCHS, True),
        ([9.0] * 49, False),
        ([9.0] * 50, True),
    ],
)
def test_training_ends_with_its_epochs_or_once_the_loss_has_settled(losses, ended):
    assert replace(PLAIN, epochs=50, settled=0.5).ended(losses) == ended
    assert not replace(PLAIN, epochs=60).ended([0.0] * 59)  # settled = 0 never ends it early
