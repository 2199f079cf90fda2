"""What the layer costs: counts by hand, a fixed clock, and records that can be continued."""

import pytest

from scaleconv.bench import operations
from scaleconv.bench.operations import METHODS, sweep_scales
from scaleconv.experiments import load_item, read_records
from scaleconv.experiments.cost import run_cost
from scaleconv.experiments.records import records_file
from scaleconv.experiments.report import footnotes
from scaleconv.experiments.tables import make_panels

TINY = {"batch": 2, "calls": 3, "largest": [2.0], "counts": [1, 3], "folds": [0]}


@pytest.fixture
def timed(monkeypatch):
    """A clock that counts, and what was timed."""
    calls = []

    def time_pass(*given):
        calls.append(given)
        return float(len(calls))

    monkeypatch.setattr(operations, "time_pass", time_pass)
    return calls


def test_one_record_per_layer_method_and_repeat_and_none_is_measured_twice(tmp_path, timed):
    study = load_item("cost", "quick", TINY)
    records = {(record.model, record.point): record for record in run_cost(study, tmp_path / "cost")}
    assert set(records) == {(method, layer.name) for method in METHODS for layer in study.layers}
    first = records["conv2d", "layer1"]
    assert (first.test_error, first.history, first.config) == (None, [], study.config)
    assert (first.parameters, first.experiment) == (36 * (49 + 1), "cost")
    assert first.series["milliseconds largest"].y + first.series["milliseconds count"].y == [1.0, 2.0, 3.0]
    assert first.series["milliseconds count"].x == [1.0, 3.0]
    assert "milliseconds count" not in records["formula", "layer2"].series
    assert len(timed) == 2 * 3 * 3  # layers, methods that are timed, positions
    assert {given[2:3] + given[4:] for given in timed} == {(2, "cpu", 3)}  # batch, device, calls
    assert {given[3] for given in timed} == {sweep_scales("largest", 2.0), (1,), sweep_scales("count", 3)}
    counts = {key: round(found.series["operations largest"].y[0], 1) for key, found in records.items()}
    assert [counts[method, "layer1"] for method in METHODS] == [1.0, 10.1, 12.0, 7.5]
    assert [counts[method, "layer2"] for method in METHODS] == [1.0, 10.1, 13.2, 6.7]

    path = records_file(tmp_path / "cost")
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[1:]))  # as if interrupted before
    timed.clear()
    run_cost(study, tmp_path / "cost")
    assert len(timed) == 3
    assert set(kept[1:]) <= set(path.read_bytes().splitlines(keepends=True))
    assert len(read_records(tmp_path / "cost")) == 8
    with pytest.raises(ValueError, match=r"other settings \(cost.batch was 2, now 4\).*--name"):
        run_cost(load_item("cost", "quick", {**TINY, "batch": 4}), tmp_path / "cost")


def test_panels_have_operations_and_time_of_each_layer_for_each_sweep(tmp_path, timed):
    study = load_item("cost", "quick", {**TINY, "folds": [0, 1]})
    panels = make_panels(study, run_cost(study, tmp_path / "cost"))
    assert len(panels) == len(study.layers) * 2 * 2
    assert [len(panel.lines) for panel in panels] == [4, 3] * 4  # the formula takes no time
    (line,) = (line for line in panels[0].lines if line.model == "formula")
    assert list(line.values) == [2.0]
    assert len(line.values[2.0]) == 2  # repeats


def test_counts_of_an_earlier_layer_are_said_to_be_old(tmp_path, timed):
    study = load_item("cost", "quick", TINY)
    records = run_cost(study, tmp_path / "cost")
    notes = footnotes(study, records)
    assert any("Batches of 2" in note for note in notes)
    assert not any("has changed" in note for note in notes)
    (ours,) = (record for record in records if record.model == "si_conv2d" and record.point == "layer2")
    device, ours.environment["device"] = ours.environment["device"], "NVIDIA H200"
    assert any("has changed" in note for note in footnotes(study, records))  # counted for a CPU
    ours.environment["device"] = device
    ours.series["operations largest"].y[0] += 0.5
    ours.environment["commit"] = "0123456789abcdef"
    assert any("has changed" in note and "0123456789)" in note for note in footnotes(study, records))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"largest": []}, r"`largest` must name at least one.*got \[\]"),
        ({"largest": [1.0]}, "`largest` must be .*> 1.*got 1.0"),
        ({"counts": [2, 2]}, "`counts` must name .*none twice"),
        ({"folds": [0, 0]}, "`folds` must name .*none twice"),
        ({"calls": 0}, "`calls` must be .*got 0"),
        ({"training.epochs": 1}, "`training` is unknown"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        load_item("cost", "quick", changes)
