"""Panels and tables say what the records say: means, deviations and changes worked out by hand."""

import csv
import io
from dataclasses import replace as replace_fields

import pytest
from msgspec.structs import replace

from helpers.records import CURVES, record, table_records
from scaleconv.experiments import Epoch, load_experiment, load_item
from scaleconv.experiments.tables import (
    Line,
    Panel,
    cells,
    csv_text,
    make_panels,
    make_rows,
    make_tables,
    panel_table,
    summaries,
)

TABLE1 = load_experiment("table1", "quick")
RECORDS = table_records({"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]})
FIG4A = load_item("fig4a")


def without(model, **at):
    """The records of fig4a without those of a model at these places."""
    places = {"model": model, **at}.items()
    return [one for one in CURVES["fig4a"] if any(getattr(one, key) != value for key, value in places)]


def test_a_row_has_ours_beside_the_papers_and_the_change_against_the_baseline():
    rows = {row.model: row for row in make_rows(RECORDS, TABLE1.paper, "convnet")}
    assert list(rows) == ["convnet", "si_convnet"]  # and no method that was never run
    assert rows["si_convnet"].ours.std == pytest.approx(0.75**0.5)
    assert cells(rows["convnet"]) == ("ConvNet", "3.48 ± 0.23", "5.00 ± 1.00", "3", "–", "–", "1")
    assert cells(rows["si_convnet"]) == ("SI-ConvNet", "3.13 ± 0.19", "4.00 ± 0.87", "3", "−20.0 %", "0.250", "1")


def test_methods_are_compared_on_the_folds_that_both_have_and_networks_with_networks_only():
    rows = {row.model: row for row in make_rows(RECORDS[1:], {}, "convnet")}
    assert rows["si_convnet"].change == pytest.approx(100 * (9 / 11 - 1))
    assert rows["si_convnet"].ours.n == 3
    machines = table_records({"rbm": [8.0], "convnet": [4.0], "own": [3.0]})
    rows = {row.model: row for row in make_rows(machines, {}, "convnet")}
    assert (list(rows), rows["rbm"].change, rows["own"].change) == (["rbm", "convnet", "own"], None, -25)


def test_seconds_are_of_one_run_and_of_too_many_folds_there_is_no_p():
    shared = [replace(one, seconds_per_epoch=6.0, runs_together=3) for one in RECORDS]
    assert [row.seconds for row in make_rows(shared, {}, "convnet")] == [2, 2]
    many = table_records({"convnet": [4.0] * 17, "si_convnet": [3.0] * 17})
    assert [row.p for row in make_rows(many, {}, "convnet")] == [None, None]


def test_csv_and_json_hold_the_unrounded_numbers():
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(csv_text(TABLE1, RECORDS)))}
    assert float(rows["si_convnet"]["std"]) == pytest.approx(0.75**0.5, abs=1e-15)
    assert float(rows["si_convnet"]["error_change_percent"]) == pytest.approx(-20, abs=1e-12)
    assert rows["si_convnet"]["p"] == "0.25"
    assert (rows["convnet"]["paper_mean"], rows["convnet"]["paper_std"]) == ("3.48", "0.23")
    assert summaries(TABLE1, RECORDS)["convnet"] == {"mean": 5.0, "std": 1.0, "n": 3}
    lines = list(csv.DictReader(io.StringIO(csv_text(FIG4A, CURVES["fig4a"]))))
    changes = {(line["model"], line["label"]): line["error_change_percent"] for line in lines}
    assert changes["convnet", "9, 16"] == ""
    assert float(changes["si_convnet", "9, 16"]) == pytest.approx(-100 / 3, abs=1e-12)
    found = summaries(FIG4A, CURVES["fig4a"])["convnet"]
    assert (found["mean"], found["std"], found["n"]) == (7, pytest.approx(2**0.5), 2)  # of 6 and 8, one for each fold
    points = [(point["x"], point["label"], point["mean"]) for point in found["points"]]
    assert points == [(0.25, "9, 16", 9), (1.0, "36, 64", 5)]


def test_a_table_of_a_curve_has_a_row_per_point_and_the_mean_of_all():
    (table,) = make_tables(FIG4A, CURVES["fig4a"])
    assert table.header == ("feature maps of the two layers", "ConvNet", "SI-ConvNet", "SI-ConvNet: error vs ConvNet")
    assert table.rows == [
        ("9, 16", "9.00 ± 1.41", "6.00", "−33.3 %"),
        ("36, 64", "5.00 ± 1.41", "4.00", "−20.0 %"),
        ("mean", "7.00", "5.00", "−28.6 %"),  # of the mean errors, not the mean of the two changes
    ]


def test_of_a_long_curve_some_points_are_shown_unless_they_have_names_and_the_mean_is_over_all():
    ours = Line("si_convnet", "ours", {float(x): {(0, 0): float(x)} for x in range(33)})
    base = Line("convnet", "base", {float(x): {(0, 0): 2.0 * x + 1} for x in range(33)})
    curve = Panel("", "x", "error", [base, ours], baseline="convnet")
    table = panel_table(curve)
    assert table.title == "error, 11 of 33 points"
    assert [row[0] for row in table.rows] == [*(str(x) for x in range(0, 33, 3)), "mean"]
    assert table.rows[-1][1:3] == ("33.00", "16.00")
    named = replace_fields(curve, labels={float(x): f"setting {x}" for x in range(33)})
    assert len(panel_table(named).rows) == 34


