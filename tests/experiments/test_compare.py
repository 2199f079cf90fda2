"""Comparing networks on a folder: every option reaches the runs, and what `train --data` and `compare` leave."""

import json
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
from msgspec.structs import asdict

from helpers.command import refused, says_next
from helpers.folders import write_classes, write_image, write_masks
from helpers.trained import load_trained
from scaleconv import LATE_SCALES
from scaleconv.experiments import compare, load, read_records
from scaleconv.experiments.items import read_toml
from scaleconv.experiments.methods import COMPARED
from scaleconv.experiments.settings import read
from scaleconv.experiments.trainer import Trainer
from scaleconv.models import Images, make_network
from scaleconv.models.networks import TASKS
from scaleconv.nn.convert import LATE

ROOT = Path(__file__).parents[2]
TINY = ("--model", "convnet", "--scales", "0.8,1,1.25", "--epochs", "1", "--device", "cpu")


@pytest.fixture
def images(tmp_path):
    return write_classes(tmp_path / "photos", 10, size=(16, 16))


class Caught(Exception):  # noqa: N818
    """In place of the training."""


@pytest.fixture
def planned(run, monkeypatch):
    """The runs that a command would do, and how, instead of doing them."""

    def plan(*command):
        found = []

        def catch(item, folder, options, *, watcher, engine, runs):
            found.extend((runs, folder, options, engine))
            raise Caught

        with monkeypatch.context() as patch:
            patch.setattr(compare, "run_experiment", catch)
            code, _, errors = run(*command)
        assert (code, errors) == (1, "scaleconv: unforeseen Caught:\n"), errors
        return found

    return plan


OPTIONS = {
    "model": ((), "network.name", "resnet18"),
    "task": (("--task", "segmentation"), "network.name", "unet"),
    "network": (("--model", "convnet"), "network.name", "convnet"),
    "scales": (("--scales", "0.7,1"), "network.scales", (0.7, 1.0)),
    "layers": (("--model", "convnet", "--layers", "*1, *.conv2"), "network.layers", ("*1", "*.conv2")),
    "resize": (("--resize", "9"), "data.size", (9, 9)),
    "native": (("--native",), "data.size", None),
    "letterbox": (("--letterbox", "--resize", "9"), "data.fit", "letterbox"),
    "crop": (("--resize", "9"), "data.fit", "crop"),
    "validated": (("--split", "0.3,0.2"), "data.val", 6),
    "tested": (("--split", "0.3,0.2"), "data.test", 4),
    "augment": (("--augment", "crop,flip"), "training.augment", ("crop", "flip")),
    "optimizer": (("--optimizer", "sgd"), "training.optimizer", "sgd"),
    "rate of sgd": (("--optimizer", "sgd"), "training.learning_rate", 0.05),
    "rate of adamw": ((), "training.learning_rate", 0.001),
    "rate": (("--lr", "0.25"), "training.learning_rate", 0.25),
    "batch": (("--batch", "7"), "training.batch", 7),
    "default batch": ((), "training.batch", 64),
    "epochs": (("--epochs", "3"), "training.epochs", 3),
    "default epochs": ((), "training.epochs", 20),
    "amp": (("--amp",), "training.precision", "bfloat16"),
    "no amp": ((), "training.precision", "float32"),
    "decay": (("--average", "0.9"), "training.average", 0.9),
    "average": (("--average", "0.9"), "training.keep", "average"),
    "no average": ((), "training.keep", "last"),
}


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(("options", "key", "value"), OPTIONS.values(), ids=OPTIONS)
def test_every_option_reaches_every_run(planned, tmp_path, command, options, key, value):
    root = tmp_path / "photos"
    write_masks(root, 20) if "segmentation" in options else write_classes(root, 10, size=(16, 16))
    if "--native" in options:
        write_image(root / "cat" / "large.png", size=(20, 18))
    runs, *_ = planned(command, "--data", root, *options)
    section, name = key.split(".")
    assert {getattr(getattr(run.settings, section), name) for run in runs if run.model == "plain"} == {value}
    if name != "augment":
        assert {getattr(getattr(run.settings, section), name) for run in runs} == {value}


