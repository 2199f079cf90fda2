"""Charts: marks stand where their values are, and carry their text."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from scaleconv.experiments.svg import Axis, Chart, Curve, Mark, draw_chart, draw_key


def places(text):
    """Where the marks of a chart are, in order, and what they say."""
    tree = ElementTree.fromstring(text)  # well-formed, or an error
    found = []
    for group in tree.iter("g"):
        if group.get("class") == "mark":
            shape = group.find("g")
            x, y = map(float, re.findall(r"[\d.]+", shape.get("transform")))
            found.append((group.find("title").text, x, y))
    return found


def chart(values, **others):
    marks = [Mark(x, y, spread, f"at {x:g}: {y:g}") for x, y, spread in values]
    return Chart("a title", "across", "up", [Curve("a curve", marks, "convnet")], **others)


@pytest.mark.parametrize("log", [False, True])
def test_marks_are_higher_where_values_are_and_further_right(log):
    found = places(draw_chart(chart([(1, 2, 0.5), (2, 8, 0), (4, 4, 1)], log_x=log, log_y=log)))
    texts, xs, ys = zip(*found, strict=True)
    assert texts == ("at 1: 2", "at 2: 8", "at 4: 4")
    assert list(xs) == sorted(xs)
    assert ys[1] < ys[2] < ys[0]
    # On logarithmic axes equal ratios are equal distances.
    halfway = [(xs[1] - xs[0]) / (xs[2] - xs[0]), (ys[0] - ys[2]) / (ys[0] - ys[1])]
    assert halfway == pytest.approx([1 / 2] * 2 if log else [1 / 3] * 2, abs=0.01)


def test_categories_are_listed_downwards_with_their_labels():
    text = draw_chart(chart([(0, 5, 0), (1, 9, 0)], labels={0: "first", 1: "second"}, kind="bars"))
    (_, left, top), (_, right, bottom) = places(text)
    assert left < right
    assert top < bottom
    assert text.index(">first<") < text.index(">second<")


def test_cells_are_darker_where_shares_are_larger():
    text = draw_chart(chart([(0.3, 20, 0), (1, 80, 0)], kind="shares"))
    light, dark = map(float, re.findall(r'fill-opacity="([\d.]+)"', text))
    assert dark == pytest.approx(4 * light, abs=0.01)
    assert ">20<" in text


def test_every_mark_lies_inside_of_the_picture_with_its_deviation():
    for values in ([(1, 5, 0)], [(1, 0, 0), (2, 0, 0)], [(1, 1e-4, 9e-5), (2, 1e4, 9e3)], [(1, -3, 1), (2, -5, 1)]):
        for log in (False, True):
            text = draw_chart(chart(values, log_y=log))
            assert all(0 <= x <= 480 and 0 <= y <= 320 for _, x, y in places(text))
            ends = [float(end) for pair in re.findall(r'whisker" d="M\S+ (\S+)V(\S+)"', text) for end in pair]
            assert all(0 <= end <= 320 for end in ends)


def test_labels_do_not_run_into_one_another():
    text = draw_chart(
        chart([(1000 * k, k, 0) for k in range(1, 40)], labels={1000 * k: f"{1000 * k}" for k in range(1, 40)})
    )
    xs = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="286.0"', text)]
    assert 3 < len(xs) < 20
    assert min(b - a for a, b in pairwise(xs)) > 35


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.7, 3.7), (-70, 20), (0.0001, 0.0009), (0, 123456)])
def test_ticks_are_few_and_round_and_between_the_ends(low, high):
    ticks = Axis(low, high, 0, 100).ticks()
    assert 3 <= len(ticks) <= 8
    assert low <= ticks[0] < ticks[-1] <= high
    assert all(len(f"{tick:g}") <= 7 for tick in ticks)


def test_a_key_has_the_shape_of_the_curve():
    square, circle = (draw_key(Curve("", [], "convnet", marker, hollow=marker == "s")) for marker in "so")
    assert "circle" in circle
    assert "circle" not in square
    assert 'class="curve convnet hollow"' in square
