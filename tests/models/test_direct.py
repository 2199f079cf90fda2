"""The layer in plain operations: its defaults are those of the loops, other rules are written out by hand."""

import math
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from helpers.loops import aligned_by_loops, random, tensors_of
from helpers.methods import make_method
from helpers.tolerance import assert_close
from scaleconv import DEFAULT_SCALES, SIConv2d
from scaleconv.models import DirectSIConv2d

SIZES = [(28, 7), (11, 5), (40, 9), (13, 3)]


def resample(images, scale, size):
    """Square images rescaled about their centre to a size, bilinear; samples beyond the edge repeat it."""
    length = images.shape[-1]
    place = ((torch.arange(size, dtype=torch.float64) - (size - 1) / 2) / scale + (length - 1) / 2).clamp(0, length - 1)
    low = place.floor().long().clamp(max=max(0, length - 2))
    part, high = place - low, (low + 1).clamp(max=length - 1)
    rows = images[..., low, :] * (1 - part).unsqueeze(1) + images[..., high, :] * part.unsqueeze(1)
    return rows[..., low] * (1 - part) + rows[..., high] * part


def level_by_hand(layer, images, scale):
    """A level brought back by whole pixels, and where it reaches, as the authors' later code has it."""
    kernel, outside = layer.kernel_size[0], 0.0 if layer.border == "zeros" else -math.inf
    outputs = images.shape[-1] - kernel + 1
    size = math.floor(scale * images.shape[-1] + 1e-6)
    if size < kernel:
        return None
    response = F.conv2d(resample(images, scale, size), layer.weight, layer.bias)
    back = resample(response, 1 / scale, math.floor(response.shape[-1] / scale + 1e-6))
    rounded = math.ceil if layer.align == "up" else math.floor
    result = torch.full((*response.shape[:2], outputs, outputs), outside, dtype=images.dtype)
    if back.shape[-1] < outputs:
        start = rounded((outputs - back.shape[-1]) / 2)
        result[..., start : start + back.shape[-1], start : start + back.shape[-1]] = back
    else:
        start = rounded((back.shape[-1] - outputs) / 2)
        result = back[..., start : start + outputs, start : start + outputs]
    return result


