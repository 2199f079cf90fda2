"""Three small pairs of untrained networks, and images for them."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from scaleconv import SIConv2d, convert
from scaleconv.data import embedded_digits
from scaleconv.demo.pairs import Accuracy, Pair
from scaleconv.models import Classifier, ConvNet, FullyConvolutional, Shape
from scaleconv.models.staged import BLOCKS, make_staged

CLASSES = {"digits": "0123456789", "scenes": "0123456789 ", "photographs": ("airplane", "cat", "ship")}

ACCURACY = Accuracy(images=50, scales=[0.4, 0.5, 1.0], plain=[20.0, 40.0, 80.0], invariant=[30.0, 70.0, 80.0])


def classifier(network, name):
    channels = next(network.parameters()).shape[1]
    return Classifier(network, channels * [0.1], channels * [1.0], CLASSES[name]).eval()


def photographs():
    """Noise of six seeds, two images of a class."""
    return torch.arange(6 * 3 * 96 * 96).mul(7919).remainder(251).reshape(6, 3, 96, 96).byte(), torch.arange(6) % 3


@pytest.fixture(scope="session")
def pairs():
    torch.manual_seed(0)
    digits = embedded_digits().first(200)
    single, dense = Shape((3, 4), 9, 48, 8), Shape((3, 4), classes=11)
    resnet = make_staged(BLOCKS["resnet"], (4, 4, 6), (1, 1, 2), classes=3)
    own, labels = digits.images, digits.labels
    made = {
        "digits": (ConvNet(shape=single), ConvNet(SIConv2d, single), 48, own, labels),
        "scenes": (FullyConvolutional(shape=dense), FullyConvolutional(SIConv2d, dense), 64, own, labels),
        "photographs": (resnet, convert(resnet), 32, *photographs()),
    }
    for network in (network for *both, _, _, _ in made.values() for network in both):
        for layer in network.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                torch.nn.init.kaiming_normal_(layer.weight)
            if getattr(layer, "bias", None) is not None:
                torch.nn.init.normal_(layer.bias, std=0.1)
    return {
        name: Pair(*(classifier(each, name) for each in both), size, "0.8 to 1.25", images, labels, ACCURACY)
        for name, (*both, size, images, labels) in made.items()
    }


@pytest.fixture(scope="session")
def decode():
    """The pixels of a picture in an answer."""

    def read(address):
        head, _, text = address.partition(",")
        assert head == "data:image/png;base64"
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))

    return read
