"""Curves say what the records say, in tables, JSON and claims; every figure can be drawn."""

import csv
import io
import json
from dataclasses import replace

import pytest

from made_records import record
from scaleconv.experiments import figures, load_item
from scaleconv.experiments.claims import check_claims
from scaleconv.experiments.figures import COLOURS, draw_panels
from scaleconv.experiments.notes import footnotes
from scaleconv.experiments.panel_tables import as_json, comma_separated, header, markdown, rows
from scaleconv.experiments.panels import is_table, make_panels
from scaleconv.experiments.report import print_json, terminal_tables, write_report


def sweep(convnet, si_convnet, xs=(0.25, 1.0), labels=("", "")):
    """For each x the errors of the folds."""
    found = []
    for model, errors in (("convnet", convnet), ("si_convnet", si_convnet)):
        for x, label, folds in zip(xs, labels, errors, strict=True):
            found += [record(model, fold, error, f"x{x:g}", x, label) for fold, error in enumerate(folds)]
    return found


RECORDS = {
    "fig4a": sweep([[8, 10], [4, 6]], [[6, 6], [4, 4]], labels=("9, 16", "36, 64")),
    "fig4b": sweep([[8, 10], [4, 6]], [[6, 6], [4, 4]], (1000, 50_000)),
    "fig5a": [
        record(model, fold, sum(errors) / 3, series={"test_error": ((0.4, 1.0, 1.6), errors)})
        for model, fold, errors in [
            ("convnet", 0, (50, 2, 30)),
            ("convnet", 1, (50, 2, 10)),
            ("si_convnet", 0, (40, 1, 15)),
            ("si_convnet", 1, (40, 1, 5)),
        ]
    ],
    "fig5b": sweep([[2, 2], [8, 8]], [[1, 1], [4, 4]], (0.1, 0.6)),
    "fig3": [
        record(model, fold, series={"trained": ((1, 2, 3), scores), "random": ((1, 2, 3), (5, 5, 5))})
        for model, scores in (("convnet", (10, 20, 30)), ("si_convnet", (15, 25, 35)))
        for fold in (0, 1)
    ],
    "winners": [
        record("si_convnet", fold, series={f"stages.conv{k} {s}": ((0.3, 1), (20, 80)) for k in (1, 2) for s in (1, 2)})
        for fold in (0, 1)
    ],
    "equivariance": [
        record(model, series=dict.fromkeys(("stages.relu1", "classifier.relu3"), ((0.5, 1), (0.4, 0.0))))
        for model in ("convnet", "si_convnet")
    ],
    "cost": [
        record(model, fold, None, layer, series={f"operations {s}": ((1, 2), (1, 8)) for s in ("largest", "count")})
        for model in ("conv2d", "formula", "direct", "si_conv2d")
        for layer in ("layer1", "layer2")
        for fold in (0, 1)
    ],
}


@pytest.mark.parametrize("item", RECORDS)
def test_every_curve_has_a_table_a_file_of_numbers_json_and_two_pictures(item, tmp_path, capsys):
    loaded, records = load_item(item), RECORDS[item]
    assert not is_table(loaded)
    paths = write_report(loaded, records, tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "figure.png", "figure.svg"]
    assert paths[0].read_text().startswith(f"# {loaded.title}\n")
    assert "a device" in paths[0].read_text()
    assert loaded.claim.split(":")[0].split(".")[0] in paths[3].read_text()
    assert all(table.row_count for table in terminal_tables(loaded, records))
    print_json(loaded, records)
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {record.model for record in records}
    for summary in found.values():
        assert {"mean", "std", "n", "points"} == set(summary)
        assert all({"x", "label", "mean", "std", "n"} <= set(point) for point in summary["points"])


def test_the_same_records_give_the_same_files(tmp_path):
    loaded, records = load_item("fig4a"), RECORDS["fig4a"]
    first = [path.read_bytes() for path in write_report(loaded, records, tmp_path)]
    assert [path.read_bytes() for path in write_report(loaded, records, tmp_path)] == first


def test_rows_are_means_deviations_and_reductions_worked_out_by_hand():
    (panel,) = make_panels(load_item("fig4a"), RECORDS["fig4a"])
    assert header(panel) == ["feature maps of the two layers", "ConvNet", "SI-ConvNet", "SI-ConvNet under ConvNet"]
    assert rows(panel) == [
        ["9, 16", "9.00 ± 1.41", "6.00", "33.3 %"],
        ["36, 64", "5.00 ± 1.41", "4.00", "20.0 %"],
        ["mean", "7.00", "5.00", "26.7 %"],
    ]
    assert "| 9, 16 | 9.00 ± 1.41 | 6.00 | 33.3 % |" in markdown([panel])


