"""A converted network is the same network, weights and all, with other convolutions."""

import copy
import io
import pickle
import re
from functools import partial
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.utils.data import DataLoader

from scaleconv import (
    DEFAULT_SCALES,
    LATE_SCALES,
    SIConv1d,
    SIConv2d,
    SIConv3d,
    TIConv2d,
    convert,
    revert,
    rotation,
    si_conv1d,
    si_conv2d,
    si_conv3d,
    skipped,
)
from scaleconv.nn.convert import LATE, count_of_share

IMAGES = torch.rand(2, 3, 16, 15, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Nested, with a layer used twice and one that must not be touched."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.shared = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.inner = nn.Sequential(nn.BatchNorm2d(4), self.shared, nn.ReLU())
        self.point = nn.Conv2d(4, 5, 1)

    def forward(self, x):
        return self.point(self.inner(self.shared(self.first(x))))


class SameConv(nn.Conv2d):
    """As timm's Conv2dSame: pads as TensorFlow does."""

    def forward(self, x):
        pads = [
            max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            for size, kernel, stride, dilation in zip(
                x.shape[-2:], self.kernel_size, self.stride, self.dilation, strict=True
            )
        ]
        x = F.pad(x, (pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class StandardisedConv(nn.Conv2d):
    """As timm's StdConv2d: the weights of each filter have mean 0 and variance 1."""

    eps = 1e-6

    def standardised(self):
        flat = self.weight.reshape(1, self.out_channels, -1)
        return F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=self.eps).reshape_as(self.weight)

    def forward(self, x):
        weight = self.standardised()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class HalvedConv(nn.Conv2d):
    """Changes the weight on the way to Conv2d's own method."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight / 2, bias)


class DoubledConv1d(nn.Conv1d):
    def forward(self, x):
        return super().forward(2 * x)


class DoubledConv3d(nn.Conv3d):
    def forward(self, x):
        return super().forward(2 * x)


class SquaredConv(nn.Conv2d):
    """Computes something of its own with the result."""

    def forward(self, x):
        return super().forward(x).square()


class TwiceConv(nn.Conv2d):
    """Convolves twice, as an adapter beside the layer does."""

    def forward(self, x):
        return F.conv2d(x, self.weight) + F.conv2d(x, self.weight.flip(2))


class UntriableConv(nn.Conv2d):
    def forward(self, x):
        raise RuntimeError("not today")


def swapped(model):
    return [name for name, layer in model.named_modules() if isinstance(layer, SIConv2d)]


def test_kernels_larger_than_one_are_swapped_and_weights_kept():
    model = Block().eval()
    converted = convert(model, include="*")
    assert [type(converted.get_submodule(n)) for n in ("first", "shared", "point")] == [SIConv2d, SIConv2d, nn.Conv2d]
    assert converted.inner[1] is converted.shared
    assert converted.first.scales == LATE_SCALES
    assert not converted.first.training
    assert converted.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in converted.state_dict().items())
    assert type(model.first) is nn.Conv2d


def test_at_scale_one_a_converted_network_computes_the_same():
    model = Block().eval()
    assert torch.equal(convert(model, include="*", scales=(1,))(IMAGES), model(IMAGES))
    assert not torch.equal(convert(model, include="*")(IMAGES), model(IMAGES))


def test_a_converted_layer_is_the_layer_one_would_have_made():
    plain = nn.Conv2d(3, 4, 3, padding=1, dilation=2, padding_mode="reflect")
    layer = convert(plain, scales=(1, 1.5), antialias=True)
    made = SIConv2d(3, 4, 3, padding=1, dilation=2, padding_mode="reflect", scales=(1, 1.5), antialias=True)
    made.load_state_dict(plain.state_dict())
    assert type(layer) is SIConv2d
    assert repr(layer) == repr(made)
    assert torch.equal(layer(IMAGES), made(IMAGES))
    assert vars(layer).keys() == vars(made).keys()


def test_converting_draws_no_random_numbers():
    model = nn.Sequential(SameConv(3, 4, 3), nn.Conv2d(4, 4, 3))
    before = torch.get_rng_state()
    convert(model, include="*")
    assert torch.equal(torch.get_rng_state(), before)


def test_revert_undoes_convert():
    model = Block().eval()
    back = revert(convert(model, include="*"))
    assert repr(back) == repr(model)
    assert vars(back.first).keys() == vars(model.first).keys()
    assert torch.equal(back(IMAGES), model(IMAGES))


def test_in_place_the_parameters_are_the_same_objects():
    model = Block()
    before = dict(model.named_parameters())
    assert convert(model, include="*", inplace=True) is model
    assert type(model.first) is SIConv2d
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert revert(model, inplace=True) is model
    assert type(model.first) is nn.Conv2d


def test_where_chooses_by_name_and_layer():
    seen = []
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 1)))
    converted = convert(network, where=lambda name, layer: seen.append((name, layer.kernel_size)) or name == "1.0")
    assert swapped(converted) == ["1.0"]
    assert seen == [("0", (3, 3)), ("1.0", (1, 1))]
    assert convert(converted, scales=(1, 2))[1][0].scales == (1, 2)  # what was swapped once is chosen again


def test_patterns_choose_by_name():
    def network():
        return nn.ModuleDict(
            {"stem": nn.Conv2d(3, 4, 3), "body": nn.Sequential(*(nn.Conv2d(4, 4, k) for k in (3, 3, 1, 3)))}
        )

    assert swapped(convert(network(), include="stem")) == ["stem"]
    assert swapped(convert(network(), include="body.*")) == ["body.0", "body.1", "body.3"]
    assert swapped(convert(network(), include=("stem", "body.[01]"), exclude="*.0")) == ["stem", "body.1"]
    assert swapped(convert(network(), include="*", exclude=["body.1"])) == ["stem", "body.0", "body.3"]
    assert swapped(convert(network(), first=2)) == ["stem", "body.0"]
    assert swapped(convert(network(), first=2, exclude="stem")) == ["body.0", "body.1"]


@pytest.mark.parametrize(("last", "count"), [(1, 1), (2, 2), (0.3, 1), (0.375, 2), (0.5, 2), (4, 4), (0.01, 1)])
def test_the_last_layers_are_a_number_or_a_share_of_those_that_are_chosen(last, count):
    layers = nn.Sequential(
        *[nn.Conv2d(1, 1, 3) for _ in range(2)], nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 5)
    )
    assert swapped(convert(layers, last=last)) == ["0", "1", "3", "4"][4 - count :]
    assert swapped(convert(layers, last=1, exclude="4")) == ["3"]


class Residual(nn.Module):
    """As the blocks of ResNet: two convolutions, and a third of 1×1 where the size changes."""

    def __init__(self, channels, maps, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, maps, 3, stride, 1)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, maps, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


def resnet():
    """17 convolutions that can gain, as ResNet-18 has."""
    stages = [
        nn.Sequential(Residual(c, m, s), Residual(m, m, 1)) for c, m, s in ((2, 2, 1), (2, 3, 2), (3, 4, 2), (4, 5, 2))
    ]
    return nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.ReLU(), *stages, nn.AdaptiveAvgPool2d(1))


LATE_LAYERS = ["4.1.conv2", "5.0.conv1", "5.0.conv2", "5.1.conv1", "5.1.conv2"]  # 30 % of 17


class UNet(nn.Module):
    """Two convolutions at each of three sizes, and two more on the way back at the two larger ones."""

    def __init__(self):
        super().__init__()
        for part, (first, maps) in {
            "down1": (3, 2),
            "down2": (2, 3),
            "bottom": (3, 4),
            "up2": (7, 3),
            "up1": (5, 2),
        }.items():
            self.add_module(
                part, nn.Sequential(nn.Conv2d(first, maps, 3, padding=1), nn.Conv2d(maps, maps, 3, padding=1))
            )

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        deep = self.bottom(F.max_pool2d(two, 2))
        two = self.up2(torch.cat([F.interpolate(deep, size=two.shape[-2:]), two], 1))
        return self.up1(torch.cat([F.interpolate(two, size=one.shape[-2:]), one], 1))


BOTTOM = ["bottom.0", "bottom.1"]


def test_by_default_the_last_30_percent_of_the_layers_are_swapped():
    network = resnet()
    for given in ({}, {"images": torch.rand(1, 3, 32, 32)}, {"scales": (1, 2)}, {"antialias": True}):
        converted = convert(network, **given)
        assert swapped(converted) == LATE_LAYERS
        scales = given.get("scales", LATE_SCALES)
        assert {converted.get_submodule(name).scales for name in LATE_LAYERS} == {scales}
    assert swapped(convert(network, exclude="5.*")) == ["4.0.conv1", "4.0.conv2", "4.1.conv1", "4.1.conv2"]  # of 13


def test_every_layer_is_swapped_where_include_says_so():
    network = convert(resnet(), include="*", scales=DEFAULT_SCALES)
    assert len(swapped(network)) == 17
    assert {network.get_submodule(name).scales for name in swapped(network)} == {DEFAULT_SCALES}
    assert swapped(convert(resnet(), include=["*"], exclude="5.*")) == [n for n in swapped(network) if n[0] != "5"]


def test_whatever_else_chooses_layers_takes_the_place_of_the_late_ones():
    network = resnet()
    assert swapped(convert(network, first=1)) == ["0"]
    assert swapped(convert(network, last=1)) == ["5.1.conv2"]
    assert swapped(convert(network, include="[03].*")) == ["3.0.conv1", "3.0.conv2", "3.1.conv1", "3.1.conv2"]
    assert swapped(convert(network, where=lambda name, layer: name.endswith("0.conv1"))) == [
        f"{n}.0.conv1" for n in "2345"
    ]
    assert swapped(convert(network, scales={"0": (1, 2), "4.1.*": (0.5, 1)})) == ["0", "4.1.conv1", "4.1.conv2"]
    assert len(swapped(convert(network, scales={"*": (1, 2)}))) == 17


def test_a_single_layer_is_swapped():
    layer = convert(nn.Conv2d(3, 4, 3))
    assert (type(layer), layer.scales) == (SIConv2d, LATE_SCALES)


def test_with_images_layers_count_from_the_largest_map_to_the_smallest():
    network, images = UNet(), torch.rand(1, 3, 16, 12)
    assert swapped(convert(network, last=2)) == swapped(convert(network, last=0.2)) == ["up1.0", "up1.1"]
    assert swapped(convert(network, last=2, images=images)) == BOTTOM
    assert swapped(convert(network, last=4, images=images)) == [*BOTTOM, "up2.0", "up2.1"]
    assert swapped(convert(network, first=3, images=images)) == ["down1.0", "down1.1", "up1.0"]
    # 30 % of 10 is 3: with images also the last layer of the next larger maps.
    assert swapped(convert(network)) == ["up2.1", "up1.0", "up1.1"]
    assert swapped(convert(network, images=images)) == [*BOTTOM, "up2.1"]


def test_layers_that_the_images_do_not_reach_count_first():
    network = UNet()
    network.spare = nn.Conv2d(3, 3, 3)
    images = torch.rand(1, 3, 16, 12)
    assert swapped(convert(network, last=2)) == ["up1.1", "spare"]
    assert swapped(convert(network, last=2, images=images)) == BOTTOM
    assert swapped(convert(network, first=2, images=images)) == ["down1.0", "spare"]


@pytest.mark.parametrize(
    ("share", "layers", "count"),
    [
        *[
            (LATE, layers, count)
            for layers, count in ((1, 1), (2, 1), (4, 1), (5, 2), (6, 2), (7, 2), (13, 4), (17, 5))
        ],
        *[(0.5, 7, 4), (0.5, 5, 3), (0.1, 15, 2), (0.1, 14, 1), (0.01, 3, 1), (0.99, 3, 3), (1.0, 7, 7)],
        *[(0.29, 50, 15), (0.35, 90, 32), (1 / 3, 9, 3)],  # 0.29 · 50 and 0.35 · 90 are below the half as floats
    ],
)
def test_a_share_is_rounded_to_the_nearest_number_of_layers_half_a_layer_up(share, layers, count):
    assert count_of_share(share, layers) == count


def test_the_rounding_of_shares_is_that_of_convert():
    network = nn.Sequential(*(nn.Conv2d(1, 1, 3) for _ in range(6)))
    assert swapped(convert(network)) == ["4", "5"]
    assert swapped(convert(network, last=0.24)) == ["5"]


def test_of_a_converted_network_the_converted_layers_are_chosen():
    network = resnet()
    early = convert(network, include=["0", "2.0.*"])
    again = convert(early, scales=(1, 2))
    assert swapped(again) == swapped(early) == ["0", "2.0.conv1", "2.0.conv2"]
    assert {again.get_submodule(name).scales for name in swapped(again)} == {(1, 2)}
    assert swapped(convert(early)) == swapped(convert(early, images=torch.rand(1, 3, 32, 32))) == swapped(early)
    excluded = convert(early, exclude="0", scales=(1, 2))
    assert [excluded.get_submodule(name).scales for name in swapped(early)] == [LATE_SCALES, (1, 2), (1, 2)]
    assert swapped(convert(early, last=1)) == [*swapped(early), "5.1.conv2"]
    assert len(swapped(convert(early, include="*"))) == 17


def test_each_layer_takes_the_scales_of_the_first_pattern_that_matches_it():
    network = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3)))
    converted = convert(network, scales={"0": (1, 2), "[01]": (0.5, 1)})
    assert [getattr(layer, "scales", None) for layer in converted] == [(1, 2), (0.5, 1), None]
    assert [layer.scales for layer in convert(network, scales={"2": (1,), "*": (1, 3)})] == [(1, 3), (1, 3), (1,)]


def test_converting_again_changes_the_scales_of_what_is_chosen():
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), SIConv2d(3, 3, 3, padding=1, scales=(1, 2)))
    converted = convert(network, include="*", scales=DEFAULT_SCALES)
    assert [layer.scales for layer in converted] == [DEFAULT_SCALES, DEFAULT_SCALES]
    again = convert(converted, include="1", scales=(1, 1.5), antialias=True)
    assert [(layer.scales, layer.antialias) for layer in again] == [(DEFAULT_SCALES, False), ((1, 1.5), True)]
    assert converted[1].scales == DEFAULT_SCALES
    expected = si_conv2d(IMAGES, again[1].weight, again[1].bias, padding=1, scales=(1, 1.5), antialias=True)
    assert torch.equal(again[1](IMAGES), expected)


def padded_by_hand(images, stride):
    return F.pad(images, (1, 1, 1, 1) if stride == 1 else (1, 1, 0, 1))  # 15 columns, 16 rows


SUBCLASSES = {
    "pads": (SameConv, {}, lambda layer: (padded_by_hand(IMAGES, 1), layer.weight)),
    "pads at a stride": (SameConv, {"stride": 2}, lambda layer: (padded_by_hand(IMAGES, 2), layer.weight)),
    "standardises": (StandardisedConv, {"bias": False}, lambda layer: (IMAGES, layer.standardised())),
    "by the method of Conv2d": (
        HalvedConv,
        {"padding": 1, "padding_mode": "reflect"},
        lambda layer: (F.pad(IMAGES, (1, 1, 1, 1), mode="reflect"), layer.weight / 2),
    ),
    "for signals": (DoubledConv1d, {}, lambda layer: (2 * IMAGES[..., 0], layer.weight)),
    "for volumes": (DoubledConv3d, {}, lambda layer: (2 * torch.stack([IMAGES] * 4, 2), layer.weight)),
}
UNDOUBLED = {DoubledConv1d: IMAGES[..., 0], DoubledConv3d: torch.stack([IMAGES] * 4, 2)}
FUNCTIONS = {SIConv1d: si_conv1d, SIConv2d: si_conv2d, SIConv3d: si_conv3d}


@pytest.mark.parametrize(("kind", "arguments", "prepare"), SUBCLASSES.values(), ids=SUBCLASSES)
def test_a_subclass_keeps_what_it_does_to_its_input_or_its_weight(kind, arguments, prepare):
    """It trains, is copied, pickled and reverted, and a symbolic trace keeps its call whole."""
    model, images = nn.Sequential(kind(3, 4, 3, **arguments)), UNDOUBLED.get(kind, IMAGES)
    converted = convert(model, scales=(1, 0.7, 1.6), antialias=True)
    (function,) = (function for base, function in FUNCTIONS.items() if isinstance(converted[0], base))
    given, weight = prepare(model[0])
    call = {"stride": model[0].stride, "scales": (1, 0.7, 1.6), "antialias": True}
    expected, winner = function(given, weight, model[0].bias, **call, return_winner=True)
    stream = io.BytesIO()
    torch.save(converted, stream)
    stream.seek(0)
    for each in (converted, copy.deepcopy(converted), torch.load(stream, weights_only=False)):
        assert type(each[0]) is type(converted[0])
        assert isinstance(each[0], kind)
        assert torch.equal(each(images), expected)
    assert torch.equal(converted[0](images, return_winner=True)[1], winner)
    if kind is not SameConv:  # the sizes that it asks for cannot be traced
        traced = torch.fx.symbolic_trace(converted)
        assert [node.target for node in traced.graph.nodes].count(function) == 1
        assert torch.equal(traced(images), expected)
    converted(images).square().sum().backward()
    assert converted[0].weight.grad.abs().max() > 0
    back = revert(converted)
    assert type(back[0]) is kind
    assert vars(back[0]).keys() == vars(model[0]).keys()
    assert torch.equal(back(images), model(images))


def repeats_along_the_width(self, images, weight, bias):
    padded = F.pad(F.pad(images, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1))
    return F.conv2d(padded, weight, bias, self.stride)


def test_a_method_that_one_layer_has_in_place_of_that_of_its_class_is_kept():
    """So generators of images are made to repeat along one axis."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3))
    model[0]._conv_forward = MethodType(repeats_along_the_width, model[0])
    converted = convert(model, include="*", scales=(1, 0.7))
    padded = F.pad(F.pad(IMAGES, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1))
    expected = si_conv2d(padded, model[0].weight, model[0].bias, scales=(1, 0.7))
    for each in (converted, copy.deepcopy(converted)):
        assert torch.equal(each[0](IMAGES), expected)
    assert (type(converted[0]) is SIConv2d, type(converted[1]) is SIConv2d) == (False, True)
    back = revert(converted)
    assert type(back[0]) is nn.Conv2d
    assert torch.equal(back(IMAGES), model(IMAGES))


def test_a_swapped_subclass_compiles():
    converted = convert(SameConv(3, 4, 3))
    compiled = torch.compile(converted, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(IMAGES), converted(IMAGES))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (SquaredConv, "SquaredConv changes what conv2d returns"),
        (TwiceConv, "TwiceConv calls conv2d 2 times"),
        (UntriableConv, "UntriableConv could not be tried (RuntimeError: not today)"),
        (partial(TIConv2d, transforms=[rotation(0), rotation(90)]), "TIConv2d has transforms of its own"),
    ],
)
def test_a_subclass_that_computes_something_else_is_left_alone_with_a_warning(kind, reason):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4, 4, 3))
    with pytest.warns(UserWarning, match="left alone") as caught:
        converted = convert(model, include="*")
    assert [str(each.message) for each in caught] == [f"left alone by `convert`: 1: {reason}"]
    assert [type(layer) for layer in converted] == [SIConv2d, type(model[1])]
    assert skipped(converted) == {"1": reason}


