"""The FLOP counters of PyTorch count the layer: numbers counted by hand."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scaleconv import SIConv2d, macs, rotation, si_conv2d, ti_conv2d

# Two channels of 6×6 pixels, three filters of 3×3, scales 1 and 0.5. Scale 1 has 4×4 responses, scale 0.5 one.
CONVOLUTION = (16 + 1) * 3 * 2 * 9
# A level of 3×3 reads at 0.5, 2.5 and 4.5 along each axis, between two pixels each: 6 · 6 reads for each channel.
SAMPLING = 2 * 6 * 6
# Outputs 1 and 2 of each axis read the response at −0.25 and 0.25, which is the only one: 2 · 2 reads for each filter.
ALIGNMENT = 3 * 2 * 2
IMAGES = 5


def count(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def layer():
    return SIConv2d(2, 3, 3, scales=(1, 0.5))


def test_a_call_takes_two_operations_for_each_number_that_is_read():
    expected = 2 * IMAGES * (CONVOLUTION + SAMPLING + ALIGNMENT)
    assert count(lambda: layer()(torch.rand(IMAGES, 2, 6, 6))) == expected
    with torch.no_grad():
        assert count(lambda: layer()(torch.rand(IMAGES, 2, 6, 6))) == expected
    assert 2 * macs((IMAGES, 2, 6, 6), (3, 2, 3, 3), scales=(1, 0.5)).planned.total == expected


@pytest.mark.parametrize("input_too", [False, True])
def test_gradients_are_counted_one_by_one(input_too):
    images = torch.rand(IMAGES, 2, 6, 6, requires_grad=input_too)
    forward = CONVOLUTION + SAMPLING + ALIGNMENT
    backward = (1 + input_too) * (CONVOLUTION + SAMPLING) + ALIGNMENT
    assert count(lambda: layer()(images).sum().backward()) == 2 * IMAGES * (forward + backward)


def test_counting_changes_no_gradient():
    images, module = torch.rand(IMAGES, 2, 6, 6), layer()
    (expected,) = torch.autograd.grad(module(images).sum(), module.weight)
    with FlopCounterMode(display=False):
        (counted,) = torch.autograd.grad(module(images).sum(), module.weight)
        outside = module(images)
    assert torch.equal(counted, expected)
    assert torch.equal(torch.autograd.grad(outside.sum(), module.weight)[0], expected)


def test_a_network_is_counted_layer_by_layer():
    network = nn.Sequential(layer(), nn.ReLU(), nn.Conv2d(3, 1, 1))
    counter = FlopCounterMode(display=False)
    with counter:
        network(torch.rand(1, 2, 6, 6))
    counts = {name: sum(each.values()) for name, each in counter.get_flop_counts().items()}
    assert counts["Sequential.0"] == 2 * (CONVOLUTION + SAMPLING + ALIGNMENT)
    assert counts["Sequential.2"] == 2 * 16 * 3
    assert counts["Sequential"] == counts["Sequential.0"] + counts["Sequential.2"]


def test_rotations_and_one_scale_are_counted_too():
    images, weight = torch.rand(2, 2, 6, 6), torch.rand(3, 2, 3, 3)
    quarter = count(lambda: ti_conv2d(images, weight, transforms=[rotation(0), rotation(90)]))
    convolution = 2 * 2 * 16 * 3 * 2 * 9
    assert quarter == 2 * convolution + 2 * 2 * (2 * 36 + 3 * 16)  # each pixel is read once, and each response
    assert count(lambda: si_conv2d(images, weight, scales=(1,))) == convolution
