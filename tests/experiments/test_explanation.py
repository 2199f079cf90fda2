"""The command `explain`: a prediction in words, a picture of all layers, and one line for what cannot be explained."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from helpers.command import refused
from scaleconv import Explanation
from scaleconv.data import Fixed, embedded_digits, make_set
from scaleconv.experiments import load_experiment, run_experiment
from scaleconv.experiments.checkpoint import load_checkpoint, write_checkpoint
from scaleconv.experiments.explanation import describe, draw_predictions, load_network


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of both networks of Table 1, trained for one epoch."""
    changes = {"data.train": 100, "network.maps": [2, 3], "network.hidden": 8, "training.epochs": 1, "folds": [0]}
    folder = tmp_path_factory.mktemp("results") / "tiny"
    run_experiment(
        load_experiment("table1", "quick", {**changes, "models": ["convnet", "si_convnet", "pixels"]}), folder
    )
    return {
        name: folder / "weights" / f"{name}-fold0-seed0.safetensors" for name in ("convnet", "si_convnet", "pixels")
    }


@pytest.fixture
def digit(tmp_path):
    pixels = make_set(embedded_digits(), Fixed(0.8)).images[0, 0]
    Image.fromarray((pixels * 255).byte().numpy()).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


def test_the_command_prints_the_prediction_and_draws_it(run, digit, weights, tmp_path):
    code, output, errors = run("explain", digit, "--checkpoint", weights["si_convnet"], "--out", "seen.svg")
    assert (code, errors) == (0, "")
    prediction, path = output.splitlines()
    assert prediction.startswith(f"{digit}: class ")
    assert path == "seen.svg"
    text = (tmp_path / "seen.svg").read_text()
    for words in ("stages.conv1: winning scale", "stages.conv2: winning scale", "response at ×1.59", "% sure"):
        assert words in text


def test_a_network_is_loaded_as_it_was_trained(weights):
    network, run = load_network(weights["si_convnet"])
    assert (run.model, run.fold, network.stages.conv1.out_channels) == ("si_convnet", 0, 2)
    assert not torch.equal(network.stages.conv1.weight, run.network().stages.conv1.weight)


def test_what_cannot_be_explained_is_one_line(run, digit, weights, tmp_path):
    ours = weights["si_convnet"]
    for size, mode in (((28, 28), "RGB"), ((30, 28), "L")):
        Image.new(mode, size).save(tmp_path / f"{mode}.png")
    (tmp_path / "broken.png").write_bytes(digit.read_bytes()[:100])
    refused(run("explain", tmp_path / "RGB.png", "--checkpoint", ours), "`image` channels (=3)", "network (=1)")
    refused(run("explain", tmp_path / "L.png", "--checkpoint", ours), "`image` must be 28×28 for SI-ConvNet, got 28×30")
    refused(run("explain", tmp_path / "broken.png", "--checkpoint", ours), "cannot read the image", "broken.png")
    refused(run("explain", tmp_path / "none.png", "--checkpoint", ours), "none.png (No such file")
    refused(run("explain", digit, "--checkpoint", weights["convnet"]), "must hold an SIConv2d")
    refused(run("explain", digit, "--checkpoint", weights["pixels"]), "`checkpoint` must be of one of", "'pixels'")
    refused(run("explain", digit, "--checkpoint", digit), "`checkpoint` must hold the weights of a finished run")
    refused(run("explain", digit, "--checkpoint", tmp_path / "none"), "cannot read the checkpoint")
    refused(run("explain", digit, "--checkpoint", ours, "--out", "seen.txt"), "`out` must end in .png or .svg")


FORGED = {
    "no config": {"config": None},
    "fold": {"fold": "x"},
    "model": {"model": ["convnet"]},
    "hidden": {"config": {"network": {"hidden": 10**13}}},
    "maps": {"config": {"network": {"maps": [10**18, 10**18]}}},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_weights_that_describe_no_network_are_refused_by_name_and_without_its_memory(change, weights, tmp_path):
    found = load_checkpoint(weights["si_convnet"])
    path = tmp_path / "forged.safetensors"
    write_checkpoint(path, replace(found, run={**found.run, **change}))
    with pytest.raises(ValueError, match=r"`checkpoint` must .*forged.safetensors"):
        load_network(path)


def test_a_dense_prediction_is_described_by_shares_of_the_pixels():
    labels = torch.tensor([[10, 10], [10, 4]])
    found = Explanation(labels, torch.tensor([[0.5, 0.5], [1.0, 1.0]]), {})
    assert describe(found) == "background 75.0 %, class 4 25.0 % of the pixels, mean confidence 75.0 %"


def test_scenes_are_drawn_where_the_weights_of_both_networks_are(tmp_path):
    changes = {
        "network.maps": [2, 3],
        "network.scales": [1.0, 1.5],
        "training.epochs": 1,
        "data.train": 60,
        "data.test": 60,
        "measure.digits": 5,
        "measure.scales": [1.0],
        "folds": [0],
        "points": [{"name": "near", "set": {"data.scales": "uniform:0.9,1.1"}}],
    }
    assert draw_predictions(tmp_path / "scenes-tiny", tmp_path, "scenes") == []
    run_experiment(load_experiment("scenes", "quick", changes), tmp_path / "scenes-tiny")
    (path,) = draw_predictions(tmp_path / "scenes-tiny", tmp_path, "scenes")
    assert path == tmp_path / "scenes-predictions.png"
    with Image.open(path) as picture:
        assert picture.size[0] > 1000
