"""The command `explain`: a prediction in words, a picture of all layers, and one line for what cannot be explained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from helpers.command import refused, says_next
from helpers.folders import write_classes, write_image, write_masks
from scaleconv import Explanation, SIConv2d
from scaleconv.data import Fixed, embedded_digits, load_folder, make_set
from scaleconv.data.decoding import decode
from scaleconv.experiments import NetworkSettings, TrainingSettings, fit, load, load_experiment, run_experiment
from scaleconv.experiments.checkpoint import Checkpoint, load_checkpoint, write_checkpoint
from scaleconv.experiments.explanation import draw_predictions, load_network, load_trained, prediction_text

ONE_EPOCH = TrainingSettings(epochs=1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of both networks of Table 1, trained for one epoch."""
    changes = {"data.train": 100, "network.maps": [2, 3], "network.hidden": 8, "training.epochs": 1, "folds": [0]}
    folder, models = tmp_path_factory.mktemp("results") / "tiny", ["convnet", "si_convnet", "pixels"]
    run_experiment(load_experiment("table1", "quick", {**changes, "models": models}), folder)
    return {name: folder / "weights" / f"{name}-fold0-seed0.safetensors" for name in models}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Weights of networks for cats and dogs, and for masks, trained for one epoch."""
    root = tmp_path_factory.mktemp("photos")
    classes = load_folder(write_classes(root / "classes", 4, size=(22, 22)), resize=16, fit="letterbox")
    masks = load_folder(write_masks(root / "masks", 4), task="segmentation")
    tasks = {"convnet": ("converted", classes), "plain": ("plain", classes), "unet": ("converted", masks)}
    trained = {}
    for name, (variant, data) in tasks.items():
        network = NetworkSettings(name="unet" if name == "unet" else "convnet", variant=variant, scales=(1.0, 1.5))
        trained[name] = fit(network, data, ONE_EPOCH, root / "results" / name, device="cpu").weights
    own = torch.nn.Sequential(SIConv2d(1, 2, 3), torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten())
    trained["own"] = fit(own, classes, ONE_EPOCH, root / "results" / "own", device="cpu").weights
    return trained


@pytest.fixture
def digit(tmp_path):
    pixels = make_set(embedded_digits(), Fixed(0.8)).images[0, 0]
    Image.fromarray((pixels * 255).byte().numpy()).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


def explained(run, image, checkpoint):
    """What the command prints, but for the last line, and the text of the picture it draws."""
    code, output, errors = run("explain", image, "--checkpoint", checkpoint, "--out", "seen.svg")
    assert (code, errors) == (0, "")
    says_next(output, "open seen.svg")
    prediction, path, _ = output.splitlines()
    assert prediction.startswith(f"{image}: class ")
    assert path == "seen.svg"
    return prediction, Path(path).read_text()


def test_the_command_prints_the_prediction_and_draws_it(run, digit, weights):
    _, text = explained(run, digit, weights["si_convnet"])
    for words in ("stages.conv1: winning scale", "stages.conv2: winning scale", "response at ×1.59", "% sure"):
        assert words in text


def test_a_network_is_loaded_as_it_was_trained(weights):
    network, settings = load_network(weights["si_convnet"])
    assert (settings.network.variant, settings.network.maps, settings.data.train) == ("converted", (2, 3), 100)
    stored = load_file(weights["si_convnet"])
    found = network.state_dict()
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def test_an_image_is_prepared_as_the_network_was_trained(weights, photos, digit, tmp_path):
    """Another size, and colour: what the classifier of the file says of it is what is explained."""
    photo = write_image(tmp_path / "photo.jpg", size=(30, 40))
    trained = load_trained(photos["convnet"])
    pixels = trained.read(photo)
    assert torch.equal(pixels, decode(photo, 1, (16, 16), "letterbox") / 255)
    found = trained.explain(pixels)
    scores = load(photos["convnet"])(pixels.unsqueeze(0)).softmax(1)[0]
    assert (found.prediction, found.confidence) == (scores.argmax(), scores.max())
    assert list(found.layers) == ["stages.conv1", "stages.conv2"]
    assert load_trained(weights["si_convnet"]).read(photo).shape == (1, 28, 28)


def test_the_mean_of_the_training_digits_is_subtracted(weights, digit):
    scaled = make_set(embedded_digits()).images  # the quick preset trains on 100 of them
    trained = load_trained(weights["si_convnet"])
    assert float(trained.network.mean) == pytest.approx(float(scaled.mean()), abs=0.01)
    pixels = trained.read(digit)
    scores = trained.network.network((pixels - trained.network.mean[0]).unsqueeze(0)).softmax(1).detach()
    assert float(trained.explain(pixels).confidence) == pytest.approx(float(scores.max()), rel=1e-6)


def test_a_network_for_a_folder_is_explained_with_the_names_of_its_classes(run, photos, tmp_path):
    photo = write_image(tmp_path / r"5$ or \x$.png", size=(16, 16))  # which is no formula
    prediction, text = explained(run, photo, photos["convnet"])
    name = prediction.partition(": class ")[2].partition(",")[0]
    assert name in ("cat", "dog")
    for words in (f">{name}<", r"5$ or \x$.png: class", "stages.conv1: winning scale", "response at ×1.5"):
        assert words in text


def test_a_mask_is_predicted_in_place_of_a_class(run, photos, tmp_path):
    photo = write_image(tmp_path / "photo.png", size=(16, 16), mode="L")
    assert load_trained(photos["unet"]).explain(torch.rand(1, 16, 16)).prediction.shape == (16, 16)
    prediction, text = explained(run, photo, photos["unet"])
    assert "% of the pixels, mean confidence" in prediction
    assert "prediction, " in text
    assert "bottom.conv1: winning scale" in text


def test_what_cannot_be_explained_is_one_line(run, digit, weights, photos, tmp_path):
    ours = weights["si_convnet"]
    (tmp_path / "broken.png").write_bytes(digit.read_bytes()[:100])
    for checkpoint in (ours, photos["convnet"]):
        refused(run("explain", tmp_path / "broken.png", "--checkpoint", checkpoint), "broken.png is broken (")
        refused(run("explain", tmp_path / "none.png", "--checkpoint", checkpoint), "none.png cannot be read (No such")
    for checkpoint in (weights["convnet"], photos["plain"]):
        refused(run("explain", digit, "--checkpoint", checkpoint), "must be of a network with scale-invariant layers")
    refused(run("explain", digit, "--checkpoint", photos["own"]), "`checkpoint` must", "of your own")
    refused(run("explain", digit, "--checkpoint", weights["pixels"]), "`checkpoint` must hold the weights")
    refused(run("explain", digit, "--checkpoint", digit), "`checkpoint` must hold the weights of a finished run")
    refused(run("explain", digit, "--checkpoint", tmp_path / "none"), "cannot read the checkpoint")
    refused(run("explain", digit, "--checkpoint", ours, "--out", "seen.txt"), "`out` must end in .png or .svg")
    folder = ours.parent
    for place in (folder, folder.parent):
        such = f"got {place}, a folder, and not one of its files, such as {folder}/convnet"
        refused(run("explain", digit, "--checkpoint", place), "`checkpoint` must hold the weights", such)
    # The state of an unfinished run has the weights by other names, beside those of the optimiser.
    found, path = load_checkpoint(photos["convnet"]), tmp_path / "unfinished.safetensors"
    renamed = {f"network.{name}": tensor for name, tensor in found.tensors.items()}
    write_checkpoint(path, Checkpoint(found.run, found.history, renamed))
    refused(run("explain", digit, "--checkpoint", path), "`checkpoint` must hold the weights of a finished run")


FORGED = {
    "no config": lambda run: {**run, "config": None},
    "data": lambda run: {**run, "config": {**run["config"], "data": {"source": "nowhere"}}},
    "hidden": lambda run: with_network(run, hidden=10**13),
    "maps": lambda run: with_network(run, maps=[10**18, 10**18]),
    "name": lambda run: with_network(run, name="os:system"),
}


def with_network(run, **changes):
    return {**run, "config": {**run["config"], "network": {**run["config"]["network"], **changes}}}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_weights_that_describe_no_network_are_refused_by_name_and_without_its_memory(change, weights, tmp_path):
    found = load_checkpoint(weights["si_convnet"])
    path = tmp_path / "forged.safetensors"
    write_checkpoint(path, replace(found, run=change(found.run)))
    with pytest.raises(ValueError, match=r"`checkpoint` must .*forged.safetensors"):
        load_network(path)


def test_a_dense_prediction_is_described_by_shares_of_the_pixels():
    labels = torch.tensor([[10, 10], [10, 4]])
    found = Explanation(labels, torch.tensor([[0.5, 0.5], [1.0, 1.0]]), {})
    classes = (*"0123456789", "background")
    words = "class background 75.0 %, class 4 25.0 % of the pixels, mean confidence 75.0 %"
    assert prediction_text(found, classes) == words


def test_scenes_are_drawn_where_the_weights_of_both_networks_are(tmp_path):
    changes = {"network.maps": [2, 3], "network.scales": [1.0, 1.5], "data.train": 60, "data.test": 60, "epochs": 1}
    changes |= {"measure.digits": 5, "measure.scales": [1.0], "folds": [0]}
    changes["points"] = [{"name": "near", "set": {"data.scales": "uniform:0.9,1.1"}}]
    assert draw_predictions(tmp_path / "scenes-tiny", tmp_path, "scenes") == []
    run_experiment(load_experiment("scenes", "quick", changes), tmp_path / "scenes-tiny")
    (path,) = draw_predictions(tmp_path / "scenes-tiny", tmp_path, "scenes")
    assert path == tmp_path / "scenes-predictions.png"
    with Image.open(path) as picture:
        assert picture.size[0] > 1000
