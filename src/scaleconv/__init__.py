"""Locally scale-invariant convolution for PyTorch (Kanazawa, Sharma and Jacobs, 2014)."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from . import _start  # first, for Ctrl-C while torch is imported

# At once, so that PyTorch knows the operators of a network that is loaded next. The command loads what it needs when it
# needs it: torch takes a second, and its help takes none of it.
if TYPE_CHECKING or not _start.is_command():
    from .nn import (
        LATE_SCALES,
        ScaleInvariant,
        SIConv1d,
        SIConv2d,
        SIConv3d,
        TIConv2d,
        calibrate,
        conversion,
        convert,
        load,
        revert,
        save,
        skipped,
    )
    from .ops import (
        DEFAULT_SCALES,
        Transform,
        affine,
        macs,
        resize_cache,
        rotation,
        scaling,
        shear,
        si_conv1d,
        si_conv2d,
        si_conv3d,
        ti_conv2d,
    )
if TYPE_CHECKING:
    from .inspection import Explanation, check_scale, explain, recommend, scale_usage, summary, winners


def __getattr__(name: str) -> Any:
    """Load what looks at networks, and the packages of the suite, when first asked for: the layer needs neither."""
    if name in ("data", "experiments", "models"):
        return import_module(f".{name}", __name__)
    if name in __all__:
        for package in (".nn", ".ops", ".inspection"):
            module = import_module(package, __name__)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


try:
    __version__ = version("scaleconv")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "DEFAULT_SCALES",
    "LATE_SCALES",
    "Explanation",
    "SIConv1d",
    "SIConv2d",
    "SIConv3d",
    "ScaleInvariant",
    "TIConv2d",
    "Transform",
    "__version__",
    "affine",
    "calibrate",
    "check_scale",
    "conversion",
    "convert",
    "explain",
    "load",
    "macs",
    "recommend",
    "resize_cache",
    "revert",
    "rotation",
    "save",
    "scale_usage",
    "scaling",
    "shear",
    "si_conv1d",
    "si_conv2d",
    "si_conv3d",
    "skipped",
    "summary",
    "ti_conv2d",
    "winners",
]
