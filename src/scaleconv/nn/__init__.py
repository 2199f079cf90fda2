"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .explain import Explanation, explain
from .layers import SIConv2d

__all__ = ["Explanation", "SIConv2d", "convert", "explain", "revert"]
