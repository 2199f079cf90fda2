"""Tables say what the records say."""

import csv
import io
import re

import pytest

from scaleconv.experiments import Epoch, Record, load_experiment
from scaleconv.experiments.figures import draw_errors
from scaleconv.experiments.report import terminal_tables, write_report
from scaleconv.experiments.tables import cells, comma_separated, make_rows, summaries

ERRORS = {"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]}


def record(model, fold, error):
    config = {"data": {"train": 60, "dataset": "embedded"}, "network": {"maps": [2, 3]}}
    history = [Epoch(1, 2.3, 2 * error, 1.0), Epoch(2, 1.0, None, 1.0), Epoch(3, 0.5, error, 1.0)]
    return Record("table1", model, fold, 0, error, config, {"device": "a device"}, history, 10, 3.0, 1.0, 4)


@pytest.fixture
def records():
    return [record(model, fold, error) for model, errors in ERRORS.items() for fold, error in enumerate(errors)]


@pytest.fixture
def experiment():
    return load_experiment("table1", "quick")


def test_rows_are_means_and_reductions_worked_out_by_hand(records, experiment):
    rows = {row.model: row for row in make_rows(records, experiment.paper, "convnet")}
    assert list(rows) == ["rbm", "si_rbm", "convnet", "hierarchical", "si_convnet"]
    ours = rows["si_convnet"]
    assert (ours.ours.mean, ours.ours.n) == (4.0, 3)
    assert ours.ours.std == pytest.approx(0.75**0.5)
    assert ours.reduction == pytest.approx(20)
    assert ours.p == 0.25
    assert rows["convnet"].reduction is None
    assert rows["rbm"].ours is None


def test_only_shared_folds_are_compared(records, experiment):
    rows = {row.model: row for row in make_rows(records[1:], experiment.paper, "convnet")}
    assert rows["si_convnet"].reduction == pytest.approx(100 * (1 - 9 / 11))
    assert rows["si_convnet"].ours.n == 3


def test_methods_without_records_show_only_the_papers_number(records, experiment):
    texts = {row.model: cells(row) for row in make_rows(records, experiment.paper, "convnet")}
    assert texts["rbm"] == ("RBM", "6.10", "–", "0", "–", "–", "–")
    assert texts["si_convnet"] == ("SI-ConvNet", "3.13 ± 0.19", "4.00 ± 0.87", "3", "20.0 %", "0.250", "0.25")


def test_csv_holds_the_unrounded_numbers(records, experiment):
    rows = list(csv.DictReader(io.StringIO(comma_separated(make_rows(records, experiment.paper, "convnet")))))
    by_model = {row["model"]: row for row in rows}
    assert float(by_model["si_convnet"]["std"]) == pytest.approx(0.75**0.5, abs=1e-15)
    assert float(by_model["si_convnet"]["reduction_percent"]) == pytest.approx(20)
    assert float(by_model["si_convnet"]["p"]) == 0.25
    assert by_model["rbm"]["mean"] == ""
    assert by_model["convnet"]["paper_std"] == "0.23"


def test_summaries_have_mean_std_and_n(records):
    assert summaries(records)["convnet"] == {"mean": 5.0, "std": 1.0, "n": 3}
    assert summaries(records[:1])["convnet"] == {"mean": 4.0, "std": None, "n": 1}


def test_the_report_is_a_table_twice_and_a_picture_twice(records, experiment, tmp_path):
    paths = write_report(experiment, records, tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "figure.png", "figure.svg"]
    assert "| SI-ConvNet | 3.13 ± 0.19 | 4.00 ± 0.87 | 3 | 20.0 % | 0.250 | 0.25 |" in paths[0].read_text()
    assert "60 embedded digits for 3 epochs, on a device; 2 and 3 feature maps." in paths[0].read_text()
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert "SI-ConvNet: 4.00 % (n = 3)" in paths[3].read_text()
    assert terminal_tables(experiment, records)[0].row_count == 5


def test_a_long_claim_is_folded_into_the_picture_but_no_mean_leaves_its_deviation(records, tmp_path):
    draw_errors(records, "title", "words " * 13 + "of mean 1.00 ± 0.10 and the end", [tmp_path / "error.svg"])
    text = (tmp_path / "error.svg").read_text()
    lines = re.findall(r">((?:words|1\.00.±)[^<]*)<", text)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 91
    assert lines[1] == "1.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.10 and the end"


def test_the_same_records_give_the_same_files(records, experiment, tmp_path):
    first = [path.read_bytes() for path in write_report(experiment, records, tmp_path)]
    assert [path.read_bytes() for path in write_report(experiment, records, tmp_path)] == first


def test_without_matplotlib_the_message_names_the_extra(records, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[figures\]'"):
        draw_errors(records, "title", "claim", [tmp_path / "error.png"])
