"""The layers that are compared are what their names say, and a peer that does not fit is refused."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d
from scaleconv.bench.contenders import DirectConv2d, check_peer, make_layer
from scaleconv.bench.settings import CONTENDERS, SHAPES, LayerShape
from scaleconv.ops.backends import current_backend

SMALL = LayerShape(2, 3, 9, kernel=3, padding=1, batch=2, cpu_batch=2)
SCALES = (0.5, 1.0, 2.0)


def images(shape=SMALL):
    return torch.rand(2, shape.in_channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))


def test_the_wide_convolution_has_as_many_times_the_maps_as_there_are_scales():
    assert make_layer("conv2d_wide", SMALL, SCALES)(images()).shape == (2, 9, 9, 9)


@pytest.mark.parametrize("contender", [name for name in CONTENDERS if name != "conv2d_wide"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_others_have_the_weights_and_the_output_shape_of_the_convolution(contender, shape):
    plain, layer = make_layer("conv2d", shape, SCALES), make_layer(contender, shape, SCALES)
    assert torch.equal(layer.weight, plain.weight)
    assert layer(images(shape)).shape == plain(images(shape)).shape


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


@pytest.mark.parametrize(("contender", "backend"), [("si", "auto"), ("si_torch", "torch")])
def test_only_si_torch_chooses_the_code_that_evaluates_it(contender, backend, monkeypatch):
    used = []
    forward = SIConv2d._conv_forward
    monkeypatch.setattr(
        SIConv2d, "_conv_forward", lambda *arguments: (used.append(current_backend()), forward(*arguments))[1]
    )
    output = make_layer(contender, SMALL, SCALES)(images())
    assert used == [backend]
    assert torch.allclose(output, make_layer("si", SMALL, SCALES)(images()), atol=1e-5)


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


def test_a_peer_is_made_by_the_arguments_of_the_convolution():
    layer = make_layer("peers:Plain", SMALL, SCALES)
    assert repr(layer) == "Conv2d(2, 3, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"
    check_peer("peers:Plain", SMALL, "cpu")


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
