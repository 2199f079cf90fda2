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
from .contrastive import Recipe
from .convnet import PAPER, ConvNet, Shape
from .pyramid import HierarchicalConvNet, PyramidEnsemble
from .rbm import RBM
from .si_rbm import SIRBM
from .softmax import SoftmaxClassifier
from .unet import FullyConvolutional, UNet
from .unsupervised import UNSUPERVISED, Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised

TITLES = {
    "convnet": "ConvNet",
    "hierarchical": "Hierarchical ConvNet",
    "si_convnet": "SI-ConvNet",
    "ensemble": "Input-pyramid ensemble",
    "fcn": "FCN",
    "si_fcn": "SI-FCN",
    "unet": "U-Net",
    "si_unet": "SI-U-Net",
}
DENSE = {"fcn": FullyConvolutional, "si_fcn": FullyConvolutional, "unet": UNet, "si_unet": UNet}


def make_model(
    name: str,
    shape: Shape = PAPER,
    scales: Iterable[float] = DEFAULT_SCALES,
    *,
    second_scales: Iterable[float] = (),
    antialias: bool = False,
) -> nn.Module:
    """Make a network.

    Args:
        name: in `TITLES`.
        shape: its sizes. A network in `DENSE` has one class more, the background.
        scales: of all networks but the plain ones.
        second_scales: of the second layer of the SI-ConvNet, if not `scales`.
        antialias: whether scale-invariant layers smooth what they shrink.
    """
    if name == "convnet":
        return ConvNet(shape=shape)
    if name == "si_convnet":
        first = tuple(scales)
        layers = [partial(SIConv2d, scales=own, antialias=antialias) for own in (first, tuple(second_scales) or first)]
        return ConvNet(layers[0], shape, layers[1])
    if name == "hierarchical":
        return HierarchicalConvNet(shape=shape, scales=scales)
    if name == "ensemble":
        return PyramidEnsemble(shape=shape, scales=scales)
    if name in DENSE:
        conv = partial(SIConv2d, scales=tuple(scales), antialias=antialias) if name.startswith("si_") else nn.Conv2d
        return DENSE[name](conv, replace(shape, classes=shape.classes + 1))
    raise ValueError(f"`name` must be one of {', '.join(TITLES)}, got {name!r}")


__all__ = [
    "DENSE",
    "RBM",
    "SIRBM",
    "TITLES",
    "UNSUPERVISED",
    "ConvNet",
    "Fold",
    "FullyConvolutional",
    "HierarchicalConvNet",
    "PyramidEnsemble",
    "Recipe",
    "Shape",
    "SoftmaxClassifier",
    "UNet",
    "UnsupervisedRun",
    "UnsupervisedSettings",
    "make_model",
    "train_unsupervised",
]
