"""benchmarks/goals.py: the ratios are of what they say, memory and compilations are counted, parts are kept."""

import importlib
import json
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from scaleconv.metrics.timing import LayerPass, Timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def goals(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)  # for the processes that it starts, too
    with torch.no_grad():
        yield importlib.import_module("goals")


@pytest.fixture
def clock(goals, monkeypatch):
    """Milliseconds of every call: first 100 for each layer and image size, then 10 for SIConv2d and 2 for Conv2d."""
    known = set()

    def milliseconds(call, device):
        layer, (image,) = call.func, call.args
        call()
        name = type(layer).__name__
        planned = (name, image.shape) in known
        known.add((name, image.shape))
        return (10 if name == "SIConv2d" else 2) + (0 if planned else 90)

    monkeypatch.setattr(goals, "milliseconds", milliseconds)


def test_planning_is_the_first_call_on_a_size_minus_a_later_one(goals, clock):
    plain, si = goals.measure_planning("cpu", (8, 9, 11), 2)
    assert (plain["layer"], plain["first_ms"], plain["later_ms"], plain["planning_ms"]) == ("conv2d", 92, 2, 90)
    assert (si["layer"], si["first_ms"], si["later_ms"], si["planning_ms"]) == ("si", 100, 10, 90)
    assert (si["sizes"], si["n"]) == (3, 2)


def test_the_ratio_is_of_the_medians(goals):
    row = goals.compare(goals.calls(goals.square(2, 2, 8, 3), "cpu"), "cpu", 2)
    assert row["si / conv2d"] == row["si_ms"] / row["conv2d_ms"]
    assert row["conv2d_ms"] > 0
    assert row["n"] == 2


def test_both_layers_see_the_same_image_with_the_same_weights(goals):
    plain, si = (call() for call in goals.calls(goals.square(2, 2, 8, 3), "cpu").values())
    assert plain.shape == si.shape
    assert (si > plain - 1e-5).all()  # the maximum over scales, of which 1 is one
    assert (si > plain + 0.1).any()


def test_sizes_are_eager_and_up_to_512_compiled(goals, monkeypatch):
    seen = []

    def compare(layers, device, repeats):
        layer = layers["si"].func
        seen.append((type(layer).__name__, tuple(layers["si"].args[0].shape)))
        return {"n": repeats}

    monkeypatch.setattr(goals, "compare", compare)
    rows = goals.measure_sizes("cpu", (512, 1024), 5)
    expected = [(512, "eager", 5), (512, "compiled", 5), (1024, "eager", 3)]
    assert [(row["size"], row["mode"], row["n"]) for row in rows if row["dtype"] == "float32"] == expected
    kinds = ["SIConv2d", "OptimizedModule", "SIConv2d"]
    shapes = [(1, 16, size, size) for size in (512, 512, 1024)]
    assert seen == list(zip(kinds, shapes, strict=True)) * 2


def test_a_layer_that_does_not_compile_leaves_a_row_that_says_so(goals, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(goals, "compare", refuse)
    rows = goals.measure_sizes("cpu", (32,), 1)
    assert [row["error"] for row in rows] == ["RuntimeError: no compiler"] * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_peak_holds_the_image_and_the_output_of_one_call(goals):
    shape = goals.square(3, 64, 500, 3)
    image_and_output = 4 * 500**2 * (3 + 64) / 2**20
    assert image_and_output < goals._large_image_peak("conv2d", shape, "cpu") < 3 * image_and_output


def test_the_large_image_has_ratios_of_time_and_memory(goals, monkeypatch):
    monkeypatch.setattr(goals, "_large_image_peak", lambda name, *_: {"conv2d": 100.0, "si": 250.0}[name])
    (row,) = goals.measure_large_image("cpu", 16, 1)
    assert row["memory si / conv2d"] == 2.5
    assert row["si / conv2d"] == row["si_ms"] / row["conv2d_ms"]


def test_a_process_that_dies_leaves_a_row_that_says_so(goals, monkeypatch):
    def die(*_):
        raise BrokenProcessPool("killed")

    monkeypatch.setattr(goals, "_large_image_peak", die)
    assert goals.measure_large_image("cpu", 16, 1) == [{"size": 16, "error": "BrokenProcessPool: killed"}]


def test_compilations_with_dynamic_shapes_are_counted(goals):
    plain, converted = goals.measure_dynamic("cpu", ((16, 20), (18, 23), (20, 26)), backend="eager")
    assert (plain["network"], plain["sizes"], plain["compilations"]) == ("plain", 3, 1)
    assert converted["network"] == "converted"
    assert 1 <= converted["compilations"] <= 3
    assert plain["seconds"] > 0


def test_rotations_are_compared_with_eight_times_the_maps(goals, monkeypatch):
    made = {}

    def time_interleaved(workloads, *_, **__):
        return {name: Timing(2.0 if name == "wide" else 3.0, 1, 9, 1) for name in workloads}

    def layer_pass(layer, images):
        made[type(layer).__name__] = (layer.out_channels, images.shape[0])
        return LayerPass(layer, images)

    monkeypatch.setattr(goals, "time_interleaved", time_interleaved)
    monkeypatch.setattr(goals, "LayerPass", layer_pass)
    (row,) = goals.measure_rotations("cpu", ("res14",), 1)
    assert made == {"Conv2d": (8 * 256, 4), "TIConv2d": (256, 4)}
    assert (row["mode"], row["ti / wide"]) == ("eager", 1.5)


def test_a_table_has_a_column_for_every_key(goals):
    table = goals.markdown("layers", [{"layer": "a", "ms": 1.23456}, {"layer": "b", "error": "no"}])
    assert table.splitlines()[2:] == [
        "| layer | ms | error |",
        "| --- | --- | --- |",
        "| a | 1.23 | – |",
        "| b | – | no |",
    ]


def test_what_was_measured_is_written_after_every_part(goals, monkeypatch, tmp_path, capsys):
    for name in ("measure_planning", "measure_layers"):
        monkeypatch.setattr(goals, name, lambda *_, name=name: [{"part": name}])

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(goals, "measure_sizes", interrupt)
    out = tmp_path / "here" / "goals.json"
    monkeypatch.setattr(sys, "argv", ["goals.py", "--device", "cpu", "--quick", "--out", str(out)])
    with pytest.raises(KeyboardInterrupt):
        goals.main()
    stored = json.loads(out.read_text())
    assert (stored["planning"], stored["layers"]) == ([{"part": "measure_planning"}], [{"part": "measure_layers"}])
    assert stored["quick"] is True
    assert stored["environment"]["torch"] == torch.__version__
    assert "| measure_layers |" in capsys.readouterr().out
