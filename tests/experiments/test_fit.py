"""Training on a folder, of a Module or a network by name: it learns, and resumes bit for bit wherever it stopped."""

import csv
import sys
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.elsewhere import fit_together
from helpers.folders import write_classes
from scaleconv import SIConv2d
from scaleconv.data import load_folder, loading
from scaleconv.data.rescale import rescale
from scaleconv.experiments import NetworkSettings, TrainingSettings, fit, load, read_records
from scaleconv.experiments.checkpoint import load_checkpoint, write_checkpoint
from scaleconv.experiments.page import recipe
from scaleconv.experiments.trainer import Trainer

SETTINGS = TrainingSettings(epochs=3, batch=8, augment=("scale", "flip", "crop"), keep="average", average=0.9)
QUICK = TrainingSettings(epochs=1, batch=8)
CONVNET = NetworkSettings(name="convnet")


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
    return load_folder(write_classes(tmp_path_factory.mktemp("images"), 16, size=(16, 16)))  # 26 to train, 3 and 3


def outcome(fitted):
    """The weights, and what its record says but times."""
    history = [(entry.epoch, f"{entry.train_loss:.4g}", entry.val_error) for entry in fitted.record.history]
    weights = {name: tensor.tolist() for name, tensor in fitted.network.state_dict().items()}
    return weights, history, {name: (series.x, series.y) for name, series in fitted.record.series.items()}


def test_two_classes_that_differ_are_told_apart_at_the_scale_they_were_learned_at(data):
    own = network()
    fitted = fit(own, data, TrainingSettings(epochs=15, batch=8, learning_rate=0.02), device="cpu")
    assert (fitted.record.error, fitted.weights) == (0, None)
    assert fitted.record.history[-1].train_loss < 0.8 * fitted.record.history[0].train_loss
    assert fitted.record.history[-1].val_error == 0
    assert fitted.network.network is own  # a Module is trained itself
    assert not own.training


def test_the_record_is_that_of_the_network_that_is_returned_saved_and_loaded(data, tmp_path):
    """With the running average of the weights, which the last weights are not."""
    settings = msgspec.structs.replace(SETTINGS, learning_rate=0.02)
    fitted = fit(network(), data, settings, tmp_path / "out", device="cpu")
    again = load(fitted.weights, Dropping()).to(memory_format=torch.channels_last)  # as it was trained
    (images, labels), *_ = data.test.batches([range(len(data.test))])
    accuracy = fitted.record.series["accuracy by scale"]
    assert accuracy.x == [0.4, 0.5, 0.63, 0.8, 1, 1.25, 1.6, 2]
    for scale, expected in zip(accuracy.x, accuracy.y, strict=True):
        seen = images / 255 if scale == 1 else rescale(images / 255, scale, antialias=True, border="edge")
        for each in (fitted.network, again):
            right = (each(seen).argmax(1) == labels).double().mean()
            assert 100 * float(right) == pytest.approx(expected, abs=1e-3), scale
    assert fitted.record.error == pytest.approx(100 - accuracy.y[4], abs=1e-3)
    assert torch.equal(again(images / 255), fitted.network(images / 255))
    assert (again.classes, again.training) == (("cat", "dog"), False)
    (record,) = read_records(tmp_path / "out")
    assert (record.model, record.name, record.experiment) == ("own-scale", "own-scale-fold0-seed0", "out")
    assert record.config["network"]["name"] == f"{Dropping.__module__}:Dropping"
    assert record.parameters == 4 * 9 + 4 + 2 * 4 + 4 * 2 + 2
    assert record.cost["macs"] == 14 * 14 * 4 * 9 + 4 * 2


