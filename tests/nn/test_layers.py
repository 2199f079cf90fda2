"""The Module is a Conv2d: its arguments, its state, its manners."""

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


def test_arguments_are_those_of_conv2d_and_two_keywords():
    ours, plain = (inspect.signature(kind).parameters for kind in (SIConv2d, nn.Conv2d))
    added = {name: ours[name] for name in ours if name not in plain}
    assert list(ours)[: len(plain)] == list(plain)
    assert all(ours[name].default == plain[name].default for name in plain)
    assert list(added) == ["scales", "antialias"]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added.values())


def test_state_dict_holds_weight_and_bias_and_loads_either_way():
    ours, plain = SIConv2d(4, 6, 3), nn.Conv2d(4, 6, 3)
    assert list(ours.state_dict()) == ["weight", "bias"]
    ours.load_state_dict(plain.state_dict())
    assert torch.equal(ours.weight, plain.weight)
    plain.load_state_dict(SIConv2d(4, 6, 3).state_dict())
    assert list(SIConv2d(4, 6, 3, bias=False).state_dict()) == ["weight"]


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize(
    "arguments",
    [{}, {"stride": 2, "padding": (1, 2)}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}, {"bias": False}],
    ids=str,
)
def test_the_call_reaches_the_function_with_every_argument(arguments):
    layer = SIConv2d(4, 6, (3, 2), **arguments, scales=(1, 0.6, 1.8), antialias=True)
    assert layer(IMAGES).shape == nn.Conv2d(4, 6, (3, 2), **arguments)(IMAGES).shape
    call = {key: value for key, value in arguments.items() if key != "bias"}
    expected = si_conv2d(IMAGES, layer.weight, layer.bias, **call, scales=(1, 0.6, 1.8), antialias=True)
    assert torch.equal(layer(IMAGES), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_mode_extends_the_input_as_conv2d_does(mode):
    plain = nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode=mode)
    layer = SIConv2d(4, 6, 3, padding=(1, 2), padding_mode=mode, scales=(1,))
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer(IMAGES), plain(IMAGES))
    layer.scales = (1, 2)
    extended = nn.functional.pad(IMAGES, (2, 2, 1, 1), mode=mode)
    assert torch.equal(layer(IMAGES), si_conv2d(extended, layer.weight, layer.bias, scales=(1, 2)))


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_the_winner_comes_on_request(mode):
    layer = SIConv2d(4, 6, 3, padding=1, padding_mode=mode, scales=(0.7, 1, 1.5))
    output, winner = layer(IMAGES, return_winner=True)
    assert torch.equal(output, layer(IMAGES))
    images, padding = (IMAGES, 1) if mode == "zeros" else (nn.functional.pad(IMAGES, (1, 1, 1, 1), mode=mode), 0)
    call = {"padding": padding, "scales": layer.scales, "return_winner": True}
    assert torch.equal(winner, si_conv2d(images, layer.weight, layer.bias, **call)[1])


def test_forward_assigns_nothing():
    layer = SIConv2d(4, 6, 3)
    before = dict(vars(layer))
    layer(IMAGES)
    assert dict(vars(layer)) == before


def test_copies_and_pickles_compute_the_same():
    layer = SIConv2d(4, 6, 3, scales=(1, 1.5), antialias=True)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(stream, weights_only=False),
    ):
        assert other.scales == (1, 1.5)
        assert torch.equal(other(IMAGES), layer(IMAGES))


def test_parametrized_weights_are_used():
    layer = parametrizations.weight_norm(SIConv2d(4, 6, 3))
    expected = si_conv2d(IMAGES, layer.weight, layer.bias)
    assert torch.equal(layer(IMAGES), expected)
    layer.parametrizations.weight.original0.data *= 2
    assert not torch.equal(layer(IMAGES), expected)
    layer(IMAGES).sum().backward()
    assert layer.parametrizations.weight.original1.grad.abs().max() > 0


def test_half_and_double_follow_the_parameters():
    layer = SIConv2d(4, 6, 3)
    assert layer.half()(IMAGES.half()).dtype == torch.float16
    assert layer.double()(IMAGES.double()).dtype == torch.float64
    assert layer.to(torch.bfloat16)(IMAGES.bfloat16()).dtype == torch.bfloat16


