"""The properties that follow from the definition of the layer, and its manners: types, layouts, shapes, NaN."""

import pytest
import torch
from torch.nn import functional as F

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv import DEFAULT_SCALES, si_conv2d


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kernel", [3, 4])
def test_scale_one_alone_is_conv2d_bit_for_bit(padding, memory_format, kernel):
    results = []
    for operator in (F.conv2d, lambda *a, **k: si_conv2d(*a, **k, scales=(1,))):
        tensors = [
            random(4, 6, 11, 9, seed=1, dtype=torch.float32).to(memory_format=memory_format),
            random(8, 3, kernel, 3, seed=2, dtype=torch.float32),
            random(8, seed=3, dtype=torch.float32),
        ]
        for tensor in tensors:
            tensor.requires_grad_()
        output = operator(*tensors, padding=padding, groups=2)
        output.backward(random(*output.shape, seed=4, dtype=torch.float32).to(memory_format=memory_format))
        results.append([output, *(tensor.grad for tensor in tensors)])
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("axis", [-1, -2])
def test_flipping_the_input_flips_the_output(axis):
    images, weight = random(2, 3, 13, 10), random(4, 3, 3, 5, seed=1)
    flipped = si_conv2d(images.flip(axis), weight.flip(axis), padding=(1, 2))
    assert_close(flipped.flip(axis), si_conv2d(images, weight, padding=(1, 2)))


def test_reordering_the_scales_changes_no_output():
    images, weight = random(2, 3, 13, 10), random(4, 3, 3, 5, seed=1)
    expected = si_conv2d(images, weight)
    for seed in range(5):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        assert_close(si_conv2d(images, weight, scales=[DEFAULT_SCALES[i] for i in order]), expected)


def test_uncovered_positions_never_win():
    """With every response negative, a frame of zeros would win the border; the peers' layers do just that."""
    images, weight = 1 + random(1, 1, 12, 12).abs(), -torch.ones(1, 1, 5, 5, dtype=torch.float64)
    output, winner = si_conv2d(images, weight, scales=(0.5, 1), return_winner=True)
    assert output.max() < 0
    plain = F.conv2d(images, weight)
    border = torch.ones(8, 8, dtype=torch.bool)
    border[2:-2, 2:-2] = False  # scale 0.5 leaves 2 responses, which reach outputs 2 to 5
    assert_close(output[0, 0][border], plain[0, 0][border])
    assert (winner[0, 0][border] == 1).all()
    assert (winner[0, 0][~border] == 0).any()


def test_levels_too_small_for_the_kernel_take_no_part():
    images, weight = random(1, 1, 6, 6), random(2, 1, 5, 5, seed=1)
    output, winner = si_conv2d(images, weight, scales=(0.2, 0.5, 1), return_winner=True)
    assert (winner == 2).all()
    assert torch.equal(output, F.conv2d(images, weight))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_type_is_close_to_float64(dtype):
    images, weight, bias = random(2, 4, 12, 11), random(6, 2, 3, 3, seed=1), random(6, seed=2)
    rounded = [tensor.to(dtype) for tensor in (images, weight, bias)]
    output = si_conv2d(*rounded, padding=1, groups=2)
    assert output.dtype == dtype
    assert_close(output, si_conv2d(*(tensor.double() for tensor in rounded), padding=1, groups=2))


def test_autocast_gives_what_conv2d_gives():
    tensors = [random(*shape, dtype=torch.float32) for shape in ((2, 3, 10, 9), (4, 3, 3, 3), (4,))]
    tensors[1].requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = si_conv2d(*tensors)
        assert output.dtype == F.conv2d(*tensors).dtype == torch.bfloat16
        assert si_conv2d(*(tensor.double() for tensor in tensors)).dtype == torch.float64
        with pytest.raises(TypeError, match="`input` must be of a floating-point type"):
            si_conv2d(tensors[0].int(), *tensors[1:])
    output.sum().backward()
    assert tensors[1].grad.dtype == torch.float32
    assert_close(output, si_conv2d(*tensors))


def test_unbatched_input_is_a_batch_of_one():
    images, weight = random(3, 10, 9), random(4, 3, 3, 3, seed=1)
    output, winner = si_conv2d(images, weight, return_winner=True)
    assert torch.equal(output, si_conv2d(images.unsqueeze(0), weight)[0])
    assert winner.shape == output.shape == (4, 8, 7)


def test_empty_batch_has_the_right_shape_and_zero_gradients():
    images, weight = torch.zeros(0, 3, 10, 9, requires_grad=True), torch.ones(4, 3, 3, 3, requires_grad=True)
    output, winner = si_conv2d(images, weight, stride=2, return_winner=True)
    assert output.shape == winner.shape == (0, 4, 4, 4)
    output.sum().backward()
    assert images.grad.shape == images.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_non_contiguous_tensors_give_the_same_numbers():
    images, weight = random(9, 10, 3, 2).permute(3, 2, 0, 1), random(3, 3, 4, 3, seed=1).permute(2, 3, 0, 1)
    assert not images.is_contiguous()
    assert torch.equal(si_conv2d(images[..., ::2], weight), si_conv2d(images[..., ::2].clone(), weight.contiguous()))
