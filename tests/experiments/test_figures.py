"""What is drawn is what the panels say; figures are files, or elements of a page that may be light or dark."""

import re
import sys
from dataclasses import replace as replace_fields
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.image import imread
from matplotlib.text import Text

from helpers.colours import contrast
from helpers.records import CURVES, record, table_records
from scaleconv.drawing import (
    COLOURS,
    DARK_PAPER,
    FIXED,
    FONT,
    INK,
    PALETTE,
    PAPER,
    SITE_WIDTH,
    Colours,
    make_figure,
)
from scaleconv.experiments import figures, load_item
from scaleconv.experiments.figures import (
    draw,
    draw_filters,
    draw_panels,
    draw_svg,
    make_parts,
    tile,
)
from scaleconv.experiments.items import ITEMS
from scaleconv.experiments.methods import OWN
from scaleconv.experiments.tables import Line, Panel, make_panels

RECORDS = {"table1": table_records({"convnet": [4.0, 5.0], "ensemble": [3.0, 3.0], "rbm": [8.0, 6.0]}), **CURVES}


def drawn(panels):
    """An axis for each part of the figure of some panels."""
    axes = []
    for _, part in make_parts(panels):
        axes.append(make_figure(7, 4).add_subplot())
        part(axes[-1])
    return axes


def of_item(item):
    return make_panels(load_item(item), RECORDS[item])


def marks(axis):
    """(x, y, whether hollow) of the mark of each errorbar, from above."""
    lines = [bars.lines[0] for bars in axis.containers]
    return [(*line.get_xdata(), *line.get_ydata(), line.get_markerfacecolor() == PAPER) for line in lines]


def test_a_method_is_a_mark_over_the_hollow_one_of_the_paper():
    rows, training = drawn(of_item("table1"))
    assert marks(rows) == [
        *((7.0, 0.0, False), (6.1, 0.3, True), (4.5, 1.0, False), (3.48, 1.3, True), (3.0, 2.0, False)),
    ]
    assert [text.get_text() for text in rows.texts] == [
        *("7.00 (n = 2), paper 6.10", "4.50 (n = 2), paper 3.48", "3.00 (n = 2)"),
    ]
    assert rows.yaxis_inverted()
    legend = [text.get_text() for text in training.get_legend().get_texts()]
    assert legend == ["ConvNet (n = 2)", "Input-pyramid ensemble (n = 2)"]
    assert list(training.containers[0].lines[0].get_ydata()) == [9.0, 4.5]  # of epochs 1 and 3


def test_at_a_single_x_every_repeat_is_drawn_and_the_published_number_is_hollow():
    values = {1.0: {(fold, 0): 4.0 + fold for fold in range(3)}}
    lines = [Line("cnn", "CNN", values), Line("si_cnn", "SI-CNN", values)]
    (axis,) = drawn([Panel("", "images", "error", lines, {1.0: "28"}, "bars", paper={1.0: (3.5,)})])
    assert [list(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) > 1] == 2 * [[4, 5, 6]]
    published = axis.lines[-1]
    assert (list(published.get_xdata()), published.get_markerfacecolor()) == ([3.5], PAPER)
    assert [text.get_text() for text in axis.get_yticklabels()] == ["CNN\n(n = 3)", "SI-CNN\n(n = 3)", "published"]


def test_what_was_published_of_a_method_is_a_hollow_mark_of_its_colour_beside_its_own():
    values = {x: {(0, 0): x} for x in (2.0, 4.0, 8.0)}
    lines = [Line("cnn", "CNN", values, paper={4.0: (3.5,)}), Line("si_cnn", "SI-CNN", values)]
    (axis,) = drawn([Panel("", "x", "y", lines, kind="bars")])
    (mark,) = (line for line in axis.lines if list(line.get_ydata()) == [3.5])
    ours = axis.containers[0].lines[0].get_xdata()
    assert (mark.get_markerfacecolor(), mark.get_markeredgecolor()) == (PAPER, COLOURS["cnn"])
    assert ours[1] < mark.get_xdata()[0] < axis.containers[1].lines[0].get_xdata()[1]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "CNN (n = 1), hollow: published",
        "SI-CNN (n = 1)",
    ]


