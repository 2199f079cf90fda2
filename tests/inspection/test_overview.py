"""The summary counts what there is, and says why a layer was left alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import ScaleInvariant, TIConv2d, convert, macs, rotation, summary

SIZE = (2, 3, 12, 10)


class PaddedConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        PaddedConv(4, 4, 3),
        nn.Conv2d(4, 6, 1),
        nn.ConvTranspose2d(6, 4, 2),
    )


def test_operations_are_those_of_the_calls():
    found = summary(convert(network(), scales=(1, 2)), SIZE, repeats=0)
    first = macs((2, 3, 12, 10), (4, 3, 3, 3), 2, 1, scales=(1, 2))
    padded = macs((2, 4, 8, 7), (4, 4, 3, 3), scales=(1, 2))
    point = 2 * 6 * 5 * 6 * 4
    assert [layer.plain_macs for layer in found.layers] == [first.conv2d.total, padded.conv2d.total, point, None]
    assert [layer.macs for layer in found.layers] == [first.planned.total, padded.planned.total, point, None]
    assert found.macs == first.planned.total + padded.planned.total + point
    assert found.plain_macs == first.conv2d.total + padded.conv2d.total + point


def test_a_layer_that_is_called_twice_counts_twice():
    layer = nn.Conv2d(3, 3, 3, padding=1)
    once, twice = (summary(nn.Sequential(*[layer] * count), SIZE, repeats=0).macs for count in (1, 2))
    assert twice == 2 * once > 0


def test_what_was_left_alone_has_a_reason():
    found = summary(convert(network(), exclude="2", scales=(1, 2)), SIZE, repeats=0)
    assert [layer.scales for layer in found.layers] == [(1, 2), (), (), ()]
    reasons = ["", "not chosen", "1×1 kernel", "ConvTranspose2d is a transposed convolution"]
    assert [layer.reason for layer in found.layers] == reasons
    assert all(reason in str(found) for reason in reasons)


def test_parameters_are_counted_and_stay():
    found = summary(convert(network()), SIZE, repeats=0)
    count = sum(parameter.numel() for parameter in network().parameters())
    assert found.parameters == found.plain_parameters == count
    assert [layer.parameters for layer in found.layers] == [112, 148, 30, 100]


def test_both_networks_are_timed_and_their_ratio_shown():
    found = summary(convert(network()), SIZE, repeats=1)
    assert found.ms > 0 < found.plain_ms
    assert str(found).splitlines()[-1].split()[-1] == f"{found.ms / found.plain_ms:.2f}"
    assert summary(convert(network()), SIZE, repeats=0).ms is None
    assert "ms" not in str(summary(convert(network()), SIZE, repeats=0)).splitlines()[-1]


def test_the_network_is_left_as_it_was():
    model = convert(network()).train()
    before = model[1].running_mean.clone()
    summary(model, SIZE, repeats=1)
    assert model[1].training
    assert torch.equal(model[1].running_mean, before)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model)


def test_a_plain_network_can_be_summarised():
    found = summary(network(), SIZE, repeats=0)
    assert found.macs == found.plain_macs
    assert found.layers[0].reason == "not chosen"


def test_a_pyramid_costs_the_operations_of_its_levels_and_not_those_of_finding_its_grid():
    pyramid = ScaleInvariant(nn.Conv2d(3, 4, 3), (0.5, 1, 2))
    levels = [macs((1, 3, side, side), (4, 3, 3, 3)).conv2d.total for side in (8, 16, 32)]
    assert [summary(pyramid, (1, 3, 16, 16), repeats=0).macs for _ in range(2)] == [sum(levels)] * 2


def test_operations_of_a_layer_with_transforms_are_not_guessed():
    layer = TIConv2d(3, 4, 3, transforms=[rotation(0), rotation(45)])
    found = summary(nn.Sequential(layer, nn.Conv2d(4, 2, 1)), SIZE, repeats=0)
    assert (found.layers[0].macs, found.layers[0].plain_macs) == (None, None)
    assert found.macs == found.layers[1].macs > 0


def test_it_shows_itself_without_print():
    found = summary(network(), SIZE, repeats=0)
    assert repr(found) == str(found)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "resnet"}, TypeError, r"`model` must be a torch\.nn\.Module, got str"),
        ({"input_size": (3, 12, 10)}, ValueError, r"`input_size` must be \(N, C, H, W\), got \(3, 12, 10\)"),
        ({"input_size": 12}, TypeError, r"`input_size` must be four numbers \(N, C, H, W\), got int"),
        ({"input_size": torch.ones(4)}, TypeError, r"`input_size` must be four numbers .*, got Tensor"),
        ({"input_size": (1, 3, 0, 10)}, ValueError, "`input_size` must be at least 1, got 0"),
        ({"input_size": (1, 3, 8.5, 10)}, TypeError, "`input_size` must be an integer, got 8.5"),
        ({"repeats": -1}, ValueError, "`repeats` must be at least 0, got -1"),
        (
            {"model": nn.Sequential(nn.LazyConv2d(4, 3))},
            ValueError,
            r"`model` must know the sizes of its layers, got '0' \(=LazyConv2d\): call the network once before",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        summary(**{"model": network(), "input_size": SIZE, **arguments})
