"""Experiments of several points: which runs there are, which train together, and that an interruption loses nothing."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from scaleconv.experiments import load_experiment, plan_runs, read_records, run_experiment, runner

ROOT = Path(__file__).parents[2]
TINY = {
    "data.train": 100,
    "data.test": 100,
    "network.hidden": 8,
    "training.epochs": 2,
    "training.batch": 50,
    "training.checkpoint_every": 1,
    "folds": [0, 1],
    "points": [
        {"name": "maps2", "x": 2, "label": "2, 2", "set": {"network.maps": [2, 2]}},
        {"name": "maps3", "x": 3, "label": "3, 2", "set": {"network.maps": [3, 2]}},
    ],
}


pytestmark = pytest.mark.usefixtures("digits")


def experiment(**changes):
    return load_experiment("fig4a", "quick", {**TINY, **changes})


class Stop(Exception):  # noqa: N818
    """The interruption."""


class StopAt:
    """Interrupts the experiment after so many epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def plan(self, *_):
        pass

    begin = end = plan

    def epoch(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Stop


def outcome(folder):
    """The records without what differs from sitting to sitting."""
    found = []
    for record in read_records(folder):
        values = asdict(record)
        for name in ("seconds", "seconds_per_epoch", "environment"):
            del values[name]
        found.append({**values, "history": [entry.train_loss for entry in record.history]})
    return found


def test_every_model_runs_at_every_point_on_every_fold(tmp_path):
    folder = tmp_path / "fig4a-tiny"
    records = run_experiment(experiment(), folder)
    assert [(record.model, record.point, record.x, record.fold) for record in records] == [
        (model, point, x, fold)
        for model in ("convnet", "si_convnet")
        for point, x in (("maps2", 2), ("maps3", 3))
        for fold in (0, 1)
    ]
    assert {record.config["network"]["maps"][0] for record in records if record.point == "maps3"} == {3}
    assert len({record.parameters for record in records}) == 2
    assert (folder / "si_convnet-maps3-fold1-seed0.json").is_file()
    assert (folder / "weights" / "si_convnet-maps3-fold1-seed0.safetensors").is_file()
    assert len(read_records(folder)) == 8


def test_interrupted_at_any_point_it_ends_the_same(tmp_path):
    whole, folder = tmp_path / "a" / "fig4a-tiny", tmp_path / "b" / "fig4a-tiny"
    run_experiment(experiment(), whole)
    for epochs in (1, 4, 4, 3):
        with pytest.raises(Stop):
            run_experiment(experiment(), folder, watcher=StopAt(epochs))
    assert 0 < len(read_records(folder)) < 8
    run_experiment(experiment(), folder)
    assert outcome(folder) == outcome(whole)


def test_models_of_a_point_see_the_same_digits_and_folds_see_others(digits):
    runs = {(run.model, run.point.name, run.fold): run for run in plan_runs(experiment())}

    def seen(*key):
        return digits.of(runs[key].settings.data, runs[key].fold)

    first = seen("convnet", "maps2", 0)
    for other in (seen("si_convnet", "maps2", 0), seen("convnet", "maps3", 0)):
        assert torch.equal(first.train, other.train)
        assert torch.equal(first.test, other.test)
    assert not torch.equal(first.test, seen("convnet", "maps2", 1).test)


def test_the_mean_is_that_of_the_training_digits(digits):
    seen = digits.of(experiment().settings.data, 0)
    assert seen.train.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert seen.mean > 0.01
    assert torch.equal(seen.blank(), torch.full((1, 1, 28, 28), -seen.mean))
    own = torch.stack([seen.at_scale(float(scale))[index] for index, scale in enumerate(seen.scales[:3])])
    torch.testing.assert_close(own, seen.test[:3])
    assert seen.at_scale(0.5, 7).shape == (7, 1, 28, 28)


def grouped(loaded, together=True):
    return [[(run.model, run.point.name, run.fold) for run in group] for group in runner._groups(loaded, together)]


def test_on_a_gpu_folds_of_a_shape_train_together_and_on_the_cpu_none():
    runs = plan_runs(experiment())
    assert [len(group) for group in grouped(runs)] == [2, 2, 2, 2]
    assert all(len({(model, point) for model, point, _ in group}) == 1 for group in grouped(runs))
    assert [len(group) for group in grouped(runs, together=False)] == [1] * 8


def test_points_of_equal_shape_train_together_up_to_a_limit():
    groups = grouped(plan_runs(load_experiment("fig5b")))
    assert [len(group) for group in groups] == [6] * 8  # 4 models, 4 ranges of scales, 3 folds
    assert groups[0] == [("convnet", f"width{width}", fold) for width in (0.15, 0.3) for fold in (0, 1, 2)]
    assert [len(group) for group in grouped(plan_runs(load_experiment("fig4b")))] == [3] * 32


def test_points_that_train_on_unequally_many_digits_do_not_train_together():
    points = [{"name": f"held{n}", "x": n, "set": {"data.held_out": n}} for n in (0, 20)]
    groups = grouped(plan_runs(load_experiment("table1", "quick", {"points": points, "models": ["convnet"]})))
    assert [{point for _, point, _ in group} for group in groups] == [{"held0"}, {"held20"}]


def test_records_made_before_a_setting_existed_still_count(tmp_path):
    """The records of 100 epochs know nothing of test digits or measures; nothing is run again."""
    folder = tmp_path / "table1-100"
    shutil.copytree(ROOT / "results" / "table1-100", folder)
    networks = ["convnet", "hierarchical", "si_convnet", "ensemble"]
    loaded = load_experiment("table1", "paper", {"training.epochs": 100, "models": networks})
    assert "test" not in json.loads((folder / "convnet-fold0-seed0.json").read_text())["config"]["data"]
    assert len(run_experiment(loaded, folder, data_dir=Path("nowhere"))) == 24


def test_records_of_a_point_the_experiment_does_not_have_are_refused(tmp_path):
    folder = tmp_path / "fig4a-tiny"
    run_experiment(experiment(folds=[0], models=["convnet"]), folder)
    with pytest.raises(ValueError, match=r"convnet-maps3-fold0-seed0.json is of a point that fig4a does not have"):
        run_experiment(experiment(points=TINY["points"][:1]), folder)
    changed = [TINY["points"][0], {**TINY["points"][1], "set": {"network.maps": [4, 2]}}]
    with pytest.raises(ValueError, match=r"maps3.*other settings \(network.maps was \[3, 2\], now \[4, 2\]\)"):
        run_experiment(experiment(points=changed), folder)


def test_one_point_can_be_chosen():
    assert [point.name for point in experiment().at_point("maps3").points] == ["maps3"]
    assert [point.name for point in experiment().at_point(None).points] == ["maps2"]
    with pytest.raises(ValueError, match="`point` must be one of maps2, maps3 in fig4a, got 'maps9'"):
        experiment().at_point("maps9")


@pytest.mark.parametrize("antialias", [False, True])
def test_the_network_has_the_layers_its_settings_name(antialias):
    named = {"network.antialias": antialias, "network.scales": [1, 1.5], "models": ["si_convnet"]}
    stages = plan_runs(experiment(**named))[0].network().stages
    assert [layer.antialias for layer in (stages.conv1, stages.conv2)] == [antialias, antialias]
    assert stages.conv1.scales == stages.conv2.scales == (1, 1.5)


def test_the_second_layer_may_have_scales_of_its_own():
    named = {"network.scales": [1, 1.5], "network.second_scales": [0.5, 1], "models": ["si_convnet"]}
    stages = plan_runs(experiment(**named))[0].network().stages
    assert (stages.conv1.scales, stages.conv2.scales) == ((1, 1.5), (0.5, 1))
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        experiment(**named | {"network.second_scales": [0.5]})


def test_a_model_may_be_trained_by_another_procedure(tmp_path, monkeypatch):
    """What is not trained by gradient descent hands over weights and a history, and the rest is the same."""
    from scaleconv.experiments.descent import Outcome
    from scaleconv.experiments.records import Epoch

    def guess(runs, store, folder, watcher):
        assert [run.model for run in runs] == ["ensemble"]
        return {run: Outcome({"w": torch.ones(3)}, [Epoch(1, 0.0, 90.0, 0.1)], 3, 1) for run in runs}

    monkeypatch.setitem(runner.PROCEDURES, "ensemble", guess)
    loaded = experiment(models=["ensemble"], folds=[0], points=TINY["points"][:1])
    (record,) = run_experiment(loaded, tmp_path / "fig4a-tiny")
    assert (record.test_error, record.parameters, record.config["training"]["epochs"]) == (90.0, 3, 2)