def test_the_seed_decides_everything(data):
    first, again, other = (fit(network(), data, SETTINGS, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert outcome(first) == outcome(again)
    assert outcome(first)[0] != outcome(other)[0]
    assert (first.record.seed, other.record.seed) == (1, 2)


class Stop(Exception):  # noqa: N818
    """The crash."""


@pytest.fixture
def steps(monkeypatch):
    """The number of steps that were done; before step `steps.at` it crashes."""
    learn, seen = Trainer.learn, SimpleNamespace(done=0, at=None)

    def step(self, *arguments):
        if seen.done == seen.at:
            raise Stop
        seen.done += 1
        learn(self, *arguments)

    monkeypatch.setattr(Trainer, "learn", step)
    return seen


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("step", [2, 3, 4, 8])  # in the first epoch, after it, in the second, before the last step
def test_a_run_goes_on_bit_for_bit_wherever_it_crashed(data, tmp_path, steps, monkeypatch, step, memory):
    if not memory:  # images are decoded on the way
        monkeypatch.setattr(loading, "KEPT_BYTES", 0)
        data = load_folder(data.folder)
    whole = fit(network(), data, SETTINGS, device="cpu")
    assert steps.done == 9
    steps.done, steps.at = 0, step
    with pytest.raises(Stop):
        fit(network(), data, SETTINGS, tmp_path / "parts", device="cpu")
    steps.done, steps.at = 0, None
    resumed = fit(network(), data, SETTINGS, tmp_path / "parts", device="cpu")
    assert steps.done == 9 - step
    assert outcome(resumed) == outcome(whole)
    assert list((tmp_path / "parts" / "checkpoints").iterdir()) == []
    (log,) = (tmp_path / "parts" / "logs").iterdir()
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    losses = [entry.train_loss for entry in resumed.record.history]
    assert [float(row["train_loss"]) for row in rows] == pytest.approx(losses, rel=1e-4)


def test_workers_and_memory_change_nothing(data, monkeypatch):
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
    fitted = fit(network(), load_folder(tmp_path, native=True), QUICK, device="cpu")
    sizes = fitted.record.series["accuracy by size"]
    assert len(sizes.x) >= 2
    assert sizes.x == sorted(set(sizes.x))


def test_a_finished_run_is_not_repeated_and_another_one_is_not_taken_for_it(data, tmp_path, steps):
    first = fit(CONVNET, data, QUICK, tmp_path / "out", device="cpu")
    steps.at = steps.done
    again = fit(CONVNET, data, QUICK, tmp_path / "out", device="cpu")
    assert outcome(again)[0] == outcome(first)[0]
    with pytest.raises(ValueError, match=r"in out was made with other settings \(training.epochs was 1, now 2\)"):
        fit(CONVNET, data, msgspec.structs.replace(QUICK, epochs=2), tmp_path / "out", device="cpu")
    others = load_folder(write_classes(tmp_path / "others", 16, classes=("cat", "emu"), size=(16, 16)))
    with pytest.raises(ValueError, match=r"other settings \(data.classes was \['cat', 'dog'\], now \['cat', 'emu'\]"):
        fit(CONVNET, others, QUICK, tmp_path / "out", device="cpu")


def test_a_checkpoint_of_other_images_is_refused(data, tmp_path, steps):
    steps.at = 2
    with pytest.raises(Stop):
        fit(network(), data, SETTINGS, tmp_path / "out", device="cpu")
    others = load_folder(write_classes(tmp_path / "others", 16, classes=("cat", "emu"), size=(16, 16)))
    with pytest.raises(ValueError, match=r"belongs to other settings \(config.data.classes"):
        fit(network(), others, SETTINGS, tmp_path / "out", device="cpu")


@pytest.mark.parametrize("variant", ["plain", "converted", "pyramid"])
def test_a_network_by_name_is_trained_on_a_folder_and_loads_again_by_one_line(data, tmp_path, variant):
    settings = NetworkSettings(name="convnet", variant=variant, scales=(0.7, 1, 1.4))
    fitted = fit(settings, data.folder.root, QUICK, tmp_path / "out", device="cpu")
    loaded = load(fitted.weights)
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(images), fitted.network(images))
    assert loaded.classes == ("cat", "dog")
    assert any(isinstance(layer, SIConv2d) for layer in loaded.modules()) == (variant == "converted")
    assert recipe(fitted.record, tmp_path / "out") == f'network = scaleconv.experiments.load("{fitted.weights}")'
    pixels = data.train.kept[0].double().numpy() / 255
    assert float(loaded.mean) == pytest.approx(pixels.mean(), abs=1e-5)
    assert float(loaded.std) == pytest.approx(pixels.std(), abs=1e-4)


def test_a_network_of_someone_else_is_made_by_its_factory(data, tmp_path, monkeypatch):
    def make(num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, num_classes))

    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(make=make, number=lambda num_classes: num_classes))
    coloured = load_folder(data.folder, channels=3)
    fitted = fit(NetworkSettings(name="theirs:make"), coloured, QUICK, tmp_path / "out", device="cpu")
    loaded = load(fitted.weights, "theirs:make")
    assert torch.equal(loaded.network[1].weight, fitted.network.network[1].weight)
    assert f'load("{fitted.weights}", "theirs:make")' in recipe(fitted.record, tmp_path / "out")
    with pytest.raises(ValueError, match="`data` must have 3 channels for theirs:make, got 1"):
        fit(NetworkSettings(name="theirs:make"), data, device="cpu")
    for name, message in (
        ("nowhere:make", "can be imported"),
        ("theirs:other", "can be imported"),
        ("theirs:number", "must return a torch.nn.Module, got int"),
    ):
        with pytest.raises(ValueError, match=f"`model` .*{message}"):
            fit(NetworkSettings(name=name), coloured, device="cpu")


