"""The distributions of scales: reproducible, one number per digit, and distributed as they say."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from scaleconv.data import Fixed, Listed, TruncatedNormal, Uniform, parse_scales

DISTRIBUTIONS = [Uniform(0.3, 1), TruncatedNormal(1, 0.24, 0.4, 1.6), Fixed(0.77), Listed((0.3, 1.0, 1.6))]


def test_the_stream_of_a_seed_is_pinned():
    numpy_draws = np.random.Generator(np.random.PCG64(7)).random(1000)
    assert np.array_equal(Uniform(1, 2).draw(1000, 7), 1 + numpy_draws)
    assert Uniform(0.3, 1).draw(2, 0).tolist() == [0.745873181125018, 0.4888506996347092]
    assert TruncatedNormal(1, 0.24, 0.4, 1.6).draw(2, 0).tolist() == [1.08299661585, 0.854840676947]


@given(st.sampled_from(DISTRIBUTIONS), st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**40))
def test_a_shorter_set_is_the_beginning_of_a_longer_one(distribution, count, more, seed):
    longer = distribution.draw(count + more, seed)
    assert len(longer) == count + more
    assert np.array_equal(distribution.draw(count, seed), longer[:count])


def test_truncated_normal_scales_follow_the_distribution_between_its_ends():
    drawn = TruncatedNormal(1, 0.24, 0.7, 1.6).draw(60_000, 3)
    assert drawn.min() >= 0.7
    assert drawn.max() <= 1.6

    def below(x):
        return 0.5 * (1 + math.erf((x - 1) / (0.24 * math.sqrt(2))))

    for x in (0.75, 0.9, 1.0, 1.2, 1.5):
        expected = (below(x) - below(0.7)) / (below(1.6) - below(0.7))
        assert abs((drawn <= x).mean() - expected) < 4 * 0.5 / math.sqrt(60_000), x


def test_no_scale_lies_beyond_the_ends_by_rounding():
    """Between ends this close the inverse of the distribution function misses the lower one by 1e-12."""
    drawn = TruncatedNormal(1, 0.1, 1.49, 1.49 + 1e-9).draw(20_000, 0)
    assert drawn.min() >= 1.49


def test_a_list_is_taken_in_turn():
    assert Listed((0.3, 1.0, 1.6)).draw(5, 0).tolist() == [0.3, 1.0, 1.6, 0.3, 1.0]
    assert Fixed(0.5).draw(3, 9).tolist() == [0.5, 0.5, 0.5]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5))
def test_text_and_distribution_are_the_same_thing(values):
    low, high = min(values), max(values)
    for distribution in (Uniform(low, high), TruncatedNormal(low, 0.1, low, high), Fixed(low), Listed(tuple(values))):
        assert parse_scales(str(distribution)) == distribution


@pytest.mark.parametrize(
    "text", ["", "uniform", "uniform:1", "uniform:a,b", "normal:1,2,3", "fixed:", "gamma:1,2", "list:"]
)
def test_unreadable_text_is_refused_with_the_forms_there_are(text):
    with pytest.raises(ValueError, match=r"`scales` .*must be uniform:LOW,HIGH"):
        parse_scales(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0, 1), "`low` .=0."),
        (lambda: Uniform(1, 0.3), "`low` .=1. must not be above `high` .=0.3."),
        (lambda: Uniform(0.3, math.inf), "`high` .=inf."),
        (lambda: TruncatedNormal(1, 0, 0.4, 1.6), "`std` .=0."),
        (lambda: TruncatedNormal(5, 0.1, 0.4, 1.6), "`mean` .=5. must lie within 5 std"),
        (lambda: Fixed(-1), "`scale` .=-1."),
        (lambda: Fixed(math.nan), "`scale` .=nan."),
        (lambda: Listed(()), "at least one"),
        (lambda: Listed((1, 0)), "`scales` .=0."),
        (lambda: Uniform(0.3, 1).draw(3, -1), "`seed` .=-1."),
        (lambda: Uniform(0.3, 1).draw(3, 0.5), "`seed` .=0.5."),
    ],
)
def test_arguments_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
