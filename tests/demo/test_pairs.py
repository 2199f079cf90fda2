"""The networks that come with the package: of the settings in the code, small, unseen digits, and as the page says."""

import json
import re
from pathlib import Path

import pytest
from scaleconv.experiments.train import DigitStore, divide

from scaleconv.data import embedded_digits
from scaleconv.demo import networks
from scaleconv.experiments import plan_runs, read_records
from scaleconv.experiments.explanation import load_network

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "demo.md").read_text()
RUNS = [(name, run) for name, experiment in networks.experiments().items() for run in plan_runs(experiment)]


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[run.model for _, run in RUNS])
def test_shipped_weights_are_small_and_of_the_settings_in_the_code(name, run):
    path = run.weights(networks.SHIPPED / name)
    assert path.stat().st_size < 10**6
    assert load_network(path)[1].identity() == run.identity()


@pytest.mark.parametrize("name", ["digits", "scenes"])
def test_the_page_quotes_the_records(name):
    records = {record.model: record for record in read_records(networks.SHIPPED / name)}
    titles = {"convnet": "ConvNet", "si_convnet": "SI-ConvNet", "fcn": "FCN", "si_fcn": "SI-FCN"}
    for model, record in records.items():
        series = record.series["test_error"]
        assert f"| {titles[model]} | {' | '.join(f'{error:.1f}' for error in series.y)} |" in PAGE
        assert f" | {' | '.join(f'{scale:g}' for scale in series.x)} |" in PAGE
        trained = record.config["data"]["scales"].partition(":")[2].replace(",", " to ")
        assert f"| trained at scales {trained} |" in PAGE
    assert re.search(r"less than (0\.\d) MB each", PAGE)[1] == "0.3"


def test_the_page_quotes_how_long_an_answer_takes():
    rows = json.loads((ROOT / "results" / "bench" / "demo-cpu.json").read_text())["rows"]
    slide, _, scale, turn, scene = (f"{row['median_ms']:.0f} ms" for row in rows.values())
    stated = f"answered in {slide}, another scene in {scene}, another filter in {scale} by scale and {turn} by rotation"
    assert stated in " ".join(PAGE.split())
    assert max(row["median_ms"] for row in rows.values()) < 300


def test_the_digits_on_the_page_took_no_part_in_training():
    pairs = networks.load_pairs()
    digits = embedded_digits()
    for name, experiment in networks.experiments().items():
        trained = divide(digits.labels, experiment.settings.data, experiment.folds[0]).train
        shown = {image.numpy().tobytes() for image in pairs[name].digits}
        assert shown.isdisjoint(image.numpy().tobytes() for image in digits.images[trained])


def test_the_mean_is_that_of_the_training_pixels():
    experiment = networks.experiments()["digits"]
    assert networks.load_pairs()["digits"].mean == DigitStore("cpu").of(experiment.settings.data, 0).mean


@pytest.mark.parametrize("text", ["", "[", '{"digits": 0.1}', '{"digits": 0.1, "scenes": "x"}', "[" * 100_000])
def test_damaged_means_are_refused_by_name(text, tmp_path):
    (tmp_path / networks.MEANS).write_text(text)
    with pytest.raises(ValueError, match=f"{networks.MEANS} does not hold the means"):
        networks.read_means(tmp_path / networks.MEANS)


def test_training_leaves_what_the_page_loads(tmp_path, monkeypatch):
    small = {"data.train": 100, "data.test": 100, "network.maps": [2, 2], "network.hidden": 4, "training.epochs": 1}
    quick = {**small, "data.size": 36, "measure.scales": [1.0], "measure.digits": 20}
    monkeypatch.setattr(networks, "DIGITS", {**networks.DIGITS, **quick})
    monkeypatch.setattr(networks, "SCENES", {**networks.SCENES, **quick})
    records = networks.train_pairs(tmp_path)
    assert [record.model for record in records] == ["convnet", "si_convnet", "fcn", "si_fcn"]
    pairs = networks.load_pairs(tmp_path)
    assert {name: (pair.size, len(pair.digits)) for name, pair in pairs.items()} == {
        "digits": (36, 100),
        "scenes": (36, 100),
    }