def test_changes_that_the_paper_states_are_hollow_marks():
    _, changes = drawn(of_item("fig5a"))
    (mark,) = (line for line in changes.lines if line.get_label() == "published")
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([0.4, 1.6], [-20, -47])
    assert mark.get_markerfacecolor() == PAPER


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_published_numbers_are_hollow_marks_at_their_x(kind):
    lines = [Line("cnn", "CNN", {x: {(0, 0): x} for x in (2.0, 4.0, 8.0)})]
    (axis,) = drawn([Panel("", "x", "y", lines, kind=kind, paper={4.0: (3.5,)})])
    (mark,) = (line for line in axis.lines if line.get_label() == "published")
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([4.0 if kind == "lines" else 1], [3.5])
    assert mark.get_markerfacecolor() == PAPER


def test_a_panel_has_the_published_numbers_of_its_labels_in_the_first_panel_alone():
    runs = [record("cnn", 0, 5.0, "28", 1.0, label="28"), record("cnn", 0, 5.0, "28+", 2.0, label="28+")]
    (panel,) = make_panels(load_item("lead"), runs)
    assert panel.paper == {1.0: (1.70,), 2.0: (1.76,)}


LOGARITHMIC = [
    ([0.5, 2**-0.5, 1, 2**0.5, 2], ["0.5", "1", "2"]),
    ([2**-0.5, 1, 2**0.5], ["0.71", "1", "1.4"]),
    ([1000 * x for x in (1, 2, 3, 5, 7, 10, 20, 50)], ["1,000", "2,000", "5,000", "10,000", "20,000", "50,000"]),
]


@pytest.mark.parametrize(("xs", "shown"), LOGARITHMIC)
def test_a_logarithmic_axis_has_plain_ticks(xs, shown):
    values = {x: {(0, 0): 1.0} for x in xs}
    (axis,) = drawn([Panel("", "x", "y", [Line("cnn", "CNN", values)], log_x=True)])
    axis.figure.canvas.draw()
    assert [text.get_text() for text in axis.get_xticklabels()] == shown
    assert [text.get_text() for text in axis.get_xticklabels(minor=True) if text.get_text()] == []
    assert len(axis.xaxis.get_ticklocs(minor=True)) == len(xs) - len(shown)


@pytest.mark.parametrize("count", [3, 4])
def test_a_legend_that_all_panels_have_is_written_once_and_all_letters_have_one_size(count, monkeypatch):
    made = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, *_: made.append(figure))
    draw_panels([of_item("equivariance")[0]] * count, "title", "", [])
    (figure,) = made
    legends = [*figure.legends, *(legend for axis in figure.axes if (legend := axis.get_legend()))]
    assert [text.get_text() for each in legends for text in each.get_texts()] == [
        "ConvNet (n = 1)",
        "SI-ConvNet (n = 1)",
    ]
    assert bool(figure.axes[-1].get_legend()) is (count == 3)  # which leaves a place empty
    assert {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()} == {FONT}
    assert figure.get_figwidth() == SITE_WIDTH


def test_lines_are_means_with_deviations_beside_their_changes_against_the_baseline():
    errors, changes = drawn(of_item("fig4a"))
    base, ours = errors.containers
    assert list(base.lines[0].get_xdata()) == [0.25, 1.0]
    assert list(base.lines[0].get_ydata()) == [9, 5]
    (bar,) = base.lines[2]
    assert bar.get_segments()[0][:, 1] == pytest.approx([9 - 2**0.5, 9 + 2**0.5])
    assert list(changes.containers[0].lines[0].get_ydata()) == pytest.approx([-100 / 3, -20])
    # Folds of 8 and 10 against 6 and 6 change by −25 and −40 %, so their deviation is 15 / √2.
    (bar,) = changes.containers[0].lines[2]
    assert bar.get_segments()[0][:, 1] == pytest.approx([-100 / 3 - 15 / 2**0.5, -100 / 3 + 15 / 2**0.5])
    assert changes.get_legend().get_texts()[0].get_text() == "SI-ConvNet: mean error −29 %"
    assert ours.lines[0].get_color() == COLOURS["si_convnet"]


def test_many_values_have_a_band_in_place_of_marks_and_bars():
    values = {float(x): {(0, 0): x + 1.0, (1, 0): x + 3.0} for x in range(21)}
    (axis,) = drawn([Panel("", "x", "y", [Line("convnet", "a", values)])])
    assert list(axis.lines[0].get_ydata()[:2]) == [2, 3]
    heights = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((2 - 2**0.5, 22 + 2**0.5))
    (few,) = drawn([Panel("", "x", "y", [Line("convnet", "a", {x: values[x] for x in values if x < 20})])])
    assert len(few.containers) == 1


