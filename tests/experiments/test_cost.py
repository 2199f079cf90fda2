"""The item `cost`: one record per layer, method and repeat, that can be continued, and notes about them."""

import pytest
from scaleconv.experiments.panels import make_panels

from scaleconv.bench import operations
from scaleconv.experiments import load_item, read_records
from scaleconv.experiments.cost import run_cost
from scaleconv.experiments.report import footnotes

TINY = {"batch": 1, "calls": 1, "largest": [2.0], "counts": [1, 3], "folds": [0]}


@pytest.fixture
def study(monkeypatch):
    """The quick preset, on a clock that always tells 7 ms."""
    monkeypatch.setattr(operations, "time_pass", lambda *_: 7.0)
    return load_item("cost", "quick", TINY)


def test_one_record_per_layer_method_and_repeat_and_none_is_measured_twice(study, tmp_path):
    records = run_cost(study, tmp_path)
    methods = ("conv2d", "formula", "direct", "si_conv2d")
    assert [(record.point, record.model) for record in records] == [
        (layer, method) for layer in ("layer1", "layer2") for method in methods
    ]
    formula, ours = records[1], records[3]
    assert (formula.series["operations largest"].x, formula.series["operations largest"].y) == ([2.0], [10.1341])
    assert "milliseconds count" not in formula.series
    assert (ours.series["milliseconds count"].x, ours.series["milliseconds count"].y) == ([1.0, 3.0], [7.0, 7.0])
    assert (ours.test_error, ours.parameters, ours.config["cost"]["batch"]) == (None, 36 * 50, 1)

    (tmp_path / "direct-layer1-fold0-seed0.json").unlink()  # as if interrupted there
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    run_cost(study, tmp_path)
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(read_records(tmp_path)) == 8
    with pytest.raises(ValueError, match=r"other settings \(cost.batch was 1, now 2\).*--name"):
        run_cost(load_item("cost", "quick", {**TINY, "batch": 2}), tmp_path)


def test_panels_show_operations_and_time_against_both_sweeps(study, tmp_path):
    panels = make_panels(study, run_cost(study, tmp_path))
    assert [panel.group for panel in panels[:4]] == [
        f"{quantity} {sweep}" for sweep in ("largest", "count") for quantity in ("operations", "milliseconds")
    ]
    assert len(panels) == 8
    assert [line.model for line in panels[1].lines] == ["conv2d", "direct", "si_conv2d"]  # the formula has no time
    assert panels[0].lines[1].at(2.0).mean == pytest.approx(0.396850 + 0.629961 + 1 + 1.587401 + 2.519842 + 4, abs=1e-4)


def test_counts_of_an_earlier_layer_are_said_to_be_old(study, tmp_path):
    records = run_cost(study, tmp_path)
    assert not [note for note in footnotes(study, records) if "has changed" in note]
    (ours,) = (record for record in records if record.model == "si_conv2d" and record.point == "layer2")
    ours.series["operations largest"].y[0] += 0.5
    ours.environment["commit"] = "0123456789abcdef"
    (note,) = (note for note in footnotes(study, records) if "has changed" in note)
    assert "(commit 0123456789)" in note


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"calls": 0}, {"largest": [1.0]}, {"counts": []}, {"folds": [1, 1]}])
def test_a_study_that_measures_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must"):
        load_item("cost", "quick", {**TINY, **wrong})
