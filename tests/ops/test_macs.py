"""Operation counts, ours and those of PyTorch's FLOP counters, against sums done by hand."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scaleconv import DEFAULT_SCALES, SIConv2d, macs, rotation, si_conv2d, ti_conv2d
from scaleconv.ops.macs import Macs

# 3 images of 2 channels and 4 × 5 pixels, 7 filters of 3 × 3, so 2 × 3 outputs; the level has 8 × 10 samples, at the
# pixels q / 2 − ¼, and 6 × 8 responses. Outputs read at 1½, 3½ and, across, 5½.
CALL = ((3, 2, 4, 5), (7, 2, 3, 3))
PLAIN = 7 * 2 * 9 * 2 * 3


def test_conv2d_is_counted_as_usual():
    cost = macs((5, 4, 9, 11), (6, 2, 3, 2), stride=(2, 1), padding=1, groups=2)
    assert cost.conv2d == Macs(5 * 6 * 2 * 3 * 2 * 5 * 12, 0)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        (((-1, 3, 9, 9), (4, 3, 3, 3)), ValueError, "`input_shape` must be at least 0, got -1"),
        (((1, 3, 9.5, 9), (4, 3, 3, 3)), TypeError, "`input_shape` must be an integer, got 9.5"),
        ((None, (4, 3, 3, 3)), TypeError, "`input_shape` must be a sequence of integers, got None"),
        (((1, 3, 9, 9), "4333"), TypeError, "`weight_shape` must be a sequence of integers, got '4333'"),
    ],
)
def test_shapes_are_sequences_of_counts(shapes, error, message):
    with pytest.raises(error, match=message):
        macs(*shapes)


def test_an_unbatched_input_counts_as_one_image():
    assert macs((4, 9, 11), (6, 4, 3, 2)) == macs((1, 4, 9, 11), (6, 4, 3, 2))
    assert macs((4, 9, 11), (6, 4, 3, 2)).conv2d.total == 6 * 4 * 3 * 2 * 7 * 10


def test_the_direct_order_convolves_whole_levels_and_resamples_what_the_outputs_need():
    sampled = 2 * (6 * 2) * (8 * 2)  # responses 1 to 4 and 1 to 6 see samples 1 to 6 and 1 to 8, each of 2 pixels
    aligned = 7 * (2 * 2) * (3 * 2)
    assert macs(*CALL, scales=(1, 2)).direct == Macs(3 * (PLAIN + 7 * 2 * 9 * 6 * 8), 3 * sampled, 3 * aligned)


def test_a_cpu_is_planned_to_take_a_whole_scale_by_strides():
    # 5 rows and 7 columns lie halfway between two samples: at pixels ½, 1, 1½ …, of 2 and 3 pixels in turn
    planned = macs(*CALL, scales=(1, 2)).planned
    assert planned == Macs(3 * 2 * PLAIN, 3 * 2 * (2 + 3 + 2 + 3 + 2) * (2 + 3 + 2 + 3 + 2 + 3 + 2))


def test_a_gpu_is_planned_to_gather_the_patches_of_few_channels_of_many_images():
    images = 60_000  # fewer share a canvas
    identity = 2 * (2 * 3) * (3 * 3)  # a patch's pixels as they are
    level = 2 * (2 * (2 + 3 + 2)) * (3 * (2 + 3 + 2))  # taps of 2, 3 and 2 pixels, of 2 × 3 outputs
    cost = macs((images, *CALL[0][1:]), CALL[1], scales=(1, 2), gpu=True)
    assert cost.planned == Macs(images * 2 * PLAIN, images * (identity + level))


def test_a_gpu_is_planned_to_convolve_a_small_layer_on_one_canvas():
    # 4 × 5 pixels and, below, the 6 × 8 samples that are needed: 10 × 8, which have 8 × 6 responses
    assert macs(*CALL, scales=(1, 2), gpu=True).planned.convolution == 3 * 7 * 2 * 9 * 8 * 6


def test_the_direct_order_is_the_same_on_any_device():
    assert macs(*CALL, scales=(1, 2), gpu=True).direct == macs(*CALL, scales=(1, 2)).direct


@pytest.mark.parametrize(("size", "kernel", "direct"), [(28, 7, 11.7), (11, 5, 13.1)], ids=["first", "second"])
def test_the_direct_order_of_the_papers_layers_costs_12_and_13_convolutions(size, kernel, direct):
    cost = macs((1, 36, size, size), (64, 36, kernel, kernel))
    assert round(cost.direct.convolution / cost.conv2d.convolution, 1) == direct


@pytest.mark.parametrize("gpu", [False, True])
def test_the_planned_cost_does_not_grow_with_the_largest_scale(gpu):
    def cost(scales):
        return macs((64, 64, 28, 28), (64, 64, 3, 3), padding=1, scales=scales, gpu=gpu)

    narrow, wide = cost(DEFAULT_SCALES), cost((*DEFAULT_SCALES[:-1], 8))
    assert wide.direct.convolution > 4 * narrow.direct.convolution
    assert wide.planned.convolution <= 1.02 * narrow.planned.convolution


@pytest.mark.parametrize("gpu", [False, True])
def test_scale_one_alone_costs_one_conv2d_in_the_paper_s_order(gpu):
    cost = macs((2, 32, 8, 8), (4, 32, 3, 3), scales=(1,), gpu=gpu)
    assert cost.direct.convolution == cost.planned.convolution == cost.conv2d.total == 2 * 32 * 4 * 9 * 36


def test_costs_add_up():
    assert Macs(1, 2, 3) + Macs(10, 20, 30) == Macs(11, 22, 33)
    assert Macs(1, 2, 4).times(3) == Macs(3, 6, 12)
    assert (Macs(1, 2, 4).resampling, Macs(1, 2, 4).total) == (6, 7)


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


def test_rotations_and_one_scale_are_counted_too():
    images, weight = torch.rand(2, 2, 6, 6), torch.rand(3, 2, 3, 3)
    quarter = count(lambda: ti_conv2d(images, weight, transforms=[rotation(0), rotation(90)]))
    convolution = 2 * 2 * 16 * 3 * 2 * 9
    assert quarter == 2 * convolution + 2 * 2 * (2 * 36 + 3 * 16)  # each pixel is read once, and each response
    assert count(lambda: si_conv2d(images, weight, scales=(1,))) == convolution


FIRST_CALL = """
import torch, scaleconv
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    scaleconv.si_conv2d(torch.rand(1, 2, 6, 6), torch.rand(3, 2, 3, 3), scales=(1, 0.5))
print(counter.get_total_flops())
"""


def test_the_first_call_of_a_process_is_counted_too():
    """The formulas are registered when somebody counts, and a counter has a copy of those there were before."""
    found = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    assert int(found.stdout) == 2 * (CONVOLUTION + SAMPLING + ALIGNMENT)
