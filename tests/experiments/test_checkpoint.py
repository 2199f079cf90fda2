"""A checkpoint is read back bit for bit; one that is damaged, contradicts itself or does not fit is refused by name."""

import json
import os
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from scaleconv.experiments import Epoch
from scaleconv.experiments.checkpoint import (
    Checkpoint,
    _checksum,
    check_settings,
    check_shapes,
    difference,
    load_checkpoint,
    make_fitting,
    read_checkpoint,
    write_checkpoint,
)
from scaleconv.experiments.methods import config_of, of_weights
from scaleconv.experiments.settings import Settings, TrainingSettings

HISTORY = [Epoch(1, 2.0, None, 0.5), Epoch(2, 1.0, 10.0, 0.5, 20.0)]


def run_of(epochs):
    settings = Settings(training=TrainingSettings(epochs=epochs))
    return {"model": "convnet", "fold": 0, "config": of_weights("convnet", config_of("convnet", settings))}


RUN = run_of(3)
TENSORS = {
    "weight": torch.tensor([[0.1, -0.0, torch.inf], [torch.nan, 1e-45, 3.0]]),
    "steps": torch.tensor(7),
    "turned": torch.arange(6.0).view(2, 3).T,  # not contiguous
    "half": torch.tensor([0.1], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoints" / "convnet-fold0-seed0.safetensors"
    tensors = {"weight.a": torch.arange(6.0).view(2, 3), "weight.b": torch.ones(3)}
    write_checkpoint(path, Checkpoint(RUN, HISTORY, tensors))
    return path


def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path):
    write_checkpoint(tmp_path / "a", Checkpoint(RUN, HISTORY, TENSORS))
    found = read_checkpoint(tmp_path / "a", RUN)
    assert (found.run, found.history) == (RUN, HISTORY)
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (tensor.dtype, tensor.shape)
        before, after = (each.reshape(-1).view(torch.uint8).tolist() for each in (tensor, found.tensors[name]))
        assert before == after


def test_a_setting_that_there_was_not_yet_is_taken_to_be_its_default(tmp_path):
    network = {key: value for key, value in RUN["config"]["network"].items() if key != "blocks"}
    before = {**RUN, "config": {**RUN["config"], "network": network}}
    write_checkpoint(tmp_path / "a", Checkpoint(before, HISTORY, TENSORS))
    assert before != read_checkpoint(tmp_path / "a", RUN).run == RUN


def rewrite(path, tensors=None, sign=False, **changes):
    """Change a checkpoint; with `sign`, under the checksum that belongs to the change."""
    with safe_open(path, framework="pt") as file:
        header = {**file.metadata(), **changes}
    tensors = tensors or load_file(path)
    if sign:
        del header["checksum"]
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, metadata=header)


EMPTY = '{"train_loss": [], "seconds": [], "tested": [], "test_error": []}'
HEADERS = [
    ({"history": "{}"}, "its checksum does not agree"),
    ({"run": "{}"}, "its checksum does not agree"),
    ({"extra": "1"}, "its checksum does not agree"),
    # Under the checksum that belongs to them.
    ({"history": "{}", "sign": True}, "`train_loss` is missing"),
    ({"history": "[]", "sign": True}, "must be"),
    ({"history": "x", "sign": True}, "line 1"),
    ({"history": EMPTY.replace("[]", "[1]", 1), "sign": True}, "seconds for each epoch"),
    ({"run": "[1]", "sign": True}, "`run` must be a table"),
    ({"run": "[" * 100_000, "sign": True}, "recursion"),
]


@pytest.mark.parametrize(("changes", "reason"), HEADERS, ids=lambda value: str(value)[:30])
def test_a_header_that_was_changed_or_says_nothing_is_refused(path, changes, reason):
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=rf"{path.name} is not a whole checkpoint .*{reason}.*delete it"):
        load_checkpoint(path)


def test_tensors_of_other_values_shapes_types_or_names_are_refused(path):
    good = load_file(path)
    changed = [torch.full((3,), 2.0), torch.ones(1), torch.ones(3, dtype=torch.int32), torch.ones(3, 1)]
    for tensors in [*({**good, "weight.b": other} for other in changed), {"weight.a": good["weight.a"]}]:
        rewrite(path, tensors)
        with pytest.raises(ValueError, match="its checksum does not agree"):
            load_checkpoint(path)
    rewrite(path, {"weight.b": good["weight.a"], "weight.a": good["weight.b"]})
    with pytest.raises(ValueError, match="its checksum does not agree"):
        load_checkpoint(path)


def test_no_flipped_bit_of_a_checkpoint_passes(path):
    data, dice = path.read_bytes(), random.Random(0)
    for _ in range(200):
        place, bit = dice.randrange(len(data)), dice.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(ValueError, match=path.name):
            load_checkpoint(path)


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("not a checkpoint")
    for name in ("folder", "pipe", "text", "nothing"):
        with pytest.raises((ValueError, OSError), match=rf"{tmp_path.name}/{name}"):
            load_checkpoint(tmp_path / name)


def test_a_checkpoint_of_other_settings_is_refused_by_the_first_that_differs(path):
    with pytest.raises(ValueError, match=rf"{path.name} .*config.training.epochs was 3, now 4.*delete it"):
        read_checkpoint(path, run_of(4))
    with pytest.raises(ValueError, match=r"table1 .*fold was 0, now None.*--name"):
        check_settings("table1", RUN, {"model": "convnet", "config": RUN["config"]})
    check_settings("table1", RUN, json.loads(json.dumps(RUN)))
    assert difference({"b": 1, "a": {"c": [1]}}, {"b": 2, "a": {"c": [2]}}) == "a.c was [1], now [2]"


def test_tensors_that_would_be_repeated_or_rounded_are_refused_by_file_and_name(path):
    found = load_checkpoint(path).tensors
    check_shapes(path, found, found)
    for name, other, rule in [
        ("weight.b", torch.zeros(2, 3), r"weight.b must be of shape \(2, 3\), got \(3,\)"),
        ("weight.b", torch.ones(3).half(), r"weight.b must be of type torch.float16, got torch.float32"),
        ("weight.c", torch.zeros(1), r"weight.c must be of shape \(1,\), got None"),
    ]:
        with pytest.raises(ValueError, match=rf"{path.name} .*{rule}"):
            check_shapes(path, found, {**found, name: other})
    with pytest.raises(ValueError, match=r"weight.b must be of shape None, got \(3,\)"):
        check_shapes(path, found, {"weight.a": found["weight.a"]})


def test_a_network_is_made_to_fit_a_file_and_one_that_does_not_is_refused_before_it_takes_memory(path):
    weights = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.0, 2.0])}
    network = make_fitting(path, weights, lambda: nn.Linear(3, 2))
    assert torch.equal(network(torch.ones(1, 3)), torch.tensor([[4.0, 14.0]]))
    with pytest.raises(ValueError, match=rf"{path.name} .*bias must be of shape"):
        make_fitting(path, weights, lambda: nn.Linear(3, 10**12))  # 12 TB
    with pytest.raises(ValueError, match=rf"{path.name} .*no network.*`size` must be odd"):
        make_fitting(path, weights, _refusing)

    made = []
    make_fitting(path, weights, lambda: made.append(torch.empty(0).device.type) or nn.Linear(3, 2), planned=False)
    assert made == ["cpu"]


def _refusing():
    raise ValueError("`size` must be odd")
