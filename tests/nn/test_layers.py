"""The Modules are those of PyTorch: their arguments, their state, their manners."""

import copy
import inspect
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from helpers.loops import random
from scaleconv import (
    DEFAULT_SCALES,
    SIConv1d,
    SIConv2d,
    SIConv3d,
    TIConv2d,
    rotation,
    scaling,
    si_conv1d,
    si_conv2d,
    si_conv3d,
    ti_conv2d,
)

IMAGES = torch.rand(2, 4, 11, 10, generator=torch.Generator().manual_seed(0))
TURNS = [rotation(degrees) for degrees in (0, 45, 90)]
SCALED = {"scales": (1, 0.6, 1.8), "antialias": True}
LAYERS = {
    "TIConv2d": (TIConv2d, nn.Conv2d, ti_conv2d, {"transforms": TURNS, "border": "reflect"}),
    "SIConv1d": (SIConv1d, nn.Conv1d, si_conv1d, SCALED),
    "SIConv2d": (SIConv2d, nn.Conv2d, si_conv2d, SCALED),
    "SIConv3d": (SIConv3d, nn.Conv3d, si_conv3d, SCALED),
}
every_layer = pytest.mark.parametrize(("kind", "plain", "function", "options"), LAYERS.values(), ids=LAYERS)


def batch_for(plain):
    return random(2, 4, *(9, 8, 7)[: {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[plain]], dtype=torch.float32)


def test_arguments_are_those_of_conv2d_and_two_keywords():
    ours, plain = (inspect.signature(kind).parameters for kind in (SIConv2d, nn.Conv2d))
    added = {name: ours[name] for name in ours if name not in plain}
    assert list(ours)[: len(plain)] == list(plain)
    assert all(ours[name].default == plain[name].default for name in plain)
    assert list(added) == ["scales", "antialias"]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added.values())


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize(
    "arguments",
    [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2, "bias": False}, {"padding": "same"}],
    ids=str,
)
@every_layer
def test_the_call_reaches_the_function_with_every_argument(kind, plain, function, options, arguments):
    layer, batch = kind(4, 6, 3, **arguments, **options), batch_for(plain)
    assert layer(batch).shape == plain(4, 6, 3, **arguments)(batch).shape
    call = {key: value for key, value in arguments.items() if key != "bias"}
    assert torch.equal(layer(batch), function(batch, layer.weight, layer.bias, **call, **options))


@every_layer
def test_the_state_is_that_of_the_plain_layer_and_copies_compute_the_same(kind, plain, function, options):
    layer, other, batch = kind(4, 6, 3, **options), plain(4, 6, 3), batch_for(plain)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.weight, other.weight)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert list(kind(4, 6, 3, bias=False, **options).state_dict()) == ["weight"]
    expected, before, stream = function(batch, other.weight, other.bias, **options), dict(vars(layer)), io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    copies = (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(stream, weights_only=False))
    for each in (layer, *copies):
        assert torch.equal(each(batch), expected)
    assert dict(vars(layer)) == before


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@every_layer
def test_padding_mode_extends_the_input_as_conv2d_does(kind, plain, function, options, mode):
    padding = (1, 2, 1)[: batch_for(plain).ndim - 2]
    layer, batch = kind(4, 6, 3, padding=padding, padding_mode=mode, **options), batch_for(plain)
    extended = nn.functional.pad(batch, [each for each in reversed(padding) for _ in range(2)], mode=mode)
    output, winner = function(extended, layer.weight, layer.bias, **options, return_winner=True)
    assert torch.equal(layer(batch), output)
    assert torch.equal(layer(batch, return_winner=True)[1], winner)


@every_layer
def test_a_symbolic_trace_keeps_the_layer_whole(kind, plain, function, options):
    network, batch = nn.Sequential(kind(4, 6, 3, **options), nn.ReLU()), batch_for(plain)
    traced = torch.fx.symbolic_trace(network)
    assert [node.target for node in traced.graph.nodes].count(function) == 1
    for each in (batch, batch[..., 2:]):
        assert torch.equal(traced(each), network(each))


