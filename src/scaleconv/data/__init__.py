"""MNIST-Scale: the digits, the generators, the sets, the folds; and folders of images. Imports no other package here.

`rescale.py` needs torch alone, for the metrics; the rest needs the packages of the extra `experiments`.
"""

from .rescale import cut_off, make_scaled

try:
    from .datasets import Digits, embedded_digits, load_digits, read_cifar10
    from .decoding import read_image, read_mask
    from .folders import ImageFolder, read_folder, read_masked_images, write_folder, write_images, write_scenes
    from .folds import Split, hold_out, make_folds, make_split, paper_folds, reduced_folds
    from .loading import ImageData, load_folder
    from .preview import write_preview
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
except ImportError as error:
    if error.name not in ("filelock", "msgspec", "numpy", "rich", "safetensors"):
        raise
    _MISSING = error.name

    def __getattr__(name: str) -> None:
        raise ImportError(f"scaleconv.data needs {_MISSING}: pip install 'scaleconv[experiments]'")


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
