"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .layers import SIConv2d

__all__ = ["SIConv2d", "convert", "revert"]
