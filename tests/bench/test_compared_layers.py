"""The layers that are compared are what their names say, and a peer that does not fit is refused."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d
from scaleconv.bench.compared_layers import DirectConv2d, check_peer, make_layer
from scaleconv.bench.settings import COMPARED, SHAPES, LayerShape

SMALL = LayerShape(2, 3, 9, kernel=3, padding=1, batch=2, cpu_batch=2)
STRIDED_GROUPS = LayerShape(4, 6, 10, kernel=3, padding=1, batch=2, cpu_batch=2, stride=2, groups=2)
SCALES = (0.5, 1.0, 2.0)


def images(shape=SMALL):
    return torch.rand(2, shape.in_channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))


def test_the_wide_convolution_has_as_many_times_the_maps_as_there_are_scales():
    assert make_layer("conv2d_wide", SMALL, SCALES)(images()).shape == (2, 9, 9, 9)
    wide = make_layer("conv2d_wide", STRIDED_GROUPS, SCALES)
    assert wide(images(STRIDED_GROUPS)).shape == (2, 18, 5, 5)
    assert (wide.stride, wide.groups) == ((2, 2), 2)


@pytest.mark.parametrize("name", [name for name in COMPARED if name != "conv2d_wide"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_others_have_the_weights_and_the_output_shape_of_the_convolution(name, shape):
    shape = replace(shape, size=min(shape.size, 57))
    plain, layer = make_layer("conv2d", shape, (1.0, 0.5)), make_layer(name, shape, (1.0, 0.5))
    assert torch.equal(layer.weight, plain.weight)
    with torch.no_grad():
        output, expected = layer(images(shape)), plain(images(shape))
    assert output.shape == expected.shape
    assert expected.shape == (2, shape.out_channels, shape.output_size, shape.output_size)


@pytest.mark.parametrize("name", ["direct", "si"])
def test_with_the_scale_one_alone_a_layer_is_the_convolution_strides_and_groups_included(name):
    plain, layer = (make_layer(each, STRIDED_GROUPS, (1.0,)) for each in ("conv2d", name))
    assert isinstance(layer, SIConv2d if name == "si" else DirectConv2d)
    assert torch.allclose(layer(images(STRIDED_GROUPS)), plain(images(STRIDED_GROUPS)), atol=1e-6)


def test_the_direct_layer_rescales_convolves_rescales_back_and_takes_the_maximum():
    layer = DirectConv2d(2, 3, 3, padding=0, scales=(1, 1.6))
    level = F.interpolate(images(), size=(14, 14), mode="bilinear", align_corners=False)
    back = F.interpolate(F.conv2d(level, layer.weight, layer.bias), size=(7, 7), mode="bilinear", align_corners=False)
    plain = F.conv2d(images(), layer.weight, layer.bias)
    assert torch.allclose(layer(images()), torch.maximum(plain, back), atol=1e-6)
    assert (layer(images()) != plain).any()


def test_the_direct_layer_leaves_out_levels_too_small_for_the_kernel():
    layer = DirectConv2d(2, 3, 3, padding=0, scales=(0.3, 1))
    assert torch.equal(layer(images()), F.conv2d(images(), layer.weight, layer.bias))


class Cropped(nn.Conv2d):
    def forward(self, input):
        return super().forward(input)[..., 1:]


class Pair(nn.Conv2d):
    def forward(self, input):
        return super().forward(input), input


class Unlike(nn.Module):
    def __init__(self, channels):
        super().__init__()


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    classes = {"Plain": nn.Conv2d, "Cropped": Cropped, "Pair": Pair, "Unlike": Unlike, "number": 3}
    monkeypatch.setitem(sys.modules, "peers", SimpleNamespace(**classes))


def test_a_peer_is_made_with_the_arguments_of_the_convolution():
    layer = make_layer("peers:Plain", STRIDED_GROUPS, SCALES)
    assert repr(layer) == "Conv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2)"
    check_peer("peers:Plain", STRIDED_GROUPS, "cpu")


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("nowhere:Layer", r"`peer` \(=nowhere:Layer\) must name a module that can be imported: No module named"),
        ("peers:Missing", r"`peer` must name a torch.nn.Module of `peers`, got 'Missing'"),
        ("peers:number", r"`peer` must name a torch.nn.Module of `peers`, got 'number'"),
        ("peers:Unlike", r"`peer` \(=peers:Unlike\) must take the arguments of Conv2d .*unexpected keyword"),
        (
            "peers:Cropped",
            r"`peer` \(=peers:Cropped\) must return the shape of Conv2d, \(2, 3, 9, 9\), got \(2, 3, 9, 8",
        ),
        ("peers:Pair", r"`peer` \(=peers:Pair\) must return the shape of Conv2d, \(2, 3, 9, 9\), got tuple"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused(peer, message):
    with pytest.raises(ValueError, match=message):
        check_peer(peer, SMALL, "cpu")
