"""Runs leave records, finished ones are not run again, interrupted ones resume bit for bit."""

import io
import itertools
import json
import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console
from scaleconv.experiments.train import Outcome

from helpers.runs import Stop, StopAt, outcome
from scaleconv.experiments import Epoch, load_experiment, plan_runs, read_records, run, run_experiment, train
from scaleconv.experiments.run import ProgressDisplay

ROOT = Path(__file__).parents[2]


TINY = {
    "data.train": 100,
    "network.maps": [2, 3],
    "network.scales": [0.8, 1.0, 1.25],
    "network.hidden": 8,
    "training.epochs": 4,
    "training.batch": 50,
    "training.evaluate_every": 2,
    "training.checkpoint_every": 1,
    "folds": [0, 1],
    "models": ["convnet", "si_convnet"],
}


CURVE = {
    **TINY,
    "data.test": 100,
    "training.epochs": 2,
    "points": [
        {"name": "maps2", "x": 2, "label": "2, 2", "set": {"network.maps": [2, 2]}},
        {"name": "maps3", "x": 3, "label": "3, 2", "set": {"network.maps": [3, 2]}},
    ],
}
del CURVE["network.maps"]
pytestmark = pytest.mark.usefixtures("digits")


def experiment(**changes):
    return load_experiment("table1", "quick", {**TINY, **changes})