def test_a_lazy_layer_is_left_alone_until_its_size_is_known():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyConv2d(5, 3))
    with pytest.warns(UserWarning, match="LazyConv2d does not know its size yet"):
        convert(model)
    with pytest.raises(ValueError, match=r"and that can be swapped \(1: LazyConv2d does not know its size yet"):
        convert(model, include="1")
    model(IMAGES)
    assert swapped(convert(model, include="*")) == ["0", "1"]


HOOKED = {
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral_norm": parametrizations.spectral_norm,
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", [nn.Conv2d, SameConv])
@pytest.mark.parametrize("name", HOOKED)
def test_normalised_and_pruned_layers_keep_that(name, kind):
    torch.manual_seed(0)
    model = nn.Sequential(HOOKED[name](kind(3, 4, 3))).eval()
    plain = model(IMAGES)
    converted = convert(model)
    assert isinstance(converted[0], SIConv2d)
    assert converted.state_dict().keys() == model.state_dict().keys()
    output = converted(IMAGES)
    padded = F.pad(IMAGES, (1, 1, 1, 1)) if kind is SameConv else IMAGES
    torch.testing.assert_close(output, si_conv2d(padded, model[0].weight, model[0].bias, scales=LATE_SCALES))
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in converted.parameters())
    with torch.no_grad():
        next(iter(converted.parameters())).mul_(1.5)  # still computed from the parameters, in every call
    assert not torch.equal(converted(IMAGES), output)
    again = revert(convert(model))
    assert type(again[0]).__name__ == type(model[0]).__name__
    assert torch.equal(again(IMAGES), plain)
    assert torch.equal(model(IMAGES), plain)


