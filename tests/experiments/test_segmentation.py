"""Training on images with masks: the same training, with a label for each pixel."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from helpers.command import refused
from helpers.folders import write_classes, write_image, write_masks
from scaleconv import SIConv2d
from scaleconv.data import load_folder
from scaleconv.experiments import FitSettings, NetworkSpec, evaluate, fit, load, read_records, training
from scaleconv.experiments.classifier import Classifier
from scaleconv.experiments.evaluate import BY_SCALE, IOU_BY_SCALE

SETTINGS = FitSettings(epochs=2, batch=4, augment=("scale", "flip", "crop"), average=0.9)
TINY = ("--task", "segmentation", "--scales", "0.8,1,1.25", "--epochs", "1", "--device", "cpu")


class Pixelwise(nn.Sequential):
    """A small network with an answer for each pixel."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))


def network():
    torch.manual_seed(5)
    return Pixelwise()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_folder(write_masks(tmp_path_factory.mktemp("photos")), task="segmentation")


def test_squares_are_told_from_their_ground(data):
    assert (data.task, data.config()["task"], data.folder.classes) == ("segmentation", "segmentation", ("0", "1"))
    fitted = fit(network(), data, FitSettings(epochs=25, batch=4, lr=0.03), device="cpu")
    accuracy, iou = (fitted.record.series[name] for name in (BY_SCALE, IOU_BY_SCALE))
    assert accuracy.y[accuracy.x.index(1)] == 100 - fitted.record.test_error > 95
    assert iou.y[iou.x.index(1)] > 90
    assert fitted.record.history[-1].val_error < 5


def test_a_run_goes_on_bit_for_bit_with_its_masks(data, tmp_path, monkeypatch):
    whole = fit(network(), data, SETTINGS, device="cpu")
    monkeypatch.setattr(sys.modules[fit.__module__], "SECONDS_BETWEEN", 0.0)
    step = training.Training.step

    def crash(self, *arguments):
        if self.position == 4:
            raise InterruptedError
        step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "step", crash)
        with pytest.raises(InterruptedError):
            fit(network(), data, SETTINGS, tmp_path, device="cpu")
    resumed = fit(network(), data, SETTINGS, tmp_path, device="cpu")
    assert resumed.record.series == whole.record.series
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], tensor)


def test_the_loss_of_an_image_is_the_mean_over_its_labelled_pixels():
    logits, labels = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    labels[0, :3] = 255
    found = training.image_losses(logits, labels, 0.1)
    first = F.cross_entropy(logits[:1, :, 3], labels[:1, 3], label_smoothing=0.1)
    second = F.cross_entropy(logits[1:], labels[1:], label_smoothing=0.1)
    torch.testing.assert_close(found, torch.stack([first, second]))
    assert training.image_losses(logits, torch.full_like(labels, 255), 0.1).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"`model` must return numbers of shape \(N, classes, 4, 4\), got \(2, 3\)"):
        training.image_losses(torch.randn(2, 3), labels, 0.1)


def test_image_and_mask_are_augmented_alike(data):
    """A network that reads the class off the pixel has no loss, however image and mask are moved together."""

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = nn.Parameter(torch.zeros(()))

        def forward(self, images):
            light = (images > 0.45).float() * 40
            return torch.cat([40 - light, light], 1) + 0 * self.seen

    reading = Classifier(Reading(), (0.0,), (1.0,), ("0", "1"))
    state = training.Training(reading, FitSettings(augment=("flip",), smoothing=0), steps=9, device="cpu")
    images, masks = next(data.train.batches([[0, 1, 2, 3]]))
    state.step(images, masks, 1, [0, 1, 2, 3])
    assert float(state.loss) < 1e-6
    state.step(images, masks.flip(2), 1, [0, 1, 2, 3])
    assert float(state.loss) > 1


def test_accuracy_and_iou_count_pixels_that_have_a_label(data):
    class Never(nn.Module):
        def forward(self, images):
            return torch.cat([torch.ones_like(images), torch.zeros_like(images)], 1)

    tally = evaluate.score(Never(), data.test, "cpu", (0.5, 1.0))
    _, masks = next(data.test.batches([range(len(data.test))]))
    labelled, squares = int((masks != 255).sum()), int((masks == 1).sum())
    assert tally.error(1) == pytest.approx(100 * squares / labelled)
    assert tally.mean_iou(1) == pytest.approx(100 * (1 - squares / labelled) / 2)  # none of class 1
    assert int(tally.counted[0].sum()) < 0.3 * labelled  # at half the size, a quarter of the canvas is the image
    assert tally.confusion[1].tolist() == [[labelled - squares, 0], [squares, 0]]


@pytest.mark.parametrize("variant", ["plain", "converted", "pyramid"])
def test_a_unet_answers_for_every_pixel_and_loads_again(data, tmp_path, variant):
    spec = NetworkSpec("unet", variant, scales=(0.8, 1, 1.25))
    fitted = fit(spec, data, FitSettings(epochs=1, batch=8), tmp_path, device="cpu")
    images = torch.rand(2, 1, 18, 13)
    assert fitted.network(images).shape == (2, 2, 18, 13)
    assert torch.equal(load(fitted.weights)(images), fitted.network(images))
    converted = [layer for layer in fitted.network.modules() if isinstance(layer, SIConv2d)]
    assert len(converted) == (10 if variant == "converted" else 0)
    assert fitted.record.cost["macs"] > 1e6


