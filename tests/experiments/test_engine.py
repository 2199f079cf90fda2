"""Runs in other processes and on a Ray cluster leave the records of local ones, whatever becomes of a worker."""

import multiprocessing
import os
import pickle
import secrets
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scaleconv.experiments.train import Silent

from helpers.command import refused
from helpers.folders import write_classes
from helpers.runs import Diary, outcome
from helpers.tasks import Heard, count_epochs, note
from scaleconv.data import load_folder
from scaleconv.experiments import engine, load_experiment, run_experiment, train
from scaleconv.experiments.engine import RayCluster, Task, open_engine
from scaleconv.experiments.records import writing

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'scaleconv[ray]'")

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


TOKEN = secrets.token_hex()


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """Keeps Ray from writing one into the home directory."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


@contextmanager
def one_thread():
    """As a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class KilledOnce(Diary):
    """Kills its process after the second epoch of a run, as soon as a checkpoint has arrived where the records are."""

    def __init__(self, folder, log):
        super().__init__()
        self.folder, self.log = folder, log

    def begin(self, run, done):
        train.SECONDS_BETWEEN = 0.0  # in this worker
        with self.log.open("a") as file:
            file.write(f"{run.model}-{run.fold} {done} {os.getpid()}\n")

    def epoch(self, run, entry):
        if (run.model, run.fold, entry.epoch) == ("si_convnet", 0, 2) and self.log.read_text().count(
            "si_convnet-0"
        ) < 2:
            deadline = time.monotonic() + 120
            while not run.checkpoint(self.folder).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)


def die(what, folder, watcher):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(what, folder, watcher):
    raise ValueError(f"`what` must be another, got {what}")


def children():
    """Names of the processes that this one has started."""
    started = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in started]


@needs_ray
def test_a_run_whose_worker_is_killed_ends_with_the_records_of_a_local_one(tmp_path, monkeypatch):
    experiment, there, log = load_experiment("table1", "quick", TINY), tmp_path / "there", tmp_path / "log"
    with one_thread():
        run_experiment(experiment, tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # workers import what is above
    before = children()
    with open_engine("ray") as cluster:
        run_experiment(experiment, there, watcher=KilledOnce(there, log), engine=cluster)
        # What else can happen to a task, with the workers that are there.
        with pytest.raises(ValueError, match=r"^`what` must be another, got 5$"):
            list(cluster.run(refuse, [Task(("one.json",), 5)], tmp_path, Silent()))
        with pytest.raises(ValueError, match="`gpus_per_run` must be at most the 0 of a machine, got 64"):
            RayCluster(cluster.ray, 64, 1)
        with pytest.raises(ValueError, match="`device` must be auto with the engine ray, got 'cuda'"):
            cluster.device("cuda")
        monkeypatch.setattr(engine, "RETRIES", 0)
        with pytest.raises(OSError, match=r"one.json lost its worker 1 times \(The worker died"):
            list(cluster.run(die, [Task(("one.json",), None)], tmp_path, Silent()))
    assert outcome(there) == outcome(tmp_path / "here")
    begun = [line.split() for line in log.read_text().splitlines()]
    first, second = (done for run, done, _ in begun if run == "si_convnet-0")
    assert (first, second) in (("0", "1"), ("0", "2"))  # a slow machine may lose the checkpoint of the epoch it died in
    assert len({process for *_, process in begun} - {str(os.getpid())}) >= 2
    assert not list(there.glob("checkpoints/*"))
    assert children() == before


@needs_ray
def test_compare_on_a_cluster_goes_on_where_it_was_here(run, tmp_path):
    images, results = write_classes(tmp_path / "photos", 10, size=(16, 16)), tmp_path / "results"
    network = ("--model", "convnet", "--scales", "0.8,1,1.25", "--epochs", "1", "--seeds", "1")
    with one_thread():
        code, here, errors = run("compare", "--data", images, *network, "--name", "here")
    assert (code, errors) == (0, "")
    shutil.copytree(results / "here", results / "there")
    missing = list(results.glob("there/**/plain-*"))
    assert len(missing) == 6  # record, weights and log, with and without rescaled images
    for path in missing:
        path.unlink()
    written = {path: path.stat().st_mtime_ns for path in results.glob("there/*.json")}
    code, there, errors = run("compare", "--data", images, *network, "--name", "there", "--engine", "ray")
    assert (code, errors) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in written} == written
    found = [outcome(results / name) for name in ("here", "there")]
    for values, _ in (*found[0].values(), *found[1].values()):
        del values["cost"]["ms"]
    assert found[0] == found[1]
    assert all(path.exists() for path in missing)
    assert there.splitlines()[-5:] == [line.replace("here", "there") for line in here.splitlines()[-5:]]


def test_small_sets_travel_with_their_images(tmp_path):
    data = load_folder(write_classes(tmp_path / "photos", 10))
    (before,) = data.train.batches([[0, 3]])
    travelled = pickle.dumps(data)
    shutil.rmtree(tmp_path / "photos")
    (after,) = pickle.loads(travelled).train.batches([[0, 3]])
    assert all(torch.equal(*parts) for parts in zip(after, before, strict=True))


def test_records_are_written_after_what_they_tell_of(tmp_path, monkeypatch):
    written, write = [], engine.writing
    monkeypatch.setattr(engine, "writing", lambda path: (written.append(path.name), write(path))[1])
    engine._write(tmp_path, {"a.json": b"{}", "weights/a.safetensors": b"0", "b.json": b"{}", "logs/x/y": b""})
    assert written == ["y", "a.safetensors", "a.json", "b.json"]
    assert (tmp_path / "weights" / "a.safetensors").read_bytes() == b"0"


