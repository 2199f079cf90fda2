"""From the command to its files: tables and figure hold the ratios of the rows, and what goes wrong is told."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from helpers.command import refused, says_next
from scaleconv import DEFAULT_SCALES
from scaleconv.bench import Result, Settings
from scaleconv.bench.layer_costs import LayerRow
from scaleconv.bench.network_costs import StepRow
from scaleconv.bench.ratios import draw_layers, layer_table, ratio_table, step_table
from scaleconv.bench.session import failures, markdown, print_result, show_ticks, write_result
from scaleconv.data.progress import make_progress
from scaleconv.timing import Memory, Timing

LAYERS = ("bench", "--device", "cpu", "--repeats", "1", "--batch", "1", "--dtypes", "float32", "--shapes", "mnist2")
LAYERS += ("--no-end-to-end",)
SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def ms(value):
    return Timing(value, value * 0.9, value * 1.2, 3)


def row(layer, forward, both, scales="default", dtype="float32", **gpu):
    """A layer whose backward pass takes as long as both."""
    setting = ("res14", dtype, "contiguous", 4, layer, scales)
    return LayerRow(*setting, ms(forward), ms(both), ms(both), **gpu)


def gpu_row(layer, graph, eager, mib, scales="default"):
    """A layer on a GPU: forward takes a fifth of the time in a graph, the host half of the eager time."""
    gpu = {"graph_forward": ms(graph / 5), "graph_both": ms(graph), "host_both": ms(eager / 2)}
    return row(layer, eager / 4, eager, scales, **gpu, memory=Memory(10, mib))


ROWS = [
    row("conv2d", 0.5, 2),
    row("conv2d_wide", 4, 10),
    row("direct", 10, 40),
    row("si", 2, 8),
    row("si", 3, 9, "wide"),
]
GPU_ROWS = [
    gpu_row("conv2d", 2, 3, 100),
    gpu_row("conv2d_wide", 10, 12, 600),
    gpu_row("direct", 40, 44, 900),
    gpu_row("si", 8, 30, 150),
    gpu_row("si", 9, 35, 150, "wide"),
]
FAILED = LayerRow("res14", "float32", "contiguous", 4, "peers:Layer", "default", error="RuntimeError: no kernel")


def step(variant, eager, graph=None, mib=None, task="training", batch=32, **rest):
    memory = Memory(1, mib) if mib else None
    setting = ("resnet18", variant, task, "float32", "contiguous", batch, 224)
    return StepRow(*setting, eager and ms(eager), graph and ms(graph), memory, **rest)


GPU_STEPS = [step("plain", 50, 40, 1000), step("converted", 200, 80, 1700)]
STEPS = [
    *(step(variant, ms, batch=1, task="inference") for variant, ms in (("plain", 10), ("converted", 60))),
    *(step(variant, ms, batch=8, task="inference") for variant, ms in (("plain", 70), ("converted", 280))),
]
FAILED_STEP = step("converted", None, task="inference", batch=1, error="RuntimeError: out of memory")


def lines(table):
    return [dict(zip(table.header, line, strict=True)) for line in table.rows]


def test_on_a_gpu_ratios_are_of_graphs_with_eager_calls_and_the_host_beside_them():
    (line,) = ratio_table(GPU_ROWS, DEFAULT_SCALES).rows
    assert line == (
        *("res14", "float32", "contiguous"),
        *("8.00", "0.80", "2.50", "4.00", "0.80", "1.50", "1.12", "15.0", "5.00"),
    )
    direct = lines(layer_table(GPU_ROWS))[2]
    assert list(direct.values())[3:9] == ["4", "direct", "default", "11.0", "44.0", "44.0"]
    assert list(direct.items())[9:] == [
        ("/ wide", "3.67"),
        ("forward, ms (graph)", "8.00"),
        ("both, ms (graph)", "40.0"),
        ("/ wide (graph)", "4.00"),
        ("host, ms", "22.0"),
        ("peak, MiB", "900"),
        ("memory / Conv2d", "9.00"),
    ]


def test_on_a_cpu_ratios_are_of_eager_calls_alone_and_settings_are_not_mixed():
    faster = [row("conv2d", 1, 1, dtype="bfloat16"), row("si", 1, 8, dtype="bfloat16")]
    table = ratio_table([*ROWS, *faster], DEFAULT_SCALES)
    columns = ("SIConv2d, ms", "/ wide (eager)", "/ Conv2d", "forward / wide", "scales to 4 / to 2")
    assert table.header == ("shape", "dtype", "layout", *columns, "written plainly / SIConv2d")
    assert [line[1:2] + line[3:] for line in table.rows] == [
        ("float32", "8.00", "0.80", "4.00", "0.50", "1.12", "5.00"),
        ("bfloat16", "8.00", "–", "8.00", "–", "–", "–"),
    ]
    assert layer_table([*ROWS, FAILED]).rows[-1][4:] == ("peers:Layer", "default", FAILED.error, "–", "–", "–")


def test_networks_are_compared_with_their_plain_variant_in_the_same_setting():
    plain, converted = lines(step_table(GPU_STEPS))
    assert list(plain.values())[:7] == ["resnet18", "training", "float32", "contiguous", "32", "224", "plain"]
    assert list(converted.items())[6:] == [
        ("variant", "converted"),
        ("ms", "200"),
        ("/ plain", "4.00"),
        ("ms (graph)", "80.0"),
        ("/ plain (graph)", "2.00"),
        ("eager / graph", "2.50"),
        ("peak, MiB", "1700"),
        ("memory / plain", "1.70"),
    ]
    assert [line[7:] for line in step_table(STEPS).rows] == [
        *(("10.0", "1.00"), ("60.0", "6.00"), ("70.0", "1.00"), ("280", "4.00"))
    ]
    assert step_table([STEPS[0], FAILED_STEP]).rows[1][7:] == ("RuntimeError: out of memory", "–")


def test_the_figure_has_times_above_memory_and_the_ratios_above_the_bars(monkeypatch, tmp_path):
    figure, drawn = pytest.importorskip("matplotlib.figure", reason="needs the extra `experiments`"), []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: (drawn.append(self), path.touch()))
    draw_layers([*GPU_ROWS, FAILED], "Benchmark on H200", [tmp_path / "gpu.png"])
    draw_layers(ROWS, "Benchmark on a CPU", [tmp_path / "cpu.png"])
    (times, memory), (eager,) = (each.axes for each in drawn)
    assert drawn[0].get_suptitle() == "Benchmark on H200"
    assert [axis.get_title().partition(",")[0] for axis in (times, memory, eager)] == [
        *("forward + backward (CUDA graph)", "peak memory", "forward + backward (eager)")
    ]
    assert [(axis.get_yscale(), axis.get_ylabel().rpartition(" ")[2]) for axis in (times, memory, eager)] == [
        *(("log", "conv2d_wide"), ("log", "conv2d"), ("log", "conv2d_wide"))
    ]
    assert [bar.get_height() for bar in times.patches[:4]] == [2, 10, 40, 8]
    assert [bar.get_height() for bar in memory.patches[:4]] == [100, 600, 900, 150]
    assert [bar.get_height() for bar in eager.patches] == [2, 10, 40, 8]
    assert [[text.get_text() for text in axis.texts] for axis in (times, memory, eager)] == [
        ["0.2×", "1×", "4×", "0.8×", ""],
        ["1×", "6×", "9×", "1.5×", ""],
        ["0.2×", "1×", "4×", "0.8×"],
    ]
    (direct,) = (each for each in times.containers if each.get_label() == "direct")
    assert direct.errorbar[2][0].get_segments()[0][:, 1] == pytest.approx([36, 48])
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert labels == ["conv2d", "conv2d_wide", "direct", "si", "peers:Layer"]
    assert len({patch.get_facecolor() for patch in times.patches}) == 5


@pytest.fixture
def result():
    environment = {"device": "H200", "threads": 16, "torch": "2.11.0", "commit": "abc"}
    return Result(
        environment, Settings("cuda", "h200", repeats=11).as_dict(), [*GPU_ROWS, FAILED], [*GPU_STEPS, FAILED_STEP]
    )


def test_the_files_hold_what_was_measured(result, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    paths = write_result(result, tmp_path / "bench")
    assert [path.name for path in paths] == ["h200.json", "h200.md", "h200.png", "h200.svg"]
    assert sorted((tmp_path / "bench").iterdir()) == sorted(paths)
    stored = json.loads(paths[0].read_text())
    assert stored["rows"][3]["graph_both"] == {"median_ms": 8, "min_ms": 7.2, "max_ms": 9.6, "iterations": 3}
    assert stored["steps"][1]["memory"] == {"held_mib": 1, "peak_mib": 1700}
    assert (stored["settings"]["repeats"], stored["environment"]["commit"]) == (11, "abc")
    page = paths[1].read_text()
    assert [
        page.count(f"| {' | '.join(line)} |") for line in (layer_table(GPU_ROWS).rows[2], step_table(GPU_STEPS).rows[1])
    ] == [1, 1]
    alone = Result(result.environment, result.settings, [], STEPS)
    assert [path.name for path in write_result(alone, tmp_path)] == ["h200.json", "h200.md"]
    assert "All layers" not in markdown(alone)


def test_a_narrow_terminal_shows_every_number_and_how_they_were_measured(result, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_result(result)
    shown = capsys.readouterr().out
    for table in (ratio_table(GPU_ROWS, DEFAULT_SCALES), step_table(GPU_STEPS)):
        assert all(cell in shown for line in table.rows for cell in line)
    for words in ("11 interleaved repeats", "H200", "TF32", "CUDA graph"):
        assert words in " ".join(shown.split())
    assert "All layers" not in shown


def test_a_failure_is_told_with_its_reason(result):
    assert failures(result) == [
        "peers:Layer (default scales) on res14, float32, contiguous: RuntimeError: no kernel",
        "resnet18 (converted), inference, float32, contiguous: RuntimeError: out of memory",
    ]


def test_a_terminal_sees_what_is_measured_the_rate_and_the_time_left():
    stream = io.StringIO()
    with make_progress(Console(file=stream, force_terminal=True, width=140)) as bar:
        tick = show_ticks(bar, 3)
        tick("mnist1, float32")
        tick("mnist2, float32")
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"mnist2, float32 .* 2/3 [\d.e+]+ repeats/s (-:--|\d\d:\d\d)", plain)


def test_every_option_reaches_the_file_and_a_failing_peer_is_told(run, tmp_path):
    options = "--layout contiguous,channels_last --compare si,direct --image-size 96 --scales 1,0.5 --no-wide"
    options += " --dtypes bfloat16"
    code, output, errors = run(*LAYERS, *options.split(), "--peer", "peers:Broken", "--name", "mine", "--out", "here")
    assert code == 1
    assert "plainly" in output  # a heading that may be wrapped
    failed = "peers:Broken (default scales) on mnist2, bfloat16, {}: RuntimeError: no such\n"
    assert errors == failed.format("contiguous") + failed.format("channels_last")
    stored = json.loads((tmp_path / "here" / "mine.json").read_text())
    expected = {"layouts": ["contiguous", "channels_last"], "compare": ["si", "direct"], "image_size": 96, "batch": 1}
    expected |= {"scales": [1, 0.5], "wide": False, "end_to_end": False, "repeats": 1, "peers": ["peers:Broken"]}
    assert {key: stored["settings"][key] for key in expected} == expected
    assert [(row["layer"], row["both"] is None) for row in stored["rows"]] == [
        *(("si", False), ("direct", False), ("peers:Broken", True))
    ] * 2


def test_without_matplotlib_the_numbers_are_kept_and_one_line_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, output, errors = run(*LAYERS, "--compare", "conv2d")
    assert (code, "/ Conv2d" in output) == (2, True)
    assert errors.startswith("scaleconv: figures need matplotlib: pip install 'scaleconv[")
    assert {path.name for path in (tmp_path / "results" / "bench").iterdir()} == {"cpu.json", "cpu.md"}


def test_a_good_end_names_the_next_command_and_an_interruption_leaves_earlier_files(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    code, output, errors = run(*LAYERS, "--compare", "conv2d")
    assert (code, errors) == (0, "")
    says_next(output, "scaleconv bench --help")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    before = {path.name: path.read_bytes() for path in (tmp_path / "results" / "bench").iterdir()}
    monkeypatch.setattr("scaleconv.timing.time_interleaved", interrupt)
    assert run(*LAYERS)[:2] == (130, "")
    assert {path.name: path.read_bytes() for path in (tmp_path / "results" / "bench").iterdir()} == before


def test_a_peer_of_another_shape_is_refused_before_anything_is_measured(run, tmp_path):
    refused(run(*LAYERS, "--peer", "peers:Shorter"), "`peer` (=peers:Shorter) must return the shape of Conv2d")
    assert list(tmp_path.iterdir()) == []


MEASURING = sorted(path for path in SCRIPTS.glob("*.py") if "run_parts" in path.read_text())


@pytest.mark.parametrize("script", MEASURING, ids=lambda path: path.stem)
def test_every_script_measures_rows_that_its_table_shows(script, monkeypatch, capsys, tmp_path):
    """The command line that all share, with a part that measures nothing."""
    monkeypatch.syspath_prepend(SCRIPTS)
    module = __import__(script.stem)
    out = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", [script.name, "--out", str(out), "--seeds", "1"])
    kept, new = {"network": "b", "seed": 0, "ms": 4.0}, {"network": "a", "seed": 1, "ms": 2.0}
    out.write_text(json.dumps({"fake": [kept, {**new, "ms": 9.0}]}))
    parts = {"fake": (lambda asked: iter([{**new, "seed": asked.seeds}]), module.run_parts.__globals__["plain_table"])}
    module.run_parts(module.__doc__, parts, "unused", seeds=5)
    assert json.loads(out.read_text())["fake"] == [kept, new]
    assert "| b | 0 | 4 |\n| a | 1 | 2 |" in capsys.readouterr().out
