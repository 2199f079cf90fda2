"""Two processes that torchrun starts equal one, and go on when one of them was lost."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.elsewhere import Command, torchrun_variables
from helpers.folders import write_image, write_masks
from scaleconv.experiments import read_records
from scaleconv.experiments.processes import is_first, join_norms, started_by_torchrun

# 24 images in batches of 5: shares of 3 and 2. Adam would divide gradients of 0 by their rounding.
OPTIONS = ("--variant", "plain", "--epochs", "2", "--batch", "5", "--split", "0.2,0.2", "--average", "0.9")
TRAINING = ("--optimizer", "sgd", "--augment", "scale,flip,crop", "--device", "cpu", "--results")
NETWORKS = {"norms": ("--model", "helpers.networks:make_normed"), "convnet": ("--model", "convnet")}
NORMED = NETWORKS["norms"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise of no class, so that some images are taken for one and some for the other."""
    root = tmp_path_factory.mktemp("images")
    for index in range(40):
        write_image(root / ("cat", "dog")[index % 2] / f"{index}.png", size=(16, 16), seed=index)
    return root


def command(data, results, *options):
    return [str(each) for each in ("train", "--data", data, *OPTIONS, *TRAINING, results, *options)]


def together(folder, arguments, end=None):
    """Run the command in two processes, each in its own folder, as torchrun starts them; `end` is of the second."""
    shared = torchrun_variables()
    started = [
        Command(arguments, folder / rank, {**shared, "RANK": rank, "LOCAL_RANK": rank}, end if rank == "1" else None)
        for rank in ("0", "1")
    ]
    return [each.wait() for each in started]


@pytest.fixture(scope="module")
def alone(images, tmp_path_factory):
    """The results of one process, by network."""
    folder = tmp_path_factory.mktemp("alone")
    started = [Command(command(images, folder / name, *model), folder / name) for name, model in NETWORKS.items()]
    assert [each.wait()[0] for each in started] == [0, 0]
    return folder


def assert_same(one, two, tolerance=1e-5):
    """Weights and records of two folders agree to rounding."""
    files = [sorted((folder / "train" / "weights").iterdir()) for folder in (one, two)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for first, second in zip(*files, strict=True):
        weights, others = load_file(first), load_file(second)
        assert weights.keys() == others.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(others[name], tensor, atol=tolerance, rtol=tolerance)
    for first, second in zip(*(read_records(folder / "train") for folder in (one, two)), strict=True):
        assert (first.config, first.series) == (second.config, second.series)
        assert [e.train_loss for e in first.history] == pytest.approx([e.train_loss for e in second.history], rel=1e-4)
        assert [e.val_error for e in first.history] == [e.val_error for e in second.history]


@pytest.mark.parametrize("network", NETWORKS)
def test_two_processes_equal_one_and_the_first_alone_prints_and_writes(network, alone, images, tmp_path):
    """Each has a folder of its own, as on two machines."""
    (code, output, errors), other = together(tmp_path, command(images, "results", *NETWORKS[network]))
    assert (code, errors) == (0, "")
    assert other == (0, "", "")
    assert output.count("plain + scale augmentation, seed 0:") == 1
    written = tmp_path / "0" / "results"
    assert_same(alone / network, written)
    (record,) = read_records(written / "train")
    assert record.environment["processes"] == 2
    assert list((written / "train" / "checkpoints").iterdir()) == []
    assert not (tmp_path / "1" / "results").exists()


def test_a_lost_process_is_one_line_and_the_run_goes_on(alone, images, tmp_path):
    two = command(images, tmp_path / "results", *NORMED)
    (code, output, errors), (lost, _, _) = together(tmp_path, two, end=(signal.SIGKILL, 6))
    assert (lost, errors.count("\n"), "seed 0:" in output) == (-9, 1, False)
    assert (code, errors.startswith("scaleconv: another process of this run was lost: ")) == (2, True)
    (checkpoint,) = (tmp_path / "results" / "train" / "checkpoints").iterdir()
    assert int(load_file(checkpoint)["cursor"]) == 1  # 4 steps in an epoch, and 5 that both have done
    for _ in range(2):  # the second time it is finished, and found so by both
        assert [code for code, *_ in together(tmp_path, two)] == [0, 0]
    assert_same(alone / "norms", tmp_path / "results")


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(alone, images, tmp_path):
    two = command(images, tmp_path / "results", *NORMED)
    (code, _, errors), other = together(tmp_path, two, end=(signal.SIGTERM, 7))
    assert (code, *other) == (130, 130, "", "")
    assert errors.startswith("scaleconv: interrupted; what was finished is kept")
    (checkpoint,) = (tmp_path / "results" / "train" / "checkpoints").iterdir()
    assert int(load_file(checkpoint)["cursor"]) == 3  # 4 steps in an epoch
    assert [code for code, *_ in together(tmp_path, two)] == [0, 0]
    assert_same(alone / "norms", tmp_path / "results")


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
    assert done.stdout.count("seed 0:") == 1
    assert_same(tmp_path / "one", tmp_path / "two")


def test_the_first_process_is_known_by_its_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (started_by_torchrun(), is_first()) == (False, True)
    for rank, size, several in (("0", "1", False), ("0", "2", True), ("1", "2", True)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        assert (started_by_torchrun(), is_first()) == (several, rank == "0")


def test_only_norms_over_the_batch_are_joined():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm1d(3), nn.GroupNorm(1, 2))
    join_norms(network, torch.device("cpu"))
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == ["Conv2d", "JointBatchNorm", "JointBatchNorm", "GroupNorm"]
    assert network.state_dict().keys() == nn.Sequential(*network).state_dict().keys()
