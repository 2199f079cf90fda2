"""Comparing networks on a user's images: options reach the runs, methods differ as they say, and nothing runs twice."""

import json

import pytest

from helpers.command import refused, says_next
from helpers.folders import write_classes, write_image
from scaleconv.experiments import load, read_records
from scaleconv.experiments.methods import COMPARED
from scaleconv.experiments.trainer import Trainer

TINY = ("--model", "convnet", "--scales", "0.8,1,1.25", "--epochs", "1", "--device", "cpu")


@pytest.fixture
def images(tmp_path):
    return write_classes(tmp_path / "photos", 10, size=(16, 16))


def configs(tmp_path, name="train"):
    return {record.model: record.config for record in read_records(tmp_path / "results" / name)}


OPTIONS = [
    ("--epochs 2", "training", {"epochs": 2}),
    ("--batch 5", "training", {"batch": 5}),
    ("--optimizer sgd", "training", {"optimizer": "sgd", "learning_rate": 0.05}),
    ("--lr 0.003", "training", {"learning_rate": 0.003, "optimizer": "adamw"}),
    ("--augment flip,crop", "training", {"augment": ["flip", "crop"]}),
    ("--average 0.9", "training", {"keep": "average", "average": 0.9}),
    ("--amp", "training", {"precision": "bfloat16"}),
    ("--scales 0.5,1", "network", {"scales": [0.5, 1.0]}),
    ("--layers stages.conv2", "network", {"layers": ["stages.conv2"]}),
    ("--resize 20", "data", {"size": [20, 20], "fit": "crop"}),
    ("--resize 20 --letterbox", "data", {"fit": "letterbox"}),
    ("--split 0.2,0.3", "data", {"train": 10, "val": 4, "test": 6}),
    ("--model resnet18 --native", "data", {"size": [16, 16]}),
]


@pytest.mark.parametrize(("options", "section", "expected"), OPTIONS, ids=[options for options, *_ in OPTIONS])
def test_an_option_reaches_the_settings_of_its_runs(run, images, tmp_path, options, section, expected):
    variant = "converted" if "layers" in options else "plain"
    code, _, errors = run("train", "--data", images, *TINY, *options.split(), "--variant", variant)
    assert (code, errors) == (0, "")
    found = configs(tmp_path)[variant][section]
    assert {key: found[key] for key in expected} == expected


def test_train_shows_plain_and_converted_side_by_side(run, images, tmp_path):
    (images / "cat" / "notes.txt").touch()
    code, output, errors = run("train", "--data", images, *TINY)
    assert (code, errors) == (0, "")
    assert "20 images of 2 classes (16 to train, 2 to val, 2 to test)" in output
    folder = tmp_path / "results" / "train"
    assert {path.name for path in folder.glob("*.*")} == {"skipped.txt", "accuracy.png", "accuracy.svg", "page.md"}
    assert {name: config["network"]["variant"] for name, config in configs(tmp_path).items()} == {
        "plain": "plain",
        "converted": "converted",
    }
    says_next(output, f"scaleconv compare --data {images} --model ")
    recipes = [line for line in output.splitlines() if line.startswith("network = scaleconv.experiments.load(")]
    assert [load(line.split('"')[1]).classes for line in recipes] == [("cat", "dog")] * 2
    assert (folder / "skipped.txt").read_text().startswith("cat/notes.txt does not end in")


@pytest.fixture
def compared(run, images):
    return run("compare", "--data", images, *TINY, "--seeds", "2", "--augment", "flip")