def test_a_parametrization_can_be_removed_from_a_swapped_layer():
    converted = convert(nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))))
    output = converted(IMAGES)
    parametrize.remove_parametrizations(converted[0], "weight")
    assert type(converted[0]) is SIConv2d
    torch.testing.assert_close(converted(IMAGES), output)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scales": (2,)}, ValueError, "`scales` must contain 1"),
        ({"scales": {"first": (2,)}}, ValueError, "`scales` must contain 1"),
        ({"scales": {"frist": (1, 2)}}, ValueError, "`scales` must match the name of a convolution, got 'frist'"),
        ({"scales": {1: (1, 2)}}, TypeError, r"`scales` must be a pattern of names or a sequence of them, got \[1\]"),
        ({"include": ["first", "conv9"]}, ValueError, "`include` must match the name of a convolution, got 'conv9'"),
        ({"exclude": "conv9"}, ValueError, "`exclude` must match the name of a convolution, got 'conv9'"),
        ({"include": 3}, TypeError, "`include` must be a pattern of names or a sequence of them, got 3"),
        ({"exclude": [None]}, TypeError, "`exclude` must be a pattern of names or a sequence of them, got"),
        ({"first": 0}, ValueError, r"`first` must be from 1 to the number of chosen layers \(=2\), got 0"),
        ({"first": 3}, ValueError, r"`first` must be from 1 to the number of chosen layers \(=2\), got 3"),
        ({"antialias": "no"}, TypeError, "`antialias` must be True or False, got 'no'"),
        ({"first": True}, TypeError, "`first` must be an integer or None, got True"),
        ({"last": True}, TypeError, "`last` must be an integer, a share or None, got True"),
        ({"last": "1"}, TypeError, "`last` must be an integer, a share or None, got '1'"),
        ({"last": 3}, ValueError, r"`last` must be from 1 to the number of chosen layers \(=2\), got 3"),
        ({"last": 1.5}, ValueError, "`last` must be a number of layers, or a share between 0 and 1, got 1.5"),
        ({"last": 1.0}, ValueError, "`last` must be a number of layers, or a share between 0 and 1, got 1.0"),
        ({"last": float("nan")}, ValueError, "`last` must be a number of layers, or a share between 0 and 1, got nan"),
        ({"first": 1, "last": 1}, ValueError, r"`first` \(=1\) and `last` \(=1\) must not both be given"),
        ({"inplace": "no"}, TypeError, "`inplace` must be True or False, got 'no'"),
        ({"where": []}, TypeError, "`where` must be a function of a name and a layer, got list"),
        ({"exclude": "*"}, ValueError, r"`model` \(=Block\) must hold a convolution that `include`, `exclude`"),
        ({"model": []}, TypeError, r"`model` must be a torch\.nn\.Module, got list"),
        ({"model": nn.Flatten()}, ValueError, r"`model` \(=Flatten\) must hold a convolution: Conv1d, Conv2d"),
        ({"model": nn.ConvTranspose2d(3, 4, 3), "include": "x"}, ValueError, "must hold a convolution: Conv1d"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        convert(**{"model": Block(), **arguments})


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("inner", r"; did you mean 'inner\.\*'\?"),
        ("inner.", r"; did you mean 'inner\.\*'\?"),
        ("in", r"; did you mean 'in\*'\?"),
        ("[ij]nner", r"; did you mean '\[ij\]nner\.\*'\?"),
        ("3", r"; did you mean '\*\.3'\?"),
        ("deep", r"; did you mean '\*\.deep\.\*'\?"),
        ("stme", "; it has 'stem' and others"),
        ("fc", r"; it has 'stem', 'inner\.0', 'inner\.deep\.conv' and others"),
    ],
)
@pytest.mark.parametrize("argument", ["include", "exclude", "scales"])
def test_a_name_that_is_no_convolution_is_refused_with_a_pattern_or_names_that_work(argument, pattern, near):
    deep = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 3)})
    inner = nn.ModuleDict({"0": nn.Conv2d(3, 3, 3), "deep": deep, "3": nn.Conv2d(3, 3, 3)})
    network = nn.ModuleDict({"stem": nn.Conv2d(3, 3, 3), "inner": inner})
    choice = {pattern: (1, 2)} if argument == "scales" else pattern
    message = f"`{argument}` must match the name of a convolution, got {re.escape(repr(pattern))}{near}$"
    with pytest.raises(ValueError, match=message):
        convert(network, **{argument: choice})
    if "did you mean" in near:
        meant = near.split("'")[1].replace("\\", "")
        assert swapped(convert(network, include=meant))