@pytest.mark.parametrize("gpus", ["-1", "1.5", "nan", "inf"])
def test_a_share_of_a_gpu_is_checked(run, gpus):
    result = run("reproduce", "table1", "--engine", "ray", "--gpus-per-run", gpus)
    refused(result, f"`gpus_per_run` must be a share from 0 to 1 or a whole number, got {gpus}")


def test_other_options_are_checked(run, tmp_path):
    table1 = ("reproduce", "table1")
    refused(run(*table1, "--engine", "slurm"), "`engine` must be one of 'local', 'ray', got 'slurm'")
    refused(run(*table1, "--address", "auto"), "`address` (=auto) must be given with the engine ray")
    refused(run(*table1, "--gpus-per-run", "0.5"), "`gpus_per_run` (=0.5) must be given with the engine ray")
    assert not (tmp_path / "results").exists()


@needs_ray
def test_processes_of_torchrun_do_not_start_a_cluster(run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    code, _, errors = run("reproduce", "table1", "--engine", "ray")
    assert (code, errors.count("\n")) == (2, 1)
    assert "`engine` ray must not be started by torchrun" in errors


def test_an_address_without_a_cluster_is_one_line(run):
    result = run("reproduce", "table1", "--engine", "ray", "--address", "127.0.0.1:1")
    refused(result, "`address` must be of a running Ray cluster, got 127.0.0.1:1 (Connection refused)")


@needs_ray
@pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "host:70000", "ray://host:1x"])
def test_an_address_is_a_host_and_a_port(run, address):
    result = run("reproduce", "table1", "--engine", "ray", "--address", address)
    refused(result, f"`address` must be auto or HOST:PORT, got {address!r}")


def test_without_ray_the_message_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(
        run("reproduce", "table1", "--engine", "ray"), "the engine ray needs its package: pip install 'scaleconv[ray]'"
    )


def test_a_file_that_was_written_again_is_sent_again_whatever_the_clock_says(tmp_path):
    seen = {}
    for text in ("once", "more"):
        with writing(tmp_path / "note.txt") as part:
            part.write_text(text)
        os.utime(tmp_path / "note.txt", (0, 0))
        assert engine._changed(tmp_path, seen) == {"note.txt": text.encode()}
        assert engine._changed(tmp_path, seen) == {}


# Processes of this machine.


def tasks(*names):
    return [Task((f"{name}.json",), name) for name in names]


def test_processes_work_at_once_on_their_share_of_the_cores(tmp_path):
    with open_engine(processes=2) as several:
        done = [task.what for task in several.run(note, tasks("a", "b", "c", "d"), tmp_path, Silent())]
    assert sorted(done) == ["a", "b", "c", "d"]
    found = [list(map(int, (tmp_path / f"{name}.done").read_text().split())) for name in done]
    assert len({pid for pid, *_ in found}) == 4
    assert os.getpid() not in {pid for pid, *_ in found}
    assert {threads for _, threads, _ in found} == {max(1, os.cpu_count() // 2)}
    assert max(at_work for *_, at_work in found) == 2


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("bad", ValueError, "`what` must be good, got bad"),
        ("lost", OSError, r"the process of lost\.json was lost \(exit code -9\): start the command again"),
    ],
)
def test_an_error_or_a_lost_process_ends_the_work_and_stops_the_others(name, error, message, tmp_path):
    with open_engine(processes=2) as several, pytest.raises(error, match=message):
        list(several.run(note, tasks("long", name), tmp_path, Silent()))
    assert not multiprocessing.active_children()


def test_processes_leave_the_records_and_weights_of_one_process(tmp_path):
    settings = {"models": ["convnet"], "folds": [0, 1], "data.train": 200, "network.maps": [2, 3]}
    small = {"training.epochs": 2, "training.batch": 20, "data.tested": 100}
    experiment = load_experiment("table1", "quick", {**settings, **small})
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, os.cpu_count() // 2))
    alone = run_experiment(experiment, tmp_path / "alone")
    torch.set_num_threads(threads)
    with open_engine(processes=2) as several:
        shared = run_experiment(experiment, tmp_path / "shared", engine=several)
    for one, other in zip(alone, shared, strict=True):
        assert one.test_error == other.test_error
        assert [entry.train_loss for entry in one.history] == [entry.train_loss for entry in other.history]
    for path in (tmp_path / "alone" / "weights").iterdir():
        here, there = load_file(path), load_file(tmp_path / "shared" / "weights" / path.name)
        assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": -1}, "`processes` must lie between 0 and 256, got -1"),
        ({"processes": 1000}, "`processes` must lie between 0 and 256, got 1000"),
        ({"name": "ray", "processes": 2}, r"`processes` \(=2\) must be given with the engine local"),
    ],
)
def test_a_number_of_processes_that_breaks_its_rule_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message), open_engine(**arguments):
        pass


def test_one_process_or_one_core_is_this_process(monkeypatch):
    with open_engine(processes=1) as chosen:
        assert type(chosen).__name__ == "Local"
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with open_engine(processes=0) as chosen:
        assert type(chosen).__name__ == "Local"


def test_processes_are_for_cpus(monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.engine.choose_device", lambda _: "cuda")
    with open_engine(processes=2) as several, pytest.raises(ValueError, match=r"`processes` \(=2\) must be 1 on a GPU"):
        several.device("auto")


def test_processes_tell_their_epochs_to_the_one_that_shows_them(tmp_path):
    heard = Heard()
    tasks = [Task((f"{name}.json",), name) for name in "abc"]
    with open_engine(processes=2) as engine:
        list(engine.run(count_epochs, tasks, tmp_path, heard))
    assert sorted(heard.epochs) == [(name, number) for name in "abc" for number in (1, 2, 3)]
