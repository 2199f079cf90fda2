"""Summaries against numbers worked out by hand and against enumeration."""

import math
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from scaleconv.metrics import Summary, holm, interval, relative_reduction, sign_flip_test, summarise, t_test
from scaleconv.metrics.summary import T_95


def test_the_deviation_is_that_of_a_sample():
    assert summarise([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).std == pytest.approx((32 / 7) ** 0.5)
    assert summarise([1.0, 3.0]).std == pytest.approx(2**0.5)
    assert summarise([3.0]).std is None


@pytest.mark.parametrize("degrees", range(1, 16))
def test_students_t_leaves_a_fortieth_above(degrees):
    """By Simpson's rule on its density, in the angle a with t = √degrees · tan a, which reaches infinity."""
    edge = math.atan(T_95[degrees - 1] / degrees**0.5)
    steps = 2000
    step = (math.pi / 2 - edge) / steps
    ends = [math.cos(edge + k * step) ** (degrees - 1) for k in range(steps + 1)]
    area = step / 3 * (ends[0] + 4 * sum(ends[1:-1:2]) + 2 * sum(ends[2:-1:2]) + ends[-1])
    norm = math.gamma((degrees + 1) / 2) / (math.sqrt(math.pi) * math.gamma(degrees / 2))
    assert norm * area == pytest.approx(0.025, rel=1e-4)
    assert len(T_95) == 15


@pytest.mark.parametrize("degrees", range(1, 16))
def test_a_mean_at_the_edge_of_its_interval_has_a_p_of_a_twentieth(degrees):
    spread = [(-1.0) ** k for k in range(degrees + 1)]
    found = interval(spread)
    differences = [value - found.low for value in spread]  # the interval begins at 0
    assert t_test(differences) == t_test([-value for value in differences]) == pytest.approx(0.05, rel=1e-3)


def test_p_of_students_t_by_hand():
    """With two degrees of freedom p = 1 − t / √(2 + t²); of 1, 2, 3 t is 2·√3."""
    assert t_test([1.0, 2.0, 3.0]) == pytest.approx(1 - 12**0.5 / 14**0.5)
    assert t_test([-1.0, 1.0]) == 1
    assert (t_test([2.0, 2.0]), t_test([0.0, 0.0]), t_test([2.0])) == (0, 1, None)


def test_p_values_are_corrected_by_holms_method():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_an_interval_by_hand():
    """Four values of deviation 2: 3.1824 standard errors of 1 on either side."""
    found = interval([3.0, 3.0, 3.0, 7.0])
    assert (found.mean, found.low, found.high) == pytest.approx((4, 4 - 3.1824, 4 + 3.1824))
    assert interval([3.0]) is None
    many = interval([0.0, 1.0] * 50)
    assert many.high - many.mean == pytest.approx(2.1314 * (50 * 0.5 / 99) ** 0.5 / 10)


def test_an_interval_against_others_has_the_variance_of_both_and_the_freedom_of_the_fewer():
    values = [3.0, 3.0, 3.0, 7.0]
    wide = interval(values, against=Summary(9.0, 3.0, 3))
    assert wide.high - wide.mean == pytest.approx(4.3027 * (1 + 3) ** 0.5)
    assert wide.mean == 4
    more = interval(values, against=Summary(9.0, 3.0, 9))
    assert more.high - more.mean == pytest.approx(3.1824 * 2**0.5)
    assert interval(values, against=Summary(9.0, None, 1)) == interval(values)


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


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=8))
@example([1, 2, -3, 4])  # 10 of 16: in tenths, as floats, some of the sums that tie with 0.4 are a last bit smaller
def test_p_of_decimals_is_that_of_whole_numbers(tenths):
    """By the number of ways to reach each sum, in whole numbers, which do not round."""
    ways = Counter({0: 1})
    for tenth in tenths:
        ways = Counter({total: ways[total - tenth] + ways[total + tenth] for total in range(-240, 241)})
    as_large = sum(count for total, count in ways.items() if abs(total) >= abs(sum(tenths)))
    assert sign_flip_test([tenth / 10 for tenth in tenths]) == as_large / 2 ** len(tenths)


def test_nothing_to_summarise_is_refused():
    with pytest.raises(ValueError, match="`values` must not be empty"):
        summarise([])
    with pytest.raises(ValueError, match="`differences` must number 1 to 16, got 0"):
        sign_flip_test([])
    with pytest.raises(ValueError, match="`baseline` must not be 0"):
        relative_reduction(1.0, 0.0)
