"""Ratios are those of the rows, and every number that is shown is in the JSON file."""

import json

import pytest

from scaleconv.bench import Result, Settings
from scaleconv.bench.layers import LayerRow
from scaleconv.bench.networks import EpochRow, StepRow
from scaleconv.bench.report import failures, markdown, print_result, write_report
from scaleconv.bench.tables import epoch_sheet, layer_sheet, ratio_sheet, step_sheet
from scaleconv.bench.timing import Memory, Timing

MIB = {"conv2d": 100, "conv2d_wide": 600, "direct": 900, "si": 150}


def timing(ms):
    return Timing(ms, ms * 0.9, ms * 1.2, 3)


def row(contender, ms, scales="default", **others):
    kind = {"shape": "res14", "dtype": "float32", "layout": "contiguous", "batch": 64} | others
    memory = Memory(10, MIB[contender])
    return LayerRow(**kind, contender=contender, scales=scales, both=timing(ms), memory=memory)


ROWS = [
    row("conv2d", 2),
    row("conv2d_wide", 10),
    row("direct", 40),
    row("direct", 100, "wide"),
    row("si", 8),
    row("si", 9, "wide"),
]
FAILED = LayerRow("res14", "float32", "contiguous", 64, "peers:Layer", "default", error="RuntimeError: no kernel")
EPOCHS = [EpochRow("convnet", 6, 1.5, 1.4, 1.6, 0.25, 78, 78), EpochRow("si_convnet", 6, 6, 5, 7, 1, 78, 78)]
STEPS = [
    StepRow("plain", "float32", "contiguous", 32, 224, timing(50), Memory(1, 1000)),
    StepRow("converted", "float32", "contiguous", 32, 224, timing(200), Memory(1, 1700)),
]


@pytest.fixture
def result():
    environment = {"device": "H200", "threads": 16, "torch": "2.11.0", "commit": "abc"}
    settings = Settings("cuda", repeats=11).as_dict()
    return Result(environment, settings, [*ROWS, FAILED], EPOCHS, STEPS)


def test_ratios_are_of_forward_and_backward_and_of_peaks():
    (line,) = ratio_sheet(ROWS).lines
    assert line == ("res14", "float32", "contiguous", "8.00", "0.80", "4.00", "1.50", "1.12", "2.50", "5.00")


def test_settings_are_not_mixed():
    faster = [row(name, ms, dtype="bfloat16") for name, ms in (("conv2d", 1), ("conv2d_wide", 4), ("si", 8))]
    first, second = ratio_sheet([*ROWS, *faster]).lines
    assert first == ratio_sheet(ROWS).lines[0]
    assert second[:6] == ("res14", "bfloat16", "contiguous", "8.00", "2.00", "8.00")
    assert second[-3:] == ("–", "–", "–")


def test_what_was_not_measured_is_a_dash():
    (line,) = ratio_sheet([row("conv2d", 2)]).lines
    assert line[3:] == ("–",) * 7
    assert layer_sheet([FAILED]).lines[0][4:9] == ("peers:Layer", "default", "RuntimeError: no kernel", "–", "–")


def test_every_contender_has_its_times_and_its_ratios():
    line = layer_sheet(ROWS).lines[2]
    assert line[3:] == ("64", "direct", "default", "–", "–", "40.0", "900", "4.00", "9.00")


def test_networks_are_compared_with_the_plain_one_in_the_same_company():
    alone = [EpochRow("convnet", 1, 1.0, 1, 1, 1.0, 78, 8), EpochRow("si_convnet", 1, 3.0, 1, 1, 3.0, 78, 8)]
    sheet = epoch_sheet([*alone, *EPOCHS])
    assert [line[-1] for line in sheet.lines] == ["–", "3.00", "–", "4.00"]
    assert sheet.lines[3] == ("SI-ConvNet", "6", "6.00", "1.00", "4.00")
    assert sheet.title.endswith("from 8 of its 78 batches")
    assert not epoch_sheet(EPOCHS).title.endswith("batches")
    assert step_sheet(STEPS).lines[1][3:] == ("32 of 224×224", "200", "4.00", "1700", "1.70")


def test_the_files_hold_what_was_measured(result, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `figures`")
    paths = write_report(result, tmp_path / "bench")
    assert [path.name for path in paths] == ["cpu.json", "cpu.md", "cpu.png", "cpu.svg"]
    assert sorted((tmp_path / "bench").iterdir()) == sorted(paths)
    stored = json.loads(paths[0].read_text())
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert stored["rows"][4]["both"] == {"median_ms": 8, "min_ms": 7.2, "max_ms": 9.6, "iterations": 3}
    assert paths[1].read_text() == markdown(result)
    line = "| res14 | float32 | contiguous | 64 | direct | default | – | – | 40.0 | 900 | 4.00 | 9.00 |"
    assert line in markdown(result)
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[3].read_text()


def test_the_picture_has_times_beside_memory_and_the_ratios_above(result, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra `figures`")
    drawn = []
    save = figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    write_report(result, tmp_path)
    times, memory = drawn[0].axes
    assert times.get_yscale() == "log"
    assert [text.get_text() for text in times.texts] == ["0.2×", "1×", "4×", "0.8×", ""]
    assert [text.get_text() for text in memory.texts] == ["1×", "6×", "9×", "1.5×", ""]
    labels = [text.get_text() for text in times.figure.legends[0].get_texts()]
    assert labels == ["conv2d", "conv2d_wide", "direct", "si", "peers:Layer"]


def test_a_bench_without_layers_draws_nothing(result, tmp_path):
    alone = Result(result.environment, result.settings, [], EPOCHS, STEPS)
    assert [path.name for path in write_report(alone, tmp_path)] == ["cpu.json", "cpu.md"]
    assert "Single layers" not in markdown(alone)
    assert "ResNet-18" in markdown(alone)


def test_the_terminal_shows_ratios_and_networks_and_how_they_came_about(result, capsys):
    print_result(result)
    shown = capsys.readouterr().out
    for words in ("si / conv2d_wide", "0.80", "SI-ConvNet", "converted", "11 repeats", "H200", "TF32 in convolutions"):
        assert words in shown


def test_a_failure_is_told_with_its_reason(result):
    message = "peers:Layer (default scales) on res14, float32, contiguous: RuntimeError: no kernel"
    assert failures(result) == [message]
