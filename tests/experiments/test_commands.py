"""The commands reproduce, show and train, their progress, and one line for everything that goes wrong."""

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console

from helpers.command import refused, says_next
from helpers.records import record
from scaleconv import cli
from scaleconv.cli.wording import say_next
from scaleconv.experiments import read_records
from scaleconv.experiments import run as run_module
from scaleconv.experiments.display import ProgressDisplay
from scaleconv.experiments.records import write_record
from scaleconv.experiments.trainer import Trainer

SMALL = ("data.train=100", "data.tested=100", "network.maps=[2,3]", "network.scales=[0.8,1,1.25]", "network.hidden=8")
TINY = (*(f"--set={setting}" for setting in (*SMALL, "training.batch=50")), "--epochs", "2")
pytestmark = pytest.mark.usefixtures("digits")


@pytest.fixture(scope="module")
def made(tmp_path_factory, digits):
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


def test_reproduce_prints_the_table_and_writes_it_beside_the_weights(table):
    folder, (code, output, errors) = table
    assert (code, errors) == (0, "")
    assert re.search(r"SI-ConvNet +3.13 ± 0.19 ", output)
    assert re.search(r"\nIt took \d+ s; ", output)
    says_next(output, "scaleconv report --html --preset quick")
    assert {path.name for path in folder.iterdir()} >= {"weights", "figure.png", "figure.svg", "table.csv", "table.md"}
    assert [record.name for record in read_records(folder)] == [
        f"{model}-fold{fold}-seed0" for model in ("convnet", "si_convnet") for fold in (0, 1)
    ]


def test_show_reads_the_records_only(table, run):
    folder, (_, output, _) = table
    shutil.rmtree(folder)
    code, shown, errors = run("show", "table1-quick")
    assert (code, errors, shown.splitlines()[:8]) == (0, "", output.splitlines()[:8])
    summary = json.loads(run("show", "table1-quick", "--json")[1])
    for model in ("convnet", "si_convnet"):
        first, second = (record.error for record in read_records(folder) if record.model == model)
        assert summary[model]["mean"] == pytest.approx((first + second) / 2)
        assert summary[model]["std"] == pytest.approx(abs(first - second) / 2**0.5)
        assert (set(summary[model]), summary[model]["n"]) == ({"mean", "std", "n"}, 2)


def test_show_keeps_the_records_of_presets_apart(table, run):
    records = table[0].with_suffix(".jsonl")
    refused(
        run("show", "table1"), "no records in results/table1: run `scaleconv reproduce table1 --preset paper` first"
    )
    (records.parent / "table1.jsonl").write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    for preset, n in (("paper", {"convnet": 1}), ("quick", {"convnet": 2, "si_convnet": 2})):
        code, output, errors = run("show", "table1", "--preset", preset, "--json")
        assert (code, errors, {model: found["n"] for model, found in json.loads(output).items()}) == (0, "", n)
    assert run("show", "table1", "--json") == run("show", "table1", "--preset", "paper", "--json")


def test_show_reads_the_item_under_the_preset_of_its_records(run, tmp_path):
    """Of its three points the small version of stir has one, whose table needs no title."""
    series = {"test_error": ((1.0, 2.0), (4.0, 6.0))}
    small = record("deep_cnn", 0, 5.0, "33.48", series=series, kind="test_scales")
    for name in ("stir-quick", "mine"):
        write_record(tmp_path / "results" / name, small)
    _, shown, _ = run("show", "stir", "--preset", "quick")
    assert "test error (%)" in shown
    assert "trained on sizes 33 – 48" not in shown
    assert run("show", "stir-quick")[1] == shown
    assert run("show", "mine", "--item", "stir", "--preset", "quick")[1] == shown
    assert "trained on sizes 33 – 48" in run("show", "mine", "--item", "stir")[1]


def test_an_item_not_run_in_full_is_shown_from_its_largest_part(table, run):
    records = table[0].with_suffix(".jsonl")
    lines = records.read_bytes().splitlines(keepends=True)
    (records.parent / "table1-again.jsonl").write_bytes(lines[0])
    (records.parent / "table1-more.jsonl").write_bytes(lines[0] + lines[1])
    code, output, errors = run("show", "table1", "--json")
    assert (code, json.loads(output)["convnet"]["n"]) == (0, 2)
    assert errors == "no records in results/table1; these are those of results/table1-more\n"


def test_damaged_or_foreign_records_are_one_line(table, run):
    refused(run("show", "table1-quick", "--item", "cost"), "`item` must be the one", "convnet-fold0-seed0")
    refused(run("show", "table1-quick", "--item", "fig4a"), "`item` must be the one", "convnet-fold0-seed0")
    records = table[0].with_suffix(".jsonl")
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join([lines[0], lines[1].replace('"fold":1', '"fold":7'), *lines[2:]]))
    for command in (("show", "table1-quick"), ("reproduce", "table1", *TINY)):
        refused(run(*command), "line 2 of results/table1-quick.jsonl is not a valid record", "delete it")


