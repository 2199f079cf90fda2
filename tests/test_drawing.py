"""Pictures share their colours: of winning scales in order, of angles in a circle, dimmed by the response."""

import importlib
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

from helpers.colours import contrast, luminance
from scaleconv.drawing import (
    DARK_INK,
    DARK_PAPER,
    FIXED,
    GRID,
    INK,
    PAPER,
    angle_colours,
    darkened,
    dimming,
    make_figure,
    reach_of,
    save_figure,
    scale_colours,
    style,
    svg_text,
    winner_colours,
    wrap_evenly,
)

ROOT = Path(__file__).parents[1]
LIGHT_PAGES, DARK_PAGES = ("#ffffff",), ("#1e2129", "#0d1117")  # of the site, and of a README


def lightness(colour):
    """CIE L* of (red, green, blue, 1) in sRGB."""
    return 116 * luminance(colour) ** (1 / 3) - 16


def make_example():
    """A figure with a line of a method, hollow marks and letters."""
    with style():
        figure = make_figure(3, 2)
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], "o-", color=FIXED["plain"], markerfacecolor=PAPER)
        axis.text(0.5, 0.5, "on a colour", color="#222222")
        axis.set_xlabel("a label")
    return figure


@pytest.mark.parametrize(
    ("ink", "own", "pages"), [(INK, PAPER, LIGHT_PAGES), (DARK_INK, DARK_PAPER, DARK_PAGES)], ids=["light", "dark"]
)
def test_letters_can_be_read_on_the_background_of_the_figure_and_on_that_of_pages(ink, own, pages):
    assert min(contrast(ink, page) for page in (own, *pages)) >= 4.5
    assert contrast(ink, DARK_PAPER if own == PAPER else PAPER) < 2  # so each mode needs letters of its own


def test_colours_of_methods_stand_out_in_both_modes_and_those_that_differ_still_do_in_the_dark():
    lighter = {name for name in FIXED if name.endswith("-scale")}  # on purpose, beside the others
    assert {name for name, colour in FIXED.items() if contrast(colour, PAPER) < 3} <= lighter
    assert min(contrast(darkened(colour), page) for colour in FIXED.values() for page in DARK_PAGES) >= 3
    assert len({darkened(colour) for colour in FIXED.values()}) == len(set(FIXED.values()))


def test_an_svg_has_a_background_letters_and_colours_for_light_and_dark_and_the_same_bytes_again(tmp_path):
    for name in ("a.svg", "b.svg"):
        save_figure(make_example(), "title", "claim", [tmp_path / name])
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    light, dark = text.partition("</style>")[2], text.partition("@media (prefers-color-scheme: dark)")[2]
    ours = FIXED["plain"]
    assert f"text{{fill:{DARK_INK}}}" in dark
    for part, old, new in (("stroke", INK, DARK_INK), ("fill", PAPER, DARK_PAPER), ("stroke", ours, darkened(ours))):
        assert f"{part}: {old}" in light
        assert f':not(text)[style*="{part}: {old}"]{{{part}:{new}!important}}' in dark
    assert "fill: #222222" in light  # letters on a colour keep theirs
    assert FIXED["converted"] not in text


def test_figures_of_benchmarks_have_the_colours_of_their_methods(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    gains, precision = map(importlib.import_module, ("gains", "precision"))
    monkeypatch.setattr(gains, "FIGURE", tmp_path / "gains.svg")
    gains.draw()
    precision.draw(json.loads(precision.RECORD.read_text())["rows"], tmp_path / "precision.svg")
    for name, methods in (("gains", ("late", "deeper")), ("precision", ("conv2d", "si_conv2d"))):
        drawn = (tmp_path / f"{name}.svg").read_text().partition("</style>")[2]
        colours = set(re.findall(r"(?:fill|stroke): (#\w{6})", drawn)) - {INK, PAPER, GRID}
        assert colours == {FIXED[method] for method in methods}


def test_charts_of_the_documents_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert len(sizes) > 20
    assert max(sizes.values()) <= 150_000


def test_letters_of_an_svg_are_text_of_one_family():
    texts = [line for line in svg_text(make_example()).splitlines() if line.startswith("<text")]
    drawn = [text.get_text() for text in make_example().findobj(Text) if text.get_text()]
    assert len(texts) >= len(drawn) > 1
    assert all("font-family: 'DejaVu Sans', 'Verdana', sans-serif" in line for line in texts)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("training sets, digits tested on", ["training sets,", "digits tested on"]),
        ("it is below SI-ConvNet again", ["it is below", "SI-ConvNet again"]),
        ("short", ["short"]),
        ("", []),
    ],
)
def test_lines_are_about_as_long_and_no_name_is_divided(text, lines):
    assert wrap_evenly(text, 22) == lines


def test_larger_scales_are_lighter_and_none_is_dark():
    found = [lightness(colour) for colour in scale_colours([0.5, 0.63, 0.79, 1, 1.26, 1.59, 2])]
    assert found[0] > 45
    assert min(larger - smaller for smaller, larger in pairwise(found)) > 3


def test_scale_one_has_the_same_colour_whatever_the_other_scales_are():
    assert scale_colours([1, 4])[0] == scale_colours([0.5, 1])[1]
    assert (reach_of([1]), reach_of([1, 4, 0.5]), reach_of([0.125, 1])) == (1, 2, 3)


def test_angles_go_round_in_colours():
    first, near, opposite, last = (torch.tensor(colour) for colour in angle_colours([0, 1, 180, 359]))
    assert (last - near).abs().max() < 0.1 < (opposite - first).abs().max()
    assert angle_colours([360, -90]) == angle_colours([0, 270])


def test_winning_scales_have_the_colours_of_scales_dimmed_by_the_response():
    scale, strength = torch.tensor([[0.5, 1, 2], [1, 1, 1]]), torch.tensor([[4.0, 4, 4], [0, 0, 1]])
    found = winner_colours(scale, strength, 1.0)
    share = dimming(strength).tolist()
    for row, column in ((0, 0), (0, 1), (0, 2), (1, 2)):
        (colour,) = scale_colours([0.5, 1, 2])[[0.5, 1, 2].index(scale[row, column]) :][:1]
        assert found[row, column].tolist() == pytest.approx([share[row][column] * part for part in colour[:3]])
    assert found[1, 0].tolist() == [0, 0, 0]


def test_a_weak_response_is_dimmed_and_a_constant_one_is_not():
    assert dimming(torch.tensor([-1.0, 0.0, 0.0, 4.0, 1.0])).tolist() == [0, 0, 0, 1, 0.5]
    assert dimming(torch.full((3,), 2.0)).tolist() == [1, 1, 1]
