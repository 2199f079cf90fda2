"""Summaries of repeated runs: mean, standard deviation, and a test of paired differences. Plain numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

MOST_PAIRS = 16  # that are enumerated


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of n values; the deviation of a single value is None."""

    mean: float
    std: float | None
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean, sample standard deviation (n − 1) and number of the values.

    Example:
        >>> summarise([1.0, 2.0, 3.0])
        Summary(mean=2.0, std=1.0, n=3)
    """
    if not values:
        raise ValueError("`values` must not be empty")
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def relative_reduction(value: float, baseline: float) -> float:
    """By how many percent a value lies under the baseline."""
    if baseline == 0:
        raise ValueError(f"`baseline` must not be 0, got {baseline}")
    return 100 * (1 - value / baseline)


def sign_flip_test(differences: Sequence[float]) -> float:
    """Two-sided p-value of paired differences, exact: of all 2ⁿ ways to flip their signs, the part with as large a sum.

    Assumes nothing but that, without an effect, each pair could as well have come the other way round. The least value
    n pairs can give is 2 / 2ⁿ: 0.03 for six, 0.25 for three.

    Example:
        >>> sign_flip_test([1.0, 2.0, 3.0])
        0.25
    """
    if not 1 <= len(differences) <= MOST_PAIRS:
        raise ValueError(f"`differences` must number 1 to {MOST_PAIRS}, got {len(differences)}")
    observed = abs(sum(differences))
    slack = 1e-12 * sum(abs(difference) for difference in differences)
    flips = product((1, -1), repeat=len(differences))
    sums = (abs(sum(sign * d for sign, d in zip(signs, differences, strict=True))) for signs in flips)
    as_large: int = sum(total >= observed - slack for total in sums)
    return as_large / float(2 ** len(differences))