def test_finished_runs_of_a_command_are_not_repeated_and_others_join_them(table, run, monkeypatch):
    folder, _ = table
    before = folder.with_suffix(".jsonl").read_bytes()
    trained, learn = set(), Trainer.learn
    monkeypatch.setattr(Trainer, "learn", lambda self, *rest: (trained.add(self.fold), learn(self, *rest))[1])
    command = ("reproduce", "table1", "--models", "convnet", "--folds")
    assert run(*command, "0", *TINY)[0] == 0
    assert (trained, folder.with_suffix(".jsonl").read_bytes()) == (set(), before)
    code, output, _ = run(*command, "0,2", *TINY)
    assert (code, trained) == (0, {2})
    assert re.search(r"ConvNet .* 3 ", output)  # n, with the folds of before
    refused(run(*command, "3", *TINY, "--set", "training.batch=20"), "training.batch was 50, now 20", "--name")
    assert run(*command, "3", *TINY, "--set", "training.batch=20", "--name", "other")[0] == 0


def test_train_keeps_a_record_and_weights(run, tmp_path):
    code, output, errors = run("train", "convnet", "--fold", "1", *TINY)
    assert (code, errors) == (0, "")
    (record,) = read_records(tmp_path / "results" / "train")
    assert (record.model, record.fold) == ("convnet", 1)
    assert f"test error {record.error:.2f} % after 2 epochs" in output
    weights = Path(output.split("weights: ")[1].splitlines()[0])
    assert weights.is_file()
    says_next(output, f"scaleconv explain IMAGE --checkpoint {weights}")
    point = ("--item", "fig4b", "--point", "train500", "--name", "point", "--set", "data.test=100")
    assert run("train", "convnet", *TINY, *point)[0] == 0
    (record,) = read_records(tmp_path / "results" / "point")
    assert (record.point, record.x) == ("train500", 500)


def test_a_curve_is_run_shown_and_told_in_json_per_point(run, tmp_path):
    points = '--set=points=[{name="a", x=1, label="few"}, {name="b", x=2, label="many"}]'
    options = ("--models", "convnet", "--folds", "0,1", *TINY, "--set", "data.test=100", points)
    code, output, errors = run("reproduce", "fig4a", *options)
    assert (code, errors) == (0, "")
    assert "many" in output
    summary = json.loads(run("show", "fig4a", "--preset", "quick", "--json")[1])["convnet"]
    assert (summary["n"], [point["x"] for point in summary["points"]]) == (2, [1, 2])
    errors = [one.error for one in read_records(tmp_path / "results" / "fig4a-quick") if one.point == "b"]
    assert summary["points"][1]["mean"] == pytest.approx(sum(errors) / 2)
    assert "few" in run("show", "fig4a", "--preset", "quick")[1]


