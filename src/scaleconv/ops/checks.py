"""Checks of single values; an error names the argument, the rule and the value.

`call` has those of a whole call. Plain numbers and words; no tensors here.
"""

from collections.abc import Sequence
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Any


def as_integer(value: Any, refusal: str) -> int:
    """A plain integer for an integer of any kind, NumPy's too; a bool is none."""
    try:  # not contextlib.suppress, which torch 2.6 cannot compile
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(refusal)
    return number


def as_number(value: Any, refusal: str) -> float:
    """A float for a number of any kind, an infinite one if it is beyond all floats; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(refusal)
    try:
        return float(value)
    except OverflowError:  # of a large integer or fraction
        return -inf if value < 0 else inf


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Return an integer of at least so much, by default a positive one, or say what is wrong with it.

    Example:
        >>> check_count("batch", 0)
        Traceback (most recent call last):
        ValueError: `batch` must be at least 1, got 0
    """
    count = as_integer(value, f"`{name}` must be an integer, got {value!r}")
    if count < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}")
    return count


def check_number(name: str, value: Any, *, least: float = 0.0) -> float:
    """Return a finite number as a float, by default one that is not negative, or say what is wrong with it.

    Example:
        >>> check_number("tolerance", -1)
        Traceback (most recent call last):
        ValueError: `tolerance` must be at least 0, got -1
    """
    number = as_number(value, f"`{name}` must be a number, got {value!r}")
    if least > -inf and not number >= least:  # as NaN is not
        raise ValueError(f"`{name}` must be at least {least:g}, got {value}")
    if not isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {value}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a bool, or say that it is none."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Say so if the value is none of these words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}")
