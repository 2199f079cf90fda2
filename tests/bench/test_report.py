"""Ratios are those of the rows, and every number that is shown is in the JSON file."""

import json
import sys
from dataclasses import replace

import pytest

from scaleconv import DEFAULT_SCALES
from scaleconv.bench import Result, Settings
from scaleconv.bench.figures import draw_layers
from scaleconv.bench.layers import LayerRow
from scaleconv.bench.networks import EpochRow, StepRow
from scaleconv.bench.report import failures, markdown, print_result, write_report
from scaleconv.bench.tables import epoch_sheet, layer_sheet, ratio_sheet, step_sheet
from scaleconv.bench.timing import Memory, Timing

MIB = {"conv2d": 100, "conv2d_wide": 600, "direct": 900, "si": 150}


def timing(ms):
    return Timing(ms, ms * 0.9, ms * 1.2, 3)


def row(layer, ms, scales="default", **others):
    """A layer on a CPU: forward takes a quarter of the time."""
    kind = {"shape": "res14", "dtype": "float32", "layout": "contiguous", "batch": 4} | others
    return LayerRow(**kind, layer=layer, scales=scales, forward=timing(ms / 4), backward=timing(ms), both=timing(ms))


def gpu_row(layer, graph, eager, scales="default", **others):
    """A layer on a GPU: forward takes a fifth of the time in a graph, the host half of the eager time."""
    fields = {"graph_forward": graph / 5, "graph_both": graph, "host_both": eager / 2}
    timings = {name: timing(ms) for name, ms in fields.items()}
    return replace(row(layer, eager, scales, **others), **timings, memory=Memory(10, MIB[layer]))


ROWS = [
    row("conv2d", 2),
    row("conv2d_wide", 10),
    row("direct", 40),
    row("direct", 100, "wide"),
    row("si", 8),
    row("si", 9, "wide"),
]
GPU_ROWS = [
    gpu_row("conv2d", 2, 3),
    gpu_row("conv2d_wide", 10, 12),
    gpu_row("direct", 40, 44),
    gpu_row("direct", 100, 110, "wide"),
    gpu_row("si", 8, 30),
    gpu_row("si", 9, 35, "wide"),
]
FAILED = LayerRow("res14", "float32", "contiguous", 4, "peers:Layer", "default", error="RuntimeError: no kernel")
EPOCHS = [EpochRow("convnet", 6, 1.5, 1.4, 1.6, 0.25, 78, 78), EpochRow("si_convnet", 6, 6, 5, 7, 1, 78, 78)]


def step(variant, task, eager, graph=None, mib=None, **others):
    kind = {"network": "resnet18", "dtype": "float32", "layout": "contiguous", "batch": 32, "size": 224} | others
    memory = Memory(1, mib) if mib else None
    return StepRow(
        **kind, variant=variant, task=task, eager=timing(eager), graph=graph and timing(graph), memory=memory
    )


GPU_STEPS = [
    step("plain", "training", 50, 40, 1000),
    step("converted", "training", 200, 80, 1700),
    step("plain", "inference", 1, mib=100, batch=1),
    step("converted", "inference", 15, mib=110, batch=1),
]
STEPS = [
    step("plain", "inference", 10, batch=1),
    step("converted", "inference", 60, batch=1),
    step("plain", "inference", 70, batch=8),
    step("converted", "inference", 280, batch=8),
]
FAILED_STEP = replace(STEPS[1], eager=None, error="RuntimeError: out of memory")


@pytest.fixture
def result():
    environment = {"device": "H200", "threads": 16, "torch": "2.11.0", "commit": "abc"}
    settings = Settings("cuda", "h200", repeats=11).as_dict()
    return Result(environment, settings, [*GPU_ROWS, FAILED], EPOCHS, GPU_STEPS)


def ratios(rows):
    """The lines of the table of ratios, by column."""
    sheet = ratio_sheet(rows, DEFAULT_SCALES)
    return [dict(zip(sheet.header, line, strict=True)) for line in sheet.lines]


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
    first, second = ratio_sheet([*ROWS, *faster], DEFAULT_SCALES).lines
    assert first == ratio_sheet(ROWS, DEFAULT_SCALES).lines[0]
    assert second == ("res14", "bfloat16", "contiguous", "8.00", "2.00", "8.00", "2.00", "–", "–")


def test_what_was_not_measured_is_a_dash():
    (line,) = ratio_sheet([row("conv2d", 2)], DEFAULT_SCALES).lines
    assert line[3:] == ("–",) * 6
    assert layer_sheet([FAILED]).lines[0][4:] == ("peers:Layer", "default", "RuntimeError: no kernel", "–", "–", "–")


def test_every_layer_has_its_times_and_its_ratios():
    assert layer_sheet(ROWS).lines[2][3:] == ("4", "direct", "default", "10.0", "40.0", "40.0", "4.00")
    sheet = layer_sheet(GPU_ROWS)
    line = dict(zip(sheet.header, sheet.lines[2], strict=True))
    assert (line["both, ms"], line["/ wide"]) == ("44.0", "3.67")
    assert (line["forward, ms (graph)"], line["both, ms (graph)"], line["/ wide (graph)"]) == ("8.00", "40.0", "4.00")
    assert (line["host, ms"], line["peak, MiB"], line["memory / Conv2d"]) == ("22.0", "900", "9.00")


