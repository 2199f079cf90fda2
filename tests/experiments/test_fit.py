"""Training on a folder: it learns, and goes on bit for bit wherever it was stopped."""

import copy
import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scaleconv.experiments.classifier import Classifier
from torch import nn

from helpers.folders import write_classes
from scaleconv import SIConv2d, macs
from scaleconv.data import load_folder, loading
from scaleconv.experiments import FitSettings, NetworkSpec, evaluate, fit, load, read_records, training
from scaleconv.experiments import fit as _fit_function
from scaleconv.experiments.checkpoint import load_checkpoint, write_checkpoint
from scaleconv.experiments.page import recipe
from scaleconv.experiments.records import to_columns

fit_module = sys.modules[_fit_function.__module__]
SETTINGS = FitSettings(epochs=3, batch=8, augment=("scale", "flip", "crop"), average=0.9)


class Dropping(nn.Sequential):
    """A small network that draws random numbers of its own and keeps running means."""

    def __init__(self, classes=2):
        super().__init__(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)),
        )


def network():
    torch.manual_seed(5)
    return Dropping()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_folder(write_classes(tmp_path_factory.mktemp("images"), 16, size=(16, 16)))


def outcome(fitted):
    """The weights, and what the file of its record says but times and places."""
    history = {name: column for name, column in to_columns(fitted.record.history).items() if name != "seconds"}
    weights = {name: tensor.tolist() for name, tensor in fitted.network.state_dict().items()}
    return weights, history, fitted.record.series


def test_two_classes_that_differ_are_told_apart(data):
    fitted = fit(network(), data, FitSettings(epochs=15, batch=8, lr=0.02), device="cpu")
    assert fitted.record.test_error == 0
    assert fitted.record.series["accuracy by scale"].x == [0.4, 0.5, 0.63, 0.8, 1, 1.25, 1.6, 2]
    assert fitted.record.history[-1].train_loss < 0.8 * fitted.record.history[0].train_loss
    assert fitted.record.history[-1].val_error == 0
    assert fitted.weights is None


def test_the_seed_decides_everything(data):
    first, again = (fit(network(), data, SETTINGS, device="cpu") for _ in range(2))
    other = fit(network(), data, replace(SETTINGS, seed=1), device="cpu")
    assert outcome(first) == outcome(again)
    assert outcome(first)[0] != outcome(other)[0]


class Stop(Exception):  # noqa: N818
    """The crash."""


@pytest.fixture
def steps(monkeypatch):
    """The steps that were done; with `steps.at` and `steps.act`, something happens before one of them."""
    learn, seen = training.Training.step, SimpleNamespace(done=[], at=None, act=None)

    def step(self, *arguments):
        if self.position == seen.at:
            seen.at = None
            seen.act()
        seen.done.append(self.position)
        learn(self, *arguments)

    monkeypatch.setattr(training.Training, "step", step)
    monkeypatch.setattr(fit_module, "SECONDS_BETWEEN", 0.0)
    return seen