class CallsSuper(nn.Conv2d):
    def forward(self, x, gain=1.0):
        return super().forward(gain * F.pad(x, (1, 1, 1, 1)))


def test_a_subclass_may_call_the_forward_of_conv2d_and_take_more_arguments():
    layer = CallsSuper(3, 4, 3)
    converted = convert(layer, scales=(1, 2))
    expected = si_conv2d(2 * F.pad(IMAGES, (1, 1, 1, 1)), layer.weight, layer.bias, scales=(1, 2))
    for output in (converted(IMAGES, 2.0), converted(x=IMAGES, gain=2.0)):
        assert torch.equal(output, expected)
    assert torch.equal(revert(converted)(IMAGES), layer(IMAGES))


def test_signals_and_volumes_are_converted_and_reverted():
    for make, kind, shape in ((nn.Conv1d, SIConv1d, (2, 3, 20)), (nn.Conv3d, SIConv3d, (1, 3, 6, 7, 8))):
        plain = nn.Sequential(make(3, 4, 3, padding=1), nn.ReLU(), make(4, 4, 1), make(4, 2, 3, stride=2))
        images = torch.rand(shape)
        network = convert(plain, include="*", scales=(1, 2))
        assert [type(layer) for layer in network] == [kind, nn.ReLU, make, kind]
        function = si_conv1d if kind is SIConv1d else si_conv3d
        expected = function(images, plain[0].weight, plain[0].bias, padding=1, scales=(1, 2))
        torch.testing.assert_close(network[0](images), expected)
        assert torch.equal(revert(network)(images), plain(images))
        assert type(convert(make(3, 4, 3))) is kind


