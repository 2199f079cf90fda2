"""Transforms: which way each turns, what they multiply to, and what is refused."""

import math
import re

import pytest
import torch

from helpers.loops import random
from scaleconv import Transform, affine, rotation, scaling, shear
from scaleconv.ops.geometry import Axis, place_levels
from scaleconv.ops.resampling import plane_sampling


def goes_to(transform, y, x):
    (yy, yx), (xy, xx) = transform.matrix
    return yy * y + yx * x, xy * y + xx * x


def test_a_positive_rotation_turns_counter_clockwise_on_the_screen():
    up, right = (-1, 0), (0, 1)
    assert goes_to(rotation(90), *right) == up
    y, x = goes_to(rotation(30), *right)
    assert (y, x) == pytest.approx((-0.5, math.sqrt(3) / 2))


@pytest.mark.parametrize("degrees", [-450, -90, 0, 90, 180, 270, 360, 3690])
def test_quarter_turns_are_exact(degrees):
    (yy, yx), (xy, xx) = rotation(degrees).matrix
    turns = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}
    cosine, sine = turns[degrees % 360]
    assert (yy, yx, xy, xx) == (cosine, -sine, sine, cosine)
    assert rotation(degrees) == rotation(degrees % 360)


def test_a_rotation_beyond_a_quarter_turn_is_the_rest_and_the_quarter_turn():
    assert rotation(90 + 17) == rotation(90) @ rotation(17)


def test_scaling_takes_the_width_first():
    assert goes_to(scaling(3, 2), 1, 0) == (2, 0)
    assert goes_to(scaling(3, 2), 0, 1) == (0, 3)
    assert scaling(2) == scaling(2, 2) == scaling(sx=2, sy=2)


def test_shear_slides_rows_to_the_right_and_columns_downwards():
    assert goes_to(shear(x=0.5), 2, 0) == (2, 1)
    assert goes_to(shear(y=0.5), 0, 2) == (1, 2)


def test_the_right_factor_of_a_product_is_applied_first():
    first_wide = rotation(90) @ scaling(3, 1)
    assert goes_to(first_wide, 0, 1) == (-3, 0)
    assert goes_to(scaling(3, 1) @ rotation(90), 0, 1) == (-1, 0)
    with pytest.raises(TypeError, match="unsupported operand"):
        rotation(90) @ 2


def test_equal_transforms_are_one_key_and_zero_has_no_sign():
    assert len({rotation(180), affine(((-1, -0.0), (0.0, -1))), scaling(1), rotation(0), rotation(-0.0)}) == 2
    assert "-0.0" not in repr(rotation(0)) + repr(rotation(180)) + repr(rotation(-90))


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("size", [(5, 5), (4, 4), (4, 7), (5, 8)])
def test_sampling_under_a_quarter_turn_is_rot90(size, turns):
    image = random(*size)
    axes = [Axis(length, 1, 1, (0, 0), 1) for length in size]
    (level,) = place_levels(*axes, (rotation(0).numbers, rotation(90 * turns).numbers))[1:]
    expected = torch.rot90(image, turns)
    taken = plane_sampling(level).dense() @ image.flatten()
    assert torch.equal(taken.view(expected.shape), expected)


WRONG = {
    TypeError: {
        "`degrees` must be a number, got '90'": lambda: rotation("90"),
        "`degrees` must be a number, got True": lambda: rotation(True),
        "`sy` must be a number, got '2'": lambda: scaling(1, "2"),
        "`matrix` must be two pairs of numbers, got [[1, 0, 0], [0, 1, 0]]": lambda: affine([[1, 0, 0], [0, 1, 0]]),
        "`matrix` must be two pairs of numbers, got [[1, 0]]": lambda: affine([[1, 0]]),
        "`matrix` must be two pairs of numbers, got 1": lambda: affine(1),
        "`matrix[0][1]` must be a number, got '0'": lambda: affine([[1, "0"], [0, 1]]),
    },
    ValueError: {
        "`degrees` must be finite, got inf": lambda: rotation(math.inf),
        "`y` must be finite, got 1000": lambda: shear(0, 10**400),
        "`x` must be finite, got nan": lambda: shear(math.nan),
        "`sx` must be positive and at most 1000, got 0.0": lambda: scaling(0),
        "`sy` must be positive and at most 1000, got -2.0": lambda: scaling(1, -2),
        "`sx` must be positive and at most 1000, got 1001.0": lambda: scaling(1001),
        "`matrix` must be invertible, got ((1.0, 1.0), (1.0, 1.0))": lambda: shear(1, 1),
        "`matrix` must be invertible, got [[1, 2], [2, 4]]": lambda: affine([[1, 2], [2, 4]]),
        "`matrix` must be invertible, got [[0, 0], [0, 0]]": lambda: affine([[0, 0], [0, 0]]),
        "`matrix` must hold numbers of at most 1000": lambda: Transform(((1e9, 0), (0, 1))),
    },
}


@pytest.mark.parametrize(("error", "message"), [(error, message) for error in WRONG for message in WRONG[error]])
def test_wrong_transforms_are_refused_by_name(error, message):
    with pytest.raises(error, match=re.escape(message)):
        WRONG[error][message]()
