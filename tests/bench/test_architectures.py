"""Networks of every common shape convert, run, train, are saved, loaded, exported, and revert bit for bit."""

import io
import warnings

import pytest
import torch
from torch import nn

from scaleconv import SIConv2d, convert, revert, skipped
from scaleconv.bench.architectures import ARCHITECTURES

WIDTH, SIZE = 4, 32
SCALES = (1, 0.7, 1.5)
NAMES = list(ARCHITECTURES)
CONVERTED = {  # layers, and layers left alone
    "ResNet-18": (17, 3),
    "ResNet-50": (17, 36),
    "VGG-11": (8, 0),
    "U-Net": (10, 3),
    "MobileNetV2": (5, 8),
    "ConvNeXt": (4, 2),
    "DenseNet": (7, 2),
    "FPN": (11, 5),
}


def make(name, seed=0):
    torch.manual_seed(seed)
    return ARCHITECTURES[name](WIDTH)


def images(batch=2):
    return torch.rand(batch, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_every_spatial_convolution_is_swapped_and_the_output_keeps_its_shape(name):
    plain = make(name).eval()
    converted = convert(plain, scales=SCALES)
    count = sum(isinstance(layer, SIConv2d) for layer in converted.modules())
    assert (count, len(skipped(converted))) == CONVERTED[name]
    assert set(skipped(converted).values()) <= {
        "1×1 kernel",
        "patches of 2×2 do not overlap",
        "patches of 4×4 do not overlap",
        "ConvTranspose2d is a transposed convolution",
    }
    with torch.no_grad():
        expected, output = plain(images()), converted(images())
        assert output.shape == expected.shape
        assert not torch.equal(output, expected)
        torch.testing.assert_close(convert(plain, scales=(1,))(images()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_training_changes_every_parameter(name):
    network = convert(make(name), scales=SCALES)
    before = {key: value.detach().clone() for key, value in network.named_parameters()}
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    output = network(images())
    (output * torch.rand(output.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    optimiser.step()
    assert torch.isfinite(output).all()
    assert [key for key, value in network.named_parameters() if torch.equal(value, before[key])] == []


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_saved_loaded_into_either_network_and_reverted_bit_for_bit(name):
    plain = make(name).eval()
    stream = io.BytesIO()
    torch.save(convert(plain, scales=SCALES).state_dict(), stream)
    stream.seek(0)
    other = convert(make(name, seed=5).eval(), scales=SCALES)
    other.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        assert torch.equal(other(images()), convert(plain, scales=SCALES)(images()))
        back = revert(other)
        assert torch.equal(back(images()), plain(images()))
    assert repr(back) == repr(plain)


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_network_computes_the_same(name):
    network = convert(make(name).eval(), first=2, scales=(1, 1.5))  # each layer and scale takes a second
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its tracer
        exported = torch.export.export(network, (images(),)).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(images()), network(images()))


def test_a_shared_head_stays_shared():
    network = convert(make("FPN"), scales=SCALES)
    assert isinstance(network.head, SIConv2d)
    assert sum(module is network.head for module in network.modules()) == 1
    assert isinstance(network.lateral[0], nn.Conv2d)
    assert not isinstance(network.lateral[0], SIConv2d)
