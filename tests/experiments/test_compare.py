"""Comparing networks on a folder: what is trained, and `train --data` and `compare --data`."""

import json
from pathlib import Path

import pytest

from helpers.command import refused, says_next
from helpers.folders import write_classes, write_image
from scaleconv.experiments import FitSettings, NetworkSpec, load, read_records, training
from scaleconv.experiments.compare import COMPARED, compared_names, make_methods

TINY = ("--model", "convnet", "--scales", "0.8,1,1.25", "--epochs", "1", "--device", "cpu")


@pytest.fixture
def images(tmp_path):
    return write_classes(tmp_path / "photos", 10, size=(16, 16))


def test_methods_differ_in_variant_and_scale_augmentation_only():
    made = make_methods(NetworkSpec("convnet"), FitSettings(augment=("flip",)), COMPARED[:4])
    assert [(method.spec.variant, method.settings.augment) for method in made] == [
        ("plain", ("flip",)),
        ("plain", ("flip", "scale")),
        ("converted", ("flip",)),
        ("converted", ("flip", "scale")),
    ]
    with pytest.raises(ValueError, match="`augment` must not hold scale"):
        compared_names(FitSettings(augment=("scale",)))


def test_train_shows_plain_and_converted_side_by_side(run, images, tmp_path):
    (images / "cat" / "notes.txt").touch()
    code, output, errors = run("train", "--data", images, *TINY, "--augment", "flip,crop", "--average", "0.9")
    assert (code, errors) == (0, "")
    assert (
        "20 images of 2 classes (16 to train, 2 to val, 2 to test)\n1 left out:\n  cat/notes.txt does not end in"
        in output
    )
    assert "scale of the test images  plain  converted\n" in output
    folder = tmp_path / "results" / "train"
    assert {path.name for path in folder.glob("*.*")} == {
        *("plain-fold0-seed0.json", "converted-fold0-seed0.json", "skipped.txt"),
        *("accuracy.png", "accuracy.svg", "page.md"),
    }
    says_next(output, f"scaleconv compare --data {images} --model ")
    recipes = [line for line in output.splitlines() if line.startswith("network = scaleconv.experiments.load(")]
    assert len(recipes) == 2
    assert load(recipes[1].split('"')[1]).classes == ("cat", "dog")
    config = read_records(folder)[0].config["settings"]
    assert (config["augment"], config["average"], config["epochs"]) == (["crop", "flip"], 0.9, 1)
    assert (folder / "skipped.txt").read_text().startswith("cat/notes.txt does not end in")


@pytest.fixture
def compared(run, images):
    return run("compare", "--data", images, *TINY, "--seeds", "2")


def test_compare_writes_a_page_and_goes_on_where_it_was(run, images, tmp_path, compared, monkeypatch):
    code, output, errors = compared
    assert (code, errors) == (0, "")
    says_next(output, "scaleconv show compare")
    folder = tmp_path / "results" / "compare"
    assert {path.name for path in folder.glob("*.json")} == {
        f"{method}-fold0-seed{seed}.json" for method in COMPARED for seed in (0, 1)
    }
    text = (folder / "page.md").read_text()
    assert text.startswith("# photos: which network to take\n\nTake **")
    assert "Rule: " in text
    assert "| converted + scale augmentation |" in text
    assert "![Accuracy at every scale of the test images](accuracy.png)" in text
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(training.Training, "step", lambda *_: pytest.fail("was trained again"))
    (folder / "page.md").unlink()
    again = run("compare", "--data", images, *TINY, "--seeds", "2")
    assert again[0] == 0
    assert (folder / "page.md").read_text() == text


def test_the_same_records_give_the_same_figure(run, images, tmp_path, compared):
    folder = tmp_path / "results" / "compare"
    before = {kind: (folder / f"accuracy.{kind}").read_bytes() for kind in ("png", "svg")}
    run("compare", "--data", images, *TINY, "--seeds", "2")
    assert {kind: (folder / f"accuracy.{kind}").read_bytes() for kind in ("png", "svg")} == before


