"""Checks of what the RBMs and their classifier are given: sizes and tensors.

An error names the argument, the rule and the value.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..ops.checks import check_count


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
