"""The commands reproduce, show and train, and one line with an exit code for everything that goes wrong."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from helpers.command import refused, says_next
from scaleconv import cli
from scaleconv.cli.wording import say_next
from scaleconv.experiments import read_records
from scaleconv.experiments.measures import MEASURES
from scaleconv.experiments.records import records_file

SMALL = ("data.train=100", "network.maps=[2,3]", "network.scales=[0.8,1,1.25]", "network.hidden=8", "training.batch=50")
TINY = (*(part for setting in SMALL for part in ("--set", setting)), "--epochs", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of a tiny experiment that is run once, and what the command printed."""
    folder, output, errors = tmp_path_factory.mktemp("made"), io.StringIO(), io.StringIO()
    command = ["reproduce", "table1", "--models", "convnet,si_convnet", "--folds", "0,1", *TINY]
    with chdir(folder), redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as end:
        cli.main(command)
    return folder / "results", (end.value.code, output.getvalue(), errors.getvalue())


@pytest.fixture
def table(made, tmp_path):
    """A copy of these results, which a test may damage, and what was printed."""
    results, printed = made
    shutil.copytree(results, tmp_path / "results")
    return tmp_path / "results" / "table1-quick", printed


def test_reproduce_prints_the_table_and_writes_it_beside_the_records(table):
    folder, (code, output, errors) = table
    assert (code, errors) == (0, "")
    assert "SI-ConvNet" in output
    assert "3.13 ± 0.19" in output
    assert re.search(r"\nIt took \d+ s; ", output)
    says_next(output, "scaleconv report --html --preset quick")
    assert {path.name for path in folder.glob("*.*")} == {"figure.png", "figure.svg", "table.csv", "table.md"}
    runs = [(record.model, record.fold) for record in read_records(folder)]
    assert runs == [("convnet", 0), ("convnet", 1), ("si_convnet", 0), ("si_convnet", 1)]


def test_show_reads_the_records_only(table, run):
    folder, (_, output, _) = table
    shown = run("show", "table1-quick")
    assert shown[0] == 0
    assert shown[1].splitlines()[:8] == output.splitlines()[:8]
    summary = json.loads(run("show", "table1-quick", "--json")[1])
    errors = [record.test_error for record in read_records(folder) if record.model == "si_convnet"]
    assert summary["si_convnet"]["mean"] == pytest.approx(sum(errors) / 2)
    assert set(summary["convnet"]) == {"mean", "std", "n"}
    assert summary["convnet"]["n"] == 2


def test_an_item_not_run_in_full_is_shown_from_its_largest_part(table, run):
    folder, _ = table
    first = records_file(folder).read_text().splitlines(keepends=True)[0]
    records_file(folder.with_name("table1-again")).write_text(first)
    code, output, errors = run("show", "table1", "--json")
    assert (code, json.loads(output)["si_convnet"]["n"]) == (0, 2)
    assert errors == "no records in results/table1; these are those of results/table1-quick\n"


def test_a_damaged_record_is_one_line(table, run):
    folder, _ = table
    with records_file(folder).open("a") as file:
        file.write("{")
    refused(run("show", "table1-quick"), "line 5 of results/table1-quick.jsonl", "delete it")


def test_train_keeps_a_record_and_weights(run, tmp_path):
    code, output, errors = run("train", "convnet", "--fold", "1", *TINY)
    assert (code, errors) == (0, "")
    (record,) = read_records(tmp_path / "results" / "train")
    assert (record.model, record.fold) == ("convnet", 1)
    assert f"test error {record.test_error:.2f} % after 2 epochs" in output
    weights = Path(output.split("weights: ")[1].splitlines()[0])
    assert weights.is_file()
    says_next(output, f"scaleconv explain IMAGE --checkpoint {weights}")


CURVE = (*TINY, "--set", "data.test=100", "--folds", "0,1")