def curve(**changes):
    return load_experiment("fig4a", "quick", {**CURVE, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("finished") / "table1-tiny"
    run_experiment(experiment(), folder)
    return folder


def test_one_record_per_run_holds_what_a_reader_needs(finished):
    records = read_records(finished)
    assert [(record.model, record.fold) for record in records] == [
        ("convnet", 0),
        ("convnet", 1),
        ("si_convnet", 0),
        ("si_convnet", 1),
    ]
    for record in records:
        assert record.experiment == "table1-tiny"
        assert record.config["training"]["batch"] == 50
        assert record.parameters == sum(
            len(torch.tensor(w).flatten()) for w in outcome(finished)[record.name][1].values()
        )
        assert [entry.epoch for entry in record.history] == [1, 2, 3, 4]
        assert [entry.test_error is None for entry in record.history] == [True, False, True, False]
        assert record.test_error == record.history[-1].test_error
        assert record.seconds == pytest.approx(sum(entry.seconds for entry in record.history), rel=1e-2)
        assert record.seconds_per_epoch == pytest.approx(record.seconds / 4, rel=0.9)
        assert record.runs_together == 1
        assert {"torch", "python", "device", "cores", "commit", "scaleconv"} <= set(record.environment)
    assert not list((finished / "checkpoints").glob("*"))


@pytest.mark.parametrize("changes", [{}, {"training.evaluate_every": 3, "training.checkpoint_every": 2}])
def test_finished_runs_are_not_run_again_even_if_they_would_be_tested_more_often(finished, changes):
    times = {path: path.stat().st_mtime_ns for path in finished.glob("*.json")}
    run_experiment(experiment(**changes), finished, data_dir=Path("nowhere"))
    assert {path: path.stat().st_mtime_ns for path in finished.glob("*.json")} == times


@pytest.mark.parametrize("folds", [[0], [2]])
def test_records_of_other_settings_are_not_mixed_with_these(finished, folds):
    with pytest.raises(ValueError, match=r"other settings \(training.epochs was 4, now 5\).*--name"):
        run_experiment(experiment(**{"training.epochs": 5, "folds": folds}), finished)


def test_a_run_that_diverges_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"ConvNet, fold 0 diverged: its loss is nan in epoch .*learning_rate"):
        run_experiment(experiment(**{"training.learning_rate": 1e30}), tmp_path / "table1-tiny")


@pytest.mark.parametrize(("between", "saved"), [(0.0, [1, 2, 3]), (2.5, [2]), (1000.0, [])])
def test_a_checkpoint_waits_until_there_is_something_to_lose(tmp_path, monkeypatch, between, saved):
    """The clock is looked at twice in an epoch for its seconds, and once to see whether a checkpoint is due."""
    monkeypatch.setattr(train, "SECONDS_BETWEEN", between)
    clock = iter(itertools.count(step=0.5))
    monkeypatch.setattr(train.time, "perf_counter", lambda: next(clock))
    written, write = [], train.write_checkpoint
    monkeypatch.setattr(
        train, "write_checkpoint", lambda path, state: (written.append(state.epoch), write(path, state))
    )
    run_experiment(experiment(models=["convnet"], folds=[0]), tmp_path / "table1-tiny")
    assert written == saved


def test_an_interrupted_experiment_keeps_what_is_finished_and_goes_on(finished, tmp_path):
    folder = tmp_path / "table1-tiny"
    for epochs in (3, 4, 5):
        with pytest.raises(Stop):
            run_experiment(experiment(), folder, watcher=StopAt(epochs))
    assert len(read_records(folder)) == 2
    run_experiment(experiment(), folder)
    assert outcome(folder) == outcome(finished)


def run_in_child(folder, seconds):
    """Run in a fork that is killed, without warning, after so much time on the processor; return the time it took."""
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal, not handled, ends a process like SIGKILL
            run_experiment(experiment(), folder)
            failed = 0
        finally:
            os._exit(failed)  # never back into the tests
    _, status, usage = os.wait4(child, 0)
    assert status == 0 or os.WIFSIGNALED(status)
    return os.WIFSIGNALED(status), usage.ru_utime + usage.ru_stime


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a machine with a GPU autograd has threads, and cannot fork")
def test_killed_at_ten_random_moments_it_ends_the_same(finished, tmp_path):
    """Forks find the plans of `finished` in the cache, so that they are killed in training."""
    dice = random.Random(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    try:
        killed, whole = run_in_child(tmp_path / "whole", 600)
        assert not killed
        folder, kills, halfway = tmp_path / "killed", 0, 0
        while kills < 10:
            kills += run_in_child(folder, dice.uniform(0.01, whole / 3))[0]
            halfway += len(list(folder.rglob("*-seed0.*"))) > 0 and len(list(folder.glob("*.json"))) < 4
            if len(list(folder.glob("*.json"))) == 4:  # nothing is left to kill: begin again
                shutil.rmtree(folder)
        run_experiment(experiment(), folder)
    finally:
        torch.set_num_threads(threads)
    assert halfway >= 3  # kills that left something to go on from
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_what_killed_runs_left_half_written_is_removed_on_resume(tmp_path):
    folder = tmp_path / "table1-tiny"
    with pytest.raises(Stop):
        run_experiment(experiment(), folder, watcher=StopAt(6))
    left = [
        folder / ".convnet-fold0-seed0.json.abcd.part",  # of a run that has finished since
        folder / "checkpoints" / ".convnet-fold1-seed0.safetensors.abcd.part",
        folder / "weights" / ".si_convnet-fold1-seed0.safetensors.abcd.part",
    ]
    other = folder / ".someone-elses.json.abcd.part"
    for path in (*left, other):
        path.mkdir(parents=True)
    run_experiment(experiment(), folder)
    assert list(folder.rglob("*.part")) == [other]


def test_a_run_that_was_killed_when_it_had_just_finished_leaves_no_checkpoint(finished):
    (weights, *_) = sorted((finished / "weights").iterdir())
    left = finished / "checkpoints" / weights.name
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(weights.read_bytes())
    run_experiment(experiment(), finished)
    assert not left.exists()


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "table1-tiny"

    def full(self, *_):
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left on device"):
            run_experiment(experiment(), folder)
    assert not list(folder.rglob("*.json"))
    assert not list(folder.rglob("*.part"))
    assert len(run_experiment(experiment(), folder)) == 4


def test_every_model_runs_at_every_point_on_every_fold(tmp_path):
    folder = tmp_path / "fig4a-tiny"
    records = run_experiment(curve(), folder)
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
    run_experiment(curve(), whole)
    for epochs in (1, 4, 4, 3):
        with pytest.raises(Stop):
            run_experiment(curve(), folder, watcher=StopAt(epochs))
    assert 0 < len(read_records(folder)) < 8
    run_experiment(curve(), folder)
    assert outcome(folder) == outcome(whole)


def grouped(loaded, on_gpu=True):
    return [[(one.model, one.point.name, one.fold) for one in group] for group in run._groups(loaded, on_gpu)]


def test_on_a_gpu_folds_of_a_shape_are_trained_at_once_and_on_the_cpu_none():
    runs = plan_runs(curve())
    assert [len(group) for group in grouped(runs)] == [2, 2, 2, 2]
    assert all(len({(model, point) for model, point, _ in group}) == 1 for group in grouped(runs))
    assert [len(group) for group in grouped(runs, on_gpu=False)] == [1] * 8


def test_points_of_equal_shape_are_trained_at_once_up_to_a_limit():
    groups = grouped(plan_runs(load_experiment("fig5b")))
    assert [len(group) for group in groups] == [6] * 8  # 2 models, 4 ranges of scales, 6 folds
    few = grouped(plan_runs(load_experiment("fig5b", "paper", {"folds": [0, 1, 2]})))
    assert few[0] == [("convnet", f"width{width}", fold) for width in (0.15, 0.3) for fold in (0, 1, 2)]
    assert [len(group) for group in grouped(plan_runs(load_experiment("fig4b")))] == [6] * 16


def test_points_that_train_on_unequally_many_digits_are_not_trained_at_once():
    points = [{"name": f"held{n}", "x": n, "set": {"data.held_out": n}} for n in (0, 20)]
    changes = {"points": points, "models": ["convnet"], "folds": [0, 1]}
    groups = grouped(plan_runs(load_experiment("table1", "quick", changes)))
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
    run_experiment(curve(folds=[0], models=["convnet"]), folder)
    with pytest.raises(ValueError, match=r"convnet-maps3-fold0-seed0.json is of a point that fig4a does not have"):
        run_experiment(curve(points=CURVE["points"][:1]), folder)
    changed = [CURVE["points"][0], {**CURVE["points"][1], "set": {"network.maps": [4, 2]}}]
    with pytest.raises(ValueError, match=r"maps3.*other settings \(network.maps was \[3, 2\], now \[4, 2\]\)"):
        run_experiment(curve(points=changed), folder)


def test_a_model_may_be_trained_by_another_procedure(tmp_path, monkeypatch):
    """What is not trained by gradient descent hands over weights and a history, and the rest is the same."""
    history = [Epoch(1, 0.0, None, 0.1), Epoch(2, 0.0, 90.0, 0.1)]

    def guess(runs, store, folder, watcher):
        assert [one.model for one in runs] == ["ensemble"]
        return {one: Outcome({"w": torch.ones(3)}, history, 3, 1) for one in runs}

    monkeypatch.setitem(run.PROCEDURES, "ensemble", guess)
    loaded = curve(models=["ensemble"], folds=[0], points=CURVE["points"][:1])
    (record,) = run_experiment(loaded, tmp_path / "fig4a-tiny")
    assert (record.test_error, record.parameters, record.config["training"]["epochs"]) == (90.0, 3, 2)


def shown(terminal):
    stream = io.StringIO()
    first, *_, last = plan_runs(load_experiment("fig4a", "quick", {"training.epochs": 4, "folds": [0, 1]}))
    with ProgressDisplay(Console(file=stream, force_terminal=terminal, width=140)) as display:
        display.plan("fig4a", 12)
        display.begin(first, 3)
        display.end(first.title)
        display.end("another")
        display.begin(last, 1)
        display.epoch(last, Epoch(2, 0.1234, 5.5, 0.5))
        display.epoch(last, Epoch(3, 0.0567, None, 0.25))
    return stream.getvalue()


@pytest.mark.parametrize(
    "words",
    ["fig4a", " 2/12", "SI-ConvNet, 18, 32, fold 1", "3/4", "loss 0.0567", "error  5.50 %", "4 epochs/s"],
)
def test_a_terminal_sees_how_many_runs_and_of_each_epoch_loss_last_error_and_rate(words):
    assert words in shown(True)


COLOUR = r"\x1b\[(?:\d+;)*(?:3[0-7]|38;5;\d+)m"


def test_colours_are_off_where_they_should_be(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert re.search(COLOUR, shown(True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(COLOUR, shown(True))
    assert "4 epochs/s" in shown(True)


def test_runs_that_are_finished_leave_the_display():
    first, second, *_ = plan_runs(load_experiment("fig4a", "quick"))
    with ProgressDisplay(Console(file=io.StringIO(), force_terminal=True)) as display:
        display.plan("fig4a", 18)
        display.begin(first, 0)
        display.begin(second, 0)
        display.end(first.title)
        assert [task.description for task in display.progress.tasks] == ["fig4a", second.title]


def test_output_that_is_no_terminal_shows_no_progress():
    assert shown(False).strip() == ""


def test_a_terminal_sees_the_epochs_of_an_rbm():
    stream = io.StringIO()
    first, *_, last = plan_runs(load_experiment("table1", "quick", {"epochs": 3, "models": ["rbm", "pixels"]}))
    with ProgressDisplay(Console(file=stream, force_terminal=True, width=140)) as display:
        display.begin(first, 0)
        display.epoch(first, Epoch(2, 0.1, None, 0.5))
        display.begin(last, 0)
    assert "2/3" in stream.getvalue()
    assert "0/1" in stream.getvalue()
