"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .layers import SIConv2d
from .scale_invariant import ScaleInvariant

__all__ = ["SIConv2d", "ScaleInvariant", "convert", "revert"]
