"""Two processes that torchrun starts equal one, and go on when one of them was lost."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from scaleconv.experiments.distributed import LOST, Processes, joint_norms
from torch import nn

from helpers.folders import write_image, write_masks
from helpers.networks import run_command
from scaleconv.experiments import read_records

# 24 images in batches of 5: shares of 3 and 2. Adam would divide gradients of 0 by their rounding.
OPTIONS = ("--variant", "plain", "--epochs", "2", "--batch", "5", "--split", "0.2,0.2", "--average", "0.9")
TRAINING = ("--optimizer", "sgd", "--augment", "scale,flip,crop", "--device", "cpu", "--results")
NORMED, KILLED = ("--model", "helpers.networks:make_normed"), ("--model", "helpers.networks:make_killed")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise of no class, so that some images are taken for one and some for the other."""
    root = tmp_path_factory.mktemp("images")
    for index in range(40):
        write_image(root / ("cat", "dog")[index % 2] / f"{index}.png", size=(16, 16), seed=index)
    return root


def command(data, results, *options):
    return [str(each) for each in ("train", "--data", data, *OPTIONS, *TRAINING, results, *options)]


@pytest.fixture(scope="module")
def together():
    """Run the command in two processes, as torchrun starts them: output, errors and exit code of each."""
    context = multiprocessing.get_context("forkserver")  # imports once, and forks without threads
    context.set_forkserver_preload(["helpers.networks", "scaleconv.experiments.compare"])

    def start(folder, arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        processes = []
        for rank in ("0", "1"):
            (folder / rank).mkdir(parents=True, exist_ok=True)
            shared = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WORLD_SIZE": "2",
                "KILLED": os.environ["KILLED"],
            }
            variables = {**shared, "RANK": rank, "LOCAL_RANK": rank}
            processes.append(context.Process(target=run_command, args=(arguments, variables, folder / rank)))
            processes[-1].start()
        for process in processes:
            process.join(300)
        return [
            (*((folder / rank / name).read_text() for name in ("out", "err")), process.exitcode)
            for rank, process in zip("01", processes, strict=True)
        ]

    return start


@pytest.fixture(autouse=True)
def mark(tmp_path, monkeypatch):
    """The file that makes `helpers.networks.Killed` kill the second process."""
    monkeypatch.setenv("KILLED", str(tmp_path / "mark"))
    return tmp_path / "mark"


def same(one, two, tolerance=2e-5):
    """Weights and records of two folders agree to rounding."""
    files = [sorted((folder / "train" / "weights").iterdir()) for folder in (one, two)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for first, second in zip(*files, strict=True):
        weights, others = load_file(first), load_file(second)
        for name, tensor in weights.items():
            torch.testing.assert_close(others[name], tensor, atol=tolerance, rtol=tolerance)
    for first, second in zip(*(read_records(folder / "train") for folder in (one, two)), strict=True):
        assert first.config == second.config
        assert first.series == second.series
        assert [e.train_loss for e in first.history] == pytest.approx([e.train_loss for e in second.history], rel=1e-4)
        assert [e.val_error for e in first.history] == [e.val_error for e in second.history]


def test_two_processes_equal_one_and_the_first_alone_prints_and_writes(run, together, images, tmp_path):
    """Each has a folder of its own, as on two machines."""
    assert run(*command(images, tmp_path / "one", *NORMED))[0] == 0
    (output, errors, code), other = together(tmp_path, command(images, "results", *NORMED))
    assert (code, errors) == (0, "")
    assert other == ("", "", 0)
    assert "plain + scale augmentation, seed 0 (1 of 1):" in output
    written = tmp_path / "0" / "results"
    same(tmp_path / "one", written)
    (record,) = read_records(written / "train")
    assert record.environment["processes"] == 2
    assert list((written / "train" / "checkpoints").iterdir()) == []
    assert [path for path in (tmp_path / "1" / "results").rglob("*") if path.is_file()] == []


def test_a_lost_process_is_one_line_and_the_run_goes_on(run, together, images, tmp_path, mark):
    assert run(*command(images, tmp_path / "one", *KILLED))[0] == 0
    mark.write_text(str(int(signal.SIGKILL)))
    two = command(images, tmp_path / "two", *KILLED)
    (output, errors, code), (_, _, lost) = together(tmp_path, two)
    assert (code, lost) == (2, -9)
    assert errors == f"scaleconv: {LOST}\n"
    assert "seed 0 (" not in output
    (checkpoint,) = (tmp_path / "two" / "train" / "checkpoints").iterdir()
    assert int(load_file(checkpoint)["position"]) == 4
    assert [code for *_, code in together(tmp_path, two)] == [0, 0]
    same(tmp_path / "one", tmp_path / "two")
    assert [code for *_, code in together(tmp_path, two)] == [0, 0]  # finished, and found so by both


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(together, images, tmp_path, mark):
    mark.write_text(str(int(signal.SIGTERM)))
    (_, errors, code), other = together(tmp_path, command(images, tmp_path / "two", *KILLED))
    assert (code, *other) == (130, "", "", 130)
    assert errors.startswith("scaleconv: interrupted; what was finished is kept")
    (checkpoint,) = (tmp_path / "two" / "train" / "checkpoints").iterdir()
    assert int(load_file(checkpoint)["position"]) == 5


def test_torchrun_trains_on_masks(run, tmp_path):
    photos = write_masks(tmp_path / "photos", 10, size=(8, 8))
    options = ("--task", "segmentation", "--split", "0,0.2", "--epochs", "1")
    assert run(*command(photos, tmp_path / "one", *options))[0] == 0
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "scaleconv"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *launched, *command(photos, tmp_path / "two", *options)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("seed 0 (1 of 1):") == 1
    same(tmp_path / "one", tmp_path / "two")


def test_a_batch_is_shared_without_a_rest():
    assert [Processes(rank, 2).share([1, 2, 3, 4, 5]) for rank in (0, 1)] == [[1, 3, 5], [2, 4]]
    assert Processes(1, 3).taken([1, 2, 3, 4]) == 4
    assert [Processes(rank, 3).share([7, 8]) for rank in (0, 1, 2)] == [[7, 8]] * 3
    assert Processes(1, 3).taken([7, 8]) == 6


def test_norms_are_their_own_again_afterwards():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    before = dict(vars(network[1]))
    with joint_norms(network, Processes(0, 2), "cpu"):
        assert type(network[1]) is not nn.BatchNorm2d
    assert type(network[1]) is nn.BatchNorm2d
    assert vars(network[1]).keys() == before.keys()
