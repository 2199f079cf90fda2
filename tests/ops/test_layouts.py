"""Thin tensors in any memory layout, and pixels that are infinite or nearly so: the numbers of float64."""

from itertools import product

import pytest
import torch

from helpers.loops import aligned_by_loops, random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import si_conv2d


def permuted(tensor):
    """The same numbers in memory in the order width, channels, height, images."""
    return tensor.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)


LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "permuted": permuted,
}
CALLS = {
    "one channel": ((4, 1, 9, 7), (8, 1, 3, 3), {"padding": 1}),
    "one channel, one column": ((4, 1, 6, 1), (8, 1, 3, 1), {}),
    "one channel, one row": ((4, 1, 1, 6), (8, 1, 1, 3), {"stride": (1, 2)}),
    "one channel, one filter": ((2, 1, 7, 6), (1, 1, 3, 2), {"padding": 1}),
    "one column": ((3, 3, 6, 1), (4, 3, 3, 1), {"padding": (1, 0)}),
    "one row": ((3, 3, 1, 7), (4, 3, 1, 3), {"stride": (1, 2)}),
    "one column of responses": ((3, 2, 6, 5), (4, 2, 3, 5), {"stride": (1, 4)}),
    "one pixel": ((3, 2, 1, 1), (4, 2, 1, 1), {}),
    "one image": ((1, 2, 6, 5), (3, 2, 3, 3), {"stride": (1, 3)}),
    "one image, many channels": ((1, 16, 6, 5), (3, 16, 3, 3), {"stride": (2, 1), "padding": 1}),
    "many channels, one column": ((2, 16, 6, 1), (4, 16, 3, 1), {}),
    "many channels, one filter": ((2, 16, 6, 5), (1, 16, 3, 3), {"stride": (1, 3)}),
    "one tap": ((2, 2, 6, 9), (4, 2, 1, 1), {"stride": (2, 3)}),
    "one tap, padded": ((2, 3, 6, 5), (4, 3, 1, 1), {"stride": (1, 2), "padding": (1, 2)}),
    "one tap in a row": ((2, 2, 7, 9), (4, 2, 3, 1), {"stride": 2, "padding": (1, 0)}),
    "one output": ((2, 3, 6, 5), (4, 3, 5, 4), {"stride": 3, "dilation": 1, "padding": (0, 1)}),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 3), {"groups": 2, "stride": (1, 3)}),
    "depthwise": ((2, 3, 6, 5), (3, 1, 3, 3), {"groups": 3, "stride": (1, 2), "padding": 1}),
    "dilated": ((2, 1, 7, 8), (3, 1, 2, 3), {"dilation": (2, 1), "stride": (1, 2)}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "weight_shape", "call"), CALLS.values(), ids=CALLS)
def test_any_layout_of_a_thin_tensor_gives_the_numbers_and_gradients_of_float64(shape, weight_shape, call, dtype):
    tensors = tensors_of(shape, weight_shape, dtype=dtype)
    for scales in ((0.63, 0.794, 1, 1.26, 1.587, 2), (1, 3, 0.5)):
        exact = [tensor.double().requires_grad_() for tensor in tensors]
        expected, true_winner = si_conv2d(*exact, **call, scales=scales, return_winner=True)
        sent = random(*expected.shape, seed=9, dtype=dtype)
        true_grads = torch.autograd.grad(expected, exact, sent.double())
        for images, weight in product(LAYOUTS.values(), LAYOUTS.values()):
            leaves = [images(tensors[0]), weight(tensors[1]), tensors[2]]
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            output, winner = si_conv2d(*leaves, **call, scales=scales, return_winner=True)
            assert_close(output, expected, dtype)
            grads = torch.autograd.grad(output, leaves, sent)
            for grad, leaf in zip(grads, leaves, strict=True):
                assert grad.stride() == torch.empty_like(leaf).stride()
            if torch.equal(winner, true_winner):  # two levels that are equal after rounding send elsewhere
                for grad, true in zip(grads, true_grads, strict=True):
                    assert_close(grad, true, dtype)
            else:  # all levels of one pixel are equal
                assert dtype == torch.bfloat16 or shape[2:] == (1, 1)


ONE_OF_SEVERAL = {"one of several": lambda images: torch.cat([images] * 3, 1)[:, :1]}


@pytest.mark.parametrize("layout", (LAYOUTS | ONE_OF_SEVERAL).values(), ids=LAYOUTS | ONE_OF_SEVERAL)
def test_one_channel_of_any_size_and_layout_is_not_garbage_in_large_strides(layout):
    weight = random(8, 1, 3, 3, dtype=torch.float32)
    for height, width, stride in product(range(3, 9), range(3, 9), ((1, 2), (1, 3))):
        images = random(4, 1, height, width, seed=height, dtype=torch.float32)
        expected = si_conv2d(images.double(), weight.double(), stride=stride)
        assert_close(si_conv2d(layout(images), weight, stride=stride), expected, torch.float32)


@pytest.mark.parametrize("padding", [0, 1])
def test_the_output_has_the_layout_that_conv2d_gives_it(padding):
    for images, weight in product(("contiguous", "channels_last"), repeat=2):
        tensors = LAYOUTS[images](random(2, 3, 10, 9)), LAYOUTS[weight](random(4, 3, 3, 3, seed=1))
        expected = torch.nn.functional.conv2d(*tensors, padding=padding)
        assert si_conv2d(*tensors, padding=padding).stride() == expected.stride()


