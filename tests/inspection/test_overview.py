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


def test_operations_are_those_of_the_calls_and_totals_stand_under_their_headings():
    """Plain: 2 images of 6×5 positions, and 4 filters of 27 weights, 4 of 36, 6 of 4: 16,560 operations."""
    found = summary(convert(network(), include="*", scales=(1, 2)), SIZE, repeats=0)
    first = macs((2, 3, 12, 10), (4, 3, 3, 3), 2, 1, scales=(1, 2)).planned.total
    padded = macs((2, 4, 8, 7), (4, 4, 3, 3), scales=(1, 2)).planned.total
    assert [layer.plain_macs for layer in found.layers] == [60 * 4 * 27, 60 * 4 * 36, 60 * 6 * 4, None]
    assert [layer.macs for layer in found.layers] == [first, padded, 1440, None]
    now = first + padded + 1440
    assert (found.macs, found.plain_macs) == (now, 16560)
    lines = [line.split() for line in str(found).splitlines()[-3:]]
    assert lines[0] == ["scale-invariant", "layers", "0", "2", "of", "4"]
    assert lines[1] == ["parameters", "398", "398"]
    assert lines[2] == ["MMACs", "of", "convolutions", "0.0166", f"{now / 1e6:.3g}", f"{now / 16560:.2f}"]
    assert now > 2 * 16560


def test_a_layer_that_is_called_twice_counts_twice():
    layer = nn.Conv2d(3, 3, 3, padding=1)
    once, twice = (summary(nn.Sequential(*[layer] * count), SIZE, repeats=0).macs for count in (1, 2))
    assert twice == 2 * once > 0


def test_what_was_left_alone_has_a_reason():
    found = summary(convert(network(), include="0", scales=(1, 2)), SIZE, repeats=0)
    assert [layer.scales for layer in found.layers] == [(1, 2), (), (), ()]
    reasons = ["", "not chosen", "1×1 kernel", "ConvTranspose2d is a transposed convolution"]
    assert [layer.reason for layer in found.layers] == reasons
    assert all(reason in str(found) for reason in reasons)


def test_a_kernel_that_exceeds_its_map_is_the_reason_with_these_images():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.Conv2d(4, 4, 3, padding=1))  # the second sees maps of 2×2
    rows = summary(convert(layers, include="0", scales=(1, 2)), (1, 3, 9, 9), repeats=0).layers
    assert [row.reason for row in rows] == ["", "kernel of 3×3 exceeds the map of 2×2"]


def test_parameters_are_counted_and_stay():
    found = summary(convert(network(), include="*"), SIZE, repeats=0)
    count = sum(parameter.numel() for parameter in network().parameters())
    assert found.parameters == found.plain_parameters == count
    assert [layer.parameters for layer in found.layers] == [112, 148, 30, 100]


def test_both_networks_are_timed_in_evaluation_mode_and_their_ratio_shown(clock):
    clock.ms = {"plain": 2.0, "now": 9.0}
    model, kinds = convert(network(), include="*").train(), []
    model[0].register_forward_hook(lambda layer, args, _: kinds.append((type(layer).__name__, layer.training)))
    images = torch.rand(SIZE)
    found = summary(model, images, repeats=4)
    assert (found.ms, found.plain_ms) == (9, 2)
    assert clock.asked == [(["plain", "now"], "cpu", 4)]
    assert clock.ran == [("plain", False), ("now", False)]
    assert kinds == [(kind, False) for kind in ("SIConv2d", "Conv2d", "Conv2d", "SIConv2d")]  # maps, counts, times
    assert str(found).splitlines()[-1].split() == ["ms,", "forward", "pass", "2", "9", "4.50"]
    assert summary(convert(network(), include="*"), SIZE, repeats=0).ms is None
    assert "ms" not in str(summary(convert(network(), include="*"), SIZE, repeats=0)).splitlines()[-1]


def test_convolutions_outside_of_layers_are_not_those_of_the_layer_before():
    class Blurred(nn.Sequential):
        def forward(self, x):
            return F.conv2d(super().forward(x), torch.ones(4, 4, 3, 3))

    layer = nn.Conv2d(3, 4, 3)
    found = summary(Blurred(layer), SIZE, repeats=0)
    assert found.macs == 2 * 10 * 8 * 4 * 27


def test_a_layer_that_calls_another_one_counts_its_own_operations():
    class Twofold(nn.Conv2d):
        def __init__(self):
            super().__init__(3, 4, 3)
            self.inner = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return super().forward(self.inner(x))

    found = summary(nn.Sequential(Twofold()), SIZE, repeats=0)
    assert {layer.name: layer.macs for layer in found.layers} == {"0": 2 * 10 * 8 * 4 * 27, "0.inner": 2 * 12 * 10 * 9}


def test_images_may_be_given_in_place_of_their_sizes():
    images, seen = torch.rand(SIZE, dtype=torch.float64), []
    model = convert(network(), include="*").double()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    by_images, by_sizes = summary(model, images, repeats=0), summary(convert(network(), include="*"), SIZE, repeats=0)
    assert seen[0] is images
    assert by_images == by_sizes
    assert by_images.input_size == SIZE
    assert summary(model, {"labels": torch.arange(2), "images": images}, repeats=0) == by_sizes
    assert summary(convert(network(), include="*"), torch.Size(SIZE), repeats=0) == by_sizes


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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"images": (3, 12, 10)}, ValueError, r"`images` must be .* or their four sizes, got \(3, 12, 10\)"),
        ({"images": 12}, TypeError, r"`images` must be images \(N, C, H, W\) or their four sizes, got int"),
        ({"images": "1 3 8 8"}, TypeError, r"`images` must be images .* or their four sizes, got str"),
        ({"images": torch.ones(4)}, ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got shape \(4,\)"),
        ({"images": (1, 3, 0, 10)}, ValueError, "`images` must be at least 1, got 0"),
        ({"images": (1, 3, 8.5, 10)}, TypeError, "`images` must be an integer, got 8.5"),
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
        summary(**{"model": network(), "images": SIZE, **arguments})
