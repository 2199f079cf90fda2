"""A bench from the command line to its files: what is printed and written, and one line for what goes wrong."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from scaleconv.metrics.timing import Memory, Timing
from torch import nn

from helpers.benches import EPOCHS, FAILED, FAILED_STEP, GPU_ROWS, GPU_STEPS, STEPS
from helpers.command import refused, says_next
from scaleconv import DEFAULT_SCALES
from scaleconv.bench import Result, Settings, network_costs
from scaleconv.bench.layer_costs import LayerRow
from scaleconv.bench.network_costs import EpochRow, StepRow
from scaleconv.bench.ratios import layer_table, ratio_table, step_table
from scaleconv.bench.session import _ticks, failures, markdown, print_result, write_result
from scaleconv.experiments.run import make_progress

RECORDS = Path(__file__).parents[2] / "results" / "bench"
TINY = ("bench", "--device", "cpu", "--repeats", "1", "--batch", "1", "--dtypes", "float32", "--shapes", "mnist2")
LAYERS = (*TINY, "--no-end-to-end")


class Broken(nn.Conv2d):
    calls = 0

    def forward(self, input):
        Broken.calls += 1
        if Broken.calls > 1:  # the first is the check of its shape
            raise RuntimeError("no kernel")
        return super().forward(input)


class Shorter(nn.Conv2d):
    def forward(self, input):
        return super().forward(input)[..., 1:]


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    monkeypatch.setattr(Broken, "calls", 0)
    monkeypatch.setitem(sys.modules, "peers", SimpleNamespace(Plain=nn.Conv2d, Broken=Broken, Shorter=Shorter))


def test_bench_prints_ratios_and_writes_one_file_of_numbers(run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    code, output, errors = run(*LAYERS, "--peer", "peers:Plain")
    assert (code, errors) == (0, "")
    assert "/ SIConv2d" in output
    says_next(output, "scaleconv bench --help")
    assert "written plainly, or direct, is the layer with F.interpolate" in " ".join(output.split())
    folder = tmp_path / "results" / "bench"
    assert {path.name for path in folder.iterdir()} == {"cpu.json", "cpu.md", "cpu.png", "cpu.svg"}
    stored = json.loads((folder / "cpu.json").read_text())
    layers = ["conv2d", "conv2d_wide", "direct", "direct", "si", "si", "peers:Plain"]
    assert [row["layer"] for row in stored["rows"]] == layers
    assert stored["settings"]["batch"] == 1
    assert stored["environment"]["threads"] >= 1


def test_a_terminal_sees_what_is_measured_the_rate_and_the_time_left():
    stream = io.StringIO()
    with make_progress(Console(file=stream, force_terminal=True, width=140)) as bar:
        tick = _ticks(bar, 3)
        tick("mnist1, float32")
        tick("mnist2, float32")
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"mnist2, float32 .* 2/3 [\d.e+]+ repeats/s (-:--|\d\d:\d\d)", plain)


def test_every_option_reaches_the_file(run, tmp_path):
    options = "--layout contiguous,channels_last --compare si,direct --image-size 96 --scales 1,0.5 --no-wide"
    code, _, errors = run(*LAYERS, *options.split(), "--name", "mine", "--out", "here")
    assert (code, errors) == (0, "")
    stored = json.loads((tmp_path / "here" / "mine.json").read_text())
    keys = ("layouts", "compare", "image_size", "scales", "wide", "end_to_end", "repeats")
    assert {key: stored["settings"][key] for key in keys} == {
        "layouts": ["contiguous", "channels_last"],
        "compare": ["si", "direct"],
        "image_size": 96,
        "scales": [1, 0.5],
        "wide": False,
        "end_to_end": False,
        "repeats": 1,
    }
    assert [row["scales"] for row in stored["rows"]] == ["default"] * 4


def test_networks_are_measured_too(run, tmp_path, monkeypatch, stand_ins):
    monkeypatch.setattr(network_costs, "CPU_BATCHES", 1)
    code, output, errors = run(*TINY, "--batch", "2", "--image-size", "32", "--no-layers", "--scales", "1,0.8")
    assert (code, errors) == (0, "")
    assert "SI-ConvNet" in output
    assert "converted" in output
    stored = json.loads((tmp_path / "results" / "bench" / "cpu.json").read_text())
    assert (len(stored["rows"]), len(stored["epochs"]), len(stored["steps"])) == (0, 3, 12)


def test_what_could_not_be_measured_is_told_and_the_rest_is_kept(run, tmp_path):
    code, _, errors = run(*LAYERS, "--compare", "conv2d", "--peer", "peers:Broken")
    assert code == 1
    assert errors == "peers:Broken (default scales) on mnist2, float32, contiguous: RuntimeError: no kernel\n"
    stored = json.loads((tmp_path / "results" / "bench" / "cpu.json").read_text())
    assert [row["both"] is None for row in stored["rows"]] == [False, True]


def test_an_interruption_leaves_earlier_files_as_they_were(run, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    folder = tmp_path / "results" / "bench"
    folder.mkdir(parents=True)
    (folder / "cpu.json").write_text("earlier")
    monkeypatch.setattr("scaleconv.metrics.timing.time_interleaved", interrupt)
    code, output, _ = run(*LAYERS)
    assert (code, output) == (130, "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"cpu.json": "earlier"}


def test_without_matplotlib_the_numbers_are_kept_and_one_line_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, output, errors = run(*LAYERS, "--compare", "conv2d")
    assert code == 2
    assert "/ Conv2d" in output
    assert errors.startswith("scaleconv: figures need matplotlib: pip install 'scaleconv[")
    assert {path.name for path in (tmp_path / "results" / "bench").iterdir()} == {"cpu.json", "cpu.md"}


WRONG = {
    "shapes": (("--shapes", "vgg"), "`shapes` must be among mnist1, mnist2,", "got 'vgg'"),
    "device": (("--device", "abacus"), "`device` must be one this machine has, got 'abacus'"),
    "graph": (("--graph",), "No such option: --graph"),
    "scales": (("--scales", "0.5,2"), "`scales` must contain 1"),
    "module": (("--peer", "nowhere:Layer"), "`peer` (=nowhere:Layer) must name a module that can be imported"),
    "class": (("--peer", "peers:Layer"), "`peer` must name a torch.nn.Module of `peers`, got 'Layer'"),
    "output": (("--peer", "peers:Shorter"), "`peer` (=peers:Shorter) must return the shape of Conv2d", "(2, 64, 7, 6)"),
    "repeats": (("--repeats", "0"), "`repeats` must be at least 1, got 0"),
    "nothing": (("--no-layers",), "`layers` or `end_to_end` must be measured"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line(run, case, tmp_path):
    arguments, *words = case
    refused(run(*LAYERS, *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def result():
    environment = {"device": "H200", "threads": 16, "torch": "2.11.0", "commit": "abc"}
    settings = Settings("cuda", "h200", repeats=11).as_dict()
    return Result(environment, settings, [*GPU_ROWS, FAILED], EPOCHS, GPU_STEPS)


def test_the_files_hold_what_was_measured(result, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    paths = write_result(result, tmp_path / "bench")
    assert [path.name for path in paths] == ["h200.json", "h200.md", "h200.png", "h200.svg"]
    assert sorted((tmp_path / "bench").iterdir()) == sorted(paths)
    stored = json.loads(paths[0].read_text())
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert stored["rows"][4]["graph_both"] == {"median_ms": 8, "min_ms": 7.2, "max_ms": 9.6, "iterations": 3}
    assert stored["rows"][4]["both"]["median_ms"] == 30
    assert paths[1].read_text() == markdown(result)
    assert f"| {' | '.join(layer_table(GPU_ROWS).rows[2])} |" in markdown(result)
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[3].read_text()


def test_a_bench_without_layers_draws_nothing(result, tmp_path):
    alone = Result(result.environment, result.settings, [], EPOCHS, STEPS)
    assert [path.name for path in write_result(alone, tmp_path)] == ["h200.json", "h200.md"]
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
    for table in (ratio_table(GPU_ROWS, DEFAULT_SCALES), step_table(GPU_STEPS)):
        assert all(cell in shown for line in table.rows for cell in line)


def test_a_failure_is_told_with_its_reason(result):
    failed = replace(result, steps=[STEPS[0], FAILED_STEP])
    assert failures(failed) == [
        "peers:Layer (default scales) on res14, float32, contiguous: RuntimeError: no kernel",
        "resnet18 (converted), inference, float32, contiguous: RuntimeError: out of memory",
    ]


def read_result(path):
    """A stored result, as it was before it was written."""

    def built(value):
        if not isinstance(value, dict):
            return value
        return Memory(**value) if "peak_mib" in value else Timing(**value)

    def row(kind, values):
        return kind(**{name: built(value) for name, value in values.items()})

    stored = json.loads(path.read_text())
    kinds = {"rows": LayerRow, "epochs": EpochRow, "steps": StepRow}
    rows = {name: [row(kind, values) for values in stored[name]] for name, kind in kinds.items()}
    return Result(stored["environment"], stored["settings"], **rows)


@pytest.mark.parametrize("page", sorted(RECORDS.glob("*.md")), ids=lambda page: page.stem)
def test_a_committed_page_is_what_its_record_says(page):
    assert markdown(read_result(page.with_suffix(".json"))) == page.read_text()