def test_a_curve_is_run_shown_and_told_in_json_per_point(run, tmp_path):
    points = 'points=[{name="a", x=1, label="few"}, {name="b", x=2, label="many"}]'
    code, output, errors = run("reproduce", "fig4a", "--models", "convnet", *CURVE, "--set", points)
    assert (code, errors) == (0, "")
    assert "many" in output
    folder = tmp_path / "results" / "fig4a-quick"
    runs = [(record.point, record.x, record.fold) for record in read_records(folder)]
    assert runs == [("a", 1, 0), ("a", 1, 1), ("b", 2, 0), ("b", 2, 1)]
    for shown in (run("show", "fig4a-quick", "--json"), run("show", "fig4a", "--json")):
        summary = json.loads(shown[1])["convnet"]
        assert (summary["n"], [point["x"] for point in summary["points"]]) == (2, [1, 2])
        errors = [record.test_error for record in read_records(folder) if record.point == "b"]
        assert summary["points"][1]["mean"] == pytest.approx(sum(errors) / 2)
    assert "few" in run("show", "fig4a-quick")[1]


def test_all_runs_every_item_and_goes_on_where_it_was_interrupted(run, tmp_path, monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.ITEMS", ("winners", "equivariance"))
    tiny = ("reproduce", "all", *TINY, "--folds", "0", "--set", "measure.digits=20")

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(MEASURES, "equivariance", interrupt)
        code, output, errors = run(*tiny)
    assert code == 130
    assert "scaleconv: interrupted" in errors
    assert "winners-quick/figure.svg" in output
    results = tmp_path / "results"
    (kept,) = results.glob("*.jsonl")
    written = kept.stat().st_mtime_ns
    assert kept.name == "winners-quick.jsonl"
    code, output, errors = run(*tiny)
    assert (code, errors) == (0, "")
    assert kept.stat().st_mtime_ns == written
    assert len(read_records(results / "equivariance-quick")) == 2
    for name in ("winners-quick/table.md", "equivariance-quick/figure.svg", "equivariance-quick/table.csv"):
        assert name in output


def test_train_takes_one_point_of_a_curve(run, tmp_path):
    code, _, errors = run(
        *("train", "convnet", "--item", "fig4b", "--point", "train500", *TINY, "--set", "data.test=100")
    )
    assert (code, errors) == (0, "")
    (record,) = read_records(tmp_path / "results" / "train")
    assert (record.point, record.x) == ("train500", 500)


WRONG = {
    "all name": (("reproduce", "all", "--name", "x"), "`name` must be given with one item, not with all"),
    "point": (("train", "convnet", "--item", "fig4a", "--point", "x"), "`point` must be one of maps", "got 'x'"),
    "cost": (("reproduce", "cost", "--epochs", "3"), "`epochs` is unknown"),
    "no training": (("train", "convnet", "--item", "cost"), "`item` must be one that trains networks, got 'cost'"),
    "many digits": (("reproduce", "table1", "--set", "data.train=100000"), "`data.train` (=100000)", "10000 digits"),
    "seed": (("reproduce", "table1", "--seed", str(2**64)), "`seed` must be", str(2**64)),
    "no models": (("reproduce", "table1", "--models", ""), "`models` must be names separated by commas, got ''"),
    "no folds": (("reproduce", "table1", "--folds", ""), "`folds` must be whole numbers separated by commas, got ''"),
    "pattern": (("show", "table1-**"), "`name` must be a folder's name", "'table1-**'"),
    "results": (("report", "--results", "nowhere"), "`results` must be a directory with records, got nowhere"),
    "docs": (
        ("report", "--results", ".", "--docs", "/nonexistent"),
        "`docs` must be a directory with reproduction.md, got /nonexistent",
    ),
    "winners": (("reproduce", "winners", "--models", "convnet", *TINY), "`models` must have scale-invariant layers"),
    "item": (("reproduce", "table9"), "`item` must be one of", "'table9'"),
    "preset": (("reproduce", "table1", "--preset", "fast"), "`preset` must be one of quick, paper", "'fast'"),
    "key": (("reproduce", "table1", "--set", "training.foo=1"), "`foo`", "unknown"),
    "setting": (("reproduce", "table1", "--set", "foo"), "`set` must be KEY=VALUE", "'foo'"),
    "folds": (("reproduce", "table1", "--folds", "one"), "`folds` must be whole numbers", "'one'"),
    "fold": (("reproduce", "table1", "--folds", "10"), "`folds` must lie between 0 and 9, got 10"),
    "epochs": (("reproduce", "table1", "--epochs", "0"), "`training.epochs` must be", "got 0"),
    "device": (("reproduce", "table1", "--device", "abacus"), "`device` must be one this machine has", "'abacus'"),
    "data": (("reproduce", "table1", "--preset", "paper", "--data-dir", "nowhere"), "`data_dir` (=nowhere)"),
    "model": (("train", "resnet"), "`METHOD` must be one of rbm, ", "'resnet'"),
    "shown": (("show", "nope"), "`name` must be a folder in results, or one of table1, ", "got 'nope'"),
    "records": (("show", "table1"), "no records in results/table1", "scaleconv reproduce"),
    "output": (
        ("reproduce", "table1", "--results", "/dev/null/x", *TINY),
        "cannot write to /dev/null/x/table1-quick",
        "name a place",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing(run, tmp_path, case):
    arguments, *words = case
    refused(run(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "..", "/tmp/outside", "a\nb", "a/b", ""])
@pytest.mark.parametrize("command", [("reproduce", "table1"), ("train", "convnet"), ("show",)])
def test_a_name_cannot_leave_the_results(run, tmp_path, command, name):
    options = (name,) if command == ("show",) else ("--name", name, *TINY)
    refused(run(*command, *options), "`name` must be a folder's name")
    assert list(tmp_path.iterdir()) == []


def test_records_of_another_item_are_not_shown(table, run):
    refused(run("show", "table1-quick", "--item", "cost"), "`item` must be the one", "convnet-fold0-seed0")
    refused(run("show", "table1-quick", "--item", "fig4a"), "`item` must be the one", "convnet-fold0-seed0")


def test_a_closed_output_is_one_line(tmp_path):
    code = "import sys; sys.stdout = None; from scaleconv import cli; cli.main(['show', 'table1'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "scaleconv: cannot write to standard output: it is closed\n")


def test_a_full_disk_is_one_line_that_names_the_file(run, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    arguments = ("reproduce", "table1", "--models", "convnet", "--folds", "0", *TINY)
    refused(run(*arguments), "cannot write", "convnet-fold0-seed0.safetensors", "No space left", "name a place")


def test_the_paper_preset_without_data_says_where_to_put_it(run, tmp_path):
    refused(
        run("reproduce", "table1", "--preset", "paper", "--data-dir", tmp_path), "train-images-idx3-ubyte", "put the"
    )


def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path):
    code = "from scaleconv import cli; from scaleconv.experiments import run; run.SECONDS_BETWEEN = 0; cli.main()"
    command = ["reproduce", "table1", "--models", "convnet", *TINY[:-1], "2000", "--folds", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background would ignore it
    )
    folder = tmp_path / "results" / "table1-quick" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(folder.glob("*.safetensors")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("scaleconv: interrupted; what was finished is kept")
    assert "Traceback" not in errors
    assert list(folder.glob("*.safetensors"))
    assert not list(folder.glob("*.part"))


def test_what_to_type_next_works_as_it_is_printed(run):
    small = ["--models", "convnet", "--folds", "0", *TINY, "--results", "there"]
    for named in ([], ["--name", "try"]):
        _, output, _ = run("reproduce", "table1", *small, *named)
        line = output.splitlines()[-1].removeprefix("Next: scaleconv ").partition(",")[0]
        assert run(*line.split())[0] == 0, line


def test_what_to_type_next_begins_as_the_command_was_called(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    for called, program in ((".venv/bin/scaleconv", ".venv/bin/scaleconv"), ("pytest", "scaleconv")):
        monkeypatch.setattr("sys.argv", [called])
        say_next("scaleconv show table1, for a table; or scaleconv demo. scaleconv.data is none")
        commands = f"{program} show table1, for a table; or {program} demo"
        assert capsys.readouterr().out == f"Next: {commands}. scaleconv.data is none\n"
