"""Every figure can be drawn; what is drawn is what the records say."""

import re
import sys

import pytest
import torch

from helpers.records import CURVES, record, table_records
from scaleconv.experiments import Epoch, figures, load_item
from scaleconv.experiments.figures import COLOURS, draw, draw_errors, draw_filters, draw_panels, tile
from scaleconv.experiments.panels import make_panels
from scaleconv.models import LATER

ERRORS = {"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]}


def test_the_figure_of_table_1_has_bars_beside_the_papers_and_a_curve_for_each_network(tmp_path):
    records = table_records({**ERRORS, "rbm": [8.0, 6.0], "si_rbm": [6.0, 5.5], "pixels": [20.0, 20.0]})
    draw_errors(records, load_item("table1").paper, "title", "", [tmp_path / "errors.svg"])
    text = (tmp_path / "errors.svg").read_text()
    for label in ("4.00 (n = 3)", "3.13 (paper)", "7.00 (n = 2)", "6.10 (paper)", "5.75 (n = 2)", "5.50 (paper)"):
        assert f"  {label}<" in text
    assert text.count(">SI-ConvNet<") == 2  # beside its bar and in the legend of the curves
    assert text.count(">RBM<") == 1
    assert "Softmax on pixels" not in text


def test_the_control_on_pixels_is_drawn_where_there_is_nothing_else(tmp_path):
    draw_errors(table_records({"pixels": [20.0, 20.0]}), {}, "title", "", [tmp_path / "errors.svg"])
    assert "20.00 (n = 2)" in (tmp_path / "errors.svg").read_text()


def test_without_tests_that_all_runs_share_there_are_no_curves(tmp_path):
    settled = [record("convnet", fold, 5.0, history=[Epoch(n, 1.0, 5.0, 1.0)]) for fold, n in enumerate((90, 95))]
    draw_errors(settled, {}, "title", "", [tmp_path / "errors.svg"])
    text = (tmp_path / "errors.svg").read_text()
    assert "5.00 (n = 2)" in text
    assert ">epoch<" not in text


def test_a_network_that_was_tested_once_has_a_bar_and_no_curve(tmp_path):
    once = [record("convnet", fold, 5.0) for fold in range(2)]
    history = [Epoch(1, 1.0, 4.0, 1.0), Epoch(2, 1.0, 3.0, 1.0)]
    records = [*once, *(record("si_convnet", fold, 3.0, history=history) for fold in range(2))]
    draw_errors(records, {}, "title", "", [tmp_path / "errors.svg"])
    text = (tmp_path / "errors.svg").read_text()
    assert (text.count(">ConvNet<"), text.count(">SI-ConvNet<")) == (1, 2)


def test_bars_are_as_long_as_the_errors_ours_over_the_papers():
    axis = figures.make_figure(7, 4).add_subplot()
    figures._error_bars(axis, {"convnet": [4.0, 5.0], "ensemble": [3.0, 3.0]}, {"convnet": (3.48, 0.23)})
    assert [bar.get_width() for bar in axis.patches] == [4.5, 3.48, 3.0]
    assert axis.patches[0].get_y() < axis.patches[1].get_y()  # the axis is turned round
    assert axis.yaxis_inverted()


@pytest.mark.parametrize("item", ["table1", "fig4a"])
def test_the_same_records_give_the_same_bytes(item, tmp_path):
    records = CURVES.get(item) or table_records(ERRORS)
    first = [path.read_bytes() for path in draw(load_item(item), records, tmp_path, "figure")]
    assert [path.read_bytes() for path in draw(load_item(item), records, tmp_path, "figure")] == first


def test_a_long_claim_is_folded_into_the_picture_but_no_mean_leaves_its_deviation(tmp_path):
    draw_errors(
        table_records(ERRORS), {}, "title", "words " * 22 + "of mean 1.00 ± 0.10 and the end", [tmp_path / "error.svg"]
    )
    text = (tmp_path / "error.svg").read_text()
    lines = re.findall(r">((?:words|1\.00.±)[^<]*)<", text)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 149
    assert lines[1] == "1.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.10 and the end"


@pytest.mark.parametrize(("label", "axis"), [("1", "x"), ("a recipe with a long name", "y")])
def test_labels_too_long_to_stand_under_the_marks_stand_beside_them(label, axis):
    records = [record("rbm", 0, 5.0, f"p{x}", float(x), label=f"{label} {x}") for x in (1, 2, 3)]
    drawn = figures.make_figure(7, 4).add_subplot()
    figures._marks(drawn, make_panels(load_item("recipes"), records)[0], "-")
    labels = [text.get_text() for text in getattr(drawn, f"get_{axis}ticklabels")()]
    assert labels == [record.label for record in records]
    assert sorted(getattr(drawn, f"get_{axis}lim")()) == [-0.5, 2.5]
    marks = drawn.containers[0].lines[0]
    assert list(marks.get_xdata() if axis == "y" else marks.get_ydata()) == [5, 5, 5]


@pytest.mark.parametrize(("errors", "from_zero"), [((4.0, 3.5), False), ((4.0, 1.5), True)])
def test_the_axis_begins_at_0_unless_that_would_hide_the_difference(errors, from_zero):
    records = [
        record(model, 0, error, f"p{x}", float(x))
        for model, error in zip(("convnet", "si_convnet"), errors, strict=True)
        for x in (1, 2)
    ]
    drawn = figures.make_figure(7, 4).add_subplot()
    figures._lines(drawn, make_panels(load_item("fig4a"), records)[0], "-")
    assert bool(drawn.get_ylim()[0] == 0) is from_zero


def test_the_two_layers_share_the_panels_of_the_cost(tmp_path):
    item = load_item("cost")
    panels = make_panels(item, CURVES["cost"])
    assert len(panels) == 4  # of the two sweeps for two layers
    draw_panels(panels, item.title, "", [tmp_path / "cost.svg"])
    text = (tmp_path / "cost.svg").read_text()
    assert text.count(">largest of six scales<") == 1
    assert text.count(">SIConv2d, layer 1<") == text.count(">SIConv2d, layer 2<") == 2


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_axes_are_left_empty(count, monkeypatch):
    figure = []
    monkeypatch.setattr(figures, "save_figure", lambda drawn, *_: figure.append(drawn))
    panel, *_ = make_panels(load_item("equivariance"), CURVES["equivariance"])
    draw_panels([panel] * count, "title", "", [])
    assert [axis.axison for axis in figure[0].axes] == [True] * count + [False] * (count == 5)


def test_the_map_of_winners_has_a_colour_bar(tmp_path):
    item = load_item("winners")
    draw_panels(make_panels(item, CURVES["winners"]), item.title, "", [tmp_path / "winners.svg"])
    assert (tmp_path / "winners.svg").read_text().count(">share of wins (%)<") == 2  # one for each layer


def test_every_method_has_a_colour_and_no_two_that_are_compared_the_same():
    layers = ("conv2d", "formula", "direct", "si_conv2d")
    for compared in (set(figures.TITLES) - set(LATER), LATER, layers):
        assert len({COLOURS[name] for name in compared}) == len(compared)


@pytest.mark.parametrize(
    ("error", "label"), [(1000.4, "SI-ConvNet: 0 % on average"), (880.0, "SI-ConvNet: −12 % on average")]
)
def test_the_change_against_the_baseline_has_a_sign_unless_it_is_nothing(tmp_path, error, label):
    records = [record(model, 0, value, "a", 1.0) for model, value in (("convnet", 1000.0), ("si_convnet", error))]
    item = load_item("fig4a")
    draw_panels(make_panels(item, records), item.title, "", [tmp_path / "figure.svg"])
    text = (tmp_path / "figure.svg").read_text()
    assert label in text
    assert "test error vs ConvNet (%), ± std" in text


@pytest.mark.parametrize("item", ["table1", "fig4a"])
def test_without_matplotlib_the_message_names_the_extra(item, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[experiments\]'"):
        draw(load_item(item), CURVES.get(item) or table_records(ERRORS), tmp_path, "figure")


def test_filters_lie_in_rows_with_lines_between():
    images = torch.arange(1.0, 4).view(3, 1, 1).expand(3, 2, 2)
    expected = torch.tensor([[1, 1, 9, 2, 2], [1, 1, 9, 2, 2], [9] * 5, [3, 3, 9, 9, 9], [3, 3, 9, 9, 9]])
    assert torch.equal(tile(images, 2, 9.0), expected.float())


def test_a_picture_of_filters_is_written(tmp_path):
    path = tmp_path / "filters.png"
    draw_filters(torch.randn(12, 8, 8), torch.rand(5, 8, 8), "RBM", [path])
    from matplotlib.image import imread

    pixels = imread(path)
    assert pixels.shape[0] > 500
    assert pixels[..., :3].std() > 0.1


def test_filters_that_are_zero_are_drawn_too(tmp_path):
    draw_filters(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), "nothing learned", [tmp_path / "zero.png"])
    assert (tmp_path / "zero.png").stat().st_size > 1000


def test_wrong_shapes_of_filters_are_named(tmp_path):
    for filters, samples, name, shape in (
        (torch.zeros(3, 4), torch.zeros(1, 4, 4), "filters", "(3, 4)"),
        (torch.zeros(1, 4, 4), torch.zeros(0, 4, 4), "samples", "(0, 4, 4)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"`{name}` must be of shape (N, height, width)")) as refusal:
            draw_filters(filters, samples, "", [tmp_path / "x.png"])
        assert shape in str(refusal.value)