def test_repr_names_the_scales():
    assert repr(SIConv2d(1, 2, 3)).endswith("stride=(1, 1), scales=(0.63, 0.794, 1, 1.26, 1.59, 2))")
    assert "antialias=True" in repr(SIConv2d(1, 2, 3, scales=(1,), antialias=True))
    assert SIConv2d(1, 2, 3).scales == DEFAULT_SCALES


def test_scales_may_be_any_iterable():
    layer = SIConv2d(4, 6, 3, scales=(2.0**k for k in (-1, 0, 1)))
    assert layer.scales == (0.5, 1, 2)
    expected = si_conv2d(IMAGES, layer.weight, layer.bias, scales=(0.5, 1, 2))
    assert torch.equal(layer(IMAGES), expected)
    assert torch.equal(si_conv2d(IMAGES, layer.weight, layer.bias, scales=np.array([0.5, 1, 2])), expected)


def test_a_symbolic_trace_keeps_the_layer_whole():
    network = nn.Sequential(SIConv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.ReLU(), SIConv2d(6, 2, 3))
    traced = torch.fx.symbolic_trace(network)
    assert [node.target for node in traced.graph.nodes].count(si_conv2d) == 2
    assert torch.equal(traced(IMAGES), network(IMAGES))
    assert torch.equal(traced(IMAGES[..., 2:]), network(IMAGES[..., 2:]))


TURNS = [rotation(degrees) for degrees in (0, 45, 90)]
OTHERS = {
    "TIConv2d": (TIConv2d, nn.Conv2d, {"transforms": TURNS, "border": "reflect"}),
    "SIConv1d": (SIConv1d, nn.Conv1d, {"scales": (1, 0.6, 1.8), "antialias": True}),
    "SIConv3d": (SIConv3d, nn.Conv3d, {"scales": (1, 0.6, 1.8), "antialias": True}),
}
FUNCTIONS = {TIConv2d: ti_conv2d, SIConv1d: si_conv1d, SIConv3d: si_conv3d}


def batch_for(kind):
    return random(2, 4, *(9, 8, 7)[: {SIConv1d: 1, TIConv2d: 2, SIConv3d: 3}[kind]], dtype=torch.float32)


def test_a_scale_invariant_layer_is_a_transformation_invariant_one():
    layer = SIConv2d(4, 6, 3, padding=1, scales=(1, 0.6, 1.8))
    general = TIConv2d(4, 6, 3, padding=1, transforms=layer.transforms)
    general.load_state_dict(layer.state_dict())
    assert isinstance(layer, TIConv2d)
    assert (layer.transforms[1], layer.interpolation, layer.border) == (scaling(0.6), "bilinear", "zeros")
    assert torch.equal(general(IMAGES), layer(IMAGES))


@pytest.mark.parametrize("arguments", [{}, {"stride": 2, "padding": 1}, {"groups": 2, "bias": False}], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_the_calls_of_the_other_layers_reach_their_functions(name, arguments):
    kind, plain, ours = OTHERS[name]
    layer, batch = kind(4, 6, 3, **arguments, **ours), batch_for(kind)
    assert layer(batch).shape == plain(4, 6, 3, **arguments)(batch).shape
    call = {key: value for key, value in arguments.items() if key != "bias"}
    assert torch.equal(layer(batch), FUNCTIONS[kind](batch, layer.weight, layer.bias, **call, **ours))


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_layers_have_the_state_of_the_plain_ones_and_survive_copies(name):
    kind, plain, ours = OTHERS[name]
    layer, batch = kind(4, 6, 3, **ours), batch_for(kind)
    layer.load_state_dict(plain(4, 6, 3).state_dict())
    assert list(layer.state_dict()) == ["weight", "bias"]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(batch), layer(batch))


