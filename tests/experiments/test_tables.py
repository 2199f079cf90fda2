"""Tables say what the records say, on a terminal of any width, and in Markdown, CSV and JSON."""

import csv
import io
import re
from dataclasses import replace

import pytest

from helpers.records import CURVES, record, table_records
from scaleconv.experiments import load_experiment, load_item
from scaleconv.experiments.panels import Line, Panel, make_panels
from scaleconv.experiments.tables import cells, csv_text, make_rows, make_tables, panel_table, summaries
from scaleconv.table import Table

ERRORS = {"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]}


@pytest.fixture
def records():
    return table_records(ERRORS)


@pytest.fixture
def experiment():
    return load_experiment("table1", "quick")


def test_rows_are_means_and_changes_worked_out_by_hand(records, experiment):
    rows = {row.model: row for row in make_rows(records, experiment.paper, "convnet")}
    assert list(rows) == ["convnet", "si_convnet"]  # and no method that was never run
    ours = rows["si_convnet"]
    assert (ours.ours.mean, ours.ours.n) == (4.0, 3)
    assert ours.ours.std == pytest.approx(0.75**0.5)
    assert ours.change == pytest.approx(-20)
    assert ours.p == 0.25
    assert rows["convnet"].change is None


def test_only_shared_folds_are_compared(records, experiment):
    rows = {row.model: row for row in make_rows(records[1:], experiment.paper, "convnet")}
    assert rows["si_convnet"].change == pytest.approx(100 * (9 / 11 - 1))
    assert rows["si_convnet"].ours.n == 3


def test_a_row_shows_the_papers_number_beside_ours(records, experiment):
    texts = {row.model: cells(row) for row in make_rows(records, experiment.paper, "convnet")}
    assert texts["si_convnet"] == ("SI-ConvNet", "3.13 ± 0.19", "4.00 ± 0.87", "3", "−20.0 %", "0.250", "1")


def test_csv_holds_the_unrounded_numbers(records, experiment):
    rows = list(csv.DictReader(io.StringIO(csv_text(experiment, records))))
    by_model = {row["model"]: row for row in rows}
    assert float(by_model["si_convnet"]["std"]) == pytest.approx(0.75**0.5, abs=1e-15)
    assert float(by_model["si_convnet"]["error_change_percent"]) == pytest.approx(-20)
    assert float(by_model["si_convnet"]["p"]) == 0.25
    assert "rbm" not in by_model
    assert by_model["convnet"]["paper_std"] == "0.23"


def test_summaries_have_mean_std_and_n(records, experiment):
    assert summaries(experiment, records)["convnet"] == {"mean": 5.0, "std": 1.0, "n": 3}
    assert summaries(experiment, records[:1])["convnet"] == {"mean": 4.0, "std": None, "n": 1}


def test_rows_of_a_curve_are_means_deviations_and_changes_worked_out_by_hand():
    (panel,) = make_panels(load_item("fig4a"), CURVES["fig4a"])
    table = panel_table(panel)
    assert table.header == ("feature maps of the two layers", "ConvNet", "SI-ConvNet", "SI-ConvNet: error vs ConvNet")
    assert table.rows == [
        ("9, 16", "9.00 ± 1.41", "6.00", "−33.3 %"),
        ("36, 64", "5.00 ± 1.41", "4.00", "−20.0 %"),
        ("mean", "7.00", "5.00", "−26.7 %"),
    ]
    assert "| 9, 16 | 9.00 ± 1.41 | 6.00 | −33.3 % |" in table.markdown()


def test_a_long_curve_is_shown_at_some_of_its_points_and_its_mean_is_over_all():
    ours = Line("si_convnet", "ours", {float(x): {(0, 0): float(x)} for x in range(33)})
    base = Line("convnet", "base", {float(x): {(0, 0): 2.0 * x + 1} for x in range(33)})
    curve = Panel("", "x", "error", [base, ours], baseline="convnet")
    table = panel_table(curve)
    assert table.title == "error, 11 of 33 points"
    assert [row[0] for row in table.rows] == [*(str(x) for x in range(0, 33, 3)), "mean"]
    assert table.rows[-1][1:3] == ("33.00", "16.00")
    named = replace(curve, labels={float(x): f"setting {x}" for x in range(33)})
    assert len(panel_table(named).rows) == 34


def test_where_a_point_is_missing_there_is_no_mean():
    some = [r for r in CURVES["fig4a"] if (r.model, r.x) != ("si_convnet", 1.0)]
    (table,) = make_tables(load_item("fig4a"), some)
    assert table.rows[-1] == ("mean", "7.00", "–", "–")
    found = summaries(load_item("fig4a"), some)["si_convnet"]
    assert (found["mean"], found["n"]) == (None, 0)


def test_a_fold_that_lacks_a_point_is_left_out_of_the_mean():
    some = [r for r in CURVES["fig4a"] if (r.model, r.x, r.fold) != ("convnet", 1.0, 1)]
    (table,) = make_tables(load_item("fig4a"), some)
    assert table.rows[-1][1] == "6.00"  # of 8 and 4
    assert summaries(load_item("fig4a"), some)["convnet"]["n"] == 1


def test_json_has_each_point_and_over_them_a_mean_per_repeat():
    found = summaries(load_item("fig4a"), CURVES["fig4a"])
    assert found["convnet"]["mean"] == 7
    assert found["convnet"]["std"] == pytest.approx(2**0.5)  # of 6 and 8, the means of the two folds
    assert found["convnet"]["n"] == 2
    assert found["convnet"]["points"][0]["x"] == 0.25
    assert found["convnet"]["points"][0]["mean"] == 9


def test_numbers_of_a_curve_are_written_unrounded():
    lines = list(csv.DictReader(io.StringIO(csv_text(load_item("fig4a"), CURVES["fig4a"]))))
    (line,) = [row for row in lines if row["model"] == "si_convnet" and row["x"] == "0.25"]
    assert float(line["error_change_percent"]) == pytest.approx(-100 / 3, abs=1e-12)
    assert [row["error_change_percent"] for row in lines if row["model"] == "convnet"] == ["", ""]


WIDE = [
    record(m, f, e + f, "p", 1.0)
    for m, e in (("convnet", 10), ("hierarchical", 11), ("si_convnet", 9), ("ensemble", 8))
    for f in (0, 1)
]
TABLES = {
    "table1": table_records(
        {"convnet": [3.48, 3.5], "si_convnet": [3.1, 3.2], "hierarchical": [3.6, 3.7], "rbm": [6, 7]}
    ),
    "fig4b": WIDE,
    **{item: CURVES[item] for item in ("fig3", "winners", "cost")},
}


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("item", TABLES)
def test_no_number_is_cut_and_no_column_lost_whatever_the_width(item, width):
    for table in make_tables(load_item(item), TABLES[item]):
        text = table.text(width)
        assert "…" not in text.replace(table.title, "")
        assert max(map(len, text.splitlines())) <= max(width, 1)
        for row in table.rows:
            for cell in row[1:]:
                assert re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text), cell
        words = text.split()
        assert all(word in words for heading in table.header for word in heading.split())


def test_a_table_that_fits_is_one_block_with_headings_on_one_line():
    table = Table("T", ("method", "error vs ConvNet"), [("ConvNet", "–"), ("SI-ConvNet", "−10.2 %")])
    assert table.text(80).splitlines() == [
        "T",
        "method      error vs ConvNet",
        "────────────────────────────",
        "ConvNet                    –",
        "SI-ConvNet           −10.2 %",
    ]


def test_columns_that_do_not_fit_go_below_with_the_first_column_repeated():
    table = Table("T", ("x", "aaaaaa", "bbbbbb"), [("1", "1.00", "2.00")])
    assert table.text(12).splitlines() == [
        "T",
        "x  aaaaaa",
        "─────────",
        "1    1.00",
        "",
        "x  bbbbbb",
        "─────────",
        "1    2.00",
    ]