@pytest.mark.parametrize(("label", "axis"), [("1", "x"), ("a recipe with a long name", "y")])
def test_labels_too_long_to_stand_under_the_marks_stand_beside_them(label, axis):
    records = [record("rbm", 0, 5.0, f"p{x}", float(x), label=f"{label} {x}") for x in (1, 2, 3)]
    (marks,) = drawn(make_panels(load_item("recipes"), records))
    assert [text.get_text() for text in getattr(marks, f"get_{axis}ticklabels")()] == [one.label for one in records]
    assert sorted(getattr(marks, f"get_{axis}lim")()) == [-0.5, 2.5]
    line = marks.containers[0].lines[0]
    assert list(line.get_xdata() if axis == "y" else line.get_ydata()) == [5, 5, 5]


def test_at_two_places_every_repeat_is_drawn_beside_the_place_and_published_numbers_come_last_there():
    at = {1.0: {(0, 0): 4.0, (1, 0): 5.0}, 2.0: {(0, 0): 2.0, (1, 0): 3.0}}
    lines = [Line("cnn", "CNN", at), Line("si_cnn", "SI-CNN", {2.0: at[2.0]})]
    panel = Panel("", "images", "error", lines, {1.0: "28", 2.0: "28+"}, "bars", paper={1.0: (3.5,)})
    (axis,) = drawn([panel])
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == ["28: CNN\n(n = 2)", "28: published", "28+: CNN\n(n = 2)", "28+: SI-CNN\n(n = 2)"]
    assert [text.get_text() for text in axis.texts] == ["4.50", "3.50", "2.50", "2.50"]


def test_controls_are_hollow():
    (marks,) = drawn(of_item("fig3"))
    filled = [COLOURS["convnet"], COLOURS["si_convnet"]]
    assert [bars.lines[0].get_markerfacecolor() for bars in marks.containers] == [*filled, PAPER, PAPER]


@pytest.mark.parametrize(("errors", "from_zero"), [((4.0, 3.5), False), ((4.0, 1.5), True)])
def test_the_axis_begins_at_0_unless_that_would_hide_the_difference(errors, from_zero):
    values = [{x: {(0, 0): error} for x in (1.0, 2.0)} for error in errors]
    (axis,) = drawn([Panel("", "x", "y", [Line("convnet", "", values[0]), Line("si_convnet", "", values[1])])])
    assert bool(axis.get_ylim()[0] == 0) is from_zero


def test_panels_of_a_group_share_an_axis_with_line_styles_of_their_own():
    panels = of_item("cost")
    assert len(panels) == 4  # of two sweeps for two layers
    first, second = drawn(panels)
    names = [text.get_text() for text in first.get_legend().get_texts()]
    assert names[3::4] == ["SIConv2d, layer 1", "SIConv2d, layer 2"]
    assert [bars.lines[0].get_linestyle() for bars in first.containers[::4]] == ["-", "--"]
    assert second.get_xlabel() == "number of scales from 1 to 2"


def test_shares_are_a_map_with_a_colour_bar():
    axis, _ = drawn(of_item("winners"))
    assert axis.collections[0].get_array().tolist() == [[20, 80], [20, 80]]
    assert [text.get_text() for text in axis.texts] == ["20", "80", "20", "80"]
    assert axis.figure.axes[1].get_ylabel() == "share of wins (%)"


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_no_axes_are_left_empty(count, monkeypatch):
    made = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, *_: made.append(figure))
    draw_panels([of_item("equivariance")[0]] * count, "title", "", [])
    assert [axis.axison for axis in made[0].axes] == [True] * count + [False] * (count % 2)


@pytest.mark.parametrize("item", ["table1", "cost"])
def test_a_figure_is_two_files_that_are_the_same_for_the_same_records(item, tmp_path):
    loaded = load_item(item)
    for folder in (tmp_path / "a", tmp_path / "b"):
        paths = draw(loaded, RECORDS[item], folder, "figure")
    assert [path.name for path in paths] == ["figure.png", "figure.svg"]
    assert all((tmp_path / "a" / path.name).read_bytes() == path.read_bytes() for path in paths)
    text = paths[1].read_text()
    assert all(said.partition(":")[0].partition(".")[0] in text for said in (loaded.title, loaded.claim))


