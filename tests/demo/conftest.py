"""Two small pairs of untrained networks, and digits for them."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from scaleconv import SIConv2d
from scaleconv.data import embedded_digits
from scaleconv.demo.pairs import Pair
from scaleconv.models import Classifier, ConvNet, FullyConvolutional, Shape


def classifier(network):
    return Classifier(network, [0.1], [1.0], "0123456789").eval()


@pytest.fixture(scope="session")
def pairs():
    torch.manual_seed(0)
    digits = embedded_digits().first(200)
    single, dense = Shape((3, 4), 9, 48, 8), Shape((3, 4), classes=11)
    made = {
        "digits": (ConvNet(shape=single), ConvNet(SIConv2d, single), 48),
        "scenes": (FullyConvolutional(shape=dense), FullyConvolutional(SIConv2d, dense), 64),
    }
    for network in (network for *both, _ in made.values() for network in both):
        for layer in network.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                torch.nn.init.kaiming_normal_(layer.weight)
            if getattr(layer, "bias", None) is not None:
                torch.nn.init.normal_(layer.bias, std=0.1)
    return {
        name: Pair(*map(classifier, both), size, "0.8 to 1.25", digits.images, digits.labels)
        for name, (*both, size) in made.items()
    }


@pytest.fixture(scope="session")
def decode():
    """The pixels of a picture in an answer."""

    def read(address):
        head, _, text = address.partition(",")
        assert head == "data:image/png;base64"
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))

    return read
