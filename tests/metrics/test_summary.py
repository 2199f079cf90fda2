"""Summaries against numbers worked out by hand and against enumeration."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scaleconv.metrics import relative_reduction, sign_flip_test, summarise


def test_the_deviation_is_that_of_a_sample():
    assert summarise([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).std == pytest.approx((32 / 7) ** 0.5)
    assert summarise([1.0, 3.0]).std == pytest.approx(2**0.5)
    assert summarise([3.0]).std is None


def test_a_reduction_is_relative_to_the_baseline():
    assert relative_reduction(3.13, 3.48) == pytest.approx(10.057, abs=1e-3)
    assert relative_reduction(6, 3) == -100


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([-1.0] * 6, 2 / 64),
        ([1.0, -1.0], 1.0),
        ([3.0, -1.0, 2.0], 0.5),  # |sum| 4; of 8 sign patterns, ±6 and ±4 reach it
        ([0.0, 0.0], 1.0),
    ],
)
def test_p_is_the_part_of_sign_flips_with_as_large_a_sum(differences, p):
    assert sign_flip_test(differences) == p


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_p_is_a_probability_blind_to_sign_and_scale(differences):
    p = sign_flip_test(differences)
    assert 2 / 2 ** len(differences) <= p <= 1
    assert sign_flip_test([-d for d in differences]) == p
    assert sign_flip_test([4 * d for d in differences]) == p


def test_nothing_to_summarise_is_refused():
    with pytest.raises(ValueError, match="`values` must not be empty"):
        summarise([])
    with pytest.raises(ValueError, match="`differences` must number 1 to 16, got 0"):
        sign_flip_test([])
    with pytest.raises(ValueError, match="`baseline` must not be 0"):
        relative_reduction(1.0, 0.0)