def test_options_of_how_to_work_reach_the_engine(planned, images, tmp_path):
    command = ("--data", images, "--workers", "2", "--results", "there", "--name", "it", "--device", "cpu")
    for name in ("train", "compare"):
        _, folder, options, found = planned(name, *command)
        assert (folder, options.device, options.workers, options.tensorboard) == (Path("there/it"), "cpu", 2, False)
        assert (type(found).__name__, options.images.folder.root) == ("Local", images)
    runs, *_ = planned("train", "--data", images, "--seed", "7", "--variant", "pyramid,plain-scale")
    assert [(run.model, run.seed) for run in runs] == [("pyramid", 7), ("plain-scale", 7)]
    runs, *_ = planned("train", "--data", images, "--augment", "scale,flip", "--variant", "plain,plain-scale")
    assert [(run.model, set(run.settings.training.augment)) for run in runs] == [("plain-scale", {"scale", "flip"})]
    runs, *_ = planned("compare", "--data", images, "--seeds", "2", "--augment", "flip")
    assert [(run.model, run.seed) for run in runs] == [(method, seed) for seed in (0, 1) for method in COMPARED]
    assert [(run.settings.network.variant, "scale" in run.settings.training.augment) for run in runs[:5]] == [
        ("plain", False),
        ("plain", True),
        ("converted", False),
        ("converted", True),
        ("pyramid", False),
    ]
    assert {run.settings.network.last for run in runs if "late" in run.model} == {LATE}
    for options, scales in (((), LATE_SCALES), (("--scales", "1,2"), (1.0, 2.0))):
        (run, *_), *_ = planned("train", "--data", images, "--variant", "late", *options)
        assert (run.settings.network.last, run.settings.network.scales) == (LATE, scales)
    assert all("flip" in run.settings.training.augment for run in runs)


PLAN = """
[network]
name = "resnet"
maps = [4, 6, 8]
[training]
epochs = 1
augment = ["flip", "scale"]
[methods.plain]
[methods.late]
network = { variant = "converted", layers = ["stages.2.*"], scales = [0.5, 1.0] }
[methods.long]
training.epochs = 2
"""


def test_the_methods_of_a_plan_share_all_that_they_do_not_change(planned, images, tmp_path):
    (tmp_path / "own.toml").write_text(PLAN)
    runs, *_ = planned("compare", "--data", images, "--plan", "own.toml", "--seeds", "2")
    assert [(each.model, each.seed) for each in runs] == [(m, s) for s in (0, 1) for m in ("plain", "late", "long")]
    networks = {each.model: each.settings.network for each in runs}
    recipes = {each.model: each.settings.training for each in runs}
    assert {(network.name, network.maps) for network in networks.values()} == {("resnet", (4, 6, 8))}
    assert {recipe.augment for recipe in recipes.values()} == {("flip", "scale")}
    assert (networks["late"].variant, networks["late"].layers, networks["late"].scales) == (
        "converted",
        ("stages.2.*",),
        (0.5, 1.0),
    )
    assert networks["plain"] == networks["long"]
    assert [recipes[name].epochs for name in networks] == [1, 1, 2]


def test_a_plan_is_trained_and_shown_under_its_own_names(run, images, tmp_path):
    (tmp_path / "own.toml").write_text(PLAN)
    code, output, errors = run("compare", "--data", images, "--plan", "own.toml", "--seeds", "1", "--device", "cpu")
    assert (code, errors) == (0, "")
    assert "late, seed 0: " in output
    records = {record.model: record for record in read_records(tmp_path / "results" / "compare")}
    assert {name: len(record.history) for name, record in records.items()} == {"plain": 1, "late": 1, "long": 2}
    assert records["late"].cost["macs"] > records["plain"].cost["macs"] == records["long"].cost["macs"]
    assert run("show", "compare")[1] in output


