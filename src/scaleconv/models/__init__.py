"""The networks of the paper, those it is compared with, and those for images of your own; a file for each kind."""

from .cnn import CROPPED_SCALES, CroppedSIConv2d, DeepScaleCNN, ScaleCNN
from .convnet import ConvNet, MultiStageConvNet, Shape, TiledConv2d
from .direct import DirectSIConv2d
from .networks import NETWORKS, Classifier, Images, Network, make_network
from .pyramid import HierarchicalConvNet, MultiColumnConvNet
from .rbm import RBM, SIRBM, Recipe
from .softmax import SoftmaxClassifier
from .unet import FullyConvolutional, UNet
from .unsupervised import UNSUPERVISED, Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised

__all__ = [
    "CROPPED_SCALES",
    "NETWORKS",
    "RBM",
    "SIRBM",
    "UNSUPERVISED",
    "Classifier",
    "ConvNet",
    "CroppedSIConv2d",
    "DeepScaleCNN",
    "DirectSIConv2d",
    "Fold",
    "FullyConvolutional",
    "HierarchicalConvNet",
    "Images",
    "MultiColumnConvNet",
    "MultiStageConvNet",
    "Network",
    "Recipe",
    "ScaleCNN",
    "Shape",
    "SoftmaxClassifier",
    "TiledConv2d",
    "UNet",
    "UnsupervisedRun",
    "UnsupervisedSettings",
    "make_network",
    "train_unsupervised",
]