def crash():
    raise Stop


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("step", [2, 3, 4, 8])  # in the first epoch, after it, in the second, before the last step
def test_a_run_goes_on_bit_for_bit_wherever_it_crashed(data, tmp_path, steps, step, optimizer):
    settings = replace(SETTINGS, optimizer=optimizer)
    whole = fit(network(), data, settings, tmp_path / "whole", device="cpu")
    steps.at, steps.act = step, crash
    with pytest.raises(Stop):
        fit(network(), data, settings, tmp_path / "parts", device="cpu")
    steps.done.clear()
    resumed = fit(network(), data, settings, tmp_path / "parts", device="cpu")
    assert steps.done == list(range(step, 9))
    assert outcome(resumed) == outcome(whole)
    files = [load_file(each.weights) for each in (whole, resumed)]
    assert all(torch.equal(files[0][name], tensor) for name, tensor in files[1].items())
    assert list((tmp_path / "parts" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_with_a_checkpoint(data, tmp_path, steps, monkeypatch, number):
    whole = fit(network(), data, SETTINGS, device="cpu")
    monkeypatch.setattr(fit_module, "SECONDS_BETWEEN", 1000.0)
    before = signal.getsignal(number)
    steps.at, steps.act = 5, partial(signal.raise_signal, number)
    with pytest.raises(KeyboardInterrupt):
        fit(network(), data, SETTINGS, tmp_path, device="cpu")
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert load_file(checkpoint)["position"] == 6
    assert signal.getsignal(number) is before
    assert outcome(fit(network(), data, SETTINGS, tmp_path, device="cpu")) == outcome(whole)


KILLED = """
import os, signal, sys
from scaleconv.experiments import FitSettings, NetworkSpec, fit

def write_and_die(path, checkpoint):
    write(path, checkpoint)
    if int(checkpoint.tensors["position"]) == 7:
        os.kill(os.getpid(), signal.SIGKILL)

module = sys.modules[fit.__module__]
module.SECONDS_BETWEEN, write, module.write_checkpoint = 0.0, module.write_checkpoint, write_and_die
fit(NetworkSpec("convnet"), sys.argv[1], FitSettings(epochs=6, batch=8), sys.argv[2], device="cpu")
"""


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    images = write_classes(tmp_path / "images", 16, size=(16, 16))
    whole = fit(NetworkSpec("convnet"), images, FitSettings(epochs=6, batch=8), device="cpu")
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(images), str(tmp_path / "out")]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    (checkpoint,) = tmp_path.glob("out/checkpoints/*.safetensors")
    assert int(load_file(checkpoint)["position"]) == 7
    assert not list(tmp_path.glob("out/*.json"))
    resumed = fit(NetworkSpec("convnet"), images, FitSettings(epochs=6, batch=8), tmp_path / "out", device="cpu")
    assert outcome(resumed) == outcome(whole)
    assert list(tmp_path.glob("out/checkpoints/*")) == list(tmp_path.glob("out/checkpoints/.*")) == []


def test_a_run_that_was_killed_when_it_had_just_finished_leaves_no_checkpoint(data, tmp_path):
    settings = FitSettings(epochs=1)
    fitted = fit(NetworkSpec("convnet"), data, settings, tmp_path, device="cpu")
    left = tmp_path / "checkpoints" / fitted.weights.name
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(fitted.weights.read_bytes())
    fit(NetworkSpec("convnet"), data, settings, tmp_path, device="cpu")
    assert not left.exists()


def test_workers_change_nothing(data, monkeypatch):
    expected = outcome(fit(network(), data, SETTINGS, device="cpu"))
    monkeypatch.setattr(loading, "KEPT_BYTES", 0)
    fresh = load_folder(data.folder)
    for workers in (0, 2):
        assert outcome(fit(network(), fresh, SETTINGS, device="cpu", workers=workers)) == expected


def test_images_of_several_sizes_train_together_and_are_told_apart_by_size(tmp_path):
    write_classes(tmp_path, 16, size=(12, 12))
    for index, size in enumerate(((14, 20), (24, 24), (30, 26))):
        write_classes(tmp_path / "more", 8, classes=("cat", "dog"), size=size)
        for name in ("cat", "dog"):
            (tmp_path / "more" / name).rename(tmp_path / name / f"more{index}")
    (tmp_path / "more").rmdir()
    fitted = fit(network(), load_folder(tmp_path, native=True), FitSettings(epochs=2, batch=8), device="cpu")
    sizes = fitted.record.series["accuracy by size"]
    assert len(sizes.x) >= 2
    assert sizes.x == sorted(sizes.x)


def test_a_finished_run_is_not_repeated_and_another_one_is_not_taken_for_it(data, tmp_path, monkeypatch):
    first = fit(NetworkSpec("convnet"), data, FitSettings(epochs=1), tmp_path, device="cpu")
    monkeypatch.setattr(training.Training, "step", lambda *_: pytest.fail("was trained again"))
    again = fit(NetworkSpec("convnet"), data, FitSettings(epochs=1), tmp_path, device="cpu")
    assert outcome(again)[0] == outcome(first)[0]
    with pytest.raises(ValueError, match=r"other settings \(settings.epochs was 1, now 2\)"):
        fit(NetworkSpec("convnet"), data, FitSettings(epochs=2), tmp_path, device="cpu")


def test_a_checkpoint_of_other_images_is_refused(data, tmp_path, steps):
    steps.at, steps.act = 2, crash
    with pytest.raises(Stop):
        fit(network(), data, SETTINGS, tmp_path / "out", device="cpu")
    others = load_folder(write_classes(tmp_path / "others", 16, classes=("cat", "emu"), size=(16, 16)))
    with pytest.raises(ValueError, match=r"belongs to other settings \(data.classes"):
        fit(network(), others, SETTINGS, tmp_path / "out", device="cpu")


@pytest.mark.parametrize("variant", ["plain", "converted", "pyramid"])
def test_the_weights_load_again_by_one_line(data, tmp_path, variant):
    spec = NetworkSpec("convnet", variant, scales=(0.7, 1, 1.4))
    fitted = fit(spec, data, FitSettings(epochs=1, batch=16), tmp_path, device="cpu")
    loaded = load(fitted.weights)
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(loaded(images), fitted.network(images))
    assert loaded.classes == ("cat", "dog")
    (record,) = read_records(tmp_path)
    assert (record.model, record.parameters) == (variant, sum(p.numel() for p in loaded.parameters()))


def test_a_network_of_someone_else_is_made_by_its_factory(data, tmp_path, monkeypatch):
    def make(num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, num_classes))

    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(make=make, number=lambda num_classes: num_classes))
    coloured = load_folder(data.folder, channels=3)
    fitted = fit(NetworkSpec("theirs:make"), coloured, FitSettings(epochs=1), tmp_path, device="cpu")
    loaded = load(fitted.weights, "theirs:make")
    assert torch.equal(loaded.network[1].weight, fitted.network.network[1].weight)
    assert f'load("{fitted.weights}", "theirs:make")' in recipe(fitted.record, tmp_path)
    again = fit(NetworkSpec("theirs:make"), coloured, FitSettings(epochs=1), tmp_path, device="cpu")
    assert torch.equal(again.network.network[1].weight, fitted.network.network[1].weight)
    with pytest.raises(ValueError, match="`data` must have 3 channels for theirs:make, got 1"):
        fit(NetworkSpec("theirs:make"), data, device="cpu")
    for name, message in (
        ("nowhere:make", "can be imported"),
        ("theirs:other", "can be imported"),
        ("theirs:number", "must return a torch.nn.Module, got int"),
        ("lenet", "must be convnet, resnet18, unet or package.module:factory, got 'lenet'"),
    ):
        with pytest.raises(ValueError, match=f"`model` .*{message}"):
            NetworkSpec(name).make(3, None, 2)


