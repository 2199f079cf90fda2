"""The example of two circles: what its images hold, and that it finds two circles in a map that has both."""

import importlib.util
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[1] / "examples" / "two_circles.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("two_circles", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_of_both_kinds_hold_the_same_shapes(script):
    images, pairs = script.make_images(200, 5.0, 3)
    assert pairs.tolist() == [False, True] * 100
    light = images.sum((1, 2, 3))
    assert light[pairs].mean().item() == pytest.approx(light[~pairs].mean().item(), rel=0.02)
    for edge in (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1]):
        assert edge.max() < 0.5  # shapes lie inside


def test_a_filter_responds_to_its_circle_and_not_to_a_square(script):
    for radius in (script.SMALL, *script.LARGER):
        weight = script.circle_filter(radius)
        shapes = [script.outline(31, circle, 15.0, 15.0, radius)[None, None] for circle in (True, False)]
        circle, square = (script.respond(shape, weight)[0, 0, 15, 15].item() for shape in shapes)
        assert (circle, square) == (pytest.approx(1, abs=1e-5), pytest.approx(0, abs=0.05))


def test_two_places_count_if_they_are_as_far_apart_as_neighbours_in_one_map(script):
    left, right = torch.zeros(2, 1, 1, 9, 20)
    left[0, 0, 4, 3], right[0, 0, 4, 13] = 0.8, 0.6
    assert script.side_by_side(left + right, left + right, 10).item() == pytest.approx(0.6)
    assert script.side_by_side(left + right, left + right, 13).item() == 0
    assert script.both([left, right], 10).item() == pytest.approx(0.6)  # a second layer that sees both maps
    assert max(script.both([each], 10).item() for each in (left, right)) == 0  # and one that sees each alone


@pytest.mark.parametrize("radius", [4.5, 5.0])
def test_one_filter_is_enough_for_the_layer_and_not_for_one_scale_at_a_time(script, radius):
    images, pairs = script.make_images(120, radius, 1)
    errors = {name: script.error(score, pairs) for name, score in script.scores(images, radius).items()}
    for sees_both in ("SIConv2d, one filter", "ConvNet, two filters", "hierarchical, one filter, scales joined"):
        for sees_one in ("ConvNet, one filter", "hierarchical, one filter"):
            assert errors[sees_both] < errors[sees_one] - 10
