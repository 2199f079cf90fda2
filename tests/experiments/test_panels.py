"""Curves say what the records say."""

import pytest

from helpers.records import CURVES, record
from scaleconv.experiments import load_item
from scaleconv.experiments.panels import make_panels, signed_percent
from scaleconv.experiments.tables import panel_table


def test_what_is_measured_at_several_points_has_panels_for_each():
    made = [
        record(
            model, 0, error, point, x, label, series={"test_error": ((0.4, 1.6), (error, error))}, kind="test_scales"
        )
        for point, x, label, errors in (("cut", 1.0, "up to 1.43", (8, 4)), ("zeros", 2.0, "zeros", (6, 5)))
        for model, error in zip(("convnet", "si_convnet"), errors, strict=True)
    ]
    item = load_item("unfamiliar")
    panels = make_panels(item, made)
    assert [(panel.title, panel.change(panel.lines[1], 1.6)) for panel in panels] == [
        ("trained on scales up to 1.43", -50),
        ("a level is 0 where it does not reach", pytest.approx(-100 / 6)),
    ]
    assert [panel.label(1.6) for panel in panels] == ["1.6", "1.6"]


def test_only_repeats_that_both_have_are_compared():
    (panel,) = make_panels(load_item("fig4a"), [r for r in CURVES["fig4a"] if r.model != "convnet" or r.fold == 0])
    assert panel.change(panel.lines[1], 0.25) == pytest.approx(100 * (6 / 8 - 1))
    alone = make_panels(load_item("fig4a"), [r for r in CURVES["fig4a"] if r.model != "convnet"])[0]
    assert panel_table(alone).rows[0] == ("9, 16", "6.00", "–")


def test_a_lower_error_is_a_negative_change():
    (panel,) = make_panels(load_item("fig4a"), CURVES["fig4a"])
    assert panel.change(panel.lines[1], 0.25) == pytest.approx(-100 / 3)
    assert panel.mean_change(panel.lines[1]) == pytest.approx(-(100 / 3 + 20) / 2)


@pytest.mark.parametrize(
    ("value", "text"), [(-12.34, "−12.3 %"), (3.14, "+3.1 %"), (0.04, "0.0 %"), (-0.04, "0.0 %"), (None, "–")]
)
def test_a_change_has_a_sign_unless_it_rounds_to_nothing(value, text):
    assert signed_percent(value) == text


def test_a_measure_without_an_arrangement_has_a_panel_per_series(monkeypatch):
    from scaleconv.experiments.config import MEASURES

    monkeypatch.setitem(MEASURES, "luck", lambda *_: {})
    item = load_item("fig3", "paper", {"measure.kind": "luck"})
    made = [
        record(model, series={"stages.a": ((1, 2), (3, 4)), "plain": ((1,), (5,))}, kind="luck")
        for model in ("convnet", "si_convnet")
    ]
    panels = make_panels(item, made)
    assert [panel.title for panel in panels] == ["a", "plain"]
    assert [[line.title for line in panel.lines] for panel in panels] == [["ConvNet", "SI-ConvNet"]] * 2
    assert panels[0].lines[0].at(2).mean == 4
    (alone,) = make_panels(item, [record("convnet", series={"a": ((1,), (2,))}, kind="luck")])
    assert alone.title == ""


def test_winners_have_a_panel_per_layer_and_a_line_per_level():
    panels = make_panels(load_item("winners"), CURVES["winners"])
    assert [(panel.title, [line.title for line in panel.lines]) for panel in panels] == [
        ("conv1", ["×1", "×2"]),
        ("conv2", ["×1", "×2"]),
    ]
