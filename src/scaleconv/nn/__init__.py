"""Modules: parameters and one call into `scaleconv.ops`."""

from .convert import convert, revert
from .si_conv import SIConv2d

__all__ = ["SIConv2d", "convert", "revert"]
