"""Modules: parameters and one call into `scaleconv.ops`; networks converted to them, and back."""

from .calibrate import calibrate
from .convert import LATE_SCALES, conversion, convert, revert, skipped
from .keep import load, save
from .layers import SIConv1d, SIConv2d, SIConv3d, TIConv2d
from .scale_invariant import ScaleInvariant

__all__ = [
    "LATE_SCALES",
    "SIConv1d",
    "SIConv2d",
    "SIConv3d",
    "ScaleInvariant",
    "TIConv2d",
    "calibrate",
    "conversion",
    "convert",
    "load",
    "revert",
    "save",
    "skipped",
]