CALLS = {
    "plain": ((2, 2, 13, 9), (3, 2, 3, 3), {}),
    "strided and padded": ((1, 4, 12, 11), (6, 2, 3, 3), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    "dilated": ((1, 2, 15, 14), (2, 2, 3, 2), {"dilation": (2, 1), "padding": 1}),
}


@pytest.mark.parametrize("scales", [DEFAULT_SCALES, (1,), (2, 0.2, 1, 0.6)], ids=len)
@pytest.mark.parametrize("name", CALLS)
def test_the_defaults_are_the_loops(name, scales):
    shape, weight_shape, convolution = CALLS[name]
    images, weight, bias = tensors_of(shape, weight_shape)
    layer = DirectSIConv2d(shape[1], weight_shape[0], weight_shape[2:], scales=scales, **convolution).double()
    layer.load_state_dict({"weight": weight, "bias": bias})
    call = (layer.stride, layer.padding, layer.dilation, layer.groups, scales)
    assert_close(layer(images), torch.from_numpy(aligned_by_loops(images, weight, bias, *call).max(0)))


def test_images_of_another_size_or_type_have_matrices_of_their_own():
    torch.manual_seed(0)
    layer, plain = DirectSIConv2d(1, 2, 3), SIConv2d(1, 2, 3)
    plain.load_state_dict(layer.state_dict())
    for size in ((9, 8), (8, 9), (9, 8)):
        images = random(1, 1, *size, dtype=torch.float32)
        torch.testing.assert_close(layer(images), plain(images))
    layer, plain, images = layer.double(), plain.double(), images.double()
    torch.testing.assert_close(layer(images), plain(images))


@pytest.mark.parametrize(("align", "border"), list(product(("up", "down"), ("absent", "zeros"))))
@pytest.mark.parametrize(("size", "kernel"), SIZES)
def test_whole_pixels_are_those_of_the_response_brought_back_and_cropped(size, kernel, align, border):
    torch.manual_seed(0)
    layer = DirectSIConv2d(2, 3, kernel, align=align, border=border).double()
    images = torch.rand(2, 2, size, size, dtype=torch.float64) - 0.5
    expected = F.conv2d(images, layer.weight, layer.bias)
    for scale in DEFAULT_SCALES:
        if scale != 1 and (level := level_by_hand(layer, images, scale)) is not None:
            expected = torch.maximum(expected, level)
    torch.testing.assert_close(layer(images), expected, rtol=1e-9, atol=1e-9)


def test_a_border_that_is_clamped_reaches_everywhere_and_zeros_compete():
    torch.manual_seed(0)
    images = torch.rand(2, 1, 28, 28)
    outputs = {}
    for border in ("absent", "zeros", "clamp"):
        layer = DirectSIConv2d(1, 2, 7, scales=(1, 0.63), border=border)
        torch.nn.init.constant_(layer.weight, -0.1)
        torch.nn.init.zeros_(layer.bias)
        outputs[border] = layer(images)
    plain = F.conv2d(images, torch.full((2, 1, 7, 7), -0.1))
    assert torch.equal(outputs["absent"][..., 0, 0], plain[..., 0, 0])  # the level below 1 does not reach the corner
    assert (outputs["zeros"][..., 0, 0] == 0).all()
    assert (outputs["clamp"] >= outputs["absent"]).all()
    assert (outputs["clamp"][..., 0, :] != outputs["absent"][..., 0, :]).any()


def test_a_converted_network_has_these_layers_where_it_is_told_so():
    network = make_method("si_convnet", maps=(2, 3), second_scales=(1, 2), align="up", border="zeros")
    first, second = network.stages.conv1, network.stages.conv2
    assert (type(first), first.align, first.border, first.scales) == (DirectSIConv2d, "up", "zeros", DEFAULT_SCALES)
    assert second.scales == (1, 2)
    assert type(make_method("si_convnet").stages.conv1) is SIConv2d


@pytest.mark.parametrize("name", ["resnet18", "cnn"])
def test_other_rules_keep_weights_strides_padding_and_what_was_not_converted(name):
    networks = []
    for border in ("absent", "clamp"):
        torch.manual_seed(0)
        networks.append(make_method("converted", name=name, maps=(), scales=(0.5, 1), border=border).eval())
    plain, other = networks
    assert plain.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(tensor, other.state_dict()[key]) for key, tensor in plain.state_dict().items())
    for (key, layer), (_, direct) in zip(plain.named_modules(), other.named_modules(), strict=True):
        if isinstance(layer, torch.nn.Conv2d):
            assert isinstance(direct, DirectSIConv2d) == isinstance(layer, SIConv2d), key
            for name in ("stride", "padding", "kernel_size"):
                assert getattr(layer, name) == getattr(direct, name), key
    assert other(random(1, 1, 28, 28, dtype=torch.float32)).shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "known"), [("align", "'exact', 'up', 'down'"), ("border", "'absent', 'zeros', 'clamp'")]
)
def test_rules_that_do_not_exist_are_named(name, known):
    with pytest.raises(ValueError, match=f"`{name}` must be one of {known}, got 'left'"):
        DirectSIConv2d(1, 1, 3, **{name: "left"})


@pytest.mark.parametrize("normalise", ["map", "level"])
def test_the_responses_of_a_level_are_normalised_before_the_bias_and_the_maximum(normalise):
    images, weight, bias = tensors_of((2, 2, 12, 12), (3, 2, 3, 3))
    layer = DirectSIConv2d(2, 3, 3, scales=(1, 2), normalise=normalise).double()
    layer.load_state_dict({"weight": weight, "bias": bias})
    levels = []
    for scale, size in ((1, 12), (2, 24)):
        response = F.conv2d(resample(images, scale, size), weight)
        groups = response.flatten(2) if normalise == "map" else response.flatten(1).unsqueeze(1)
        centred = groups - groups.mean(2, keepdim=True)
        deviation = (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()
        levels.append((centred / deviation).reshape(response.shape) + bias.view(-1, 1, 1))
    # Output p of 10 reads the response of scale 2, of 22, at 2(p − 4.5) + 10.5: halfway between two neighbours.
    rows = (levels[1][:, :, 1:20:2] + levels[1][:, :, 2:21:2]) / 2
    aligned = (rows[..., 1:20:2] + rows[..., 2:21:2]) / 2
    assert_close(layer(images), torch.maximum(levels[0], aligned))


def test_a_converted_network_takes_the_rule_for_its_responses():
    images = torch.rand(1, 1, 28, 28)
    torch.manual_seed(0)
    plain = make_method("si_convnet")
    for normalise in ("map", "level"):
        torch.manual_seed(0)
        network = make_method("si_convnet", normalise=normalise)
        layers = [layer for layer in network.modules() if isinstance(layer, DirectSIConv2d)]
        assert [layer.normalise for layer in layers] == [normalise] * 2
        assert not torch.allclose(network(images), plain(images))
