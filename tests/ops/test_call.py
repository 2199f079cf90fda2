"""Bad input is refused by name: the argument, the rule and the value."""

import re

import numpy as np
import pytest
import torch

from scaleconv import SIConv2d, si_conv2d, si_conv3d
from scaleconv.ops.call import _make_call_once, check_scales, make_call
from scaleconv.ops.plan import make_plan

IMAGES, WEIGHT = torch.rand(1, 4, 8, 9), torch.rand(6, 2, 3, 3)

WRONG_ARGUMENTS = {
    "no 1 among the scales": ({"scales": (0.5, 2)}, ValueError, "`scales` must contain 1, got (0.5, 2.0)"),
    "empty scales": ({"scales": ()}, ValueError, "`scales` must contain 1, got ()"),
    "zero scale": ({"scales": (1, 0)}, ValueError, "`scales` must be positive and at most 1000, got 0"),
    "negative scale": ({"scales": (1, -0.5)}, ValueError, "`scales` must be positive and at most 1000, got -0.5"),
    "NaN scale": ({"scales": (1, float("nan"))}, ValueError, "`scales` must be positive and at most 1000, got nan"),
    "infinite scale": (
        {"scales": (1, float("inf"))},
        ValueError,
        "`scales` must be positive and at most 1000, got inf",
    ),
    "huge scale": ({"scales": (1, 1e308)}, ValueError, "`scales` must be positive and at most 1000, got 1e+308"),
    "scale beyond floats": ({"scales": (1, 10**400)}, ValueError, "`scales` must be positive and at most 1000, got 10"),
    "scale just too large": ({"scales": (1, 1000.5)}, ValueError, "at most 1000, got 1000.5"),
    "a stride beyond integers": ({"stride": 10**30}, ValueError, "`stride` must be at most 2147483647, got 10000000"),
    "a dilation beyond integers": ({"dilation": (1, 2**31)}, ValueError, "`dilation` must be at most 2147483647, got"),
    "a padding beyond integers": ({"padding": 2**62}, ValueError, "`padding` must be at most 2147483647, got 46116860"),
    "a padding beyond memory": (
        {"padding": 10**6},
        ValueError,
        "`padding` must leave fewer than 2^40 outputs of an image, got 1000000",
    ),
    "repeated scale": ({"scales": (1, 2, 2.0)}, ValueError, "`scales` must not repeat, got (1.0, 2.0, 2.0)"),
    "scale of text": ({"scales": (1, "2")}, TypeError, "`scales` must hold numbers, got '2'"),
    "scale of a list": ({"scales": (1, [2])}, TypeError, "`scales` must hold numbers, got [2]"),
    "boolean scale": ({"scales": (True, 2)}, TypeError, "`scales` must hold numbers, got True"),
    "one number for scales": ({"scales": 1.0}, TypeError, "`scales` must be a sequence of numbers, got 1.0"),
    "text for scales": ({"scales": "1"}, TypeError, "`scales` must be a sequence of numbers, got '1'"),
    "a set of scales": ({"scales": {1, 2}}, TypeError, "`scales` must be a sequence of numbers, got {1, 2}"),
    "too many scales": (
        {"scales": range(1, 258)},
        ValueError,
        "`scales` must hold at most 256 numbers (a winner is one byte), got 257",
    ),
    "zero stride": ({"stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
    "boolean stride": ({"stride": True}, TypeError, "`stride` must be an integer or a pair of integers, got True"),
    "stride of a NumPy bool": ({"stride": np.True_}, TypeError, "`stride` must be an integer or a pair of integers"),
    "boolean in a pair": (
        {"stride": (1, True)},
        TypeError,
        "`stride` must be an integer or a pair of integers, got (1",
    ),
    "fraction in a pair": (
        {"dilation": (1.5, 1)},
        TypeError,
        "`dilation` must be an integer or a pair of integers, got",
    ),
    "stride of text": ({"stride": "12"}, TypeError, "`stride` must be an integer or a pair of integers, got '12'"),
    "stride of none": ({"stride": ()}, ValueError, "`stride` must be an integer or a pair of integers, got 0 of them"),
    "fractional stride": ({"stride": 1.5}, TypeError, "`stride` must be an integer or a pair of integers, got 1.5"),
    "stride of three": ({"stride": (1, 1, 1)}, ValueError, "`stride` must be an integer or a pair of integers, got 3"),
    "negative padding": ({"padding": (0, -1)}, ValueError, "`padding` must be at least 0, got (0, -1)"),
    "unknown padding": ({"padding": "full"}, ValueError, "`padding` must be integers, 'same' or 'valid', got 'full'"),
    "same with stride": (
        {"padding": "same", "stride": 2},
        ValueError,
        "`padding` 'same' needs a `stride` of 1, got (2, 2)",
    ),
    "antialias of text": ({"antialias": "no"}, TypeError, "`antialias` must be True or False, got 'no'"),
    "antialias of a number": ({"antialias": 1}, TypeError, "`antialias` must be True or False, got 1"),
    "antialias of a list": ({"antialias": [False]}, TypeError, "`antialias` must be True or False, got [False]"),
    "zero dilation": ({"dilation": 0}, ValueError, "`dilation` must be at least 1, got 0"),
    "zero groups": ({"groups": 0}, ValueError, "`groups` must be at least 1, got 0"),
    "fractional groups": ({"groups": 2.0}, TypeError, "`groups` must be an integer, got 2.0"),
    "boolean groups": ({"groups": True}, TypeError, "`groups` must be an integer, got True"),
    "groups that do not divide": (
        {"groups": 4},
        ValueError,
        "`weight` output channels (=6) must be divisible by `groups` (=4)",
    ),
    "channel mismatch": (
        {"groups": 1},
        ValueError,
        "`input` channels (=4) must equal `weight` channels (=2) times `groups` (=1)",
    ),
    "kernel too large": (
        {"dilation": (1, 5)},
        ValueError,
        "`input` width (=9) plus padding (=0) must be at least the extent of the kernel (=11)",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(IMAGES, WEIGHT, **{"groups": 2, **arguments})


@pytest.mark.parametrize("stride", [10**4, 2**31 - 1, (3, 10**9)])
def test_a_stride_longer_than_every_level_costs_nothing(stride):
    """One output each, as from any stride that is long enough; what is sampled does not grow with it."""
    enough = (stride[0], 500) if isinstance(stride, tuple) else 500
    call = {"groups": 2, "padding": 1, "scales": (1, 0.5, 3.3), "return_winner": True}
    found, expected = (si_conv2d(IMAGES, WEIGHT, stride=each, **call) for each in (stride, enough))
    assert all(map(torch.equal, found, expected))
    canvases = make_plan(make_call(IMAGES.shape, WEIGHT.shape, stride, 1, 1, 2, (1, 3.3)), 1, False).canvases
    assert max(max(canvas.size) for canvas in canvases) < 1000


@pytest.mark.parametrize("long", [0, 1])
@pytest.mark.parametrize("function", [si_conv2d, si_conv3d])
def test_a_long_stride_is_not_shortened_where_one_axis_alone_takes_several_steps(function, long):
    """Pixel 100 · p is output p: 0, 100, 200."""
    axes = 2 if function is si_conv2d else 3
    shape, stride = [1] * axes, [1] * axes
    shape[long], stride[long] = 201, 100
    images = torch.arange(201.0).view(1, 1, *shape)
    found = function(images, torch.ones(1, 1, *[1] * axes), stride=stride, scales=(1,))
    assert found.flatten().tolist() == [0, 100, 200]


EQUAL_TO_RIGHT_ONES = {
    "whole fractions": ({"stride": (1.0, 1.0)}, {"stride": (1, 1)}, "`stride` must be an integer or a pair"),
    "a boolean pad": ({"padding": (True, 1)}, {"padding": (1, 1)}, "`padding` must be an integer or a pair"),
    "a boolean scale": ({"scales": (True, 2)}, {"scales": (1, 2)}, "`scales` must hold numbers, got True"),
    "a boolean stride": ({"stride": True}, {"stride": 1}, "`stride` must be an integer or a pair of integers"),
}


@pytest.mark.parametrize(("wrong", "right", "message"), EQUAL_TO_RIGHT_ONES.values(), ids=EQUAL_TO_RIGHT_ONES)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_arguments_of_a_wrong_type_are_named_whatever_was_called_before(warm, wrong, right, message):
    _make_call_once.cache_clear()
    if warm:
        si_conv2d(IMAGES, WEIGHT, groups=2, **right)
    with pytest.raises(TypeError, match=re.escape(message)):
        si_conv2d(IMAGES, WEIGHT, groups=2, **wrong)


WRONG_TENSORS = {
    "rank": ((torch.rand(8, 9), WEIGHT), ValueError, "`input` must be (N, C, H, W) or (C, H, W), got shape (8, 9)"),
    "weight rank": ((IMAGES, torch.rand(6, 2, 3)), ValueError, "`weight` must be (M, C / groups, Kh, Kw)"),
    "empty kernel": ((IMAGES, torch.rand(6, 2, 0, 3)), ValueError, "none of them 0, got shape (6, 2, 0, 3)"),
    "no width": ((IMAGES, torch.rand(6, 2, 3, 0)), ValueError, "none of them 0, got shape (6, 2, 3, 0)"),
    "no maps": ((IMAGES, torch.rand(0, 2, 3, 3)), ValueError, "none of them 0, got shape (0, 2, 3, 3)"),
    "no channels": ((IMAGES, torch.rand(6, 0, 3, 3)), ValueError, "none of them 0, got shape (6, 0, 3, 3)"),
    "empty image": ((torch.rand(1, 4, 0, 9), WEIGHT), ValueError, "`input` height must be at least 1, got 0"),
    "integer input": ((IMAGES.int(), WEIGHT), TypeError, "`input` must be of a floating-point type, got torch.int32"),
    "integer weight": ((IMAGES, WEIGHT.int()), TypeError, "`weight` must be of a floating-point type, got torch.int32"),
    "complex input": ((IMAGES.cfloat(), WEIGHT), TypeError, "`input` must be of a floating-point type"),
    "dtypes": (
        (IMAGES, WEIGHT.double()),
        TypeError,
        "`weight` must have the type of `input` (=torch.float32), got torch.float64",
    ),
    "bias dtype": ((IMAGES, WEIGHT, torch.rand(6).half()), TypeError, "`bias` must have the type of `input`"),
    "devices": ((IMAGES, WEIGHT.to("meta")), ValueError, "`weight` must be on the device of `input` (=cpu), got meta"),
    "bias length": (
        (IMAGES, WEIGHT, torch.rand(5)),
        ValueError,
        "`bias` must hold one number per output channel (=6), got shape (5,)",
    ),
    "bias rank": ((IMAGES, WEIGHT, torch.rand(6, 1)), ValueError, "(=6), got shape (6, 1)"),
    "array": ((IMAGES.numpy(), WEIGHT), TypeError, "`input` must be a tensor, got ndarray"),
    "missing weight": ((IMAGES, None), TypeError, "`weight` must be a tensor, got NoneType"),
}


@pytest.mark.parametrize(("tensors", "error", "message"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_wrong_tensors_are_named(tensors, error, message):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(*tensors, groups=2)


def test_scales_may_come_from_an_iterator_and_wrong_ones_are_named():
    expected = si_conv2d(IMAGES, WEIGHT, groups=2, scales=(0.5, 1))
    assert torch.equal(si_conv2d(IMAGES, WEIGHT, groups=2, scales=iter((0.5, 1))), expected)
    with pytest.raises(TypeError, match="`scales` must hold numbers, got '2'"):
        si_conv2d(IMAGES, WEIGHT, groups=2, scales=iter((1, "2")))


def test_an_empty_image_is_refused_even_if_padding_holds_the_kernel():
    with pytest.raises(ValueError, match="`input` width must be at least 1, got 0"):
        si_conv2d(torch.rand(1, 4, 8, 0), WEIGHT, groups=2, padding=2)


def test_as_many_scales_as_a_byte_can_name_and_the_largest_are_accepted():
    assert len(check_scales(range(1, 257))) == 256
    assert check_scales((1, 1000)) == (1, 1000)


@pytest.mark.parametrize(
    "arguments",
    [
        {"stride": np.int64(2), "groups": np.int32(2)},
        {"stride": (np.int64(2), 2), "padding": np.uint8(0)},
        {"stride": [2], "padding": (0,), "dilation": [1]},
        {"stride": np.array(2), "groups": np.array(2)},
    ],
    ids=str,
)
def test_integers_of_any_kind_are_accepted_alone_or_as_sequences_of_one_or_two(arguments):
    expected = si_conv2d(IMAGES, WEIGHT, stride=2, groups=2)
    assert torch.equal(si_conv2d(IMAGES, WEIGHT, **{"groups": 2, **arguments}), expected)


def test_the_module_refuses_wrong_scales_when_it_is_made():
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        SIConv2d(1, 1, 3, scales=(2,))


def test_the_largest_number_of_outputs_is_just_below_two_to_the_forty():
    """Filters count, too."""

    def check(height, filters):
        return make_call((1, height, 2), (filters, 1, 1, 1), 1, (2**19 - 1, 2**19 - 1), 1, 1, (1,))

    assert [axis.padding for axis in check(1, 1).axes] == [(2**19 - 1, 2**19 - 1)] * 2  # (2^20 − 1) · 2^20
    for height, filters in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="`padding` must leave fewer than 2\\^40 outputs of an image"):
            check(height, filters)
