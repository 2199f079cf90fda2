"""Modules: parameters and one call into `scaleconv.ops`."""

from .si_conv import SIConv2d

__all__ = ["SIConv2d"]