SEEN_BY = {
    "one channel": ((2, 1, 12, 11), (2, 1, 5, 4), {}),
    "few channels": ((2, 3, 9, 10), (4, 3, 3, 3), {"padding": (1, 1)}),
    "many channels": ((2, 16, 9, 10), (4, 16, 3, 3), {"padding": (1, 1), "stride": (1, 2)}),
    "groups": ((2, 4, 9, 8), (4, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 3, 9, 8), (3, 1, 3, 3), {"groups": 3, "padding": (1, 1)}),
}


def sees(shape, weight_shape, call, pixel, scales):
    """For each output, how much of one pixel reaches it through all levels that cover it, by the loops."""
    images = torch.zeros(shape, dtype=torch.float64)
    images[pixel] = 1
    call = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | call
    ones = torch.ones(weight_shape, dtype=torch.float64)
    aligned = aligned_by_loops(images, ones, torch.zeros(weight_shape[0]).double(), **call, scales=scales)
    return torch.from_numpy(aligned).amax(0)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan], ids=str)
@pytest.mark.parametrize(("shape", "weight_shape", "call"), SEEN_BY.values(), ids=SEEN_BY)
def test_a_pixel_that_is_not_finite_changes_only_the_outputs_that_see_it(shape, weight_shape, call, value):
    scales, pixel = (0.63, 1, 1.37, 2), (0, 0, 3, 4)
    images, weight, bias = tensors_of(shape, weight_shape, dtype=torch.float32)
    weight = weight.abs() + 0.1  # so that what is infinite keeps its sign
    clean = si_conv2d(images, weight, bias, **call, scales=scales)
    images[pixel] = value
    output = si_conv2d(images, weight, bias, **call, scales=scales)
    share = sees(shape, weight_shape, call, pixel, scales)
    unseen, seen = share == 0, share > 1e-9
    assert unseen.sum() > share.numel() / 2
    assert seen[0].sum() > 9
    assert torch.equal(output[unseen], clean[unseen])
    if value != -torch.inf:  # which any other level wins against
        assert not output[seen].isfinite().any()


@pytest.mark.parametrize(("shape", "weight_shape", "call"), SEEN_BY.values(), ids=SEEN_BY)
def test_values_near_the_largest_float_stay_right(shape, weight_shape, call):
    images, weight, bias = tensors_of(shape, weight_shape, dtype=torch.float32)
    images = 1e38 * images.sign() * (0.5 + 0.5 * images.abs().clamp(max=1))
    weight = 0.5 * weight / weight.abs().sum((1, 2, 3), keepdim=True)
    output = si_conv2d(images, weight, bias, **call)
    expected = si_conv2d(*(tensor.double() for tensor in (images, weight, bias)), **call)
    assert expected.abs().max() > 1e37
    assert_close(output / 1e37, expected / 1e37, torch.float32)


@pytest.mark.parametrize(("shape", "weight_shape", "call"), SEEN_BY.values(), ids=SEEN_BY)
def test_a_pixel_that_overflows_changes_only_the_outputs_that_see_it(shape, weight_shape, call):
    scales, pixel = (0.63, 1, 1.37, 2), (0, 0, 3, 4)
    images, weight, bias = tensors_of(shape, weight_shape, dtype=torch.float32)
    weight = weight.abs() + 2  # so that the sum is larger than any float, wherever scale 1 shows all of the pixel
    clean = si_conv2d(images, weight, bias, **call, scales=scales)
    images[pixel] = 3e38
    output = si_conv2d(images, weight, bias, **call, scales=scales)
    unseen = sees(shape, weight_shape, call, pixel, scales) == 0
    assert torch.equal(output[unseen], clean[unseen])
    plain = torch.nn.functional.conv2d(images, weight, bias, **call)
    assert plain.isinf().any()
    assert output[plain.isinf()].isinf().all()
    assert not output.isnan().any()


@pytest.mark.parametrize(("shape", "weight_shape", "call"), SEEN_BY.values(), ids=SEEN_BY)
def test_denormals_are_not_taken_for_zero(shape, weight_shape, call):
    images, weight, _ = tensors_of(shape, weight_shape, dtype=torch.float32)
    images = 1e-40 * images
    output = si_conv2d(images, weight, **call)
    expected = si_conv2d(images.double(), weight.double(), **call)
    assert 0 < expected.abs().max() < torch.finfo(torch.float32).smallest_normal
    # Sums of numbers that are whole multiples of the smallest float, each product rounded to one.
    step = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    assert (output.double() - expected).abs().max() <= 4 * weight[0].numel() * step


@pytest.mark.parametrize("channels", [1, 16])
def test_a_nan_of_any_level_is_kept_and_a_tie_with_it_names_a_level_that_covers(channels):
    images, weight, _ = tensors_of((2, channels, 12, 12), (2, channels, 5, 5), dtype=torch.float32)
    images[1, 0, 0, 0] = torch.nan  # which scale 1 shows to output (0, 0), and no other level covers that
    scales = (1, 0.5)
    output, winner = si_conv2d(images, weight, scales=scales, return_winner=True)
    share = sees(images.shape, weight.shape, {}, (1, 0, 0, 0), scales)
    assert torch.equal(output.isnan(), share > 0)
    assert output[1, :, 0, 0].isnan().all()
    assert winner.max() <= 1
