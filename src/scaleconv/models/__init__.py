"""The networks of the paper and those it is compared with, and their names in configurations and records.

`TITLES` are the networks that `make_model` makes; `UNSUPERVISED` are those that learn features without labels first.
"""

from collections.abc import Iterable
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
from .unsupervised import UNSUPERVISED, Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised

TITLES = {
    "convnet": "ConvNet",
    "hierarchical": "Hierarchical ConvNet",
    "si_convnet": "SI-ConvNet",
    "ensemble": "Input-pyramid ensemble",
}


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
        shape: its sizes.
        scales: of all networks but the ConvNet.
        second_scales: of the second layer of the SI-ConvNet, if not `scales`.
        antialias: whether the layers of the SI-ConvNet average pixels where they shrink.
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
    raise ValueError(f"`name` must be one of {', '.join(TITLES)}, got {name!r}")


__all__ = [
    "RBM",
    "SIRBM",
    "TITLES",
    "UNSUPERVISED",
    "ConvNet",
    "Fold",
    "HierarchicalConvNet",
    "PyramidEnsemble",
    "Recipe",
    "Shape",
    "SoftmaxClassifier",
    "UnsupervisedRun",
    "UnsupervisedSettings",
    "make_model",
    "train_unsupervised",
]
