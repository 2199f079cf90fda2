"""Runs leave records, finished ones are not run again, interrupted ones go on bit for bit."""

import itertools
import json
import os
import random
import shutil
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scaleconv.experiments import descent, load_experiment, read_records, run_experiment, runner
from scaleconv.experiments.digits import DigitStore

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


def experiment(**changes):
    return load_experiment("table1", "quick", {**TINY, **changes})


def outcome(folder):
    """Everything in the records but the time they took, and the weights."""
    records = {}
    for record in read_records(folder):
        values = asdict(record)
        for name in ("seconds", "seconds_per_epoch", "environment", "experiment"):
            del values[name]
        for entry in values["history"]:
            del entry["seconds"]
        name = f"{record.model}-fold{record.fold}-seed{record.seed}.safetensors"
        weights = load_file(folder / "weights" / name)
        records[record.model, record.fold] = values, {name: tensor.tolist() for name, tensor in weights.items()}
    return records


@pytest.fixture(scope="module", autouse=True)
def digits():
    """Scaled once for all tests, so that their time goes into training."""
    with pytest.MonkeyPatch.context() as patch:
        store = DigitStore(torch.device("cpu"))
        patch.setattr(runner, "DigitStore", lambda *_: store)
        yield


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
            len(torch.tensor(w).flatten()) for w in outcome(finished)[record.model, record.fold][1].values()
        )
        assert [entry.epoch for entry in record.history] == [1, 2, 3, 4]
        assert [entry.test_error is None for entry in record.history] == [True, False, True, False]
        assert record.test_error == record.history[-1].test_error
        assert record.seconds == pytest.approx(sum(entry.seconds for entry in record.history))
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


class Stop(Exception):  # noqa: N818
    """The interruption."""


class StopAt:
    """Interrupts the experiment after so many epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def begin(self, *_):
        pass

    plan = end = begin

    def epoch(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Stop


@pytest.mark.parametrize(("between", "saved"), [(0.0, [1, 2, 3]), (2.5, [2]), (1000.0, [])])
def test_a_checkpoint_waits_until_there_is_something_to_lose(tmp_path, monkeypatch, between, saved):
    """The clock is looked at twice in an epoch for its seconds, and once to see whether a checkpoint is due."""
    monkeypatch.setattr(descent, "SECONDS_BETWEEN", between)
    clock = iter(itertools.count(step=0.5))
    monkeypatch.setattr(descent.time, "perf_counter", lambda: next(clock))
    written, write = [], descent.write_checkpoint
    monkeypatch.setattr(
        descent, "write_checkpoint", lambda path, state: (written.append(state.epoch), write(path, state))
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
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal, not handled, ends a process like SIGKILL
        run_experiment(experiment(), folder)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    return os.WIFSIGNALED(status), usage.ru_utime + usage.ru_stime


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


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped", "other settings"])
def test_a_damaged_checkpoint_is_refused_and_finished_runs_stay(damage, tmp_path):
    folder = tmp_path / "table1-tiny"
    with pytest.raises(Stop):
        run_experiment(experiment(), folder, watcher=StopAt(6))
    (path,) = (folder / "checkpoints").glob("*")
    data = bytearray(path.read_bytes())
    if damage == "other settings":
        with pytest.raises(ValueError, match=r"other settings"):
            run_experiment(experiment(**{"training.momentum": 0.5, "folds": [1]}), folder)
        return
    if damage == "flipped":
        data[-3] ^= 1
    path.write_bytes({"cut": data[:-40], "garbage": b"not a checkpoint", "flipped": data}[damage])
    with pytest.raises(ValueError, match=rf"{path.name} is not a whole checkpoint .*delete it to start this run again"):
        run_experiment(experiment(), folder)
    assert len(read_records(folder)) == 1
    path.unlink()
    assert len(run_experiment(experiment(), folder)) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "line"),
        (lambda text: "[]", "the record must be a table"),
        (lambda text: text.replace('"test_error":', '"error":', 1), "`error` in the record is unknown"),
        (lambda text: json.dumps({**json.loads(text), "fold": "0"}), "`fold` in the record must be int, got '0'"),
        (lambda text: json.dumps({**json.loads(text), "test_error": 101}), "`test_error` a percentage"),
        (lambda text: json.dumps({**json.loads(text), "fold": 1}), "it is of convnet, fold 1, seed 0"),
        (lambda text: json.dumps({**json.loads(text), "history": []}), "`history` must not be empty"),
        (lambda text: json.dumps({**json.loads(text), "test_error": None}), "`test_error` must be there where no"),
        (lambda text: json.dumps({**json.loads(text), "point": "maps9"}), "it is of convnet, maps9, fold 0, seed 0"),
        (lambda text: json.dumps({**json.loads(text), "series": {"a": {"x": [1], "y": []}}}), "a value for each x"),
        (lambda text: json.dumps({**json.loads(text), "history": [{"epoch": 1}]}), "is missing"),
    ],
)
def test_a_damaged_record_is_refused_by_name(change, message, finished, tmp_path):
    path = tmp_path / "convnet-fold0-seed0.json"
    path.write_text(change((finished / path.name).read_text()))
    with pytest.raises(ValueError, match=rf"{path.name} is not a valid record .*{message}"):
        read_records(tmp_path)


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