def test_converting_again_keeps_antialias_unless_it_is_given():
    network = convert(nn.Sequential(nn.Conv2d(3, 4, 3)), antialias=True)
    assert convert(network, scales=(1, 2))[0].antialias
    assert not convert(network, scales=(1, 2), antialias=False)[0].antialias
    assert not convert(nn.Conv2d(3, 4, 3)).antialias


def test_what_cannot_gain_is_left_alone_unless_asked_for():
    network = nn.Sequential(
        *(nn.Conv2d(3, 4, 4, stride=4), nn.Conv2d(4, 4, (7, 1)), nn.Conv2d(4, 4, 3, stride=(3, 2))),
        *(nn.Conv2d(4, 4, 1), nn.Conv1d(4, 4, 1), nn.ConvTranspose2d(4, 4, 2), nn.Conv2d(4, 4, 3)),
    )
    converted = convert(network, include="*", exclude="6")
    assert swapped(converted) == ["1", "2"]
    assert skipped(converted) == {
        "0": "patches of 4×4 do not overlap",
        "3": "1×1 kernel",
        "4": "kernel of length 1",
        "5": "ConvTranspose2d is a transposed convolution",
        "6": "not chosen",
    }
    for asked in ({"include": ["0"]}, {"scales": {"0": (1, 2)}}, {"where": lambda name, layer: name == "0"}):
        assert swapped(convert(network, **asked)) == ["0"]
    with pytest.raises(ValueError, match="left alone unless named in `include`: 0: patches of 4×4 do not overlap"):
        convert(network, include="[0]")