def test_a_network_may_answer_with_a_mapping(data):
    class Mapped(Pixelwise):
        def forward(self, images):
            return {"out": super().forward(images), "aux": None}

    assert fit(Mapped(), data, FitSettings(epochs=1), device="cpu").network(torch.rand(1, 1, 8, 8)).shape[1] == 2


def test_train_shows_accuracy_and_iou_side_by_side(run, tmp_path):
    photos = write_masks(tmp_path / "photos", 8)
    (photos / "images" / "alone.png").write_bytes((photos / "images" / "000.png").read_bytes())
    code, output, errors = run("train", "--data", photos, *TINY, "--resize", "12", "--letterbox")
    assert (code, errors) == (0, "")
    assert (
        "8 images of 2 classes (6 to train, 1 to val, 1 to test)\n1 left out:\n  images/alone.png has no mask" in output
    )
    assert "Mean IoU (%) by scale of the test images" in output
    assert "Accuracy (%) by scale of the test images" in output
    page = (tmp_path / "results" / "train" / "page.md").read_text()
    assert "the mean IoU over all test scales" in page
    records = read_records(tmp_path / "results" / "train")
    assert [record.model for record in records] == ["converted", "plain"]
    assert all(record.config["network"]["name"] == "unet" for record in records)


def test_a_task_that_does_not_fit_is_one_line(run, tmp_path):
    photos, classes = write_masks(tmp_path / "photos", 4), write_classes(tmp_path / "classes", 4)
    refused(run("train", "--data", photos, "--task", "detection"), "`task` must be one of classification, segmentation")
    refused(run("train", "--data", photos, *TINY, "--model", "resnet18"), "`model` must be unet or package.module")
    refused(run("train", "--data", classes, "--model", "unet"), "`model` must be convnet or resnet18 or package.module")
    refused(run("train", "--data", classes, *TINY), "`data` must be a directory with the folders images and masks")
    with pytest.raises(ValueError, match=r"`model` must be convnet or resnet18 .* for classification, got unet"):
        fit(NetworkSpec("unet"), load_folder(classes), device="cpu")


def test_a_network_of_someone_else_that_answers_for_the_image_is_refused(data, monkeypatch):
    made = SimpleNamespace(make=lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, num_classes)))
    monkeypatch.setitem(sys.modules, "theirs", made)
    coloured = load_folder(data.folder, channels=3)
    with pytest.raises(ValueError, match=r"`model` must return numbers of shape \(N, classes, 16, 16\)"):
        fit(NetworkSpec("theirs:make"), coloured, FitSettings(epochs=1), device="cpu")


def test_scenes_are_exported_as_images_and_masks(run):
    code, output, errors = run("data", "export", "scenes", "--task", "segmentation", "--count", "4", "--size", "48")
    assert (code, errors) == (0, "")
    assert output.startswith("scenes: 4 scenes of digits on 48×48, scales fixed:1\n")
    assert load_folder("scenes", task="segmentation").folder.classes[-1] == "10"
    refused(run("data", "export", "more", "--task", "bent"), "`task` must be one of")


def test_a_hostile_folder_is_named_file_by_file_and_trained_on(run, tmp_path):
    """Every kind of image that can be used, beside files that cannot; none of them ends in a traceback."""
    photos = write_masks(tmp_path / "photos", 5, size=(12, 10))
    images, masks = photos / "images", photos / "masks"
    turned = Image.Exif()
    turned[0x0112] = 6
    write_image(images / "turned.jpg", size=(10, 12), exif=turned)  # upright, 12×10
    write_image(images / "clear.png", size=(12, 10), mode="RGBA", seed=1)
    write_image(images / "palette.png", size=(12, 10), mode="P", seed=2)
    Image.fromarray(np.arange(120, dtype=np.uint16).reshape(12, 10) * 500).save(images / "deep.png")
    for name in ("turned", "clear", "palette", "deep", "sideways", "cut", "huge"):
        Image.fromarray(np.tile(np.uint8([0, 1]), (12, 5))).save(masks / f"{name}.png")
    write_image(images / "sideways.png", size=(10, 12), seed=3)
    (images / "cut.png").write_bytes((images / "clear.png").read_bytes()[:90])
    Image.new("1", (30_000, 30_000)).save(images / "huge.png")
    code, output, errors = run("train", "--data", photos, *TINY, "--variant", "plain", "--resize", "8")
    assert (code, errors) == (0, "")
    assert "9 images of 2 classes (7 to train, 1 to val, 1 to test)\n3 left out:\n" in output
    left_out = (tmp_path / "results" / "train" / "skipped.txt").read_text().splitlines()
    assert [line.split()[0] for line in left_out] == ["images/cut.png", "images/huge.png", "masks/sideways.png"]
    assert left_out[2] == "masks/sideways.png is 12×10, its image 10×12"