def test_some_methods_of_a_plan_are_trained_and_others_added_later(run, images, tmp_path):
    (tmp_path / "own.toml").write_text(PLAN)
    command = ("compare", "--data", images, "--plan", "own.toml", "--seeds", "1", "--device", "cpu", "--methods")
    for methods, trained in (("late", {"late"}), ("long, plain", {"late", "long", "plain"})):
        code, _, errors = run(*command, methods)
        assert (code, errors) == (0, "")
        assert {record.model for record in read_records(tmp_path / "results" / "compare")} == trained
    refused(run(*command, "early"), "`methods` must be some of plain, late, long, got 'early'")
    refused(run("compare", "--data", images, "--methods", "late"), "`methods` must be given with --plan, got 'late'")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("[methods.plain]", "[methods.simple]"), "`methods` must have plain, got simple, late, long, in own.toml"),
        (("late", "convnet"), "`methods` must not have names of methods of the paper, got convnet, in own.toml"),
        (("late", "'a/b'"), "`name` must be a folder's name"),
        (("maps", "map"), "`map`"),
        (
            ("training.epochs = 2", "training.epochs = 0"),
            "`epochs` must be `int` >= 1, got 0, in own.toml, [methods.long]",
        ),
        (("training.epochs = 2", "measure.kind = 'x'"), "`measure`"),
        (
            ("[methods.plain]", "[methods.plain]\nnetwork.variant = 'pyramid'"),
            "`methods.plain.network.variant` must be",
        ),
        (('"resnet"', '"unet"'), "`maps` must be 2 numbers for unet"),
        (("[network]", "[network"), "own.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_plan_is_one_line(run, images, tmp_path, changed, message):
    (tmp_path / "own.toml").write_text(PLAN.replace(*changed))
    task = ("--task", "segmentation") if "unet" in changed[1] else ()
    refused(run("compare", "--data", images, "--plan", "own.toml", *task), message)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "plans").glob("*.toml")), ids=lambda file: file.stem)
def test_the_networks_of_every_plan_can_be_made(file, monkeypatch, tmp_path):
    load_trained(monkeypatch, tmp_path, classes=5)
    for network, _ in read(compare.Plan, read_toml(file), file.name).settings(file.name).values():
        dense = network.name == "unet"
        made = make_network(Images((32, 32), 3, 5, TASKS[dense]), **asdict(network)).eval()
        assert made(torch.rand(1, 3, 32, 32)).shape == ((1, 5, 32, 32) if dense else (1, 5))