def test_a_kernel_that_exceeds_its_map_is_left_alone_if_images_show_it():
    network = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4, padding=2), nn.Conv2d(4, 4, 3, dilation=3, padding=3))
    assert all(isinstance(layer, SIConv2d) for layer in convert(network, include="*", images=torch.rand(1, 3, 28, 28)))
    images = {"labels": torch.arange(2), "pixel_values": torch.rand(2, 3, 28, 24)}
    network.train()
    converted = convert(network, include="*", images=images)
    assert [isinstance(layer, SIConv2d) for layer in converted] == [True, False]
    assert skipped(converted, images) == {"1": "kernel of 7×7 exceeds the map of 7×6"}
    assert skipped(converted) == {"1": "not chosen"}
    assert converted.training
    by_call = convert(network, images=[images], call=lambda model, batch: model(batch[0]["pixel_values"]))
    assert not isinstance(by_call[1], SIConv2d)


def test_images_may_be_a_loader_of_which_the_first_batch_is_run():
    network = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4, padding=2), nn.Conv2d(4, 4, 3, dilation=3, padding=3))
    small, large = torch.rand(3, 24, 24), torch.rand(3, 64, 64)
    loader = DataLoader([(small, 0), (small, 1), (large, 2)], batch_size=2)  # labels as well
    reason = {"1": "kernel of 7×7 exceeds the map of 6×6"}
    for images in (loader, iter(loader), (batch for batch in loader)):
        assert swapped(convert(network, include="*", images=images)) == ["0"]
    assert skipped(convert(network, include="0"), loader) == reason
    by_call = convert(network, include="*", images=loader, call=lambda model, batch: model(batch[0]))
    assert skipped(by_call, loader) == reason
    for images, error, message in [
        (DataLoader([]), ValueError, "`images` must hold images, got none"),
        (DataLoader([1, 2]), ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got shape \(1,\)"),
        ("photos", TypeError, "`images` must be a tensor, got str"),
        (3, TypeError, "`images` must be a tensor, got int"),
    ]:
        with pytest.raises(error, match=message):
            convert(network, images=images)


def test_names_with_brackets_name_themselves():
    network = nn.ModuleDict({"a[0]": nn.Conv2d(3, 4, 3), "a0": nn.Conv2d(3, 4, 3)})
    for choice in ({"scales": {"a[0]": (1, 2)}}, {"include": "a[0]"}, {"include": "*", "exclude": "a0"}):
        assert swapped(convert(network, **choice)) == ["a[0]"]


class NoisyConv(nn.Conv2d):
    """In training it does more than convolve."""

    def forward(self, x):
        return super().forward(x) + torch.rand(1) if self.training else super().forward(x)


def test_a_subclass_is_tried_in_evaluation_mode_and_left_in_its_own():
    layer = NoisyConv(3, 4, 3)
    assert isinstance(convert(layer), SIConv2d)
    assert layer.training


class Branches(nn.Module):
    """As RepVGG: two branches that one convolution can replace, as long as they are linear."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.large(x) + self.small(x)

    def reparameterize(self):
        return F.pad(self.small.weight, (1, 1, 1, 1)) + self.large.weight

    def fuse(self, features):  # needs arguments: something else
        return features


def test_methods_that_would_fold_a_layer_refuse_until_it_is_reverted():
    network = nn.Sequential(Branches(), nn.ReLU())
    converted = pickle.loads(pickle.dumps(convert(network)))
    with pytest.raises(RuntimeError, match="`reparameterize` of Branches would fold a scale-invariant layer"):
        converted[0].reparameterize()
    assert converted[0].fuse(3) == 3
    beside = convert(nn.Sequential(Branches(), nn.Conv2d(3, 3, 3)), include="1")
    assert beside[0].reparameterize().shape == (3, 3, 3, 3)  # it holds no scale-invariant layer
    assert network[0].reparameterize().shape == (3, 3, 3, 3)
    assert revert(converted)[0].reparameterize().shape == (3, 3, 3, 3)
    assert "reparameterize" not in vars(revert(converted)[0])


def test_adapters_of_other_layers_stay_plain():
    network = nn.ModuleDict(
        {"base_layer": nn.Conv2d(3, 4, 3), "lora_A": nn.ModuleDict({"default": nn.Conv2d(3, 2, 3)})}
    )
    converted = convert(network, include="*")
    assert skipped(converted) == {"lora_A.default": "adapter of another layer"}


def test_a_network_that_keeps_activations_is_copied_without_their_graph():
    """Many keep features for a later loss, or for Grad-CAM; PyTorch does not copy what was computed."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    network.seen = {"first": [network(IMAGES)]}
    (kept,) = convert(network).seen["first"]
    assert torch.equal(kept, network.seen["first"][0])
    assert not kept.requires_grad
    assert network.seen["first"][0].requires_grad
