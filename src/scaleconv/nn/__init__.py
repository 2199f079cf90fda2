"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .explain import Explanation, explain
from .layers import SIConv1d, SIConv2d, SIConv3d, TIConv2d

__all__ = ["Explanation", "SIConv1d", "SIConv2d", "SIConv3d", "TIConv2d", "convert", "explain", "revert"]
