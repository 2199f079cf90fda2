"""The networks that come with the package: of the settings in the code, small, unseen digits, and as the page says."""

import json
from pathlib import Path

import pytest
import torch

from scaleconv import convert
from scaleconv.data import embedded_digits
from scaleconv.demo import pairs as demo
from scaleconv.experiments import plan_runs, read_records
from scaleconv.experiments.checkpoint import load_checkpoint, load_run, write_checkpoint
from scaleconv.experiments.compare import Plan
from scaleconv.experiments.items import read_toml
from scaleconv.experiments.settings import read
from scaleconv.experiments.sources import Sources, divide

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "demo.md").read_text()


def photograph_weights(method):
    return demo.SHIPPED / "photographs" / "weights" / f"{method}-fold0-seed0.safetensors"


RUNS = [(name, run) for name, experiment in demo.experiments().items() for run in plan_runs(experiment)]


@pytest.mark.parametrize(("name", "run"), RUNS, ids=[run.model for _, run in RUNS])
def test_shipped_weights_are_small_and_of_the_settings_in_the_code(name, run):
    path = run.weights(demo.SHIPPED / name)
    assert path.stat().st_size < 10**6
    assert load_checkpoint(path).run == run.identity()


@pytest.mark.parametrize("method", ["plain", "late"])
def test_the_networks_for_photographs_are_small_and_those_of_the_plan(method):
    plan, path = ROOT / "examples" / "plans" / "demo.toml", photograph_weights(method)
    network, training = read(Plan, read_toml(plan), plan.name).settings(plan.name)[method]
    settings = load_run(path)[1]
    assert path.stat().st_size < 0.51e6
    assert (settings.network, settings.training) == (network, training)


def test_the_invariant_network_for_photographs_is_what_convert_makes_of_the_plain_one():
    pair = demo.load_pairs()["photographs"]
    (expected, _), images = load_run(photograph_weights("plain")), torch.rand(1, 3, 32, 32)
    expected.network = convert(expected.network)
    expected.load_state_dict(pair.invariant.state_dict())
    assert torch.equal(pair.invariant(images), expected(images))
    assert not torch.equal(pair.plain(images), expected(images))


def test_networks_that_do_not_know_the_drawings_are_refused(tmp_path):
    for method in ("plain", "late"):
        found = load_checkpoint(photograph_weights(method))
        found.run["config"]["data"]["classes"] = list("abcdefghij")
        write_checkpoint(tmp_path / f"weights/{method}-fold0-seed0.safetensors", found)
    with pytest.raises(ValueError, match=r"`networks` must .* that know airplane, automobile, ship, truck, got a, b"):
        demo.load_photographs(tmp_path)


def test_the_page_quotes_the_accuracy_on_photographs():
    for record in read_records(demo.SHIPPED / "photographs"):
        series, title = record.series["accuracy by scale"], {"plain": "ResNet", "late": "SI-ResNet"}[record.model]
        assert f"| {title} | {' | '.join(f'{right:.1f}' for right in series.y)} |" in PAGE
        assert f" | {' | '.join(f'{scale:g}' for scale in series.x)} |" in PAGE


def test_the_page_quotes_the_times_of_its_answers():
    record = json.loads((ROOT / "results" / "bench" / "demo-cpu.json").read_text())
    assert f"asks {record['repeats']} times" in PAGE
    for row in record["rows"]:
        times = " | ".join(f"{row[key]:.0f}" for key in ("median_ms", "p95_ms", "cpu_ms"))
        assert f"| {row['name']} | {times} |" in PAGE


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
    assert "at most 0.5 MB each" in PAGE


def test_a_pair_has_the_accuracy_that_the_records_of_its_networks_have(tmp_path):
    pairs = demo.load_pairs()
    numbers = {name: (pair.accuracy.images, len(pair.accuracy.scales)) for name, pair in pairs.items()}
    assert numbers == {"digits": (500, 8), "scenes": (100, 6), "photographs": (3000, 8)}
    digits, photographs = pairs["digits"].accuracy, pairs["photographs"].accuracy
    at = digits.scales.index(1.6)
    assert (digits.plain[at], digits.invariant[at]) == pytest.approx((77.8, 88.8))  # the page has the errors
    assert (photographs.plain[-1], photographs.invariant[-1]) == pytest.approx((57.27, 57.73), abs=0.01)
    with pytest.raises(ValueError, match="`networks` must have the records of plain-fold0-seed0 and late-fold0-seed0"):
        demo.read_accuracy(tmp_path / "photographs", ["plain-fold0-seed0", "late-fold0-seed0"])


def test_the_digits_on_the_page_took_no_part_in_training():
    pairs = demo.load_pairs()
    digits = embedded_digits()
    for name, experiment in demo.experiments().items():
        trained = divide(digits.labels, experiment.settings.data, experiment.folds[0]).train
        shown = {image.numpy().tobytes() for image in pairs[name].images}
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
    assert {name: (pair.size, len(pair.images)) for name, pair in pairs.items()} == {
        "digits": (36, 100),
        "scenes": (36, 100),
        "photographs": (32, 4),  # of the package, where the folder has none
    }
