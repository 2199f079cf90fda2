"""A converted network is the same network, weights and all, with other convolutions."""

import pytest
import torch
from torch import nn

from scaleconv import DEFAULT_SCALES, SIConv2d, convert, revert

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


class OtherConv(nn.Conv2d):
    """Computes something of its own."""


def test_kernels_larger_than_one_are_swapped_and_weights_kept():
    model = Block().eval()
    converted = convert(model)
    assert [type(converted.get_submodule(n)) for n in ("first", "shared", "point")] == [SIConv2d, SIConv2d, nn.Conv2d]
    assert converted.inner[1] is converted.shared
    assert converted.first.scales == DEFAULT_SCALES
    assert not converted.first.training
    assert converted.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in converted.state_dict().items())
    assert type(model.first) is nn.Conv2d


def test_at_scale_one_a_converted_network_computes_the_same():
    model = Block().eval()
    assert torch.equal(convert(model, scales=(1,))(IMAGES), model(IMAGES))
    assert not torch.equal(convert(model)(IMAGES), model(IMAGES))


def test_a_converted_layer_is_the_layer_one_would_have_made():
    plain = nn.Conv2d(3, 4, 3, padding=1, dilation=2, padding_mode="reflect")
    layer = convert(plain, scales=(1, 1.5), antialias=True)
    made = SIConv2d(3, 4, 3, padding=1, dilation=2, padding_mode="reflect", scales=(1, 1.5), antialias=True)
    made.load_state_dict(plain.state_dict())
    assert repr(layer) == repr(made)
    assert torch.equal(layer(IMAGES), made(IMAGES))
    assert vars(layer).keys() == vars(made).keys()


def test_revert_undoes_convert():
    model = Block().eval()
    back = revert(convert(model))
    assert repr(back) == repr(model)
    assert vars(back.first).keys() == vars(model.first).keys()
    assert torch.equal(back(IMAGES), model(IMAGES))


def test_in_place_the_parameters_are_the_same_objects():
    model = Block()
    before = dict(model.named_parameters())
    assert convert(model, inplace=True) is model
    assert type(model.first) is SIConv2d
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert revert(model, inplace=True) is model
    assert type(model.first) is nn.Conv2d


def test_hooks_move_along():
    model = Block()
    seen = []
    model.first.register_forward_hook(lambda *_: seen.append(1))
    convert(model, inplace=True)(IMAGES)
    assert seen == [1]


def test_a_layer_used_twice_side_by_side_stays_one():
    layer = nn.Conv2d(3, 3, 3, padding=1)
    converted = convert(nn.Sequential(layer, layer))
    assert type(converted[0]) is SIConv2d
    assert converted[0] is converted[1]


def test_where_chooses_by_name_and_layer():
    names = []

    def where(name, layer):
        names.append((name, layer.kernel_size))
        return name == "nothing"

    converted = convert(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 1))), where=lambda n, _: n == "1.0"
    )
    assert [type(converted[0]), type(converted[1][0])] == [nn.Conv2d, SIConv2d]
    with pytest.raises(ValueError, match=r"`model` \(=Block\) must hold a Conv2d that `where` chooses"):
        convert(Block(), where=where)
    assert names[:2] == [("first", (3, 3)), ("shared", (3, 3))]


def test_subclasses_and_converted_layers_are_left_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), OtherConv(4, 4, 3), SIConv2d(4, 4, 3, scales=(1, 2)))
    converted = convert(model)
    assert [type(layer) for layer in converted] == [SIConv2d, OtherConv, SIConv2d]
    assert converted[2].scales == (1, 2)
    assert [type(layer) for layer in revert(converted)] == [nn.Conv2d, OtherConv, nn.Conv2d]


def test_a_converted_network_trains():
    model = convert(Block())
    model(IMAGES).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got list"):
        convert([])
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        convert(Block(), scales=(2,))
