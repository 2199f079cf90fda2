"""Bad input is refused by name: the argument, the rule and the value."""

import re

import numpy as np
import pytest
import torch

from scaleconv import rotation, scaling, si_conv1d, si_conv2d, si_conv3d, ti_conv2d
from scaleconv.ops.call import _make_call_once, check_scales, make_call
from scaleconv.ops.plan import make_plan

IMAGES, WEIGHT = torch.rand(1, 4, 8, 9), torch.rand(6, 2, 3, 3)
NAN, INF = float("nan"), float("inf")
PAIR = "must be an integer or a pair of integers, got"

# What each kind of error says, and of which arguments.
WRONG_ARGUMENTS = {
    ValueError: {
        "`scales` must contain 1, got (0.5, 2.0)": {"scales": (0.5, 2)},
        "`scales` must contain 1, got ()": {"scales": ()},
        "`scales` must be positive and at most 1000, got 0": {"scales": (1, 0)},
        "`scales` must be positive and at most 1000, got -0.5": {"scales": (1, -0.5)},
        "`scales` must be positive and at most 1000, got nan": {"scales": (1, NAN)},
        "`scales` must be positive and at most 1000, got inf": {"scales": (1, INF)},
        "`scales` must be positive and at most 1000, got 10000": {"scales": (1, 10**400)},
        "`scales` must be positive and at most 1000, got 1000.5": {"scales": (1, 1000.5)},
        "`scales` must not repeat, got (1.0, 2.0, 2.0)": {"scales": (1, 2, 2.0)},
        "`scales` must hold at most 256 numbers (a winner is one byte), got 257": {"scales": range(1, 258)},
        "`stride` must be at most 2147483647, got 10000000": {"stride": 10**30},
        "`dilation` must be at most 2147483647, got (1, 2147483648)": {"dilation": (1, 2**31)},
        "`padding` must be at most 2147483647, got 46116860": {"padding": 2**62},
        "`padding` must leave fewer than 2^40 outputs of an image, got 1000000": {"padding": 10**6},
        "`stride` must be at least 1, got 0": {"stride": 0},
        f"`stride` {PAIR} 0 of them": {"stride": ()},
        f"`stride` {PAIR} 3 of them": {"stride": (1, 1, 1)},
        "`dilation` must be at least 1, got 0": {"dilation": 0},
        "`padding` must be at least 0, got (0, -1)": {"padding": (0, -1)},
        "`padding` must be integers, 'same' or 'valid', got 'full'": {"padding": "full"},
        "`padding` 'same' needs a `stride` of 1, got (2, 2)": {"padding": "same", "stride": 2},
        "`groups` must be at least 1, got 0": {"groups": 0},
        "`weight` output channels (=6) must be divisible by `groups` (=4)": {"groups": 4},
        "`input` channels (=4) must equal `weight` channels (=2) times `groups` (=1)": {"groups": 1},
        "`input` width (=9) plus padding (=0) must be at least the extent of the kernel (=11)": {"dilation": (1, 5)},
    },
    TypeError: {
        "`scales` must hold numbers, got '2'": {"scales": (1, "2")},
        "`scales` must hold numbers, got [2]": {"scales": (1, [2])},
        "`scales` must hold numbers, got True": {"scales": (True, 2)},
        "`scales` must be a sequence of numbers, got 1.0": {"scales": 1.0},
        "`scales` must be a sequence of numbers, got '1'": {"scales": "1"},
        "`scales` must be a sequence of numbers, got {1, 2}": {"scales": {1, 2}},
        f"`stride` {PAIR} True": {"stride": True},
        f"`stride` {PAIR} {np.True_!r}": {"stride": np.True_},
        f"`stride` {PAIR} (1, True)": {"stride": (1, True)},
        f"`dilation` {PAIR} (1.5, 1)": {"dilation": (1.5, 1)},
        f"`stride` {PAIR} '12'": {"stride": "12"},
        "`antialias` must be True or False, got 'no'": {"antialias": "no"},
        "`antialias` must be True or False, got 1": {"antialias": 1},
        "`antialias` must be True or False, got [False]": {"antialias": [False]},
        "`groups` must be an integer, got 2.0": {"groups": 2.0},
        "`groups` must be an integer, got True": {"groups": True},
    },
}
WRONG_TRANSFORMS = {
    ValueError: {
        "`transforms` must contain the identity, such as rotation(0), got (Tr": {"transforms": [rotation(90)]},
        "`transforms` must contain the identity, such as rotation(0), got ()": {"transforms": []},
        "`transforms` must not repeat, got": {"transforms": [rotation(0), scaling(1)]},
        "`transforms` must hold at most 256 (a winner": {"transforms": [rotation(k) for k in range(257)]},
        "`interpolation` must be one of 'bilinear', 'nearest', got 'bicubic'": {"interpolation": "bicubic"},
        "`border` must be one of 'zeros', 'clamp', 'reflect', got 'wrap'": {"border": "wrap"},
        "`border` must be one of 'zeros', 'clamp', 'reflect', got 1": {"border": 1},
        "`border` must be one of 'zeros', 'clamp', 'reflect', got ['zeros']": {"border": ["zeros"]},
        "`input` height (=8) plus padding (=0) must be at least the extent": {"dilation": 9},
    },
    TypeError: {
        "`transforms` must hold transforms, such as rotation(90), got 1": {"transforms": [1, 2]},
        "`transforms` must be a sequence of transforms, got Tr": {"transforms": rotation(0)},
        "`transforms` must be a sequence of transforms, got {": {"transforms": {rotation(0)}},
    },
}