def test_where_a_point_is_missing_nothing_is_said_of_all():
    some = [r for r in RECORDS["fig4a"] if (r.model, r.x) != ("si_convnet", 1.0)]
    (panel,) = make_panels(load_item("fig4a"), some)
    assert rows(panel)[-1] == ["mean", "7.00", "–", "–"]
    found = claims("fig4a", some)
    assert list(found) == ["SI-ConvNet below ConvNet at every point"]
    assert found["SI-ConvNet below ConvNet at every point"].ours.endswith("; 1 not measured yet")
    assert found["SI-ConvNet below ConvNet at every point"].holds is None
    above = [replace(r, test_error=20.0) if r.model == "si_convnet" else r for r in some]
    assert claims("fig4a", above)["SI-ConvNet below ConvNet at every point"].holds is False
    assert as_json([panel])["si_convnet"]["mean"] is None
    assert as_json([panel])["si_convnet"]["n"] == 0
    ranges = [r for r in RECORDS["fig5b"] if (r.model, r.x) != ("si_convnet", 0.1)]
    assert not any("grows" in paper for paper in claims("fig5b", ranges))


def test_a_fold_that_lacks_a_point_is_left_out_of_the_mean():
    some = [r for r in RECORDS["fig4a"] if (r.model, r.x, r.fold) != ("convnet", 1.0, 1)]
    (panel,) = make_panels(load_item("fig4a"), some)
    assert rows(panel)[-1][1] == "6.00"  # of 8 and 4
    assert as_json([panel])["convnet"]["n"] == 1


def test_without_scores_of_both_networks_nothing_is_said_of_invariance():
    scores = {"convnet": {"trained": ((1, 2), (10, 20))}, "si_convnet": {"random": ((1, 2), (5, 5))}}
    assert claims("fig3", [record(model, series=series) for model, series in scores.items()]) == {}


def test_the_note_names_the_epochs_in_the_order_of_the_digits():
    made = [record("convnet", 0, 5.0, f"p{n}", float(n)) for n in (100, 20, 3)]
    made = [
        replace(
            one, config={**one.config, "data": {"train": int(one.x), "dataset": "embedded"}}, history=one.history * n
        )
        for one, n in zip(made, (1, 2, 3), strict=True)
    ]
    assert any(
        note.startswith("Trained on 3 / 20 / 100 embedded digits for 3 / 2 / 1 epochs")
        for note in footnotes(load_item("fig4b"), made)
    )


@pytest.mark.parametrize(("label", "axis"), [("1", "x"), ("a recipe with a long name", "y")])
def test_labels_too_long_to_stand_under_bars_stand_beside_them(label, axis):
    records = [record("rbm", 0, 5.0, f"p{x}", float(x), label=f"{label} {x}") for x in (1, 2, 3)]
    drawn = figures.make_figure(7, 4).add_subplot()
    figures._bars(drawn, make_panels(load_item("recipes"), records)[0])
    labels = [text.get_text() for text in getattr(drawn, f"get_{axis}ticklabels")()]
    assert labels == [record.label for record in records]
    sizes = [bar.get_width() if axis == "y" else bar.get_height() for bar in drawn.patches]
    assert sizes == [5, 5, 5]


def test_json_has_each_point_and_over_them_a_mean_per_repeat():
    found = as_json(make_panels(load_item("fig4a"), RECORDS["fig4a"]))
    assert found["convnet"]["mean"] == 7
    assert found["convnet"]["std"] == pytest.approx(2**0.5)  # of 6 and 8, the means of the two folds
    assert found["convnet"]["n"] == 2
    assert found["convnet"]["points"][0]["x"] == 0.25
    assert found["convnet"]["points"][0]["mean"] == 9


def test_numbers_are_written_unrounded():
    lines = list(csv.DictReader(io.StringIO(comma_separated(make_panels(load_item("fig4a"), RECORDS["fig4a"])))))
    (line,) = [row for row in lines if row["model"] == "si_convnet" and row["x"] == "0.25"]
    assert float(line["reduction_percent"]) == pytest.approx(100 / 3, abs=1e-12)
    assert [row["reduction_percent"] for row in lines if row["model"] == "convnet"] == ["", ""]


def test_only_repeats_that_both_have_are_compared():
    (panel,) = make_panels(load_item("fig4a"), [r for r in RECORDS["fig4a"] if r.model != "convnet" or r.fold == 0])
    assert panel.reduction(panel.lines[1], 0.25) == pytest.approx(100 * (1 - 6 / 8))
    alone = make_panels(load_item("fig4a"), [r for r in RECORDS["fig4a"] if r.model != "convnet"])[0]
    assert rows(alone)[0] == ["9, 16", "6.00", "–"]


def claims(item, records=None):
    return {claim.paper: claim for claim in check_claims(load_item(item), records or RECORDS[item])}


