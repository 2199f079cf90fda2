"""Locally scale-invariant convolution for PyTorch (Kanazawa, Sharma and Jacobs, 2014)."""

from importlib.metadata import PackageNotFoundError, version

from .nn import ScaleInvariant, SIConv2d, convert, revert
from .ops import DEFAULT_SCALES, macs, resize_cache, si_conv2d

try:
    __version__ = version("scaleconv")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "DEFAULT_SCALES",
    "SIConv2d",
    "ScaleInvariant",
    "__version__",
    "convert",
    "macs",
    "resize_cache",
    "revert",
    "si_conv2d",
]
