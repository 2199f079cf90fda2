"""How the scales of a set are distributed, and the random numbers behind them.

Digit i draws one number, the i-th of its seed's stream, so its scale depends on the seed, i and the distribution alone:
a shorter set is the beginning of a longer one, whatever the order or the batches it is made in. Paper, section 4:
s ~ U(0.3, 1); for the 40×40 images N(1, 0.24), one fixed scale, or U(a, b).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def raw_stream(count: int, seed: int, *purpose: int) -> NDArray[np.uint64]:
    """The first `count` numbers of a seed: 64 random bits each.

    PCG64's raw output, which numpy promises never to change, unlike what its generators derive from it. Each `purpose`
    has an independent stream.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"`seed` (={seed!r}) must be a whole number, 0 or more")
    return np.random.PCG64([seed, *purpose] if purpose else seed).random_raw(count)


def unit_stream(count: int, seed: int, *purpose: int) -> Floats:
    """Uniform in [0, 1): the upper 53 bits of each number."""
    return (raw_stream(count, seed, *purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _check_scale(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` (={value}) must be a finite scale above 0")


def _check_range(low: float, high: float) -> None:
    _check_scale("low", low)
    _check_scale("high", high)
    if low > high:
        raise ValueError(f"`low` (={low:g}) must not be above `high` (={high:g})")


def _text(kind: str, *values: float) -> str:
    """In full precision, so that `parse_scales` reads back the same distribution."""
    return f"{kind}:" + ",".join(repr(float(value)).removesuffix(".0") for value in values)


@dataclass(frozen=True)
class Uniform:
    """s ~ U(low, high).

    Example:
        >>> Uniform(0.3, 1).draw(3, seed=0).round(4)
        array([0.7459, 0.4889, 0.3287])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def draw(self, count: int, seed: int) -> Floats:
        return self.low + (self.high - self.low) * unit_stream(count, seed)

    def __str__(self) -> str:
        return _text("uniform", self.low, self.high)


@dataclass(frozen=True)
class TruncatedNormal:
    """s ~ N(mean, std) given that low ≤ s ≤ high, by the inverse of the distribution function."""

    mean: float
    std: float
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        _check_scale("std", self.std)
        _check_scale("mean", self.mean)
        reach = max(self.low - self.mean, self.mean - self.high) / self.std
        if reach > 5:
            raise ValueError(f"`mean` (={self.mean:g}) must lie within 5 std of low … high; it is {reach:.1f} outside")

    def draw(self, count: int, seed: int) -> Floats:
        normal = NormalDist(self.mean, self.std)
        below, above = normal.cdf(self.low), normal.cdf(self.high)
        levels = below + (above - below) * unit_stream(count, seed)
        drawn = [normal.inv_cdf(min(max(level, 1e-300), 1 - 2.0**-53)) for level in levels.tolist()]
        # Mathematics libraries may differ in the last bits of erf and log: 12 decimals are the same everywhere.
        return np.array(drawn, np.float64).clip(self.low, self.high).round(12)

    def __str__(self) -> str:
        return _text("normal", self.mean, self.std, self.low, self.high)


@dataclass(frozen=True)
class Fixed:
    """One scale for every digit."""

    scale: float

    def __post_init__(self) -> None:
        _check_scale("scale", self.scale)

    def draw(self, count: int, seed: int) -> Floats:
        return np.full(count, self.scale, np.float64)

    def __str__(self) -> str:
        return _text("fixed", self.scale)


@dataclass(frozen=True)
class Listed:
    """The scales of a list in turn: digit i takes entry i, and the list begins again when it ends."""

    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.scales:
            raise ValueError("`scales` must hold at least one scale")
        for scale in self.scales:
            _check_scale("scales", scale)

    def draw(self, count: int, seed: int) -> Floats:
        return np.resize(np.array(self.scales, np.float64), count)

    def __str__(self) -> str:
        return _text("list", *self.scales)


ScaleDistribution = Uniform | TruncatedNormal | Fixed | Listed

FORMS = "uniform:LOW,HIGH, normal:MEAN,STD,LOW,HIGH, fixed:SCALE or list:SCALE,SCALE,…"


def parse_scales(text: str) -> ScaleDistribution:
    """Read a distribution as `str` writes it.

    Example:
        >>> parse_scales("normal:1,0.24,0.4,1.6")
        TruncatedNormal(mean=1.0, std=0.24, low=0.4, high=1.6)
    """
    kind, _, rest = text.partition(":")
    try:
        values = tuple(float(value) for value in rest.split(","))
    except ValueError:
        raise ValueError(f"`scales` (={text!r}) must be {FORMS}") from None
    try:
        match kind, values:
            case "uniform", (low, high):
                return Uniform(low, high)
            case "normal", (mean, std, low, high):
                return TruncatedNormal(mean, std, low, high)
            case "fixed", (scale,):
                return Fixed(scale)
            case "list", _:
                return Listed(values)
    except ValueError as error:  # which names one of the values
        raise ValueError(f"`scales` (={text!r}): {error}") from None
    raise ValueError(f"`scales` (={text!r}) must be {FORMS}")
