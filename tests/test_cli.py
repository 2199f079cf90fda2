"""The command: what it prints, what it writes, and one line with an exit code for everything that goes wrong."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from helpers.command import parse, refused, says_next
from helpers.folders import write_classes
from scaleconv import __version__, cli
from scaleconv.data import embedded_digits, make_set, read_set
from scaleconv.experiments import ITEMS, read_records

RESULTS = Path(__file__).parents[1] / "results"
SOURCES = Path(cli.__file__).parents[2]


def test_make_writes_the_set_that_the_library_makes(run, tmp_path):
    code, output, errors = run("data", "make", "set.safetensors")
    expected = make_set(embedded_digits())
    assert (code, errors) == (0, "")
    assert expected.checksum() in output
    says_next(output, "scaleconv data info set.safetensors")
    stored = read_set(tmp_path / "set.safetensors")
    assert stored.checksum() == expected.checksum()
    assert stored.parameters == expected.parameters

    code, output, errors = run("data", "info", "set.safetensors")
    assert (code, errors) == (0, "")
    assert expected.checksum() in output
    assert "scales: uniform:0.3,1\n" in output


def test_every_option_of_make_reaches_the_set(run, tmp_path):
    options = "--scales normal:1,0.24,0.4,1.6 --size 40 --seed 3 --interpolation bicubic --antialias --truncate allow"
    code, _, errors = run("data", "make", "s.safetensors", "--dataset", "embedded", "--part", "test", *options.split())
    assert code == 0
    assert "foreground" in errors
    assert read_set(tmp_path / "s.safetensors").parameters.as_dict() == {
        "dataset": "embedded",
        "part": "test",
        "checksums": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
        "scales": "normal:1,0.24,0.4,1.6",
        "seed": 3,
        "size": (40, 40),
        "interpolation": "bicubic",
        "antialias": True,
        "truncate": "allow",
    }


def test_digits_are_written_as_a_folder_that_the_next_command_takes(run, tmp_path):
    code, output, errors = run("data", "export", "digits", "--dataset", "embedded", "--count", "20")
    assert (code, errors) == (0, "")
    assert output.startswith("digits: 20 digits on 28×28, scales fixed:1\n")
    assert len(list((tmp_path / "digits").glob("[0-9]/*.png"))) == 20
    says_next(output, "scaleconv compare --data digits --model convnet, ")
    _, output, _ = run("data", "export", "scenes", "--count", "3", "--task", "segmentation", "--size", "48")
    says_next(output, "scaleconv compare --data scenes --task segmentation, ")


def test_info_lists_digits_that_are_there_and_that_are_missing(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # the path of the cache is long
    code, output, errors = run("data", "info")
    assert (code, errors) == (0, "")
    lines = {tuple(line.split()[:2]): line for line in output.splitlines()}
    assert "10000" in lines["embedded", "test"]
    assert "892 … 1135" in lines["embedded", "test"]
    assert "agree" in lines["embedded", "test"]
    assert output.splitlines()[-1].startswith("mnist train, mnist test, fashion train, fashion test: not in ")
    monkeypatch.setenv("COLUMNS", "80")
    assert len(run("data", "info")[1].splitlines()) == 4  # one table


def test_show_alone_lists_all_items_and_other_records(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, output, errors = run("show", "--results", RESULTS)
    assert (code, errors) == (0, "")
    lines = {line.split()[0]: line for line in output.splitlines()}
    assert set(ITEMS) | {"compare-digits"} < set(lines)
    assert "Table 1: test error (%) on MNIST-Scale" in lines["table1"]
    assert int(lines["table1"].split()[-1]) == len(read_records(RESULTS / "table1"))
    assert max(map(len, lines.values())) <= 80
    _, output, _ = run("show", "--results", "nowhere")
    assert {line.split()[-1] for line in output.splitlines()[2:]} == {"–"}


@pytest.mark.parametrize(("typed", "meant"), [("tabel1", "table1"), ("fgi3", "fig3"), ("scene", "scenes or seven")])
def test_a_name_that_is_nearly_that_of_an_item_is_proposed(run, typed, meant):
    for command in ("show", "reproduce"):
        refused(run(command, typed), f"such as {meant} (`scaleconv show` lists them)", repr(typed))


@pytest.mark.parametrize("folder", ["table1", "fig5a", "cost"])
def test_show_has_the_same_numbers_on_80_and_on_200_columns(run, monkeypatch, folder):
    numbers = []
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, output, errors = run("show", folder, "--results", RESULTS)
        assert (code, errors) == (0, "")
        assert max(map(len, output.splitlines())) <= columns
        numbers.append({word for word in output.split() if any(map(str.isdigit, word))})
    assert len(numbers[0]) > 5
    assert numbers[0] == numbers[1]


COMMANDS = [("",), *((each.callback.__name__,) for each in cli.app.registered_commands), ("data",)]
COMMANDS += [("data", each.callback.__name__) for each in cli.data_app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_80_columns_and_cuts_no_sentence(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, output, errors = run(*filter(None, command), "--help")
    assert (code, errors) == (0, "")
    assert max(map(len, output.splitlines())) <= 80
    assert "..." not in output.replace("COMMAND [ARGS]...", "")
    if command not in [("",), ("data",)]:
        examples = " ".join(output.split()).partition(" Example")[2]
        assert f": scaleconv {' '.join(command)}" in examples
        for line in examples.partition(": ")[2].split("; "):
            assert parse(line.split()[1:])[0] == command


def test_the_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"scaleconv {__version__}\n", "")


def test_the_command_alone_shows_what_it_can_do_on_one_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, output, errors = run()
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    assert "..." not in output
    for command in filter(None, next(zip(*COMMANDS, strict=False))):
        assert any(line.startswith(f"  {command} ") for line in lines)
    for line in lines:
        if line.startswith("  scaleconv "):
            assert parse(line.split("  ")[1].split()[1:])[0] in COMMANDS


@pytest.mark.parametrize(
    ("words", "expected"), [("scaleconv rep", "reproduce report"), ("scaleconv show --js", "--json")]
)
def test_a_shell_completes_commands_and_options(run, monkeypatch, words, expected):
    monkeypatch.setenv("_SCALECONV_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    _, output, errors = run()
    assert errors == ""
    assert output.split() == expected.split()


def test_preview_writes_a_png(run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    code, output, errors = run("data", "preview", "sheet.png")
    assert (code, output, errors) == (0, "sheet.png\n", "")
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_extra_is_one_line_that_names_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "requests", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(run("data", "make", "set.safetensors", "--dataset", "mnist"), "pip install 'scaleconv[experiments]'")
    refused(run("data", "preview", "sheet.png"), "pip install 'scaleconv[experiments]'")


def test_what_was_not_foreseen_is_one_line_too_unless_asked(run, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr("scaleconv.data.make_set", fail)
    arguments = ("data", "make", "set.safetensors", "--dataset", "embedded")
    assert run(*arguments) == (1, "", "scaleconv: unforeseen RuntimeError: out of luck\n")
    monkeypatch.setenv("SCALECONV_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="luck"):
        cli.main(list(arguments))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, typer.Abort])
def test_an_interruption_ends_with_130_however_it_is_reported(run, monkeypatch, interruption):
    def interrupt(**_):
        raise interruption

    monkeypatch.setattr(cli, "app", interrupt)
    for command in ("reproduce", "train"):
        code, output, errors = run(command, "table1")
        assert (code, output) == (130, "")
        assert errors.startswith("scaleconv: interrupted; what was finished is kept")
    assert run("bench") == (130, "", "scaleconv: interrupted\n")


@pytest.mark.parametrize("command", ["", "cli.app = lambda **_: print('unflushed');"])
def test_a_reader_that_leaves_is_no_error(command):
    code = f"from scaleconv import cli; {command} cli.main(['data', 'info'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


# Where files cannot be written even by a privileged user, and what each command that writes is asked to put there.
NOWHERE = "/dev/null/x"
WRITERS = {
    "reproduce": ("reproduce", "table1", "--results", NOWHERE),
    "train": ("train", "convnet", "--results", NOWHERE),
    "train --data": ("train", "--data", "photos", "--results", NOWHERE),
    "compare": ("compare", "--data", "photos", "--results", NOWHERE),
    "report": ("report", "--results", ".", "--docs", "docs"),
    "report --html": ("report", f"{NOWHERE}.html", "--html", "--results", "."),
    "explain": ("explain", "photo.png", "--checkpoint", "weights.safetensors", "--out", f"{NOWHERE}.png"),
    "demo --train": ("demo", "--train", NOWHERE),
    "bench": ("bench", "--out", NOWHERE),
    "data make": ("data", "make", f"{NOWHERE}.safetensors", "--dataset", "embedded"),
    "data export": ("data", "export", NOWHERE),
    "data export --task segmentation": ("data", "export", NOWHERE, "--task", "segmentation"),
    "data cifar10": ("data", "cifar10", NOWHERE, "--data-dir", "."),
    "data preview": ("data", "preview", f"{NOWHERE}.png"),
}
READERS = {"show", "data info"}
WORK = {  # none of which may begin
    "scaleconv.experiments.run._tasks",
    "scaleconv.experiments.compare.load_folder",
    "scaleconv.experiments.report.draw",
    "scaleconv.experiments.explanation.load_trained",
    "scaleconv.bench.session.run_bench",
    "scaleconv.data.load_digits",
    "scaleconv.data.read_cifar10",
}


def test_every_command_writes_or_reads():
    known = {" ".join(command) for command in COMMANDS} - {"", "data"}
    assert {command.partition(" --")[0] for command in WRITERS} | READERS == known


@pytest.mark.parametrize("command", WRITERS.values(), ids=WRITERS)
def test_a_place_that_cannot_be_written_to_is_told_before_the_work(run, monkeypatch, tmp_path, command):
    def begin(*_, **__):
        pytest.fail("the work has begun")

    if command[0] == "report" and "--docs" in command:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "reproduction.md").write_text("")
        (tmp_path / "docs" / "figures").write_text("")  # a file where a folder has to be
        shutil.copy(RESULTS / "table1.jsonl", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for name in WORK:
        monkeypatch.setattr(name, begin)
    refused(run(*command), "cannot write", "name a place that can be written to")
    assert sorted(tmp_path.rglob("*")) == before


FOLDER = ("--data", "photos", "--epochs", "1")
MAKE = ("data", "make", "a/b.safetensors", "--dataset", "embedded")
REFUSED = {
    "layers": ("train", *FOLDER, "--resize", "32", "--layers", "zzz"),
    "layers compared": ("compare", *FOLDER, "--resize", "32", "--layers", "zzz"),
    "layers of 1×1": ("train", *FOLDER, "--resize", "32", "--layers", "*.shortcut.0"),
    "split": ("train", *FOLDER, "--split", "0.6,0.6"),
    "workers": ("compare", *FOLDER, "--workers", "-1"),
    "model": ("train", *FOLDER, "--model", "convnet"),  # of images of 12×12
    "model of someone": ("train", *FOLDER, "--model", "torch.nn:Linear"),
    "data without masks": ("compare", *FOLDER, "--task", "segmentation"),
    "data": ("compare", "--data", "nowhere"),
    "networks": ("demo", "--networks", "nowhere"),
    "device": ("demo", "--train", "a/b", "--device", "abacus"),
    "device of a bench": ("bench", "--out", "a/b", "--device", "abacus"),
    "repeats": ("bench", "--out", "a/b", "--repeats", "0"),
    "results": ("report", "a/b.html", "--html"),
    "checkpoint": ("explain", "photos/cat/000.png", "--checkpoint", "photos", "--out", "a/b.png"),
    "size": ("data", "export", "a/b", "--count", "20", "--size", "3"),
    "size of scenes": ("data", "export", "a/b", "--count", "2", "--size", "3", "--task", "segmentation"),
    "truncate": ("data", "export", "a/b", "--truncate", "allow", "--task", "segmentation"),
    "scales": ("data", "export", "a/b", "--scales", "fixed:0"),
    "path": ("data", "make", "a/b.npy"),
    "dataset": (*MAKE, "--dataset", "cifar"),
    "scales of a set": (*MAKE, "--scales", "gamma:1"),
    "size of a set": (*MAKE, "--size", "3"),
    "interpolation": (*MAKE, "--interpolation", "nearest"),
    "size of a preview": ("data", "preview", "a/b.png", "--size", "3"),
    "data_dir": ("data", "cifar10", "a/b", "--data-dir", "nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_option_and_leaves_nothing(run, tmp_path, case):
    write_classes(tmp_path / "photos")
    before = sorted(tmp_path.rglob("*"))
    code, output, errors = run(*REFUSED[case])
    assert output in ("", "photos: 20 images of 2 classes (16 to train, 2 to val, 2 to test)\n")
    refused((code, "", errors), f"`{case.partition(' ')[0]}`")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "wrong"), [((*MAKE, "--size", "large"), "--size"), ((*MAKE, "--colour", "red"), "--colour"), (["x"], "x")]
)
def test_words_that_are_no_command_option_or_value_are_named(run, words, wrong):
    refused(run(*words), f"'{wrong}'" if wrong == "x" else wrong)


def test_a_download_that_fails_leaves_no_folder(run, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr("requests.get", refuse)
    refused(run("data", "make", "set.safetensors", "--dataset", "mnist"), "could not download", "--dataset embedded")
    assert list(tmp_path.iterdir()) == []


def test_export_cuts_digits_off_only_if_it_is_told_to(run, tmp_path):
    command = ("data", "export", "digits", "--count", "20", "--size", "12")
    refused(run(*command), "`size` (=12×12) cuts off the foreground of 20 of 20 digits", "use a canvas of", "truncate")
    code, output, errors = run(*command, "--truncate", "allow")
    assert (code, errors) == (0, "the foreground of 20 digits is cut off\n")
    assert output.startswith("digits: 20 digits on 12×12")
    assert np.asarray(Image.open(next((tmp_path / "digits").rglob("*.png")))).shape == (12, 12)


def test_a_folder_in_place_of_weights_is_told_what_to_name(run, tmp_path):
    explain = ("explain", "photo.png", "--checkpoint")
    (tmp_path / "run" / "weights").mkdir(parents=True)
    refused(run(*explain, "run"), "`checkpoint` must hold the weights of a finished run", "got run, a folder")
    weights = tmp_path / "run" / "weights" / "converted-fold0-seed0.safetensors"
    weights.touch()
    for folder in (weights.parent.parent, weights.parent):
        refused(run(*explain, folder), f"got {folder}, a folder, and not one of its files, such as {weights}")


SLOW_TORCH = """
import pathlib, time
pathlib.Path("begun").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("called", ["python -m", "script", "program"])
def test_ctrl_c_while_torch_is_imported_leaves_no_trace(tmp_path, called):
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "torch.py").write_text(SLOW_TORCH)
    script = tmp_path / ("scaleconv" if called == "script" else "program")
    script.write_text("from scaleconv.__main__ import main\nmain()\n")
    process = subprocess.Popen(
        [sys.executable, *(["-m", "scaleconv"] if called == "python -m" else [script]), "data", "info"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "slow"), str(SOURCES)])},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background would ignore it
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if called == "program":  # of someone else: its Ctrl-C is its own
        assert "KeyboardInterrupt" in errors
    else:
        assert (process.returncode, errors) == (130, "scaleconv: interrupted\n")


def test_the_page_of_the_demo_takes_no_device(run):
    refused(run("demo", "--device", "cuda"), "`device` must be given with --train, got 'cuda'")
