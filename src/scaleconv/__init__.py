"""Locally scale-invariant convolution for PyTorch (Kanazawa, Sharma and Jacobs, 2014)."""

from importlib.metadata import PackageNotFoundError, version

from .inspection import check_scale, recommend, scale_usage, summary, winners
from .nn import SIConv2d, calibrate, convert, revert, skipped
from .ops import DEFAULT_SCALES, macs, resize_cache, si_conv2d

try:
    __version__ = version("scaleconv")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "DEFAULT_SCALES",
    "SIConv2d",
    "__version__",
    "calibrate",
    "check_scale",
    "convert",
    "macs",
    "recommend",
    "resize_cache",
    "revert",
    "scale_usage",
    "si_conv2d",
    "skipped",
    "summary",
    "winners",
]