def test_a_file_does_not_run_what_it_names(data, tmp_path, monkeypatch):
    """Weights of a stranger may name any function of any module; only a name that the user gives is called."""
    called = []
    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(make=lambda num_classes: called.append(num_classes)))
    fitted = fit(NetworkSpec("convnet"), data, FitSettings(epochs=1), tmp_path, device="cpu")
    found = load_checkpoint(fitted.weights)
    described = {**found.run["network"], "name": "theirs:make"}
    write_checkpoint(fitted.weights, replace(found, run={**found.run, "network": described}))
    with pytest.raises(ValueError, match=r"`model` must be given .*theirs:make in .*safetensors"):
        load(fitted.weights)
    with pytest.raises(ValueError, match=r"`model` must be theirs:make for .*, got convnet"):
        load(fitted.weights, "convnet")
    assert called == []


DESCRIBED = {
    "channels": {"channels": "x"},
    "size": {"size": [16]},
    "memory": {"size": [10**6, 10**6]},
    "classes": {"classes": 5},
    "task": {"task": "sleep"},
}


@pytest.mark.parametrize("change", DESCRIBED.values(), ids=DESCRIBED)
def test_weights_that_describe_no_network_are_refused_by_name_and_without_its_memory(data, tmp_path, change):
    fitted = fit(NetworkSpec("convnet"), data, FitSettings(epochs=1), tmp_path, device="cpu")
    found = load_checkpoint(fitted.weights)
    write_checkpoint(fitted.weights, replace(found, run={**found.run, "data": {**found.run["data"], **change}}))
    with pytest.raises(ValueError, match=r"plain-fold0-seed0.safetensors (describes no|does not fit the) network"):
        load(fitted.weights)