@pytest.mark.parametrize("name", OTHERS)
def test_padding_mode_of_the_other_layers_extends_the_input(name):
    kind, _, ours = OTHERS[name]
    layer, batch = kind(4, 6, 3, padding=1, padding_mode="circular", **ours), batch_for(kind)
    extended = nn.functional.pad(batch, (1, 1) * (batch.ndim - 2), mode="circular")
    assert torch.equal(layer(batch), FUNCTIONS[kind](extended, layer.weight, layer.bias, **ours))


@pytest.mark.parametrize("name", OTHERS)
def test_a_symbolic_trace_keeps_the_other_layers_whole(name):
    kind, _, ours = OTHERS[name]
    network, batch = nn.Sequential(kind(4, 6, 3, **ours), nn.ReLU()), batch_for(kind)
    traced = torch.fx.symbolic_trace(network)
    assert [node.target for node in traced.graph.nodes].count(FUNCTIONS[kind]) == 1
    assert torch.equal(traced(batch), network(batch))


def test_repr_of_the_other_layers_names_what_is_theirs():
    assert repr(TIConv2d(1, 2, 3, transforms=TURNS)).endswith("stride=(1, 1), transforms=3)")
    assert repr(TIConv2d(1, 2, 3, transforms=TURNS, interpolation="nearest", border="clamp")).endswith(
        "transforms=3, interpolation=nearest, border=clamp)"
    )
    assert repr(SIConv1d(1, 2, 3, scales=(1, 2))).endswith("stride=(1,), scales=(1, 2))")
    assert repr(SIConv3d(1, 2, 3, scales=(1,), antialias=True)).endswith("scales=(1), antialias=True)")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TIConv2d(1, 1, 3, transforms=[rotation(90)]), "`transforms` must contain the identity"),
        (lambda: TIConv2d(1, 1, 3, transforms=TURNS, border="wrap"), "`border` must be one of"),
        (lambda: TIConv2d(1, 1, 3, transforms=TURNS, interpolation="cubic"), "`interpolation` must be one of"),
        (lambda: SIConv1d(1, 1, 3, scales=(2,)), "`scales` must contain 1"),
        (lambda: SIConv3d(1, 1, 3, scales=(2,)), "`scales` must contain 1"),
    ],
)
def test_the_other_layers_refuse_wrong_arguments_when_they_are_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


LAYERS = {**{name: (kind, ours) for name, (kind, _, ours) in OTHERS.items()}, "SIConv2d": (SIConv2d, {})}
WRONG = {
    "no channels": ({"in_channels": 0}, ValueError, "`in_channels` must be at least 1, got 0"),
    "channels of text": ({"out_channels": "6"}, TypeError, "`out_channels` must be an integer, got '6'"),
    "no kernel": ({"kernel_size": 0}, ValueError, "`kernel_size` must be at least 1, got 0"),
    "half a pixel": ({"kernel_size": 2.5}, TypeError, "`kernel_size` must be an integer or a .*, got 2.5"),
    "too many axes": ({"kernel_size": (3,) * 4}, ValueError, "`kernel_size` must be an integer or a .*, got 4 of them"),
    "stride": ({"stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
    "padding": ({"padding": -1}, ValueError, "`padding` must be at least 0, got -1"),
    "a word": ({"padding": "full"}, ValueError, "`padding` must be integers, 'same' or 'valid', got 'full'"),
    "dilation": ({"dilation": None}, TypeError, "`dilation` must be an integer or a .*, got None"),
    "groups": ({"groups": 4}, ValueError, r"`out_channels` \(=6\) must be divisible by `groups` \(=4\)"),
    "no groups": ({"groups": 0}, ValueError, "`groups` must be at least 1, got 0"),
}


@pytest.mark.parametrize("kind", [SIConv1d, SIConv2d, SIConv3d])
def test_an_antialias_that_is_no_truth_value_is_refused_when_a_layer_is_made(kind):
    with pytest.raises(TypeError, match="`antialias` must be True or False, got 'no'"):
        kind(1, 1, 3, antialias="no")


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("name", LAYERS)
def test_arguments_of_the_convolution_are_refused_when_a_layer_is_made(name, arguments, error, message):
    kind, ours = LAYERS[name]
    with pytest.raises(error, match=message):
        kind(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **arguments}, **ours)