@pytest.mark.parametrize("item", RECORDS)
def test_the_svg_of_a_page_is_that_of_the_file_and_has_no_metadata(item, tmp_path):
    (path,) = draw(load_item(item), RECORDS[item], tmp_path, "figure", ["svg"])
    text = draw_svg(load_item(item), RECORDS[item])
    assert text == path.read_text()
    assert not re.search("metadata|Date|atplotlib", text)
    assert len(text) < 150_000
    tree = ElementTree.fromstring(text)  # well-formed, or an error
    used = {each.get("{http://www.w3.org/1999/xlink}href") or each.get("clip-path", "")[4:-1] for each in tree.iter()}
    assert {link for link in used if link.startswith("#")} <= {f"#{each.get('id')}" for each in tree.iter()}


def test_a_name_that_is_drawn_is_text_and_not_markup(tmp_path):
    panel = replace_fields(of_item("fig4a")[0], title='<b>"&', labels={0.25: "<script>", 1.0: ""})
    draw_panels([panel], "title", "", [tmp_path / "figure.svg"])
    written = [each.text for each in ElementTree.parse(tmp_path / "figure.svg").iter() if each.tag.endswith("}text")]
    assert {'<b>"&', "<script>"} <= set(written)


@pytest.mark.parametrize("item", [name for name in RECORDS if name != "winners"])  # a map, whose colours stay
def test_lines_and_marks_have_colours_for_dark_mode_that_stand_out_from_its_background(item):
    text = draw_svg(load_item(item), RECORDS[item])
    rules = {(part, old): new for part, old, new in re.findall(r'"(\w+): (#\w+)"]\{\w+:(#\w+)!important\}', text)}
    assert rules["fill", PAPER] == DARK_PAPER
    drawn = {each for each in re.findall(r"(fill|stroke): (#\w{6})", text.partition("</style>")[2]) if each[1] != PAPER}
    assert ("stroke", INK) in drawn
    assert drawn <= rules.keys()
    assert {each for each in drawn if contrast(rules[each], DARK_PAPER) < 3} == set()


def test_a_method_has_the_same_colour_in_every_figure():
    found = {}
    for axis in (axis for item in RECORDS for axis in drawn(of_item(item))):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(re.split(r",|:| \(n", label)[0], []).append(
                getattr(handle, "lines", [handle])[0].get_color()
            )
    assert len(found["SI-ConvNet"]) > 5
    assert {"ConvNet", "Conv2d", "SIConv2d"} <= set(found)
    assert [title for title, drawn in found.items() if len(set(drawn)) > 1] == []


def test_every_method_has_a_colour_and_no_two_that_are_compared_the_same():
    layers = ("conv2d", "formula", "direct", "si_conv2d")
    for compared in (*(load_item(item).models for item in ITEMS if item != "cost"), OWN, layers):
        assert len({COLOURS[name] for name in compared}) == len(compared)


def test_without_matplotlib_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[experiments\]'"):
        draw(load_item("fig4a"), CURVES["fig4a"], tmp_path, "figure")


def test_filters_lie_in_rows_with_lines_between():
    images = torch.arange(1.0, 4).view(3, 1, 1).expand(3, 2, 2)
    expected = torch.tensor([[1, 1, 9, 2, 2], [1, 1, 9, 2, 2], [9] * 5, [3, 3, 9, 9, 9], [3, 3, 9, 9, 9]])
    assert torch.equal(tile(images, 2, 9.0), expected.float())


def test_weak_filters_are_seen_as_strong_ones_and_those_that_are_zero_are_drawn_too(tmp_path):
    strong = torch.randn(12, 8, 8, generator=torch.Generator().manual_seed(0))
    samples = torch.rand(5, 8, 8, generator=torch.Generator().manual_seed(1))
    for name, filters in (("strong", strong), ("weak", strong / 1000), ("zero", 0 * strong)):
        draw_filters(filters, samples, "RBM", tmp_path / f"{name}.png")
    strong, weak, zero = (imread(tmp_path / f"{name}.png")[..., :3] for name in ("strong", "weak", "zero"))
    assert abs(strong - weak).max() < 0.02
    assert abs(strong - zero).max() > 0.5


def test_methods_of_a_plan_have_colours_of_their_own():
    colours = Colours(FIXED)
    found = [colours[name] for name in ("slim", "broad", "slim", "plain")]
    assert found == [PALETTE[0], PALETTE[1], PALETTE[0], FIXED["plain"]]
    assert FIXED["plain"] not in PALETTE