def test_claims_of_the_paper_are_checked_against_the_records():
    widths = claims("fig4a")
    assert widths["SI-ConvNet below ConvNet at every point"].holds
    assert "below at 2 of 2, at 1 with bars" in widths["SI-ConvNet below ConvNet at every point"].ours
    assert widths["the gap shrinks with the feature maps of the two layers"].ours == "from 3.00 to 1.00 points"
    unfamiliar = claims("fig5a")
    assert unfamiliar["relative error 20 % lower at scale 0.4"].holds
    assert unfamiliar["relative error 47 % lower at scale 1.6"].ours == "50.0 %"
    assert unfamiliar["relative error 25 % lower on average"].ours == "40.0 %"
    assert claims("fig5b")["the error of SI-ConvNet grows more slowly with the range"].holds
    assert claims("fig3")["SI-ConvNet more invariant at every layer"].holds
    assert all(claim.holds for claim in claims("cost").values())
    assert claims("winners") == {}


def test_claims_that_do_not_hold_are_said_not_to():
    swapped = {"convnet": "si_convnet", "si_convnet": "convnet"}
    for item in ("fig3", "fig4a", "fig5a", "fig5b"):
        records = [record(swapped[r.model], r.fold, r.test_error, r.point, r.x) for r in RECORDS[item]]
        series = [{name: (s.x, s.y) for name, s in r.series.items()} for r in RECORDS[item]]
        records = [
            record(r.model, r.fold, r.test_error, r.point, r.x, series=values)
            for r, values in zip(records, series, strict=True)
        ]
        found = [claim for paper, claim in claims(item, records).items() if "shrinks" not in paper]
        assert found
        assert not any(claim.holds for claim in found)


def test_one_layer_below_is_enough_for_no():
    scores = {"convnet": (10, 20, 30), "si_convnet": (15, 19, 35)}
    records = [record(model, series={"trained": ((1, 2, 3), values)}) for model, values in scores.items()]
    (claim,) = claims("fig3", records).values()
    assert not claim.holds
    assert "19.0 against 20.0" in claim.ours


def test_claims_about_table_1_compare_with_the_spread_of_the_paper():
    records = [record(m, f, e) for m, e in (("convnet", 3.6), ("si_convnet", 3.4), ("hierarchical", 9)) for f in (0, 1)]
    found = claims("table1", records)
    assert found["ConvNet: 3.48 ± 0.23 %"].holds
    assert not found["SI-ConvNet: 3.13 ± 0.19 %"].holds
    assert not found["Hierarchical ConvNet: 3.58 ± 0.17 %"].holds
    assert not found["SI-ConvNet 10 % under ConvNet"].holds


def test_a_model_has_one_colour_and_no_two_have_the_same():
    networks = [COLOURS[name] for name in ("convnet", "si_convnet", "hierarchical", "ensemble", "rbm", "si_rbm")]
    assert len(set(networks)) == 6


def test_without_matplotlib_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[figures\]'"):
        draw_panels(make_panels(load_item("fig4a"), RECORDS["fig4a"]), "title", "claim", [tmp_path / "figure.png"])


def test_a_reduction_near_nothing_has_no_sign(tmp_path):
    records = [record(model, 0, error, "a", 1.0) for model, error in (("convnet", 1000.0), ("si_convnet", 1000.4))]
    item = load_item("fig4a")
    draw_panels(make_panels(item, records), item.title, "", [tmp_path / "figure.svg"])
    assert "SI-ConvNet: 0 % on average" in (tmp_path / "figure.svg").read_text()


def test_sets_of_scales_are_bars_with_a_note_of_the_digits_left_to_train_on(tmp_path):
    made = [record("si_convnet", fold, 4 + fold, point="wide", x=3.0, label="0.52 – 2.7 (6)") for fold in range(2)]
    config = {**made[0].config, "data": {**made[0].config["data"], "train": 1000, "held_out": 200}}
    made = [replace(one, config=config) for one in made]
    item = load_item("scales")
    (panel,) = make_panels(item, made)
    assert (panel.kind, panel.label(3.0)) == ("bars", "0.52 – 2.7 (6)")
    assert any(note.startswith("Trained on 800 ") for note in footnotes(item, made))
    assert [path.name for path in write_report(item, made, tmp_path)][-2:] == ["figure.png", "figure.svg"]


def test_what_rbms_learned_is_drawn_beside_a_table_only(tmp_path, monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.report.draw_learned", lambda *_: [tmp_path / "drawn"])
    made = [record("si_convnet", 0, 4.0, x=1.0)]
    beside = {item: write_report(load_item(item), made, tmp_path) for item in ("table1", "recipes")}
    assert {item: tmp_path / "drawn" in paths for item, paths in beside.items()} == {"table1": True, "recipes": False}