def test_the_pyramid_is_trained_beside_the_plain_network(run, images):
    code, output, _ = run("train", "--data", images, *TINY, "--variant", "plain,pyramid")
    assert (code, "pyramid, seed 0 (2 of 2):" in output) == (0, True)


def test_a_factory_that_takes_no_classes_is_refused_once_the_images_are_counted(run, images):
    code, _, errors = run("train", "--data", images, "--model", "os:system")
    assert code == 2
    assert "`model` os:system must take num_classes=2, got TypeError" in errors


def test_bad_combinations_are_one_line(run, images, tmp_path):
    refused(run("train"), "`train` must be given a METHOD of the paper or --data, got neither")
    refused(run("train", "convnet", "--data", images), "METHOD (=convnet) and --data")
    refused(run("train", "convnet", "--variant", "plain"), "`--variant` must not be given with a METHOD of the paper")
    refused(run("train", "--data", images, "--fold", "1"), "`--fold` must not be given with --data")
    refused(run("train", "--data", images, "--set", "a=1"), "`--set` must not be given with --data")
    data = ("train", "--data", images)
    refused(
        run(*data, "--model", "lenet"), "`model` must be convnet, resnet18, unet or package.module:factory, got 'lenet'"
    )
    refused(run(*data, "--variant", "bent"), "`variant` must be some of plain, plain-scale, converted", "got 'bent'")
    refused(run(*data, "--scales", "a,b"), "`scales` must be numbers separated by commas, got 'a,b'")
    refused(run(*data, "--scales", "0.5,2"), "`scales`", "1")
    refused(run(*data, "--split", "0.1"), "`split` must be two shares")
    refused(run(*data, "--augment", "blur"), "`augment` must be some of scale, flip, crop, got 'blur'")
    refused(run(*data, "--name", "../x"), "`name` must be a folder's name")
    refused(run(*data, "--device", "abacus"), "`device` must be one this machine has")
    refused(run(*data, "--resize", "8", "--native"), "`resize`", "`native`")
    refused(run("train", "--data", tmp_path / "nowhere"), "`data` must be a directory")
    refused(run("compare", "--data", images, "--seeds", "0"), "`seeds` must be at least 1, got 0")
    refused(run("compare", "--data", images, "--augment", "scale"), "`augment` must not hold scale")
    assert not (tmp_path / "results").exists()


def test_what_is_wrong_with_the_images_is_one_line(run, images):
    write_image(images / "cat" / "wide.png", size=(16, 40))
    data = ("train", "--data", images, *TINY)
    refused(run(*data), "`resize` must be given, or `native`, where images differ in size, got 16×16 to 16×40")
    code, _, errors = run(*data, "--native")
    assert (code, errors.count("\n")) == (2, 1)
    assert "`model` convnet must have square images of one size (--resize), got images of their own sizes" in errors


def test_other_settings_are_not_mixed_in(run, images, compared):
    code, _, errors = run("compare", "--data", images, *TINY, "--seeds", "2", "--batch", "5")
    assert (code, errors.count("\n")) == (2, 1)
    assert "was made with other settings (settings.batch was 64, now 5)" in errors


def test_digits_are_exported_as_a_folder_that_can_be_trained_on(run, tmp_path):
    code, output, errors = run("data", "export", "digits", "--count", "200", "--size", "20", "--scales", "fixed:0.5")
    assert (code, errors) == (0, "")
    assert output.startswith("digits: 200 digits on 20×20, scales fixed:0.5\n")
    code, output, _ = run("train", "--data", "digits", *TINY, "--variant", "plain")
    assert code == 0
    assert json.loads(Path("results/train/plain-fold0-seed0.json").read_text())["config"]["data"]["channels"] == 1
    refused(run("data", "export", "digits"), "`path` must name a folder that is not there yet, got digits")
    refused(run("data", "export", "more", "--count", "0"), "`count` must be 1 to the 10000 digits there are, got 0")