def test_all_runs_every_item_and_goes_on_where_it_was_interrupted(run, tmp_path, monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.ITEMS", ("winners", "equivariance"))
    tiny = ("reproduce", "all", *TINY, "--folds", "0", "--set", "measure.digits=20")
    measured = run_module._measured

    def interrupted(one, *others):
        if one.settings.measure.kind == "equivariance":
            raise KeyboardInterrupt
        return measured(one, *others)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_measured", interrupted)
        code, output, errors = run(*tiny)
    assert (code, errors.startswith("scaleconv: interrupted; what was finished is kept")) == (130, True)
    assert "winners-quick/figure.svg" in output
    before = (tmp_path / "results" / "winners-quick.jsonl").read_bytes()
    assert not (tmp_path / "results" / "equivariance-quick.jsonl").exists()
    code, output, errors = run(*tiny)
    assert (code, errors) == (0, "")
    assert (tmp_path / "results" / "winners-quick.jsonl").read_bytes() == before
    assert len(read_records(tmp_path / "results" / "equivariance-quick")) == 2
    for name in ("winners-quick/table.md", "equivariance-quick/figure.svg", "equivariance-quick/table.csv"):
        assert name in output


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
    "winners": (("reproduce", "winners", "--models", "convnet", *TINY), "`models` must have scale-invariant layers"),
    "item": (("reproduce", "table9"), "`item` must be an item, such as table1", "'table9'"),
    "preset": (("reproduce", "table1", "--preset", "fast"), "`preset` must be one of paper, quick", "'fast'"),
    "setting": (("reproduce", "table1", "--set", "foo"), "`set` must be KEY=VALUE", "'foo'"),
    "folds": (("reproduce", "table1", "--folds", "one"), "`folds` must be whole numbers", "'one'"),
    "device": (("reproduce", "table1", "--device", "abacus"), "`device` must be one this machine has", "'abacus'"),
    "processes": (("reproduce", "table1", "--processes", "-1"), "`processes` must lie between 0 and 256, got -1"),
    "method": (("train", "resnet"), "`METHOD` must be one of rbm, ", "'resnet'"),
    "shown": (("show", "nope"), "`name` must be that of records in results, or an item, such as", "got 'nope'"),
    "listed": (("show", "--json"), "`name` must be given with --json"),
    "listed preset": (("show", "--preset", "quick"), "`name` must be given with --preset"),
    "shown preset": (("show", "table1", "--preset", "fast"), "`preset` must be one of paper, quick", "'fast'"),
    "records": (("show", "table1", "--preset", "quick"), "no records in results/table1-quick", "table1 --preset quick"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing(run, tmp_path, case):
    arguments, *words = case
    refused(run(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "..", "/tmp/outside", "a\nb", "a/b", ""])
@pytest.mark.parametrize(
    "command", [("reproduce", "table1"), ("train", "convnet"), ("show",), ("show", "--item", "table1")]
)
def test_a_name_cannot_leave_the_results(run, tmp_path, command, name):
    options = (name,) if command[0] == "show" else ("--name", name, *TINY)
    refused(run(*command, *options), "`name` must be a folder's name")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_output_is_one_line(tmp_path):
    code = "import sys; sys.stdout = None; from scaleconv import cli; cli.main(['show', 'table1'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "scaleconv: cannot write to standard output: it is closed\n")


def test_what_to_type_next_works_as_it_is_printed(run):
    small = ["--models", "convnet", "--folds", "0", *TINY, "--results", "there"]
    for named in ([], ["--name", "try"]):
        _, output, _ = run("reproduce", "table1", *small, *named)
        line = output.splitlines()[-1].removeprefix("Next: scaleconv ").partition(",")[0]
        assert "--preset quick" in line
        assert run(*line.split())[0] == 0, line


def test_what_to_type_next_begins_as_the_command_was_called(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    for called, program in ((".venv/bin/scaleconv", ".venv/bin/scaleconv"), ("pytest", "scaleconv")):
        monkeypatch.setattr("sys.argv", [called])
        say_next("scaleconv show table1, for a table; or scaleconv demo. scaleconv.data is none")
        commands = f"{program} show table1, for a table; or {program} demo"
        assert capsys.readouterr().out == f"Next: {commands}. scaleconv.data is none\n"


# Progress.


def shown(monkeypatch, terminal=True):
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("scaleconv.experiments.display.time.perf_counter", lambda: now[0])
    with ProgressDisplay(Console(file=stream, force_terminal=terminal, width=140)) as display:
        display.plan("fig4a", 12)
        display.begin("ConvNet, fold 0", 4, 3)
        display.end("ConvNet, fold 0")
        display.end("another, finished before")
        display.begin("SI-ConvNet, fold 1", 4, 1)
        now[0] = 0.5
        display.advance("SI-ConvNet, fold 1", 2, "loss 0.1234  error 5.50 %")
        display.advance("SI-ConvNet, fold 1", 3, "")  # in an epoch there is nothing new to say
        descriptions = [task.description for task in display.progress.tasks]
    return stream.getvalue(), descriptions


def test_a_terminal_sees_how_many_runs_and_of_each_its_epoch_loss_error_and_rate(monkeypatch):
    text, tasks = shown(monkeypatch)
    assert tasks == ["fig4a", "SI-ConvNet, fold 1"]
    for words in ("fig4a", " 2/12", "SI-ConvNet, fold 1", "3/4", "loss 0.1234  error 5.50 %", "4 epochs/s"):
        assert words in text, words


def test_output_that_is_no_terminal_shows_no_progress(monkeypatch):
    assert shown(monkeypatch, terminal=False)[0].strip() == ""


def test_a_log_has_a_line_a_minute(monkeypatch):
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("scaleconv.experiments.display.time.perf_counter", lambda: now[0])
    with ProgressDisplay(Console(file=stream, width=20)) as display:
        display.plan("compare", 6)
        display.end("finished before")
        display.begin("plain, seed 1", 20, 2)
        for second, epoch, figures in [(20, 3, "loss 2.5"), (61, 5.5, ""), (100, 6, "loss 2"), (122, 8, "loss 1")]:
            now[0] = float(second)
            display.advance("plain, seed 1", epoch, figures)
        display.end("plain, seed 1")
    assert stream.getvalue().splitlines() == [
        "compare: 1 of 6 runs; plain, seed 1: 6 of 20 epochs, loss 2.5  0.057 epochs/s, 0:04:13 left for this run",
        "compare: 1 of 6 runs; plain, seed 1: 8 of 20 epochs, loss 1  0.049 epochs/s, 0:04:04 left for this run",
    ]


def test_colours_are_off_where_they_should_be(monkeypatch):
    colour = r"\x1b\[(?:\d+;)*(?:3[0-7]|38;5;\d+)m"
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert re.search(colour, shown(monkeypatch)[0])
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(colour, shown(monkeypatch)[0])
