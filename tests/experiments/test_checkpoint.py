"""A checkpoint is read back bit for bit; one that is damaged, contradicts itself or does not fit is refused by name."""

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from helpers.runs import Stop, StopAt
from scaleconv.experiments import Epoch, load_experiment, read_records, run_experiment
from scaleconv.experiments.checkpoint import (
    Checkpoint,
    _checksum,
    check_shapes,
    load_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

HISTORY = [Epoch(1, 2.0, None, 0.5), Epoch(2, 1.0, 10.0, 0.5)]
RUN = {"model": "convnet", "fold": 0}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoints" / "convnet-fold0-seed0.safetensors"
    tensors = {"weight.a": torch.arange(6.0).view(2, 3), "weight.b": torch.ones(3)}
    write_checkpoint(path, Checkpoint(RUN, HISTORY, tensors))
    return path


def test_a_checkpoint_is_read_back_as_it_was_written(path):
    found = read_checkpoint(path, RUN)
    assert (found.run, found.history, found.epoch) == (RUN, HISTORY, 2)
    assert torch.equal(found.tensors["weight.a"], torch.arange(6.0).view(2, 3))


def rewrite(path, tensors=None, sign=False, **changes):
    """Change a checkpoint; with `sign`, under the checksum that belongs to the change."""
    with safe_open(path, framework="pt") as file:
        header = {**file.metadata(), **changes}
    tensors = tensors or load_file(path)
    if sign:
        del header["checksum"]
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, metadata=header)


EMPTY = json.dumps({"epoch": [], "train_loss": [], "seconds": [], "tested": [], "test_error": []})
HEADERS = {
    "history": {"history": "[]"},
    "columns": {"history": EMPTY},
    "below": {"epoch": "-1"},
    "above": {"epoch": "99"},
    "text": {"epoch": '"x"'},
    "nothing": {"epoch": "x"},
    "run": {"run": '{"model": "si_convnet"}'},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_was_changed_is_refused(path, header):
    rewrite(path, **header)
    with pytest.raises(ValueError, match=rf"{path.name} is not a whole checkpoint \(its checksum does not agree"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["history", "columns", "below", "above", "text", "nothing"])
def test_an_epoch_that_contradicts_the_history_is_refused_whatever_the_checksum(path, name):
    rewrite(path, sign=True, **HEADERS[name])
    with pytest.raises(ValueError, match=f"{path.name} is not a whole checkpoint"):
        load_checkpoint(path)


def test_weights_of_another_shape_or_type_are_refused(path):
    tensors = load_file(path)
    for other in (torch.ones(1), torch.ones(3, dtype=torch.int32), torch.ones(3, 1)):
        rewrite(path, {**tensors, "weight.b": other})
        with pytest.raises(ValueError, match="its checksum does not agree"):
            load_checkpoint(path)


def test_tensors_that_would_be_broadcast_are_refused_by_file_and_name(path):
    wanted = {"weight.a": torch.zeros(2, 3), "weight.b": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=rf"{path.name} does not fit .*weight.b must be of shape \(2, 3\), got \(3,\)"):
        check_shapes(path, load_checkpoint(path).tensors, wanted)
    with pytest.raises(ValueError, match=r"weight.c must be of shape \(1,\), got None"):
        check_shapes(path, wanted, {**wanted, "weight.c": torch.zeros(1)})


def test_tensors_that_would_be_rounded_are_refused_by_file_and_name(path):
    found = load_checkpoint(path).tensors
    with pytest.raises(ValueError, match=rf"{path.name} does not fit .*weight.b must be of type torch.float16, got"):
        check_shapes(path, found, {**found, "weight.b": torch.ones(3).half()})


def test_a_run_that_is_no_table_is_refused(path):
    rewrite(path, sign=True, run="[1]")
    with pytest.raises(ValueError, match=rf"{path.name} is not a whole checkpoint \(`run` must be a table, got \[1\]"):
        load_checkpoint(path)


def test_no_flipped_bit_of_a_checkpoint_passes(path):
    data, dice = path.read_bytes(), random.Random(0)
    for _ in range(200):
        place, bit = dice.randrange(len(data)), dice.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(ValueError, match=path.name):
            load_checkpoint(path)


def test_a_checkpoint_that_is_a_directory_is_named(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises((ValueError, OSError), match=r"x.safetensors"):
        load_checkpoint(tmp_path / "x.safetensors")


TINY = {
    "data.train": 100,
    "network.maps": [2, 3],
    "network.hidden": 8,
    "training.epochs": 4,
    "training.batch": 50,
    "training.checkpoint_every": 1,
    "folds": [0, 1],
    "models": ["convnet"],
}


def experiment(**changes):
    return load_experiment("table1", "quick", {**TINY, **changes})


@pytest.mark.usefixtures("digits")
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
    assert len(run_experiment(experiment(), folder)) == 2