def test_a_plan_that_cannot_be_read_is_named(run, images, tmp_path):
    for plan, reason in ((tmp_path / "none.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        refused(run("compare", "--data", images, "--plan", plan), f"cannot read {plan} ({reason})")


def test_options_that_a_plan_decides_are_refused_with_one(run, images, tmp_path):
    (tmp_path / "own.toml").write_text(PLAN)
    for option in (("--model", "convnet"), ("--epochs", "3"), ("--amp",)):
        result = run("compare", "--data", images, "--plan", "own.toml", *option)
        refused(result, f"`{option[0]}` must not be given with --plan")


def test_train_shows_plain_and_late_side_by_side(run, images, tmp_path):
    (images / "cat" / "notes.txt").touch()
    code, output, errors = run("train", "--data", images, *TINY, "--augment", "flip,crop", "--average", "0.9")
    assert (code, errors) == (0, "")
    summary = "20 images of 2 classes (16 to train, 2 to val, 2 to test)\n1 left out:\n  cat/notes.txt does not end in"
    assert output.startswith(f"{images}: {summary}")
    assert "scale of the test images  plain   late\n" in output
    folder = tmp_path / "results" / "train"
    says_next(output, f"scaleconv compare --data {images} --model convnet")
    recipes = [line for line in output.splitlines() if line.startswith("network = scaleconv.experiments.load(")]
    files = [line.split('"')[1] for line in recipes]
    assert [Path(file).stem for file in files] == ["plain-fold0-seed0", "late-fold0-seed0"]  # as they are run
    assert load(files[1]).classes == ("cat", "dog")
    assert [record.model for record in read_records(folder)] == ["late", "plain"]
    assert (folder / "skipped.txt").read_text().startswith("cat/notes.txt does not end in")
    code, shown, _ = run("show", "train")
    assert (code, shown.splitlines()[0]) == (0, "Accuracy (%) by scale of the test images, mean ± std, n = 1")
    # A method of the paper may be trained into the same folder.
    small = [f"--set={each}" for each in ("data.train=100", "data.tested=50", "network.maps=[2,3]", "network.hidden=4")]
    assert run("train", "convnet", "--epochs", "1", *small)[0] == 0
    assert run("show", "train") == (0, shown, "")
    assert "ConvNet" in run("show", "train", "--item", "table1")[1]


def test_compare_writes_a_page_and_finishes_what_is_missing(run, images, tmp_path, monkeypatch):
    command = ("compare", "--data", images, *TINY, "--seeds", "2")
    code, output, errors = run(*command)
    assert (code, errors) == (0, "")
    says_next(output, "scaleconv show compare")
    folder = tmp_path / "results" / "compare"
    records = read_records(folder)
    assert {(record.model, record.seed) for record in records} == {(name, seed) for name in COMPARED for seed in (0, 1)}
    text = (folder / "page.md").read_text()
    assert text.startswith("# photos: which network to take\n\n")
    assert "| late + scale augmentation |" in text
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(run("show", "compare", "--json")[1])
    for model, found in shown.items():
        first, second = (record.error for record in records if record.model == model)
        assert found["mean"] == pytest.approx((first + second) / 2)
        assert found["std"] == pytest.approx(abs(first - second) / 2**0.5)
        assert found["n"] == 2
    # One record is lost: its run alone is done again, and the page is the same but for times.
    lines = folder.with_suffix(".jsonl").read_text().splitlines(keepends=True)
    folder.with_suffix(".jsonl").write_text("".join(line for line in lines if '"plain","fold":0,"seed":1' not in line))
    learn, trained = Trainer.learn, []
    monkeypatch.setattr(Trainer, "learn", lambda self, *rest: (trained.append(self.seed), learn(self, *rest))[1])
    assert run(*command)[0] == 0
    assert set(trained) == {1}
    assert len(trained) == 1  # 16 images in a batch of 64
    again = {record.name: record.series for record in read_records(folder)}
    assert again == {record.name: record.series for record in records}
    code, _, errors = run(*command, "--batch", "5")
    assert (code, errors.count("\n")) == (2, 1)
    assert "was made with other settings (training.batch was 64, now 5)" in errors


def test_masks_are_compared_by_their_overlap(run, tmp_path):
    write_masks(tmp_path / "scenes", 12, size=(12, 12))
    command = ("--data", "scenes", "--task", "segmentation", "--epochs", "1", "--scales", "0.8,1", "--batch", "4")
    code, output, errors = run("train", *command, "--variant", "plain,pyramid")
    assert (code, errors) == (0, "")
    assert "Mean IoU (%) by scale of the test images" in output
    says_next(output, "scaleconv compare --data scenes --task segmentation")
    record = read_records(tmp_path / "results" / "train")[0]
    assert set(record.series) == {"accuracy by scale", "mean IoU by scale", "Dice by scale"}
    network = load(tmp_path / "results" / "train" / "weights" / "plain-fold0-seed0.safetensors")
    assert network(torch.rand(1, 1, 12, 12)).shape == (1, 2, 12, 12)


def with_sizes(root, pattern):
    """Says of every image another size, from 10 pixels on; its fractions are not those of a file's side."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.glob(pattern))]
    sizes = {name: 10.5 + index for index, name in enumerate(names)}
    (root / "sizes.csv").write_text("file,size\n" + "".join(f"{name},{size}\n" for name, size in sizes.items()))
    return sizes


def test_results_are_given_by_the_sizes_of_what_images_show(run, images, tmp_path):
    sizes = with_sizes(images, "*/*.png")
    command = ("compare", "--data", images, *TINY, "--seeds", "1", "--split", "0,0.4")
    code, output, errors = run(*command)
    assert (code, errors) == (0, "")
    records = read_records(tmp_path / "results" / "compare")
    for record in records:
        series = record.series["accuracy by size"]
        assert len(series.x) == len(series.y) == 4
        assert set(series.x) <= set(sizes.values())
        assert fmean(series.y) == pytest.approx(100 - record.test_error)  # of 8 test images each group has 2
    assert "Accuracy (%) by size (pixels), mean ± std, n = 1" in output
    assert "| size (pixels) | plain | plain + scale" in (tmp_path / "results" / "compare" / "page.md").read_text()
    (images / "sizes.csv").write_text("file,size\n")
    refused(run(*command), f"{images / 'sizes.csv'} must have a size for every test image")


def test_overlaps_are_given_by_the_sizes_of_what_images_show(run, tmp_path):
    sizes = with_sizes(write_masks(tmp_path / "scenes", 12, size=(12, 12)), "images/*.png")
    command = ("--data", "scenes", "--task", "segmentation", "--epochs", "1", "--batch", "4", "--split", "0,0.4")
    code, output, errors = run("train", *command, "--variant", "plain")
    assert (code, errors) == (0, "")
    (record,) = read_records(tmp_path / "results" / "train")
    by_size = {name: series for name, series in record.series.items() if name.endswith(" by size")}
    assert set(by_size) == {"mean IoU by size", "Dice by size", "accuracy by size"}
    for series in by_size.values():
        assert series.x == by_size["Dice by size"].x
        assert set(series.x) <= set(sizes.values())
        assert len(series.x) == 4
    assert "Dice (%) by size (pixels)" in output


WRONG = {
    "neither": (("train",), "`train` must be given a METHOD of the paper or --data, got neither"),
    "both": (("train", "convnet", "--data", "photos"), "METHOD (=convnet) and --data"),
    "variant of a method": (("train", "convnet", "--variant", "plain"), "`--variant` must not be given with a METHOD"),
    "fold of a folder": (("train", "--data", "photos", "--fold", "1"), "`--fold` must not be given with --data"),
    "set of a folder": (("train", "--data", "photos", "--set", "a=1"), "`--set` must not be given with --data"),
    "model": (("--model", "lenet"), "`model` must be convnet, ", "resnet18", "package.module:factory, got 'lenet'"),
    "task": (("--task", "sleep"), "`task`", "'sleep'"),
    "model of a task": (("--model", "unet"), "`model` must be", "for classification, got unet"),
    "variant": (("train", "--data", "photos", "--variant", "bent"), "`variant` must be some of", "got 'bent'"),
    "variants": (("train", "--data", "photos", "--variant", "plain,"), "`variant` must be names separated by commas"),
    "scales": (("--scales", "a,b"), "`scales` must be numbers separated by commas, got 'a,b'"),
    "scale 1": (("--scales", "0.5,2"), "`scales`", "1"),
    "split": (("--split", "0.1"), "`split` must be two shares"),
    "shares": (("--split", "0.6,0.6"), "`split` must be shares of at least 0"),
    "augment": (("--augment", "blur"), "`augment` must be some of scale, flip, crop, got 'blur'"),
    "optimizer": (("--optimizer", "lion"), "`optimizer` must be one of sgd, adam, adamw, got 'lion'"),
    "lr": (("--lr", "0"), "`lr` must be above 0, got 0.0"),
    "workers": (("--workers", "-1"), "`workers` must be at least 0, got -1"),
    "name": (("--name", "../x"), "`name` must be a folder's name"),
    "device": (("--device", "abacus"), "`device` must be one this machine has"),
    "both sizes": (("--resize", "8", "--native"), "`resize`", "`native`"),
    "nowhere": (("compare", "--data", "nowhere"), "`data` must be a directory"),
    "seeds": (("compare", "--data", "photos", "--seeds", "0"), "`seeds` must be at least 1, got 0"),
    "scale": (("compare", "--data", "photos", "--augment", "scale"), "`augment` must not hold scale"),
    "tensorboard": (("--tensorboard", "--resize", "16"), "`tensorboard` needs its package: pip install 'scaleconv["),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing(run, images, tmp_path, monkeypatch, case):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    options, *words = case
    commands = (
        [options]
        if options[0] in ("train", "compare")
        else [(each, "--data", "photos", *options) for each in ("train", "compare")]
    )
    for command in commands:
        refused(run(*command), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_what_is_wrong_with_the_images_is_one_line(run, images):
    write_image(images / "cat" / "wide.png", size=(16, 40))
    data = ("train", "--data", images, *TINY)
    refused(run(*data), "`resize` must be given, or `native`, where images differ in size, got 16×16 to 16×40")
    refused(run(*data, "--native"), "convnet", "square images of one size (--resize), got images of their own sizes")


def test_digits_are_exported_as_a_folder_that_can_be_trained_on(run, tmp_path):
    code, output, errors = run("data", "export", "digits", "--count", "200", "--size", "20", "--scales", "fixed:0.5")
    assert (code, errors) == (0, "")
    assert output.startswith("digits: 200 digits on 20×20, scales fixed:0.5\n")
    assert run("train", "--data", "digits", *TINY, "--variant", "plain")[0] == 0
    (record,) = read_records(tmp_path / "results" / "train")
    assert (record.config["data"]["channels"], len(record.config["data"]["classes"])) == (1, 10)