def test_a_file_does_not_run_what_it_names(data, tmp_path, monkeypatch):
    """Weights of a stranger may name any function of any module; only a name that the user gives is called."""
    called = []
    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(make=lambda num_classes: called.append(num_classes)))
    fitted = fit(CONVNET, data, QUICK, tmp_path / "out", device="cpu")
    found = load_checkpoint(fitted.weights)
    found.run["config"]["network"]["name"] = "theirs:make"
    write_checkpoint(fitted.weights, found)
    with pytest.raises(ValueError, match=r"`model` must be given .*theirs:make in .*safetensors"):
        load(fitted.weights)
    with pytest.raises(ValueError, match=r"`model` must be theirs:make for .*, got convnet"):
        load(fitted.weights, "convnet")
    assert called == []


def test_weights_that_describe_no_network_are_refused_by_name_and_without_its_memory(data, tmp_path):
    fitted = fit(CONVNET, data, QUICK, tmp_path / "out", device="cpu")
    found = load_checkpoint(fitted.weights)
    sizes = ({"size": [16]}, {"size": [10**6, 10**6]})  # the last one would take all memory
    for change in ({"channels": "x"}, {"classes": 5}, {"task": "sleep"}, *sizes):
        config = {**found.run["config"], "data": {**found.run["config"]["data"], **change}}
        write_checkpoint(fitted.weights, replace(found, run={**found.run, "config": config}))
        with pytest.raises(ValueError, match=r"plain-fold0-seed0.safetensors"):
            load(fitted.weights)
    write_checkpoint(fitted.weights, replace(found, tensors={"x": torch.zeros(1)}))
    with pytest.raises(
        ValueError, match=r"`path` must be weights of a network that scaleconv has trained, got .*plain"
    ):
        load(fitted.weights)


def test_a_module_is_loaded_into_a_module(data, tmp_path):
    own = fit(network(), data, QUICK, tmp_path / "out", device="cpu")
    assert torch.equal(load(own.weights, Dropping()).network[0].weight, own.network.network[0].weight)
    with pytest.raises(ValueError, match="`model` must be given for the weights of a network of your own"):
        load(own.weights)
    with pytest.raises(ValueError, match=r"does not fit the network \(network.0.bias must be"):
        load(own.weights, nn.Sequential(nn.Conv2d(1, 4, 3, bias=False)))


def test_tensorboard_is_told_of_every_epoch_and_named_before_the_training_where_it_is_missing(
    data, tmp_path, monkeypatch, steps
):
    told = []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path / "a" / "tensorboard" / "own-fold0-seed0")

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def add_scalar(self, *scalar):
            told.append(scalar)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    settings = msgspec.structs.replace(QUICK, epochs=2)
    fitted = fit(network(), data, settings, tmp_path / "a", device="cpu", tensorboard=True)
    for name, position in (("train_loss", 1), ("val_error", 4)):
        expected = [(msgspec.structs.astuple(entry)[position], entry.epoch) for entry in fitted.record.history]
        found = [(value, epoch) for kind, value, epoch in told if kind == name]
        assert np.array(found) == pytest.approx(np.array(expected), rel=1e-4)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    steps.at = steps.done
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[tensorboard\]'"):
        fit(network(), data, QUICK, tmp_path / "b", device="cpu", tensorboard=True)
    assert not (tmp_path / "b").exists()


def test_what_is_wrong_is_refused_before_anything_is_trained(data, tmp_path, steps):
    steps.at = 0
    for arguments, message in (
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
        ({"workers": -1}, "`workers` must be at least 0, got -1"),
        ({"device": "abacus"}, "`device` must be one this machine has, got 'abacus'"),
        ({"settings": TrainingSettings(epochs=0)}, "`epochs` must be `int` >= 1, got 0"),
        ({"data": tmp_path / "nowhere"}, "`data` must be a directory"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            fit(**{"model": CONVNET, "data": data, "device": "cpu", "folder": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_a_network_whose_output_does_not_fit_and_a_loss_that_is_not_finite_are_refused(data):
    dense = nn.Conv2d(1, 2, 3, padding=1)
    with pytest.raises(ValueError, match=r"`model` must return numbers of shape \(N, classes\), got \(8, 2, 16, 16\)"):
        fit(dense, data, QUICK, device="cpu")
    wild = TrainingSettings(epochs=3, learning_rate=1e30, optimizer="sgd", warmup=0)
    with pytest.raises(ValueError, match=r"own, seed 0 diverged: its loss is .* in epoch \d; lower the learning"):
        fit(network(), data, wild, device="cpu")


def test_fit_returns_the_same_network_in_all_processes_of_torchrun(data, tmp_path):
    found = fit_together(CONVNET, data.folder.root, QUICK, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "weights" / "plain-fold0-seed0.safetensors")
    (record,) = read_records(tmp_path / "out")
    for rank, (error, state, path) in enumerate(found):
        assert error == record.error
        assert all(np.array_equal(weights[name].numpy(), values) for name, values in state.items())
        assert (path is None) == (rank == 1)