def test_parametrized_weights_are_used():
    layer = parametrizations.weight_norm(SIConv2d(4, 6, 3))
    expected = si_conv2d(IMAGES, layer.weight, layer.bias)
    assert torch.equal(layer(IMAGES), expected)
    layer.parametrizations.weight.original0.data *= 2
    assert not torch.equal(layer(IMAGES), expected)
    layer(IMAGES).sum().backward()
    assert layer.parametrizations.weight.original1.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_type_is_that_of_the_parameters(dtype):
    assert SIConv2d(4, 6, 3).to(dtype)(IMAGES.to(dtype)).dtype == dtype


def test_repr_names_what_is_not_usual():
    assert SIConv2d(1, 2, 3).scales == DEFAULT_SCALES
    assert repr(SIConv2d(1, 2, 3)).endswith("stride=(1, 1), scales=(0.63, 0.794, 1, 1.26, 1.59, 2))")
    assert repr(SIConv2d(1, 2, 3, scales=(1,), antialias=True)).endswith("scales=(1), antialias=True)")
    assert repr(TIConv2d(1, 2, 3, transforms=TURNS)).endswith("stride=(1, 1), transforms=3)")
    assert repr(TIConv2d(1, 2, 3, transforms=TURNS, interpolation="nearest", border="clamp")).endswith(
        "transforms=3, interpolation=nearest, border=clamp)"
    )
    assert repr(SIConv1d(1, 2, 3, scales=(1, 2))).endswith("stride=(1,), scales=(1, 2))")


def test_scales_may_be_any_iterable():
    layer = SIConv2d(4, 6, 3, scales=(2.0**k for k in (-1, 0, 1)))
    assert layer.scales == (0.5, 1, 2)
    expected = si_conv2d(IMAGES, layer.weight, layer.bias, scales=(0.5, 1, 2))
    assert torch.equal(layer(IMAGES), expected)
    assert torch.equal(si_conv2d(IMAGES, layer.weight, layer.bias, scales=np.array([0.5, 1, 2])), expected)


def test_a_scale_invariant_layer_is_a_transformation_invariant_one():
    layer = SIConv2d(4, 6, 3, padding=1, scales=(1, 0.6, 1.8))
    general = TIConv2d(4, 6, 3, padding=1, transforms=layer.transforms)
    general.load_state_dict(layer.state_dict())
    assert isinstance(layer, TIConv2d)
    assert (layer.transforms[1], layer.interpolation, layer.border) == (scaling(0.6), "bilinear", "zeros")
    assert torch.equal(general(IMAGES), layer(IMAGES))


WRONG = {
    "no channels": ({"in_channels": 0}, ValueError, "`in_channels` must be at least 1, got 0"),
    "channels of text": ({"out_channels": "6"}, TypeError, "`out_channels` must be an integer, got '6'"),
    "no kernel": ({"kernel_size": 0}, ValueError, "`kernel_size` must be at least 1, got 0"),
    "too many axes": ({"kernel_size": (3,) * 4}, ValueError, "`kernel_size` must be an integer or a .*, got 4 of them"),
    "stride": ({"stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
    "padding": ({"padding": -1}, ValueError, "`padding` must be at least 0, got -1"),
    "dilation": ({"dilation": None}, TypeError, "`dilation` must be an integer or a .*, got None"),
    "groups": ({"groups": 4}, ValueError, r"`out_channels` \(=6\) must be divisible by `groups` \(=4\)"),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG.values(), ids=WRONG)
@every_layer
def test_arguments_of_the_convolution_are_refused_when_a_layer_is_made(
    kind, plain, function, options, arguments, error, message
):
    with pytest.raises(error, match=message):
        kind(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **arguments}, **options)


@pytest.mark.parametrize("kind", [SIConv1d, SIConv2d, SIConv3d])
def test_wrong_levels_are_refused_when_a_layer_is_made(kind):
    with pytest.raises(TypeError, match="`antialias` must be True or False, got 'no'"):
        kind(1, 1, 3, antialias="no")
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        kind(1, 1, 3, scales=(2,))
    for name, options in {
        "`transforms` must contain the identity": {"transforms": [rotation(90)]},
        "`border` must be one of": {"transforms": TURNS, "border": "wrap"},
        "`interpolation` must be one of": {"transforms": TURNS, "interpolation": "cubic"},
    }.items():
        with pytest.raises(ValueError, match=name):
            TIConv2d(1, 1, 3, **options)
