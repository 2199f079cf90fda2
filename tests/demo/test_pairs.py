"""The networks that come with the package: of the settings in the code, small, unseen digits, and as the page says."""

import re
from pathlib import Path

import pytest

from scaleconv.data import embedded_digits
from scaleconv.demo import pairs as demo
from scaleconv.experiments import plan_runs, read_records
from scaleconv.experiments.checkpoint import load_checkpoint
from scaleconv.experiments.sources import Sources, divide

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "demo.md").read_text()
RUNS = [(name, run) for name, experiment in demo.experiments().items() for run in plan_runs(experiment)]


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[run.model for _, run in RUNS])
def test_shipped_weights_are_small_and_of_the_settings_in_the_code(name, run):
    path = run.weights(demo.SHIPPED / name)
    assert path.stat().st_size < 10**6
    assert load_checkpoint(path).run == run.identity()


@pytest.mark.parametrize("name", ["digits", "scenes"])
def test_the_page_quotes_the_records(name):
    records = {record.model: record for record in read_records(demo.SHIPPED / name)}
    titles = {"convnet": "ConvNet", "si_convnet": "SI-ConvNet", "fcn": "FCN", "si_fcn": "SI-FCN"}
    for model, record in records.items():
        series = record.series["test_error"]
        assert f"| {titles[model]} | {' | '.join(f'{error:.1f}' for error in series.y)} |" in PAGE
        assert f" | {' | '.join(f'{scale:g}' for scale in series.x)} |" in PAGE
        trained = record.config["data"]["scales"].partition(":")[2].replace(",", " to ")
        assert f"| trained at scales {trained} |" in PAGE
    assert re.search(r"less than (0\.\d) MB each", PAGE)[1] == "0.3"


def test_the_digits_on_the_page_took_no_part_in_training():
    pairs = demo.load_pairs()
    digits = embedded_digits()
    for name, experiment in demo.experiments().items():
        trained = divide(digits.labels, experiment.settings.data, experiment.folds[0]).train
        shown = {image.numpy().tobytes() for image in pairs[name].digits}
        assert shown.isdisjoint(image.numpy().tobytes() for image in digits.images[trained])


def test_the_mean_is_that_of_the_training_pixels():
    experiment = demo.experiments()["digits"]
    assert float(demo.load_pairs()["digits"].plain.mean) == pytest.approx(
        Sources("cpu").open(experiment.settings.data, 0).mean[0], rel=1e-6
    )


def test_training_leaves_what_the_page_loads(tmp_path, monkeypatch):
    small = {"data.train": 100, "data.test": 100, "network.maps": [2, 2], "network.hidden": 4, "training.epochs": 1}
    quick = {**small, "data.size": 36, "measure.scales": [1.0], "measure.digits": 20}
    monkeypatch.setattr(demo, "DIGITS", {**demo.DIGITS, **quick})
    monkeypatch.setattr(demo, "SCENES", {**demo.SCENES, **quick})
    records = demo.train_pairs(tmp_path)
    assert [record.model for record in records] == ["convnet", "si_convnet", "fcn", "si_fcn"]
    pairs = demo.load_pairs(tmp_path)
    assert {name: (pair.size, len(pair.digits)) for name, pair in pairs.items()} == {
        "digits": (36, 100),
        "scenes": (36, 100),
    }
