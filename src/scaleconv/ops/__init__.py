"""Pure functions on tensors: where levels sample, how, and what the layer computes. No Modules, files or randomness."""

from .cpu import resize_cache
from .macs import Cost, Macs, macs
from .si_conv import si_conv2d
from .signature import DEFAULT_SCALES

__all__ = ["DEFAULT_SCALES", "Cost", "Macs", "macs", "resize_cache", "si_conv2d"]
