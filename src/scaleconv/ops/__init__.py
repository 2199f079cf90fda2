"""Pure functions on tensors: where levels sample, how, and what the layer computes. No Modules, files or randomness."""

from .call import DEFAULT_SCALES
from .conv import si_conv1d, si_conv2d, si_conv3d, ti_conv2d
from .cpu import resize_cache
from .macs import Cost, Macs, macs
from .transforms import Transform, affine, rotation, scaling, shear

__all__ = [
    "DEFAULT_SCALES",
    "Cost",
    "Macs",
    "Transform",
    "affine",
    "macs",
    "resize_cache",
    "rotation",
    "scaling",
    "shear",
    "si_conv1d",
    "si_conv2d",
    "si_conv3d",
    "ti_conv2d",
]
