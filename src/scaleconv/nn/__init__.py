"""Modules: parameters and one call into `scaleconv.ops`; networks converted to them, and back."""

from .calibrate import calibrate
from .convert import convert, revert, skipped
from .layers import SIConv2d

__all__ = ["SIConv2d", "calibrate", "convert", "revert", "skipped"]
