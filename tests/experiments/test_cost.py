"""What the layer costs: the paper's formula, the direct order written out, and records that can be continued."""

from types import SimpleNamespace

import pytest

from scaleconv.experiments import cost, load_item, read_records
from scaleconv.experiments.cost import formula, run_cost
from scaleconv.experiments.report import footnotes
from scaleconv.ops.call import DEFAULT_SCALES

TINY = {"batch": 1, "calls": 1, "largest": [2.0], "counts": [1, 3], "folds": [0]}


def test_the_formula_is_the_sum_of_the_squares_of_the_scales():
    """Its geometric series, written out; the paper's own example comes to 10."""
    assert formula(DEFAULT_SCALES) == pytest.approx(sum(scale**2 for scale in DEFAULT_SCALES))
    assert round(formula(DEFAULT_SCALES)) == 10
    assert formula([1.0]) == 1
    assert formula([1.0, 3.0]) == pytest.approx(10)


def test_sweeps_vary_the_largest_scale_or_their_number():
    study = load_item("cost", "paper")
    for largest, scales in study.scales("largest").items():
        assert (len(scales), max(scales)) == (6, pytest.approx(largest))
        assert 1 in scales
    for count, scales in study.scales("count").items():
        assert (len(scales), min(scales)) == (count, 1)
        assert max(scales) == (2 if count > 1 else 1)


@pytest.mark.parametrize(
    ("device", "factors"), [("cpu", (7.5, 6.7)), ("cuda", (6.5, 12.1)), ("NVIDIA H200", (6.5, 12.1))]
)
def test_operations_are_those_of_the_device_that_is_timed(device, factors):
    """As docs/reproduction.md has them; on a GPU the second layer is faster with more operations."""
    study = load_item("cost", "paper")
    counted = [cost._operations(study, layer, "si_conv2d", DEFAULT_SCALES, device) for layer in study.layers]
    assert tuple(round(factor, 1) for factor in counted) == factors


def test_one_record_per_layer_method_and_repeat_and_none_is_measured_twice(tmp_path):
    study = load_item("cost", "quick", TINY)
    records = run_cost(study, tmp_path)
    assert {(record.model, record.point) for record in records} == {
        (method, layer) for method in ("conv2d", "formula", "direct", "si_conv2d") for layer in ("layer1", "layer2")
    }
    by_key = {(record.model, record.point): record for record in records}
    operations = by_key["si_conv2d", "layer1"].series["operations largest"]
    assert operations.x == [2.0]
    # Responses of each level, for 22² of the plain layer; the resampling of pixels and responses comes on top.
    planned = (22**2 + 16**2 + 11**2 + 29**2 + 36**2 + 22**2) / 22**2
    whole = (22**2 + 16**2 + 11**2 + 29**2 + 38**2 + 50**2) / 22**2
    direct = by_key["direct", "layer1"].series["operations largest"]
    assert [
        round(y - responses, 2) for y, responses in zip(operations.y + direct.y, (planned, whole), strict=True)
    ] == [
        0.31,
        0.38,
    ]
    assert all(time > 0 for time in by_key["direct", "layer2"].series["milliseconds count"].y)
    assert "milliseconds count" not in by_key["formula", "layer2"].series
    assert by_key["conv2d", "layer1"].test_error is None

    (tmp_path / "direct-layer1-fold0-seed0.json").unlink()  # as if interrupted there
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    run_cost(study, tmp_path)
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(read_records(tmp_path)) == 8
    with pytest.raises(ValueError, match=r"other settings \(cost.batch was 1, now 2\).*--name"):
        run_cost(load_item("cost", "quick", {**TINY, "batch": 2}), tmp_path)


def test_time_is_the_median_of_passes_and_a_first_layer_needs_no_gradient_of_its_input(monkeypatch):
    timed = []

    def spy(workloads, device, repeats):
        timed.append((list(workloads), repeats))
        workloads["si_conv2d"].prepare(1)()
        return {"si_conv2d": SimpleNamespace(median_ms=7.0)}

    passes = []

    class Spy(cost.LayerPass):
        def __call__(self):
            grads = super().__call__()
            passes.append((self.images.shape[1], len(grads)))
            return grads

    monkeypatch.setattr(cost, "time_interleaved", spy)
    monkeypatch.setattr(cost, "LayerPass", Spy)
    study = load_item("cost", "quick", TINY)
    assert [cost._time(study, layer, "si_conv2d", (1.0, 0.5), "cpu") for layer in study.layers] == [7.0, 7.0]
    assert timed == [(["si_conv2d"], 1)] * 2
    assert passes == [(1, 2), (36, 3)]  # channels, and gradients: weight, bias and, of the second, input


def test_counts_of_an_earlier_layer_are_said_to_be_old(tmp_path):
    study = load_item("cost", "quick", TINY)
    records = run_cost(study, tmp_path)
    assert not [note for note in footnotes(study, records) if "has changed" in note]
    (ours,) = (record for record in records if record.model == "si_conv2d" and record.point == "layer2")
    ours.series["operations largest"].y[0] += 0.5
    ours.environment["commit"] = "0123456789abcdef"
    (note,) = (note for note in footnotes(study, records) if "has changed" in note)
    assert "(commit 0123456789)" in note