UNFIT = {
    "a name": (lambda tensors, history: tensors.update({"optimiser.x.y": torch.zeros(1)}), "optimiser.x.y must be"),
    "a lost moment": (lambda tensors, history: tensors.pop("optimiser.0.exp_avg"), "optimiser.0.exp_avg must be"),
    "a small moment": (
        lambda tensors, history: tensors.update({"optimiser.0.exp_avg": torch.zeros(1)}),
        "optimiser.0.exp_avg must be of shape",
    ),
    "no position": (lambda tensors, history: tensors.pop("position"), "position must be of shape"),
    "beyond": (lambda tensors, history: tensors["position"].fill_(10), "must be at one of 9 steps, got 10"),
    "before": (lambda tensors, history: tensors["position"].fill_(-1), "must be at one of 9 steps, got -1"),
    "history": (lambda tensors, history: history.pop(), "must have a history of its 1 epochs, got 0"),
}


@pytest.mark.parametrize(("change", "message"), UNFIT.values(), ids=UNFIT)
def test_a_state_that_does_not_fit_is_refused_by_name(data, tmp_path, steps, change, message):
    steps.at, steps.act = 5, crash
    with pytest.raises(Stop):
        fit(network(), data, SETTINGS, tmp_path, device="cpu")
    (path,) = (tmp_path / "checkpoints").iterdir()
    found = load_checkpoint(path)
    change(found.tensors, found.history)
    write_checkpoint(path, found)
    with pytest.raises(ValueError, match=f"{path.name} .*{message}"):
        fit(network(), data, SETTINGS, tmp_path, device="cpu")


def test_a_module_is_loaded_into_a_module(data, tmp_path):
    own = fit(network(), data, FitSettings(epochs=1), tmp_path, device="cpu")
    assert torch.equal(load(own.weights, Dropping()).network[0].weight, own.network.network[0].weight)
    with pytest.raises(ValueError, match="`model` must be given for the weights of a network of your own"):
        load(own.weights)


def test_only_the_layers_that_match_are_converted():
    def converted(*layers):
        made = NetworkSpec("convnet", "converted", layers=layers).make(1, (28, 28), 10)
        return [name for name, layer in made.named_modules() if type(layer).__name__ == "SIConv2d"]

    assert converted() == ["stages.conv1", "stages.conv2"]
    assert converted("*.conv2") == ["stages.conv2"]
    with pytest.raises(ValueError, match=r"`layers` must .* of convnet \(stages.conv1, stages.conv2\), got 'nothing'"):
        converted("*.conv2", "nothing")


def test_layers_that_match_only_1x1_kernels_are_refused():
    spec = NetworkSpec("resnet18", "converted", layers=("*.shortcut.0",))
    with pytest.raises(ValueError, match=r"`layers` must match convolutions that can gain by it of resnet18"):
        spec.make(1, (32, 32), 2)


def test_a_convnet_of_several_sizes_is_refused():
    with pytest.raises(ValueError, match=r"convnet must have square images of one size .* got images of their own"):
        NetworkSpec("convnet").make(1, None, 2)


def test_the_gradient_is_that_of_the_mean_over_the_batch():
    """So that parts of a batch, each divided by the size of the whole, add up to the same step."""
    settings = FitSettings(optimizer="sgd", lr=0.1, warmup=0, weight_decay=0, smoothing=0.1)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
    classifier = Classifier(copy.deepcopy(linear), (0.0,), (1.0,), ("a", "b"))
    state = training.Training(classifier, settings, steps=10, device="cpu")
    images, labels = torch.randint(256, (6, 1, 12, 12), dtype=torch.uint8), torch.tensor([0, 1, 1, 0, 1, 1])
    before = linear[1].weight.detach().clone()
    gradient = torch.zeros_like(before)
    for part in (slice(0, 2), slice(2, 6)):
        linear.zero_grad()
        loss = nn.functional.cross_entropy(
            linear(images[part].float() / 255), labels[part], reduction="sum", label_smoothing=0.1
        )
        (loss / 6).backward()
        gradient += linear[1].weight.grad
    state.step(images, labels, 1, list(range(6)))
    torch.testing.assert_close(classifier.network[1].weight.detach(), before - 0.1 * gradient)


