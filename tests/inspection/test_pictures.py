"""Results show themselves in few words, however large the network is, and print all that they have."""

import inspect
from collections import OrderedDict

import pytest
import torch
from torch import nn

import scaleconv.inspection
from scaleconv import check_scale, convert, explain, recommend, scale_usage, summary, winners
from scaleconv.inspection.pictures import LONGEST, Tabled, finish_panel, make_figure
from scaleconv.table import Table

IMAGES = torch.rand(2, 2, 9, 9, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def results():
    """Of a network with 50 layers, of every kind that is public, and what is in them."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(50)))
    model = convert(nn.Sequential(OrderedDict(a_long_name_of_a_part=blocks)), include="*", scales=(0.5, 1, 2))
    view = explain(model, IMAGES[0])
    found = [
        check_scale(nn.Flatten(), IMAGES, scales=[0.1 * step for step in range(5, 70)]),
        recommend(model, IMAGES, repeats=1),
        scale_usage(model, IMAGES),
        summary(model, IMAGES, repeats=0),
        winners(model, IMAGES),
        view,
    ]
    layer = view.layers["a_long_name_of_a_part.7"]
    return found, [found[1].layers["a_long_name_of_a_part.7"], found[3].layers[7], layer, layer.levels[0]]


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_no_result_of_fifty_layers_has_more_than_2000_characters(results, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    found, inner = results
    public = {getattr(scaleconv.inspection, name) for name in scaleconv.inspection.__all__}
    assert {kind for kind in public if inspect.isclass(kind)} == {type(each) for each in found}
    assert max(len(repr(each)) for each in (*found, *inner)) <= 2000
    for each in found:
        assert " more" in repr(each)
        assert " more" not in str(each)


def test_what_is_left_out_is_in_the_middle_and_counted(results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for each in results[0][1:]:
        names = [row[0] for row in each.tables()[0].rows]
        lines = repr(each).splitlines()
        first = next(place for place, line in enumerate(lines) if line.startswith("───")) + 1
        gap = next(place for place, line in enumerate(lines) if line.startswith("… "))
        assert [line.split("  ")[0] for line in lines[first:gap]] == names[: gap - first]
        assert lines[gap + 1].split("  ")[0] == names[-1]
        assert lines[gap] == f"… {len(names) - 1 - (gap - first)} more"
        assert len(repr(each)) + max(map(len, lines)) + 1 > 2000  # for one more row there is no space
        assert all(name in str(each) for name in names)


def test_totals_are_never_left_out(results):
    _, advice, _, overview, *_ = results[0]
    assert repr(advice).splitlines()[-1].startswith("all layers")
    assert repr(overview).splitlines()[-1].startswith("MMACs of convolutions")


def test_one_row_that_is_too_long_is_cut():
    class Long(Tabled):
        def tables(self):
            return [Table("", ("name", "text"), [("a", "x" * 5000)])]

    assert len(repr(Long())) == LONGEST
    assert repr(Long()).startswith("name  text")
    assert repr(Long()).endswith("…")
    assert "x" * 5000 in str(Long())


def test_small_results_show_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    model = convert(nn.Sequential(nn.Conv2d(2, 2, 3)), scales=(1, 2))
    for each in (
        scale_usage(model, IMAGES),
        winners(model, IMAGES),
        check_scale(model, IMAGES),
        explain(model, IMAGES[0]),
    ):
        assert repr(each) == str(each)
    assert str(winners(model, IMAGES)).splitlines()[-1].split() == ["0", "2", "×", "2", "×", "7", "×", "7"]


def test_parts_of_an_explanation_show_sizes_instead_of_numbers(results):
    _, _, layer, level = results[1]
    assert repr(layer) == f"LayerView(output=2 × 9 × 9, channel={layer.channel}, levels=3)"
    assert repr(level) == "LevelView(scale=0.5, image=2 × 4 × 4, response=4 × 4)"


def test_of_a_long_name_the_end_is_shown():
    _, (axis,) = make_figure(1)
    finish_panel(axis, "encoder.blocks.17.attention.projection.conv2")
    assert axis.get_title() == "…17.attention.projection.conv2"
    assert not len(axis.get_xticks()) + len(axis.get_yticks())


@pytest.mark.parametrize(("panels", "rows", "columns"), [(1, 1, 1), (6, 1, 6), (7, 2, 6), (13, 3, 6)])
def test_panels_stand_in_rows_of_six(panels, rows, columns):
    figure, axes = make_figure(panels, width=2, height=3)
    assert len(axes) == panels
    assert tuple(figure.get_size_inches()) == (2 * columns, 3 * rows)
    assert axes[-1].get_subplotspec().get_geometry()[:2] == (rows, columns)
