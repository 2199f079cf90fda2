"""Runs in other processes and on a Ray cluster leave the records of local ones, whatever becomes of a worker."""

import multiprocessing
import os
import pickle
import secrets
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from helpers.command import refused
from helpers.folders import write_classes
from helpers.runs import Diary, outcome
from helpers.tasks import killed_once, note
from scaleconv.data import load_folder
from scaleconv.experiments import engine, load_experiment, run_experiment
from scaleconv.experiments import run as run_module
from scaleconv.experiments.engine import RayCluster, Silent, open_engine

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'scaleconv[ray]'")
TINY = {
    "data.train": 100,
    "data.tested": 100,
    "network.maps": [2, 3],
    "network.hidden": 8,
    "training.epochs": 3,
    "training.batch": 50,
    "rbm.hidden": 4,
    "rbm.epochs": 1,
    "softmax.penalties": [0.01],
    "folds": [0, 1, 2],
    "models": ["convnet", "rbm"],
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The experiment, and a folder with what one process makes of it, with as many threads as a worker has."""
    experiment, folder = load_experiment("table1", "quick", TINY), tmp_path_factory.mktemp("here") / "table1"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    run_experiment(experiment, folder)
    torch.set_num_threads(before)
    return experiment, folder


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """The file that the worker of the second fold leaves when it kills itself, once."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # for workers
    monkeypatch.setattr(run_module, "_work", partial(killed_once, tmp_path / "killed"))
    return tmp_path / "killed"


# Processes of this machine.


def test_processes_work_at_once_on_their_share_of_the_cores_and_tell_their_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    diary = Diary()
    with open_engine(processes=2) as several:
        found = list(several.run(note, "abcd", tmp_path, diary))
    assert sorted(what for what, *_ in found) == list("abcd")  # a and b have waited for each other
    assert len({process for _, process, _ in found} | {os.getpid()}) == 3
    assert {threads for *_, threads in found} == {3}
    assert sorted(diary.advanced) == [(what, number, "") for what in "abcd" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("bad", ValueError, "^`what` must be good, got bad$"),
        ("lost", OSError, "^a process was lost: the same command goes on from what is finished$"),
    ],
)
def test_an_error_or_a_lost_process_ends_the_work_and_stops_the_others(what, error, message, tmp_path):
    with open_engine(processes=2) as several, pytest.raises(error, match=message):
        list(several.run(note, ["long", what, "long"], tmp_path, Silent()))
    assert not multiprocessing.active_children()


def test_closing_the_results_stops_the_work(tmp_path):
    with open_engine(processes=2) as several:
        results = several.run(note, ["c", "long", "long"], tmp_path, Silent())
        assert next(results)[0] == "c"
        results.close()
    assert not multiprocessing.active_children()


def test_a_killed_process_is_one_line_and_the_rest_resumes(here, tmp_path, killed):
    experiment, expected = here
    with open_engine(processes=2) as several, pytest.raises(OSError, match=r"^a process was lost: the same command"):
        run_experiment(experiment, tmp_path / "table1", engine=several)
    assert killed.exists()
    diary = Diary()
    with open_engine(processes=2) as several:
        run_experiment(experiment, tmp_path / "table1", engine=several, watcher=diary)
    if torch.get_num_threads() == 1 or os.cpu_count() <= 3:  # as many threads as `here` has
        assert outcome(tmp_path / "table1") == outcome(expected)
    assert len(diary.ended) == 6
    assert not list((tmp_path / "table1").glob("checkpoints/*"))


def test_small_sets_travel_with_their_images(tmp_path):
    data = load_folder(write_classes(tmp_path / "photos", 10))
    (before,) = data.train.batches([[0, 3]])
    travelled = pickle.dumps(data)
    shutil.rmtree(tmp_path / "photos")
    (after,) = pickle.loads(travelled).train.batches([[0, 3]])
    assert all(torch.equal(*parts) for parts in zip(after, before, strict=True))


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


def test_one_process_or_one_core_is_this_process_and_zero_one_for_each_core(monkeypatch):
    with open_engine() as chosen:
        assert (type(chosen), chosen.groups) == (engine.Local, True)
    for cores, kind in ((1, engine.Local), (5, engine.Processes)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        with open_engine(processes=0) as chosen:
            assert (type(chosen), getattr(chosen, "count", 1)) == (kind, cores)


def test_processes_are_for_cpus(monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.engine.choose_device", lambda _: "cuda")
    with open_engine(processes=2) as several, pytest.raises(ValueError, match=r"`processes` \(=2\) must be 1 on a GPU"):
        several.device("auto")


# Ray.


@pytest.fixture
def token(monkeypatch):
    """Keeps Ray from writing one into the home directory."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex())


def children():
    """Names of the processes that this one has started."""
    started = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in started)


@needs_ray
@pytest.mark.usefixtures("token")
def test_on_ray_a_run_whose_worker_is_killed_ends_with_the_records_of_a_local_one(here, tmp_path, monkeypatch, killed):
    experiment, expected = here
    before, there = children(), tmp_path / "table1"
    with open_engine("ray") as cluster:
        assert (cluster.device("auto"), cluster.groups) == ("cpu", False)
        run_experiment(experiment, there, engine=cluster)
        # What else can happen to a task, with the workers that are there.
        with pytest.raises(ValueError, match=r"^`what` must be good, got bad$"):
            list(cluster.run(note, ["bad"], tmp_path, Silent()))
        with pytest.raises(ValueError, match="`gpus_per_run` must be at most the 0 of a machine, got 64"):
            RayCluster(cluster.ray, 64, 1)
        with pytest.raises(ValueError, match="`device` must be auto with the engine ray, got 'cuda'"):
            cluster.device("cuda")
        monkeypatch.setattr(engine, "RETRIES", 0)
        with pytest.raises(OSError, match=r"^a run lost its worker 1 times \(The worker died"):
            list(cluster.run(note, ["lost"], tmp_path, Silent()))
    assert killed.read_text() != str(os.getpid())
    assert outcome(there) == outcome(expected)
    assert not list(there.glob("checkpoints/*"))
    assert children() == before


WRONG = {
    "engine": (("--engine", "slurm"), "`engine` must be one of 'local', 'ray', got 'slurm'"),
    "address": (("--address", "auto"), "`address` (=auto) must be given with the engine ray"),
    "share": (("--gpus-per-run", "0.5"), "`gpus_per_run` (=0.5) must be given with the engine ray"),
    "no server": (("--engine", "ray", "--address", "127.0.0.1:1"), "got 127.0.0.1:1 (Connection refused)"),
    **{
        gpus: (
            ("--engine", "ray", "--gpus-per-run", gpus),
            f"`gpus_per_run` must be a share from 0 to 1 or a whole number, got {gpus}",
        )
        for gpus in ("-1", "1.5", "nan", "inf")
    },
    **{
        address: (("--engine", "ray", "--address", address), f"`address` must be auto or HOST:PORT, got {address!r}")
        for address in ("nowhere", "host:", ":1", "host:70000", "ray://host:1x")
    },
}


@needs_ray
@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_of_an_engine_are_one_line(run, tmp_path, options, message):
    refused(run("reproduce", "table1", *options), message)
    assert not (tmp_path / "results").exists()


def test_processes_of_torchrun_do_not_start_a_cluster(run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    refused(run("reproduce", "table1", "--engine", "ray"), "`engine` ray must not be started by torchrun")


def test_without_ray_the_message_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(
        run("reproduce", "table1", "--engine", "ray"), "the engine ray needs its package: pip install 'scaleconv[ray]'"
    )