def test_the_log_has_every_epoch_once_after_an_interruption(data, tmp_path, steps):
    steps.at, steps.act = 6, crash
    with pytest.raises(Stop):
        fit(network(), data, SETTINGS, tmp_path, device="cpu")
    fitted = fit(network(), data, SETTINGS, tmp_path, device="cpu")
    (path,) = (tmp_path / "logs").iterdir()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    losses = [entry.train_loss for entry in fitted.record.history]
    assert [float(row["train_loss"]) for row in rows] == pytest.approx(losses, rel=1e-4)


def test_tensorboard_is_told_of_every_epoch_and_named_where_it_is_missing(data, tmp_path, monkeypatch):
    told = []

    class Writer:
        def __init__(self, folder):
            self.folder = folder

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def add_scalar(self, *scalar):
            told.append(scalar)

        def flush(self): ...

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    fitted = fit(network(), data, FitSettings(epochs=2), tmp_path / "a", device="cpu", tensorboard=True)
    losses = [(entry.train_loss, entry.epoch) for entry in fitted.record.history]
    assert [(value, epoch) for name, value, epoch in told if name == "train_loss"] == losses
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[tensorboard\]'"):
        fit(network(), data, FitSettings(epochs=1), tmp_path / "b", device="cpu", tensorboard=True)


def test_a_loss_that_is_not_finite_is_refused(data):
    with pytest.raises(ValueError, match=r"diverged: its loss is .* in epoch \d; lower --lr"):
        fit(network(), data, FitSettings(epochs=3, lr=1e30, optimizer="sgd", warmup=0), device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"batch": 0}, "`batch` must be at least 1"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"optimizer": "lion"}, "`optimizer` must be one of 'adamw', 'sgd', got 'lion'"),
        ({"lr": 0.0}, "`lr` must be above 0"),
        ({"lr": float("inf")}, "`lr` must be finite, got inf"),
        ({"lr": 10**400}, "`lr` must be finite, got 1000"),
        ({"weight_decay": 10**400}, "`weight_decay` must be finite, got 1000"),
        ({"average": 1.0}, "`average` must be below 1"),
        ({"augment": ("blur",)}, "`augment` must be some of"),
    ],
)
def test_settings_that_break_a_rule_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FitSettings(**change)


def test_accuracy_at_a_scale_is_that_of_rescaled_images(tmp_path):
    class Wide(nn.Module):
        """Class 1 where the square in the middle reaches a pixel that it covers from scale 1.4 on."""

        def forward(self, images):
            reached = images[:, 0, 8, 13] > 0.5
            return torch.stack([~reached, reached], 1).float()

    for index, name in enumerate("aaaabbbb"):
        square = np.zeros((16, 16), np.uint8)
        square[4:12, 4:12] = 200 + index
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(square).save(tmp_path / name / f"{index}.png")
    images = load_folder(tmp_path).train
    assert images.labels.tolist() == [0, 0, 1, 1]
    tally = evaluate.score(Wide(), images, "cpu", (0.5, 1.0, 2.0))
    assert tally.right.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]
    assert tally.counted.unique().tolist() == [1]
    assert tally.error(1) == 50
    assert tally.error(2, torch.tensor([False, True, True, True])) == pytest.approx(100 / 3)


def test_operations_are_counted_for_every_kind_of_layer():
    network = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), SIConv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 5))
    planned = macs((1, 4, 6, 6), (3, 4, 3, 3)).planned.total
    assert evaluate.count_macs(network, torch.rand(1, 2, 8, 8)) == 36 * 4 * 9 + planned + 48 * 5


def test_measuring_the_cost_leaves_the_network_as_it_was():
    made = network()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    cost = evaluate.measure_cost(made, torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 0, 1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    assert made.training
    assert cost["kept_mib"] * 2**20 > 4 * 100 * 4  # at least the outputs of the convolution, 4 maps of 10×10 floats
    assert cost["macs"] == 100 * 4 * 9 + 4 * 2


def test_the_record_holds_the_settings_and_the_validation_errors(data, tmp_path):
    fit(network(), data, FitSettings(epochs=2, batch=8), tmp_path, device="cpu")
    (path,) = tmp_path.glob("*.json")
    values = json.loads(path.read_text())
    assert values["history"]["validated"] == [1, 2]
    assert values["config"]["settings"]["lr"] == 0.001
    assert values["config"]["data"]["classes"] == ["cat", "dog"]
    (record,) = read_records(tmp_path)
    assert [entry.val_error for entry in record.history] == values["history"]["val_error"]
