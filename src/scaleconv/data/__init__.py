"""MNIST-Scale: the digits, the generators, the sets, the folds; and folders of images. Imports no other room."""

try:
    import numpy  # noqa: F401
    import rich  # noqa: F401
    import safetensors  # noqa: F401
except ImportError as error:
    raise ImportError(f"scaleconv.data needs {error.name}: pip install 'scaleconv[experiments]'") from None

from .cifar import read_cifar10
from .digits import Digits, embedded_digits, load_digits
from .folders import ImageFolder, read_folder, write_folder, write_images
from .folds import Split, hold_out, make_folds, make_split, paper_folds, reduced_folds
from .loading import ImageData, load_folder, read_image
from .masks import read_mask, read_masked_images, write_scenes
from .preview import write_preview
from .scaled import cut_off, make_scaled
from .scales import Fixed, Listed, ScaleDistribution, TruncatedNormal, Uniform, parse_scales
from .scenes import BACKGROUND, Scenes, make_scenes
from .sets import (
    MNIST_SCALE,
    Parameters,
    ScaledSet,
    make_set,
    read_set,
    scalar_mean,
    subtract_mean,
    write_set,
)

__all__ = [
    "BACKGROUND",
    "MNIST_SCALE",
    "Digits",
    "Fixed",
    "ImageData",
    "ImageFolder",
    "Listed",
    "Parameters",
    "ScaleDistribution",
    "ScaledSet",
    "Scenes",
    "Split",
    "TruncatedNormal",
    "Uniform",
    "cut_off",
    "embedded_digits",
    "hold_out",
    "load_digits",
    "load_folder",
    "make_folds",
    "make_scaled",
    "make_scenes",
    "make_set",
    "make_split",
    "paper_folds",
    "parse_scales",
    "read_cifar10",
    "read_folder",
    "read_image",
    "read_mask",
    "read_masked_images",
    "read_set",
    "reduced_folds",
    "scalar_mean",
    "subtract_mean",
    "write_folder",
    "write_images",
    "write_preview",
    "write_scenes",
    "write_set",
]
