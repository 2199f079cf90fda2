"""Bad input is refused by name: the argument, the rule and the value."""

import re

import pytest
import torch

from scaleconv import SIConv2d, si_conv2d

IMAGES, WEIGHT = torch.rand(1, 4, 8, 9), torch.rand(6, 2, 3, 3)

WRONG_ARGUMENTS = {
    "no 1 among the scales": ({"scales": (0.5, 2)}, ValueError, "`scales` must contain 1, got (0.5, 2.0)"),
    "empty scales": ({"scales": ()}, ValueError, "`scales` must contain 1, got ()"),
    "zero scale": ({"scales": (1, 0)}, ValueError, "`scales` must be positive and at most 1000, got 0"),
    "negative scale": ({"scales": (1, -0.5)}, ValueError, "`scales` must be positive and at most 1000, got -0.5"),
    "NaN scale": ({"scales": (1, float("nan"))}, ValueError, "`scales` must be positive and at most 1000, got nan"),
    "infinite scale": ({"scales": (1, float("inf"))}, ValueError, "`scales` must be positive and at most 1000, got inf"),
    "repeated scale": ({"scales": (1, 2, 2.0)}, ValueError, "`scales` must not repeat, got (1.0, 2.0, 2.0)"),
    "scale of text": ({"scales": (1, "2")}, TypeError, "`scales` must hold numbers, got '2'"),
    "scale of a list": ({"scales": (1, [2])}, TypeError, "`scales` must hold numbers, got [2]"),
    "boolean scale": ({"scales": (True, 2)}, TypeError, "`scales` must hold numbers, got True"),
    "one number for scales": ({"scales": 1.0}, TypeError, "`scales` must be a sequence of numbers, got 1.0"),
    "text for scales": ({"scales": "1"}, TypeError, "`scales` must be a sequence of numbers, got '1'"),
    "too many scales": ({"scales": [1, *range(2, 300)]}, ValueError, "`scales` must hold at most 256 numbers"),
    "zero stride": ({"stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
    "fractional stride": ({"stride": 1.5}, TypeError, "`stride` must be an integer or a pair of integers, got 1.5"),
    "stride of three": ({"stride": (1, 1, 1)}, ValueError, "`stride` must be an integer or a pair of integers, got 3"),
    "negative padding": ({"padding": (0, -1)}, ValueError, "`padding` must be at least 0, got (0, -1)"),
    "unknown padding": ({"padding": "full"}, ValueError, "`padding` must be integers, 'same' or 'valid', got 'full'"),
    "same with stride": (
        {"padding": "same", "stride": 2},
        ValueError,
        "`padding` 'same' needs a `stride` of 1, got (2, 2)",
    ),
    "zero dilation": ({"dilation": 0}, ValueError, "`dilation` must be at least 1, got 0"),
    "zero groups": ({"groups": 0}, ValueError, "`groups` must be at least 1, got 0"),
    "fractional groups": ({"groups": 2.0}, TypeError, "`groups` must be an integer, got 2.0"),
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
        "`input` width (=9) plus padding (=0) must be at least the reach of the kernel (=11)",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(IMAGES, WEIGHT, **{"groups": 2, **arguments})


WRONG_TENSORS = {
    "rank": ((torch.rand(8, 9), WEIGHT), ValueError, "`input` must be (N, C, H, W) or (C, H, W), got shape (8, 9)"),
    "weight rank": ((IMAGES, torch.rand(6, 2, 3)), ValueError, "`weight` must be (M, C / groups, Kh, Kw)"),
    "empty kernel": ((IMAGES, torch.rand(6, 2, 0, 3)), ValueError, "got shape (6, 2, 0, 3)"),
    "empty image": ((torch.rand(1, 4, 0, 9), WEIGHT), ValueError, "`input` height (=0)"),
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
    "array": ((IMAGES.numpy(), WEIGHT), TypeError, "`input` must be a tensor, got ndarray"),
    "missing weight": ((IMAGES, None), TypeError, "`weight` must be a tensor, got NoneType"),
}


@pytest.mark.parametrize(("tensors", "error", "message"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_wrong_tensors_are_named(tensors, error, message):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(*tensors, groups=2)


def test_the_module_refuses_wrong_scales_when_it_is_made():
    with pytest.raises(ValueError, match="`scales` must contain 1"):
        SIConv2d(1, 1, 3, scales=(2,))
