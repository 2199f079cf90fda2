"""Modules: parameters and one call into `scaleconv.ops`; networks converted to them, and back."""

from .calibrate import calibrate
from .convert import convert, revert, skipped
from .layers import SIConv1d, SIConv2d, SIConv3d, TIConv2d
from .scale_invariant import ScaleInvariant

__all__ = [
    "SIConv1d",
    "SIConv2d",
    "SIConv3d",
    "ScaleInvariant",
    "TIConv2d",
    "calibrate",
    "convert",
    "revert",
    "skipped",
]
