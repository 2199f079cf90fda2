"""Every figure can be drawn; what is drawn is what the records say."""

import re
import sys

import pytest
import torch

from helpers.records import CURVES, record, table_records
from scaleconv.experiments import figures, load_item
from scaleconv.experiments.figures import COLOURS, draw, draw_errors, draw_filters, draw_panels, tile
from scaleconv.experiments.panels import make_panels

ERRORS = {"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]}


def test_the_figure_of_table_1_has_a_line_per_network_and_one_error_of_what_learns_features(tmp_path):
    records = table_records({**ERRORS, "rbm": [8.0, 6.0], "si_rbm": [6.0, 5.5], "pixels": [20.0, 20.0]})
    draw_errors(records, "title", "", [tmp_path / "errors.svg"])
    text = (tmp_path / "errors.svg").read_text()
    for label in (
        "SI-ConvNet: 4.00 % (n = 3)",
        "RBM: 7.00 % (n = 2)",
        "Scale-invariant RBM: 5.75 % (n = 2)",
        "Softmax on pixels: 20.00 % (n = 2)",
    ):
        assert label in text


@pytest.mark.parametrize("item", ["table1", "fig4a"])
def test_the_same_records_give_the_same_bytes(item, tmp_path):
    records = CURVES.get(item) or table_records(ERRORS)
    first = [path.read_bytes() for path in draw(load_item(item), records, tmp_path, "figure")]
    assert [path.read_bytes() for path in draw(load_item(item), records, tmp_path, "figure")] == first


def test_a_long_claim_is_folded_into_the_picture_but_no_mean_leaves_its_deviation(tmp_path):
    draw_errors(
        table_records(ERRORS), "title", "words " * 13 + "of mean 1.00 ± 0.10 and the end", [tmp_path / "error.svg"]
    )
    text = (tmp_path / "error.svg").read_text()
    lines = re.findall(r">((?:words|1\.00.±)[^<]*)<", text)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 91
    assert lines[1] == "1.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.10 and the end"


@pytest.mark.parametrize(("label", "axis"), [("1", "x"), ("a recipe with a long name", "y")])
def test_labels_too_long_to_stand_under_bars_stand_beside_them(label, axis):
    records = [record("rbm", 0, 5.0, f"p{x}", float(x), label=f"{label} {x}") for x in (1, 2, 3)]
    drawn = figures.make_figure(7, 4).add_subplot()
    figures._bars(drawn, make_panels(load_item("recipes"), records)[0])
    labels = [text.get_text() for text in getattr(drawn, f"get_{axis}ticklabels")()]
    assert labels == [record.label for record in records]
    sizes = [bar.get_width() if axis == "y" else bar.get_height() for bar in drawn.patches]
    assert sizes == [5, 5, 5]


def test_every_method_has_a_colour_and_no_two_that_are_compared_the_same():
    networks = [COLOURS[name] for name in figures.TITLES]
    layers = [COLOURS[name] for name in ("conv2d", "formula", "direct", "si_conv2d")]
    assert (len(set(networks)), len(set(layers))) == (len(figures.TITLES), 4)


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
