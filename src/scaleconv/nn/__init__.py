"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .layers import SIConv1d, SIConv2d, SIConv3d, TIConv2d

__all__ = ["SIConv1d", "SIConv2d", "SIConv3d", "TIConv2d", "convert", "revert"]
