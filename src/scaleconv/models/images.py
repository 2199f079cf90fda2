"""Checks of what the RBMs and their classifier are given; an error names the argument, the rule and the value."""

import math
from collections.abc import Sequence
from contextlib import suppress
from numbers import Real
from operator import index
from typing import Any

from torch import Tensor


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """An integer of any kind, NumPy's too, by default a positive one; a bool is none."""
    number = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = index(value)
    if number is None:
        raise TypeError(f"`{name}` must be an integer, got {value!r}")
    if number < least:
        raise ValueError(f"`{name}` must be at least {least}, got {number}")
    return number


def check_number(name: str, value: Any, *, below: float = math.inf) -> float:
    """A number of at least 0, below a bound; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {value!r}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"`{name}` must be at least 0, got {value}")
    if not number < below:
        raise ValueError(f"`{name}` must be {'finite' if below == math.inf else f'below {below:g}'}, got {value}")
    return number


def check_size(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """(height, width), from a pair or from one number for both."""
    pair = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an integer or (height, width), got {value!r}")
    return check_count(name, pair[0]), check_count(name, pair[1])


def check_parameter(name: str, tensor: Any, least: int) -> Tensor:
    """A tensor of finite floats, of at least so many dimensions."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must be of a floating-point type, got {tensor.dtype}")
    if tensor.dim() < least:
        raise ValueError(f"`{name}` must have at least {least} dimensions, got shape {tuple(tensor.shape)}")
    if not tensor.isfinite().all():
        raise ValueError(f"`{name}` must be finite, got NaN or infinity among the values")
    return tensor


def check_images(name: str, images: Any) -> Tensor:
    """Flat images (N, V), or sets of them (R, N, V), at least one, of floats in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(images).__name__}")
    if not images.is_floating_point():
        raise TypeError(f"`{name}` must be of a floating-point type, got {images.dtype}")
    if images.dim() not in (2, 3) or 0 in images.shape:
        raise ValueError(f"`{name}` must be of shape (N, V) or (R, N, V), none of them 0, got {tuple(images.shape)}")
    low, high = (float(end) for end in images.aminmax())  # NaN comes through as NaN
    if not 0 <= low <= high <= 1:
        raise ValueError(f"`{name}` must lie in [0, 1], got values from {low:g} to {high:g}")
    return images
