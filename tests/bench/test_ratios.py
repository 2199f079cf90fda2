"""Ratios are those of the rows, in the tables and in the figure."""

from dataclasses import replace

import pytest

from helpers.benches import EPOCHS, FAILED, FAILED_STEP, GPU_ROWS, GPU_STEPS, ROWS, STEPS, row, timing
from scaleconv import DEFAULT_SCALES
from scaleconv.bench.network_costs import EpochRow
from scaleconv.bench.ratios import (
    COLOURS,
    PEER_COLOURS,
    draw_layers,
    epoch_table,
    layer_table,
    ratio_table,
    step_table,
)
from scaleconv.experiments import figures


def ratios(rows):
    """The lines of the table of ratios, by column."""
    table = ratio_table(rows, DEFAULT_SCALES)
    return [dict(zip(table.header, line, strict=True)) for line in table.rows]


def test_on_a_gpu_ratios_are_of_graphs_with_eager_calls_and_the_host_beside_them():
    (line,) = ratios(GPU_ROWS)
    assert line == {
        "shape": "res14",
        "dtype": "float32",
        "layout": "contiguous",
        "SIConv2d, ms (graph)": "8.00",
        "/ wide (graph)": "0.80",
        "/ wide (eager)": "2.50",
        "/ Conv2d": "4.00",
        "forward / wide": "0.80",
        "memory / Conv2d": "1.50",
        "scales to 4 / to 2": "1.12",
        "host, ms": "15.0",
        "written plainly / SIConv2d": "5.00",
    }


def test_forward_alone_is_compared_with_forward_alone():
    faster = [replace(row, graph_forward=timing(4)) if row.layer == "si" else row for row in GPU_ROWS]
    assert ratios(faster)[0]["forward / wide"] == "2.00"
    assert ratios(faster)[0]["/ wide (graph)"] == "0.80"


def test_on_a_cpu_ratios_are_of_eager_calls_alone():
    (line,) = ratios(ROWS)
    assert list(line.items())[3:] == [
        ("SIConv2d, ms", "8.00"),
        ("/ wide (eager)", "0.80"),
        ("/ Conv2d", "4.00"),
        ("forward / wide", "0.80"),
        ("scales to 4 / to 2", "1.12"),
        ("written plainly / SIConv2d", "5.00"),
    ]


def test_settings_are_not_mixed():
    faster = [row(name, ms, dtype="bfloat16") for name, ms in (("conv2d", 1), ("conv2d_wide", 4), ("si", 8))]
    first, second = ratio_table([*ROWS, *faster], DEFAULT_SCALES).rows
    assert first == ratio_table(ROWS, DEFAULT_SCALES).rows[0]
    assert second == ("res14", "bfloat16", "contiguous", "8.00", "2.00", "8.00", "2.00", "–", "–")


def test_what_was_not_measured_is_a_dash():
    (line,) = ratio_table([row("conv2d", 2)], DEFAULT_SCALES).rows
    assert line[3:] == ("–",) * 6
    assert layer_table([FAILED]).rows[0][4:] == ("peers:Layer", "default", "RuntimeError: no kernel", "–", "–", "–")


def test_every_layer_has_its_times_and_its_ratios():
    assert layer_table(ROWS).rows[2][3:] == ("4", "direct", "default", "10.0", "40.0", "40.0", "4.00")
    table = layer_table(GPU_ROWS)
    line = dict(zip(table.header, table.rows[2], strict=True))
    assert (line["both, ms"], line["/ wide"]) == ("44.0", "3.67")
    assert (line["forward, ms (graph)"], line["both, ms (graph)"], line["/ wide (graph)"]) == ("8.00", "40.0", "4.00")
    assert (line["host, ms"], line["peak, MiB"], line["memory / Conv2d"]) == ("22.0", "900", "9.00")


def test_the_papers_networks_are_compared_with_convnet_in_equally_many_runs():
    alone = [EpochRow("convnet", 1, 1.0, 1, 1, 1.0, 78, 8), EpochRow("si_convnet", 1, 3.0, 1, 1, 3.0, 78, 8)]
    table = epoch_table([*alone, *EPOCHS])
    assert [line[-1] for line in table.rows] == ["–", "3.00", "–", "4.00"]
    assert table.rows[3] == ("SI-ConvNet", "6", "6.00", "1.00", "4.00")
    assert table.title.endswith("from 8 of its 78 batches")
    assert not epoch_table(EPOCHS).title.endswith("batches")


def test_a_converted_network_is_compared_with_the_plain_one_eager_and_as_a_graph():
    table = step_table(GPU_STEPS)
    training, inference = (dict(zip(table.header, line, strict=True)) for line in table.rows)
    assert list(training.values())[:5] == ["resnet18", "training", "float32", "contiguous", "32"]
    assert list(training.items())[5:] == [
        ("plain, ms", "50.0"),
        ("converted, ms", "200"),
        ("converted / plain", "4.00"),
        ("plain, ms (graph)", "40.0"),
        ("converted, ms (graph)", "80.0"),
        ("converted / plain (graph)", "2.00"),
        ("converted, eager / graph", "2.50"),
        ("converted peak, MiB", "1700"),
        ("memory / plain", "1.70"),
    ]
    assert (inference["batch"], inference["converted / plain"]) == ("1", "15.00")
    assert table.title.endswith("images of 224×224")
    assert (inference["converted / plain (graph)"], inference["memory / plain"]) == ("–", "1.10")


def test_on_a_cpu_every_batch_has_a_line_of_its_own():
    table = step_table(STEPS)
    assert [line[4:] for line in table.rows] == [
        ("1", "10.0", "60.0", "6.00"),
        ("8", "70.0", "280", "4.00"),
    ]
    assert step_table([STEPS[0], FAILED_STEP]).rows[0][5:] == ("10.0", "RuntimeError: out of memory", "–")


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that is saved."""
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra `experiments`")
    seen = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: (seen.append(self), path.touch()))
    return seen


def test_the_figure_has_graph_times_above_memory_and_the_ratios_above_the_bars(drawn, tmp_path):
    draw_layers([*GPU_ROWS, FAILED], "Benchmark on H200", [tmp_path / "gpu.png"])
    assert drawn[0].get_suptitle() == "Benchmark on H200"
    times, memory = drawn[0].axes
    assert times.get_yscale() == "log"
    assert [bar.get_height() for bar in times.patches[:4]] == [2, 10, 40, 8]
    assert [text.get_text() for text in times.texts] == ["0.2×", "1×", "4×", "0.8×", ""]
    assert [text.get_text() for text in memory.texts] == ["1×", "6×", "9×", "1.5×", ""]
    labels = [text.get_text() for text in times.figure.legends[0].get_texts()]
    assert labels == ["conv2d", "conv2d_wide", "direct", "si", "peers:Layer"]


def test_on_a_cpu_the_figure_has_eager_times_alone(drawn, tmp_path):
    draw_layers(ROWS, "Benchmark on a CPU", [tmp_path / "cpu.png"])
    (times,) = drawn[0].axes
    assert [text.get_text() for text in times.texts] == ["0.2×", "1×", "4×", "0.8×"]
    assert "eager" in times.get_title()


def test_a_layer_has_the_colour_that_it_has_in_the_figures_of_the_experiments():
    assert [COLOURS[name] for name in ("conv2d", "direct", "si")] == [
        figures.COLOURS[name] for name in ("conv2d", "direct", "si_conv2d")
    ]
    assert len(set(COLOURS.values()) | set(PEER_COLOURS)) == 8
