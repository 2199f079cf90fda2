"""Summaries of repeated runs: mean, standard deviation, interval, and tests of paired differences. Numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import atan2, cos, pi, sin, sqrt
from statistics import fmean, stdev

MOST_PAIRS = 16  # that are enumerated
MOST_RUNS = 1000  # that anybody would make

# Student's t that 97.5 % stay below, for 1 … 15 degrees of freedom. More are taken as 15: at most 9 % too wide.
T_95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060),
    *(2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314),
)


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


@dataclass(frozen=True)
class Interval:
    """A mean and the 95 % interval around it."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], *, against: Summary | None = None) -> Interval | None:
    """The mean of the values, which are taken as normal, and its 95 % interval; None of a single value.

    Args:
        values: one for each run.
        against: of other runs; the interval is then that of the difference between the two means, in width, around the
            mean of the values. It has the degrees of freedom of the fewer runs.

    Example:
        >>> found = interval([1.0, 2.0, 3.0])
        >>> round(found.low, 2), found.mean, round(found.high, 2)
        (-0.48, 2.0, 4.48)
    """
    found = summarise(values)
    if found.std is None:
        return None
    variance, runs = found.std**2 / found.n, found.n
    if against is not None and against.std is not None:
        variance, runs = variance + against.std**2 / against.n, min(runs, against.n)
    width = T_95[min(runs - 1, len(T_95)) - 1] * variance**0.5
    return Interval(found.mean, found.mean - width, found.mean + width)


def runs_needed(values: Sequence[float], widest: float) -> int | None:
    """How many runs would give their mean a 95 % interval that leaves out 0 and is at most so wide.

    Mean and deviation are taken as those of the values. None stands for more than `MOST_RUNS`.

    Example:
        >>> runs_needed([1.0, 2.0, 3.0], widest=5.0), runs_needed([-1.0, 1.0], widest=5.0)
        (4, None)
    """
    mean, std = fmean(values), stdev(values)
    for runs in range(2, MOST_RUNS + 1):
        width = T_95[min(runs - 1, len(T_95)) - 1] * std / runs**0.5
        if width < abs(mean) and 2 * width <= widest:
            return runs
    return None


def chance_of_sample(percent: float, size: int) -> float:
    """How far the choice of a sample alone moves a mean of scores from 0 to 100, at most: half of a 95 % interval.

    No scores with this mean vary more than those that are 0 or 100.

    Example:
        >>> round(chance_of_sample(90.0, 100), 2)
        5.88
    """
    return 1.96 * sqrt(percent * (100 - percent) / size)


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


def t_test(differences: Sequence[float]) -> float | None:
    """Two-sided p-value of the mean of paired differences by Student's t; None of a single one.

    It lies below 0.05 where `interval` leaves out 0.

    Example:
        >>> round(t_test([1.0, 2.0, 3.0]), 3)
        0.074
    """
    found = summarise(differences)
    if found.std is None:
        return None
    if found.std == 0:
        return float(found.mean == 0)
    degrees = found.n - 1
    angle = atan2(abs(found.mean) * sqrt(found.n), found.std * sqrt(degrees))
    # The closed form for whole degrees of freedom: a sum of powers of the cosine.
    odd = degrees % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    within = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return max(0.0, 1.0 - within)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected so that the chance of any wrong finding stays below the level.

    Holm's method: the least is multiplied by their number, the next by one less, and none falls below one before it.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = least
    return corrected
