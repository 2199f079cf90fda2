"""The networks of the paper and those it is compared with, and their names in configurations and records.

`TITLES` are the networks that `make_model` makes; those in `DENSE` predict every pixel. `LATER` are those of the later
literature, by `make_later_model`. `UNSUPERVISED` are those that learn features without labels first.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ..nn import ScaleInvariant, SIConv2d
from ..ops.signature import DEFAULT_SCALES
from .alignment import AlignedSIConv2d
from .cnn import CROPPED_SCALES, CroppedSIConv2d, DeepScaleCNN, ScaleCNN
from .convnet import PAPER, ConvNet, Convolution, MultiStageConvNet, Shape
from .pyramid import HierarchicalConvNet, MultiColumnConvNet, PyramidEnsemble
from .rbm import RBM, SIRBM, Recipe
from .softmax import SoftmaxClassifier
from .tiled import TiledConv2d
from .unet import FullyConvolutional, UNet
from .unsupervised import UNSUPERVISED, Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised

TITLES = {
    "convnet": "ConvNet",
    "hierarchical": "Hierarchical ConvNet",
    "si_convnet": "SI-ConvNet",
    "ensemble": "Input-pyramid ensemble",
    "tiled": "Tiled ConvNet",
    "multi_stage": "Multi-stage ConvNet",
    "multi_column": "Multi-column ConvNet",
    "augmented": "ConvNet, scale augmentation",
    "fcn": "FCN",
    "si_fcn": "SI-FCN",
    "unet": "U-Net",
    "si_unet": "SI-U-Net",
}
LATER = {
    "cnn": "CNN",
    "cropped_cnn": "CNN, cropped layers",
    "si_cnn": "SI-CNN",
    "pyramid_cnn": "ScaleInvariant(CNN)",
    "deep_cnn": "Deep CNN",
    "pyramid_deep_cnn": "ScaleInvariant(deep CNN)",
}
UNSCALED = ("cnn", "cropped_cnn", "deep_cnn")  # of these, those that `scales` does not change
AUGMENTED = "augmented"  # a ConvNet; what is different is how it is trained
DENSE = {"fcn": FullyConvolutional, "si_fcn": FullyConvolutional, "unet": UNet, "si_unet": UNet}


def make_model(
    name: str,
    shape: Shape = PAPER,
    scales: Iterable[float] = DEFAULT_SCALES,
    *,
    second_scales: Iterable[float] = (),
    antialias: bool = False,
    align: str = "exact",
    border: str = "absent",
) -> nn.Module:
    """Make a network.

    Args:
        name: in `TITLES`.
        shape: its sizes. A network in `DENSE` has one class more, the background.
        scales: of all networks that have any.
        second_scales: of the second layer of the SI-ConvNet, if not `scales`.
        antialias: whether scale-invariant layers average pixels where they shrink.
        align, border: other rules than those of `SIConv2d`, as of `AlignedSIConv2d`.
    """
    if name in ("convnet", AUGMENTED):
        return ConvNet(shape=shape)
    if name == "si_convnet":
        first = tuple(scales)
        layers: list[Convolution] = [
            partial(SIConv2d, scales=own, antialias=antialias)
            if (align, border) == ("exact", "absent")
            else partial(AlignedSIConv2d, scales=own, align=align, border=border)
            for own in (first, tuple(second_scales) or first)
        ]
        return ConvNet(layers[0], shape, layers[1])
    if name == "hierarchical":
        return HierarchicalConvNet(shape=shape, scales=scales)
    if name == "ensemble":
        return PyramidEnsemble(shape=shape, scales=scales)
    if name == "tiled":
        return ConvNet(TiledConv2d, shape)
    if name == "multi_stage":
        return MultiStageConvNet(shape=shape)
    if name == "multi_column":
        return MultiColumnConvNet(shape=shape, scales=scales)
    if name in DENSE:
        conv = partial(SIConv2d, scales=tuple(scales), antialias=antialias) if name.startswith("si_") else nn.Conv2d
        return DENSE[name](conv, replace(shape, classes=shape.classes + 1))
    raise ValueError(f"`name` must be one of {', '.join(TITLES)}, got {name!r}")


def make_later_model(
    name: str,
    size: int,
    maps: tuple[int, int, int],
    scales: Iterable[float] = DEFAULT_SCALES,
    *,
    cropped_scales: Iterable[float] = CROPPED_SCALES,
    upsample: int = 1,
    dropout: float = 0.7,
    antialias: bool = False,
    pool: str = "max",
    norm: str = "joint",
    levels: str = "input",
) -> nn.Module:
    """Make a network of the later literature.

    Args:
        name: in `LATER`.
        size: side of the images.
        maps: of its three stages.
        scales: of its layers, or of its pyramid.
        cropped_scales: of its layers, if they are cropped ones.
        upsample: repeat every pixel so often along each axis first; 56×56 in the literature is 28×28, doubled.
        dropout: share of the units before the last layer that is left out in training.
        antialias: whether scale-invariant layers and pyramids average pixels where they shrink.
        pool, norm: of `ScaleInvariant`.
        levels: `own` for levels of their own size, `input` for the size of these images, whatever other images have.
    """
    if name not in LATER:
        raise ValueError(f"`name` must be one of {', '.join(LATER)}, got {name!r}")
    scales, plain = tuple(scales), name.removeprefix("pyramid_")
    network: nn.Module
    if plain == "deep_cnn":
        network = DeepScaleCNN(maps, dropout=dropout)
    else:
        layers: dict[str, Convolution] = {
            "cnn": nn.Conv2d,
            "cropped_cnn": partial(CroppedSIConv2d, scales=tuple(cropped_scales)),
            "si_cnn": partial(SIConv2d, scales=scales, antialias=antialias),
        }
        network = ScaleCNN(layers[plain], size * upsample, maps, dropout=dropout)
    if name.startswith("pyramid"):
        window: Any = size * upsample if levels == "input" else levels
        network = ScaleInvariant(network, scales, pool=pool, norm=norm, size=window, antialias=antialias)  # type: ignore[arg-type]
    return network if upsample == 1 else nn.Sequential(nn.Upsample(scale_factor=upsample), network)


__all__ = [
    "AUGMENTED",
    "CROPPED_SCALES",
    "DENSE",
    "LATER",
    "RBM",
    "SIRBM",
    "TITLES",
    "UNSCALED",
    "UNSUPERVISED",
    "AlignedSIConv2d",
    "ConvNet",
    "CroppedSIConv2d",
    "DeepScaleCNN",
    "Fold",
    "FullyConvolutional",
    "HierarchicalConvNet",
    "MultiColumnConvNet",
    "MultiStageConvNet",
    "PyramidEnsemble",
    "Recipe",
    "ScaleCNN",
    "Shape",
    "SoftmaxClassifier",
    "TiledConv2d",
    "UNet",
    "UnsupervisedRun",
    "UnsupervisedSettings",
    "make_later_model",
    "make_model",
    "train_unsupervised",
]
