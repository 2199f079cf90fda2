"""Runs on a Ray cluster leave the records of local ones, whatever becomes of a worker."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helpers.command import refused
from helpers.folders import write_classes
from helpers.runs import Diary, outcome
from scaleconv.experiments import engine, load_experiment, run_experiment, train
from scaleconv.experiments.engine import Task, open_engine

TINY = {
    "data.train": 100,
    "network.maps": [2, 3],
    "network.scales": [0.8, 1.0, 1.25],
    "network.hidden": 8,
    "training.epochs": 4,
    "training.batch": 50,
    "training.checkpoint_every": 1,
    "rbm.hidden": 4,
    "rbm.epochs": 1,
    "folds": [0, 1],
    "models": ["si_convnet", "rbm"],
}


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="needs Ray: pip install 'scaleconv[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # of workers, which are told to call what is below
        with open_engine("ray") as opened:
            yield opened


@contextmanager
def one_thread():
    """As a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class KilledOnce(Diary):
    """Kills its process after the second epoch, when the checkpoint has arrived where the records are."""

    def __init__(self, folder, log):
        super().__init__()
        self.folder, self.log = folder, log

    def begin(self, run, done):
        train.SECONDS_BETWEEN = 0.0  # in this worker
        with self.log.open("a") as file:
            file.write(f"{run.model} {run.fold} {done} {os.getpid()}\n")

    def epoch(self, run, entry):
        if (run.model, run.fold, entry.epoch) == ("si_convnet", 0, 2) and self.log.read_text().count("si_convnet 0") == 1:
            checkpoint, deadline = run.checkpoint(self.folder), time.monotonic() + 30
            while not checkpoint.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_whose_worker_is_killed_ends_with_the_records_of_a_local_one(cluster, tmp_path):
    experiment, there, log = load_experiment("table1", "quick", TINY), tmp_path / "there", tmp_path / "log"
    with one_thread():
        run_experiment(experiment, tmp_path / "here")
    run_experiment(experiment, there, watcher=KilledOnce(there, log), engine=cluster)
    assert outcome(there) == outcome(tmp_path / "here")
    begun = [line.split() for line in log.read_text().splitlines()]
    assert [done for model, fold, done, _ in begun if (model, fold) == ("si_convnet", "0")] == ["0", "2"]
    assert str(os.getpid()) not in {process for *_, process in begun}
    assert not list(there.glob("checkpoints/*"))
    times = {path: path.stat().st_mtime_ns for path in there.glob("*.json")}
    run_experiment(experiment, there, watcher=KilledOnce(there, log), engine=cluster)
    assert {path: path.stat().st_mtime_ns for path in there.glob("*.json")} == times