def test_compare_trains_every_method_with_every_seed_and_not_again(run, images, tmp_path, compared, monkeypatch):
    code, output, errors = compared
    assert (code, errors) == (0, "")
    says_next(output, "scaleconv show compare")
    records = read_records(tmp_path / "results" / "compare")
    assert {(record.model, record.seed) for record in records} == {(m, s) for m in COMPARED for s in (0, 1)}
    for name, config in configs(tmp_path, "compare").items():
        variant, _, rescaled = name.partition("-")
        assert config["network"]["variant"] == variant
        assert config["training"]["augment"] == (["flip", "scale"] if rescaled else ["flip"])
    page = tmp_path / "results" / "compare" / "page.md"
    text = page.read_text()
    assert text.startswith("# photos: which network to take\n\nTake **")
    page.unlink()
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("was trained again"))
    assert run("compare", "--data", images, *TINY, "--seeds", "2", "--augment", "flip")[0] == 0
    assert page.read_text() == text
    shown = json.loads(run("show", "compare", "--json")[1])
    assert {name: set(found) for name, found in shown.items()} == {name: {"mean", "std", "n"} for name in COMPARED}
    errors = [record.error for record in records if record.model == "plain"]
    assert shown["plain"]["mean"] == pytest.approx(sum(errors) / 2)
    refused(
        run("compare", "--data", images, *TINY, "--seeds", "2", "--augment", "flip", "--batch", "5"),
        "other settings",
        "training.batch was 64, now 5",
    )


def test_bad_combinations_are_one_line_and_leave_nothing(run, images, tmp_path):
    refused(run("train"), "`train` must be given a METHOD of the paper or --data, got neither")
    refused(run("train", "convnet", "--data", images), "METHOD (=convnet) and --data")
    refused(run("train", "convnet", "--variant", "plain"), "`--variant` must not be given with a METHOD of the paper")
    refused(run("train", "--data", images, "--fold", "1"), "`--fold` must not be given with --data")
    data = ("train", "--data", images)
    refused(run(*data, "--model", "lenet"), "`model`", "convnet", "got 'lenet'")
    refused(run(*data, "--model", "unet"), "`model`", "classification", "got unet")
    refused(run(*data, "--model", "os:system"), "`model` os:system must take num_classes=2")
    refused(run(*data, "--variant", "bent"), "`variant` must be some of plain, plain-scale, converted", "got 'bent'")
    refused(run(*data, "--scales", "a,b"), "`scales` must be numbers separated by commas, got 'a,b'")
    refused(run(*data, "--scales", "0.5,2"), "`scales`", "1")
    refused(run(*data, "--split", "0.1"), "`split` must be two shares")
    refused(run(*data, "--augment", "blur"), "`augment` must be some of scale, flip, crop, got 'blur'")
    refused(run(*data, "--lr", "0"), "`lr` must be above 0, got 0")
    refused(run(*data, "--batch", "0"), "`batch`", "got 0")
    refused(run(*data, "--optimizer", "lion"), "`optimizer` must be one of sgd, adam, adamw, got 'lion'")
    refused(run(*data, "--name", "../x"), "`name` must be a folder's name")
    refused(run(*data, "--device", "abacus"), "`device` must be one this machine has")
    refused(run(*data, "--resize", "8", "--native"), "`resize`", "`native`")
    refused(run("train", "--data", tmp_path / "nowhere"), "`data` must be a directory")
    refused(run("compare", "--data", images, "--seeds", "0"), "`seeds` must be at least 1, got 0")
    refused(run("compare", "--data", images, "--augment", "scale"), "`augment` must not hold scale")
    write_image(images / "cat" / "wide.png", size=(16, 40))
    refused(run(*data, *TINY), "`resize` must be given, or `native`, where images differ in size")
    refused(run(*data, *TINY, "--native"), "convnet", "square images of one size", "their own sizes")
    assert not (tmp_path / "results").exists()


def test_digits_are_exported_as_a_folder_that_can_be_trained_on(run, tmp_path):
    code, output, errors = run("data", "export", "digits", "--count", "200", "--size", "20", "--scales", "fixed:0.5")
    assert (code, errors) == (0, "")
    assert output.startswith("digits: 200 digits on 20×20, scales fixed:0.5\n")
    assert run("train", "--data", "digits", *TINY, "--variant", "pyramid")[0] == 0
    assert configs(tmp_path)["pyramid"]["data"]["channels"] == 1
    refused(run("data", "export", "digits"), "`path` must name a folder that is not there yet, got digits")