def test_the_papers_networks_are_compared_with_convnet_in_equally_many_runs():
    alone = [EpochRow("convnet", 1, 1.0, 1, 1, 1.0, 78, 8), EpochRow("si_convnet", 1, 3.0, 1, 1, 3.0, 78, 8)]
    sheet = epoch_sheet([*alone, *EPOCHS])
    assert [line[-1] for line in sheet.lines] == ["–", "3.00", "–", "4.00"]
    assert sheet.lines[3] == ("SI-ConvNet", "6", "6.00", "1.00", "4.00")
    assert sheet.title.endswith("from 8 of its 78 batches")
    assert not epoch_sheet(EPOCHS).title.endswith("batches")


def test_a_converted_network_is_compared_with_the_plain_one_eager_and_as_a_graph():
    sheet = step_sheet(GPU_STEPS)
    training, inference = (dict(zip(sheet.header, line, strict=True)) for line in sheet.lines)
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
    assert sheet.title.endswith("images of 224×224")
    assert (inference["converted / plain (graph)"], inference["memory / plain"]) == ("–", "1.10")


def test_on_a_cpu_every_batch_has_a_line_of_its_own():
    sheet = step_sheet(STEPS)
    assert [line[4:] for line in sheet.lines] == [
        ("1", "10.0", "60.0", "6.00"),
        ("8", "70.0", "280", "4.00"),
    ]
    assert step_sheet([STEPS[0], FAILED_STEP]).lines[0][5:] == ("10.0", "RuntimeError: out of memory", "–")


def test_the_files_hold_what_was_measured(result, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `figures`")
    paths = write_report(result, tmp_path / "bench")
    assert [path.name for path in paths] == ["h200.json", "h200.md", "h200.png", "h200.svg"]
    assert sorted((tmp_path / "bench").iterdir()) == sorted(paths)
    stored = json.loads(paths[0].read_text())
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert stored["rows"][4]["graph_both"] == {"median_ms": 8, "min_ms": 7.2, "max_ms": 9.6, "iterations": 3}
    assert stored["rows"][4]["both"]["median_ms"] == 30
    assert paths[1].read_text() == markdown(result)
    assert f"| {' | '.join(layer_sheet(GPU_ROWS).lines[2])} |" in markdown(result)
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[3].read_text()


def test_the_figure_has_graph_times_above_memory_and_the_ratios_above_the_bars(result, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra `figures`")
    drawn = []
    save = figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    write_report(result, tmp_path)
    times, memory = drawn[0].axes
    assert times.get_yscale() == "log"
    assert [bar.get_height() for bar in times.patches[:4]] == [2, 10, 40, 8]
    assert [text.get_text() for text in times.texts] == ["0.2×", "1×", "4×", "0.8×", ""]
    assert [text.get_text() for text in memory.texts] == ["1×", "6×", "9×", "1.5×", ""]
    labels = [text.get_text() for text in times.figure.legends[0].get_texts()]
    assert labels == ["conv2d", "conv2d_wide", "direct", "si", "peers:Layer"]


def test_on_a_cpu_the_figure_has_eager_times_alone(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra `figures`")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: (drawn.append(self), path.touch()))
    draw_layers(ROWS, tmp_path / "cpu.png")
    (times,) = drawn[0].axes
    assert [text.get_text() for text in times.texts] == ["0.2×", "1×", "4×", "0.8×"]
    assert "eager" in times.get_title()


def test_a_bench_without_layers_draws_nothing(result, tmp_path):
    alone = Result(result.environment, result.settings, [], EPOCHS, STEPS)
    assert [path.name for path in write_report(alone, tmp_path)] == ["h200.json", "h200.md"]
    assert "All layers" not in markdown(alone)
    assert "resnet18" in markdown(alone)


def test_the_terminal_shows_ratios_and_networks_and_how_they_were_measured(result, capsys):
    print_result(result)
    shown = capsys.readouterr().out
    for words in ("/ wide", "0.80", "SI-ConvNet", "converted", "11 interleaved repeats", "H200", "TF32", "CUDA graph"):
        assert words in shown


def test_a_narrow_terminal_cuts_no_number(result, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_result(result)
    shown = capsys.readouterr().out
    assert "…" not in shown
    for sheet in (ratio_sheet(GPU_ROWS, DEFAULT_SCALES), step_sheet(GPU_STEPS)):
        assert all(cell in shown for line in sheet.lines for cell in line)


def test_a_failure_is_told_with_its_reason(result):
    failed = replace(result, steps=[STEPS[0], FAILED_STEP])
    assert failures(failed) == [
        "peers:Layer (default scales) on res14, float32, contiguous: RuntimeError: no kernel",
        "resnet18 (converted), inference, float32, contiguous: RuntimeError: out of memory",
    ]