def test_a_fold_that_lacks_a_point_is_left_out_of_the_mean():
    (table,) = make_tables(FIG4A, some := without("convnet", x=1.0, fold=1))
    assert table.rows[-1][1] == "6.00"  # of 8 and 4
    assert summaries(FIG4A, some)["convnet"]["n"] == 1
    (table,) = make_tables(FIG4A, none := without("si_convnet", x=1.0))
    assert table.rows[-1] == ("mean", "7.00", "–", "–")
    assert summaries(FIG4A, none)["si_convnet"]["mean"] is None


def test_only_repeats_that_both_have_are_compared_and_a_baseline_of_zero_is_not():
    (panel,) = make_panels(FIG4A, without("convnet", fold=1))
    assert panel.change(panel.lines[1], 0.25) == pytest.approx(100 * (6 / 8 - 1))
    assert panel_table(make_panels(FIG4A, without("convnet"))[0]).rows[0] == ("9, 16", "6.00", "–")
    zero = [Line(model, model, {1.0: {(0, 0): error}}) for model, error in (("convnet", 0.0), ("si_convnet", 1.0))]
    assert Panel("", "", "", zero, baseline="convnet").change(zero[1], 1.0) is None


def test_a_fold_in_which_the_baseline_makes_no_error_counts_in_the_change():
    base, ours = (
        Line(model, model, {1.0: dict(enumerate(errors))}) for model, errors in (("a", (0, 4)), ("b", (2, 4)))
    )
    assert Panel("", "", "", [base, ours], baseline="a").change(ours, 1.0) == pytest.approx(50)


def test_what_is_measured_at_several_points_has_panels_for_each():
    made = [
        record(model, 0, error, point, x, series={"test_error": ((0.4, 1.6), (error, error))}, kind="test_scales")
        for point, x, errors in (("cut", 1.0, (8, 4)), ("zeros", 2.0, (6, 5)))
        for model, error in zip(("convnet", "si_convnet"), errors, strict=True)
    ]
    panels = make_panels(load_item("unfamiliar"), made)
    assert [(panel.title, panel.label(1.6), panel.change(panel.lines[1], 1.6)) for panel in panels] == [
        ("trained on scales up to 1.43", "1.6", -50),
        ("a level is 0 where it does not reach", "1.6", pytest.approx(-100 / 6)),
    ]


def test_measures_have_the_panels_that_show_them():
    (scores,) = make_panels(load_item("fig3"), CURVES["fig3"])
    assert (scores.kind, scores.labels[1.0], scores.compared) == ("bars", "relu1", [])
    assert [(line.title, line.control, line.summaries[2].mean) for line in scores.lines] == [
        *(("ConvNet", False, 20), ("SI-ConvNet", False, 25)),
        *(("ConvNet, random weights", True, 5), ("SI-ConvNet, random weights", True, 5)),
    ]
    assert summaries(load_item("fig3"), CURVES["fig3"])["convnet"]["mean"] == 20  # not of its random weights
    winners = make_panels(load_item("winners"), CURVES["winners"])
    shares = [(panel.title, panel.kind, [line.title for line in panel.lines]) for panel in winners]
    assert shares == [("conv1", "shares", ["×1", "×2"]), ("conv2", "shares", ["×1", "×2"])]
    distances = make_panels(load_item("equivariance"), CURVES["equivariance"])
    means = [(panel.title, panel.baseline, panel.lines[0].summaries[0.5].mean) for panel in distances]
    assert means == [("relu1", "", 0.4), ("relu3", "", 0.4)]


def test_a_table_of_methods_is_drawn_beside_the_paper_and_by_epoch():
    records = table_records({"convnet": [4.0, 5.0], "ensemble": [3.0], "rbm": [6.0], "pixels": [20.0]})
    errors, training = make_panels(load_item("table1"), records)
    assert [errors.label(x) for x in errors.xs] == ["RBM", "ConvNet", "Input-pyramid ensemble"]  # pixels would be large
    values = [list(line.values[x].values()) for x, line in zip(errors.xs, errors.lines, strict=True)]
    assert values == [[6], [4, 5], [3]]
    assert errors.paper == {0.0: (6.1,), 1.0: (3.48, 0.23)}
    means = [(line.model, line.summaries[1].mean, line.summaries[3].mean) for line in training.lines]
    assert means == [("convnet", 9.0, 4.5), ("ensemble", 6.0, 3.0)]
    assert (errors.log_x, errors.log_y, training.log_x, training.log_y) == (False, False, False, True)
    (alone,) = make_panels(load_item("table1"), table_records({"pixels": [20.0, 20.0]}))
    assert alone.lines[0].summaries[0.0].mean == 20


def test_errors_by_epoch_are_those_of_epochs_in_which_all_runs_were_tested():
    def run(fold, tested):
        return record("convnet", fold, history=[Epoch(n, 1.0, error, 1.0) for n, error in enumerate(tested, start=1)])

    _, training = make_panels(load_item("table1"), [run(0, (9.0, 7.0, 5.0)), run(1, (9.0, None, 5.0))])
    assert training.xs == [1, 3]
    assert len(make_panels(load_item("table1"), [run(0, (9.0, None)), run(1, (9.0, 5.0))])) == 1
