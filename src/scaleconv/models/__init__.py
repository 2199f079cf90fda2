"""The networks of the paper and those it is compared with, and their names in configurations and records.

`TITLES` are the networks that `make_model` makes; those in `DENSE` predict every pixel. `UNSUPERVISED` are those that
learn features without labels first.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from torch import nn

from ..nn import SIConv2d
from ..ops.signature import DEFAULT_SCALES
from .alignment import AlignedSIConv2d
from .contrastive import Recipe
from .convnet import PAPER, ConvNet, Convolution, MultiStageConvNet, Shape
from .pyramid import HierarchicalConvNet, MultiColumnConvNet, PyramidEnsemble
from .rbm import RBM
from .si_rbm import SIRBM
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


__all__ = [
    "AUGMENTED",
    "DENSE",
    "RBM",
    "SIRBM",
    "TITLES",
    "UNSUPERVISED",
    "AlignedSIConv2d",
    "ConvNet",
    "Fold",
    "FullyConvolutional",
    "HierarchicalConvNet",
    "MultiColumnConvNet",
    "MultiStageConvNet",
    "PyramidEnsemble",
    "Recipe",
    "Shape",
    "SoftmaxClassifier",
    "TiledConv2d",
    "UNet",
    "UnsupervisedRun",
    "UnsupervisedSettings",
    "make_model",
    "train_unsupervised",
]