def each(table):
    return [(error, message, given) for error, cases in table.items() for message, given in cases.items()]


@pytest.mark.parametrize(("error", "message", "arguments"), each(WRONG_ARGUMENTS))
def test_wrong_arguments_are_named(error, message, arguments):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(IMAGES, WEIGHT, **{"groups": 2, **arguments})


@pytest.mark.parametrize(("error", "message", "arguments"), each(WRONG_TRANSFORMS))
def test_wrong_transforms_are_named(error, message, arguments):
    with pytest.raises(error, match=re.escape(message)):
        ti_conv2d(IMAGES, WEIGHT, groups=2, **{"transforms": [rotation(0)]} | arguments)


# Of signals and volumes.
WRONG_AXES = {
    "`input` must be (N, C, L) or (C, L), got": (si_conv1d, (1, 1, 5, 5), (1, 1, 3), {}),
    "`weight` must be (M, C / groups, Kl), none": (si_conv1d, (1, 1, 9), (1, 1, 3, 3), {}),
    "`input` length (=2) plus padding (=0) must be": (si_conv1d, (1, 1, 2), (1, 1, 3), {}),
    "`stride` must be an integer or a sequence of one integer, got 2 of them": (
        si_conv1d, (1, 1, 9), (1, 1, 3), {"stride": (1, 2)}
    ),
    "`input` must be (N, C, D, H, W) or (C, D, H, W), got": (si_conv3d, (1, 5, 5), (1, 1, 3, 3, 3), {}),
    "`input` depth (=2) plus padding (=0) must be at least": (si_conv3d, (1, 1, 2, 5, 5), (1, 1, 3, 3, 3), {}),
    "`input` channels (=2) must equal": (si_conv3d, (1, 2, 5, 5, 5), (1, 1, 3, 3, 3), {}),
    "`padding` must be an integer or a triple of integers, got 2 of them": (
        si_conv3d, (1, 1, 5, 5, 5), (1, 1, 3, 3, 3), {"padding": (1, 1)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG_AXES)
def test_wrong_signals_and_volumes_are_named(message):
    layer, image, weight, arguments = WRONG_AXES[message]
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(torch.rand(image), torch.rand(weight), **arguments)


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
    ValueError: {
        "`input` must be (N, C, H, W) or (C, H, W), got shape (8, 9)": (torch.rand(8, 9), WEIGHT),
        "`weight` must be (M, C / groups, Kh, Kw)": (IMAGES, torch.rand(6, 2, 3)),
        "none of them 0, got shape (6, 2, 0, 3)": (IMAGES, torch.rand(6, 2, 0, 3)),
        "none of them 0, got shape (0, 2, 3, 3)": (IMAGES, torch.rand(0, 2, 3, 3)),
        "none of them 0, got shape (6, 0, 3, 3)": (IMAGES, torch.rand(6, 0, 3, 3)),
        "`input` height must be at least 1, got 0": (torch.rand(1, 4, 0, 9), WEIGHT),
        "`weight` must be on the device of `input` (=cpu), got meta": (IMAGES, WEIGHT.to("meta")),
        "`bias` must hold one number per output channel (=6), got shape (5,)": (IMAGES, WEIGHT, torch.rand(5)),
        "`bias` must hold one number per output channel (=6), got shape (6, 1)": (IMAGES, WEIGHT, torch.rand(6, 1)),
    },
    TypeError: {
        "`input` must be of a floating-point type, got torch.int32": (IMAGES.int(), WEIGHT),
        "`weight` must be of a floating-point type, got torch.int32": (IMAGES, WEIGHT.int()),
        "`input` must be of a floating-point type, got torch.complex64": (IMAGES.cfloat(), WEIGHT),
        "`weight` must have the type of `input` (=torch.float32), got torch.float64": (IMAGES, WEIGHT.double()),
        "`bias` must have the type of `input`": (IMAGES, WEIGHT, torch.rand(6).half()),
        "`input` must be a tensor, got ndarray": (IMAGES.numpy(), WEIGHT),
        "`weight` must be a tensor, got NoneType": (IMAGES, None),
        "`input` must be dense, got the layout torch.sparse_coo": (IMAGES.to_sparse(), WEIGHT),
    },
}


@pytest.mark.parametrize(("error", "message", "tensors"), each(WRONG_TENSORS))
def test_wrong_tensors_are_named(error, message, tensors):
    with pytest.raises(error, match=re.escape(message)):
        si_conv2d(*tensors, groups=2)


def test_scales_and_transforms_may_come_from_iterators_and_wrong_ones_are_named():
    found, expected = (si_conv2d(IMAGES, WEIGHT, groups=2, scales=each) for each in (iter((0.5, 1)), (0.5, 1)))
    assert torch.equal(found, expected)
    turns = [rotation(0), rotation(45)]
    found, expected = (ti_conv2d(IMAGES, WEIGHT, groups=2, transforms=each) for each in (iter(turns), turns))
    assert torch.equal(found, expected)
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


def test_the_largest_number_of_outputs_is_just_below_two_to_the_forty():
    """Filters count, too."""

    def check(height, filters):
        return make_call((1, height, 2), (filters, 1, 1, 1), 1, (2**19 - 1, 2**19 - 1), 1, 1, (1,))

    assert [axis.padding for axis in check(1, 1).axes] == [(2**19 - 1, 2**19 - 1)] * 2  # (2^20 − 1) · 2^20
    for height, filters in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="`padding` must leave fewer than 2\\^40 outputs of an image"):
            check(height, filters)
