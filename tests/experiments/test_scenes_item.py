"""The item `scenes`: what its runs see, what is measured, and what is made of the records."""

import pytest
import torch
from scaleconv.experiments.sgd import error_rate
from scaleconv.experiments.train import DigitStore, divide
from torch import nn

from helpers.records import record
from scaleconv.data import BACKGROUND, Fixed, Uniform, embedded_digits, make_scenes, scalar_mean
from scaleconv.experiments import load_experiment, plan_runs, run_experiment
from scaleconv.experiments.measures import measure
from scaleconv.experiments.report import footnotes
from scaleconv.experiments.tables import make_panels

TINY = {
    "network.maps": [2, 3],
    "network.scales": [1.0, 1.5],
    "training.epochs": 1,
    "training.batch": 10,
    "data.train": 60,
    "data.test": 60,
    "data.size": 48,
    "measure.scales": [0.5, 1.0],
    "measure.digits": 5,
    "folds": [1],
    "data.scales": "uniform:0.9,1.1",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    changes = {**TINY, "folds": [0, 1]}
    del changes["data.scales"]
    points = [
        {"name": "near", "label": "near 1", "set": {"data.scales": "uniform:0.9,1.1"}},
        {"name": "range", "label": "over a range", "set": {"data.scales": "uniform:0.4,1.3"}},
    ]
    experiment = load_experiment("scenes", "quick", {**changes, "points": points})
    return experiment, run_experiment(experiment, tmp_path_factory.mktemp("results") / "scenes-tiny")


def test_a_run_sees_scenes_made_of_its_own_digits():
    (one, *_) = plan_runs(load_experiment("scenes", "quick", TINY))
    data, digits = one.settings.data, embedded_digits()
    seen, split = DigitStore("cpu").of(data, 1), divide(digits.labels, data, 1)
    assert len(split.train) == len(split.test) == 60
    made = make_scenes(
        digits.images[split.train],
        digits.labels[split.train],
        Uniform(0.9, 1.1),
        60,
        48,
        digits=3,
        pieces=3,
        noise=0.1,
        seed=0,
    )
    mean = scalar_mean(made.images)
    torch.testing.assert_close(seen.train, made.images - mean)
    assert torch.equal(seen.train_labels, made.labels)
    assert not torch.equal(seen.test_labels, seen.train_labels)
    assert seen.test.shape == (60, 1, 48, 48)


def test_errors_at_a_scale_are_those_on_the_pixels_of_digits_at_that_scale():
    (one, *_) = plan_runs(load_experiment("scenes", "quick", TINY))
    data, digits = one.settings.data, embedded_digits()
    seen, test = DigitStore("cpu").of(data, 1), divide(digits.labels, data, 1).test
    network = one.network().eval()
    found = measure(one, network, seen)["test_error"]
    assert found.x == [0.5, 1.0]
    for scale, error in zip(found.x, found.y, strict=True):
        scenes = make_scenes(
            digits.images[test], digits.labels[test], Fixed(scale), 5, 48, digits=3, pieces=3, noise=0.1, seed=1
        )
        with torch.no_grad():
            predicted = network(scenes.images - seen.mean).argmax(1)
        digit = scenes.labels != BACKGROUND
        assert error == pytest.approx(100 * float((predicted != scenes.labels)[digit].double().mean()))
    assert len(set(found.y)) == 2


def test_what_is_background_counts_neither_as_right_nor_as_wrong():
    scores = torch.zeros(1, 11, 1, 4)
    scores[0, 7] = 1  # everywhere a 7
    labels = torch.tensor([[[7, 3, BACKGROUND, BACKGROUND]]])
    assert error_rate(nn.Identity(), scores, labels) == 50


def test_every_point_is_a_panel_with_both_networks():
    found = [
        record(
            model,
            point=point,
            label=point,
            error=error,
            series={"test_error": ((0.5, 1.0), (error, error))},
            kind="test_scales",
        )
        for (point, model), error in zip(
            [(point, model) for point in ("near", "range") for model in ("fcn", "si_fcn")],
            (40.0, 30.0, 20.0, 10.0),
            strict=True,
        )
    ]
    panels = make_panels(load_experiment("scenes"), found)
    assert [panel.title for panel in panels] == ["trained at 0.9 – 1.1", "trained at 0.4 – 2.2"]
    values = [[(line.title, line.at(1.0).mean) for line in panel.lines] for panel in panels]
    assert values == [[("FCN", 40), ("SI-FCN", 30)], [("FCN", 20), ("SI-FCN", 10)]]


def test_the_notes_say_what_a_step_costs(records):
    experiment, found = records
    least = {r.model: min(x.seconds_per_epoch / 6 for x in found if x.model == r.model) for r in found}
    notes = " ".join(footnotes(experiment, found))
    assert f"in the fastest runs: FCN {least['fcn']:.2g}, SI-FCN {least['si_fcn']:.2g}." in notes
    assert "48×48 pixels with up to 3 of them" in notes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"models": ["convnet"], "baseline": "convnet"},
            "predict every pixel where `data.scene` is above 0, got 'convnet'",
        ),
        ({"data.scene": 0}, "predict one label, got 'fcn'"),
        ({"data.noise": -1.0}, "`noise` must be at least 0, got -1.0"),
    ],
)
def test_networks_must_fit_the_labels(changes, words):
    with pytest.raises(ValueError, match=words):
        load_experiment("scenes", "quick", changes)
