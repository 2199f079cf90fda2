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
    images, weight = random(2, 3, 13, 10, dtype=torch.float32), random(4, 3, 3, 5, seed=1, dtype=torch.float32)
    expected = si_conv2d(images, weight)
    for seed in range(5):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(si_conv2d(images, weight, scales=[DEFAULT_SCALES[i] for i in order]), expected)


def test_a_tie_goes_to_the_scale_listed_first():
    images, weight = torch.ones(1, 1, 8, 8, dtype=torch.float64), torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)
    for scales in ((2, 0.5, 1), (0.5, 1, 2), (1, 2, 0.5), (4, 2, 1)):
        _, winner = si_conv2d(images, weight, scales=scales, return_winner=True)
        assert winner.max() == 0, scales


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


def test_channels_last_in_channels_last_out():
    images, weight = random(2, 3, 10, 9), random(4, 3, 3, 3, seed=1)
    last = images.to(memory_format=torch.channels_last)
    output = si_conv2d(last, weight, padding=1)
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert_close(output, si_conv2d(images, weight, padding=1))
    assert si_conv2d(images, weight).is_contiguous()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_of_the_input_has_its_layout(memory_format):
    images = random(2, 3, 10, 9).to(memory_format=memory_format).requires_grad_()
    (grad,) = torch.autograd.grad(si_conv2d(images, random(4, 3, 3, 3, seed=1)).sum(), images)
    assert grad.is_contiguous(memory_format=memory_format)


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


def test_scales_may_come_from_a_generator():
    images, weight = random(1, 2, 9, 8), random(3, 2, 3, 3, seed=1)
    expected = si_conv2d(images, weight, scales=(0.6, 1, 2))
    assert torch.equal(si_conv2d(images, weight, scales=(s for s in (0.6, 1, 2))), expected)
    assert torch.equal(si_conv2d(images, weight, scales=iter([0.6, 1, 2])), expected)
    assert not torch.equal(si_conv2d(images, weight, scales=(s for s in (1, 2))), expected)
    with pytest.raises(ValueError, match=r"`scales` must contain 1, got \(0.6, 2.0\)"):
        si_conv2d(images, weight, scales=(s for s in (0.6, 2)))


def test_the_gradient_of_the_bias_is_the_sum_of_what_is_sent():
    tensors = [random(*shape, seed=1).requires_grad_() for shape in ((2, 3, 9, 8), (4, 3, 3, 3), (4,))]
    output = si_conv2d(*tensors)
    sent = random(*output.shape, seed=2)
    output.backward(sent)
    assert_close(tensors[2].grad, torch.einsum("nmhw->m", sent))


def test_results_repeat_bit_for_bit_under_deterministic_algorithms():
    def step():
        images, weight = random(2, 3, 13, 10, dtype=torch.float32), random(4, 3, 3, 5, dtype=torch.float32)
        images.requires_grad_(), weight.requires_grad_()
        output = si_conv2d(images, weight)
        output.square().sum().backward()
        return output, images.grad, weight.grad

    torch.use_deterministic_algorithms(True)
    try:
        first, second = step(), step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
