"""One and three axes: the layer against nested loops over any number of them, against conv1d and conv3d."""

import re
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional as F

from helpers import reference, transform_reference
from helpers.loops import random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import si_conv1d, si_conv3d

LAYERS = {1: si_conv1d, 3: si_conv3d}
PLAIN = {1: F.conv1d, 3: F.conv3d}
SCALES = (0.6, 1.0, 1.7)


@st.composite
def calls(draw, axes):
    """Arguments of any valid call on so many axes, every axis different, small enough for the loops."""
    groups, (most, room) = draw(st.integers(1, 2)), {1: (4, 12), 3: (2, 3)}[axes]

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    kernel, stride, dilation, padding = numbers(1, most), numbers(1, 2), numbers(1, 2), numbers(0, 1)
    size = [d * (k - 1) + 1 + draw(st.integers(1, room)) for d, k in zip(dilation, kernel, strict=True)]
    weight_shape = (groups * draw(st.integers(1, 2)), draw(st.integers(1, 2)), *kernel)
    other = st.one_of(st.floats(0.3, 0.95), st.floats(1.05, 2), st.sampled_from([2.0, 3.0] if axes == 1 else [2.0]))
    scales = draw(st.permutations([1.0, *draw(st.lists(other, min_size=1, max_size=2, unique=True))]))
    input_shape = (draw(st.integers(1, 2)), groups * weight_shape[1], *size)
    return input_shape, weight_shape, stride, padding, dilation, groups, tuple(scales)


@pytest.mark.parametrize(("axes", "examples"), [(1, 120), (3, 40)])
def test_agrees_with_the_loop_reference(axes, examples):
    seen = Counter()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(axes), st.integers(0, 2**31))
    def agree(call, seed):
        tensors = tensors_of(*call[:2], seed=seed)
        aligned = transform_reference.si_conv(*(tensor.numpy() for tensor in tensors), *call[2:])
        output, winner = LAYERS[axes](*tensors, *call[2:6], scales=call[6], return_winner=True)
        assert_close(output, torch.from_numpy(aligned.max(0)))
        clear = torch.from_numpy(reference.gap(aligned) > 1e-9)
        true_winner = torch.from_numpy(aligned.argmax(0))
        assert torch.equal(winner[clear].long(), true_winner[clear])
        seen["another wins"] += bool((true_winner != call[6].index(1)).any())

    agree()
    assert seen["another wins"] > examples // 2


@pytest.mark.parametrize("axes", [1, 3])
def test_scale_one_alone_is_the_plain_convolution_bit_for_bit(axes):
    tensors = tensors_of((2, 4, *(7, 6, 5)[:axes]), (4, 2, *(3, 2, 3)[:axes]), dtype=torch.float32)
    call = {"padding": 1, "stride": 2, "groups": 2}
    assert torch.equal(LAYERS[axes](*tensors, **call, scales=(1,)), PLAIN[axes](*tensors, **call))


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of the plain convolution
@pytest.mark.parametrize("axes", [1, 3])
def test_same_padding_puts_the_odd_pixel_behind(axes):
    tensors = tensors_of((1, 2, *(7, 6, 5)[:axes]), (2, 2, *(2, 3, 4)[:axes]))
    assert_close(LAYERS[axes](*tensors, padding="same", scales=(1,)), PLAIN[axes](*tensors, padding="same"))
    assert LAYERS[axes](*tensors, padding="same", scales=SCALES).shape[2:] == tensors[0].shape[2:]


@pytest.mark.parametrize("axes", [1, 3])
def test_gradients_match_finite_differences_once_and_twice(axes):
    shapes = {1: ((2, 2, 8), (2, 2, 3)), 3: ((1, 1, 4, 3, 4), (2, 1, 2, 2, 2))}[axes]
    tensors = [tensor.requires_grad_() for tensor in tensors_of(*shapes, seed=5)]

    def layer(*tensors):
        return LAYERS[axes](*tensors, padding=1, scales=SCALES)

    assert torch.autograd.gradcheck(layer, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, tensors, fast_mode=True)


@pytest.mark.parametrize("axes", [1, 3])
def test_images_without_a_batch_empty_batches_and_views_are_taken(axes):
    shape, kernel = (7, 6, 5)[:axes], (3, 2, 3)[:axes]
    images, weight, bias = tensors_of((2, 2, *shape), (3, 2, *kernel))
    layer = LAYERS[axes]
    output, winner = layer(images, weight, bias, scales=SCALES, return_winner=True)
    alone = layer(images[0], weight, bias, scales=SCALES, return_winner=True)
    assert_close(alone[0], output[0])
    assert torch.equal(alone[1], winner[0])
    assert layer(images[:0], weight, bias, scales=SCALES).shape == (0, *output.shape[1:])
    wide = random(2, 2, *shape[:-1], 2 * shape[-1])[..., ::2]
    assert_close(layer(wide, weight, bias, scales=SCALES), layer(wide.clone(), weight, bias, scales=SCALES))


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_have_the_numbers_of_float64(axes, dtype):
    tensors = tensors_of((2, 2, *(9, 8, 7)[:axes]), (3, 2, *(3, 3, 3)[:axes]), dtype=dtype)
    output = LAYERS[axes](*tensors, padding=1, scales=SCALES)
    assert output.dtype == dtype
    assert_close(output, LAYERS[axes](*(t.double() for t in tensors), padding=1, scales=SCALES))


@pytest.mark.parametrize("axes", [1, 3])
def test_compiled_code_agrees_with_eager(axes):
    torch.compiler.reset()
    compiled = torch.compile(LAYERS[axes], fullgraph=True, backend="aot_eager")
    tensors = tensors_of((2, 2, *(9, 8, 7)[:axes]), (3, 2, *(3, 3, 3)[:axes]))
    assert_close(compiled(*tensors, scales=SCALES), LAYERS[axes](*tensors, scales=SCALES))


WRONG = {
    "a signal of rank 4": (1, (1, 1, 5, 5), (1, 1, 3), {}, ValueError, "`input` must be (N, C, L) or (C, L), got"),
    "a kernel of rank 4": (1, (1, 1, 9), (1, 1, 3, 3), {}, ValueError, "`weight` must be (M, C / groups, Kl), none"),
    "a signal too short": (1, (1, 1, 2), (1, 1, 3), {}, ValueError, "`input` length (=2) plus padding (=0) must be"),
    "two strides": (
        1, (1, 1, 9), (1, 1, 3), {"stride": (1, 2)}, ValueError,
        "`stride` must be an integer or a sequence of one integer, got 2 of them",
    ),
    "a volume of rank 3": (
        3, (1, 5, 5), (1, 1, 3, 3, 3), {}, ValueError, "`input` must be (N, C, D, H, W) or (C, D, H, W), got"
    ),
    "a flat volume": (
        3, (1, 1, 2, 5, 5), (1, 1, 3, 3, 3), {}, ValueError, "`input` depth (=2) plus padding (=0) must be at least"
    ),
    "a pair of paddings": (
        3, (1, 1, 5, 5, 5), (1, 1, 3, 3, 3), {"padding": (1, 1)}, ValueError,
        "`padding` must be an integer or a triple of integers, got 2 of them",
    ),
    "same with a stride": (
        3, (1, 1, 5, 5, 5), (1, 1, 3, 3, 3), {"padding": "same", "stride": (1, 1, 2)}, ValueError,
        "`padding` 'same' needs a `stride` of 1, got (1, 1, 2)",
    ),
    "no scale one": (1, (1, 1, 9), (1, 1, 3), {"scales": (2,)}, ValueError, "`scales` must contain 1, got (2.0,)"),
    "channels": (3, (1, 2, 5, 5, 5), (1, 1, 3, 3, 3), {}, ValueError, "`input` channels (=2) must equal"),
}  # fmt: skip


@pytest.mark.parametrize(("axes", "image", "weight", "call", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(axes, image, weight, call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        LAYERS[axes](torch.rand(image), torch.rand(weight), **call)


def averaged_signal(signal, scale):
    """A shrunk signal, sample by sample: the neighbours within 1/s of where it reads, by a triangle as wide."""
    size = int(scale * len(signal) + 1e-6)
    samples = []
    for q in range(size):
        place = (q - (size - 1) / 2) / scale + (len(signal) - 1) / 2
        weights = [max(0.0, 1 - abs(place - pixel) * scale) for pixel in range(len(signal))]
        samples.append(sum(w * value for w, value in zip(weights, signal, strict=True)) / sum(weights))
    return samples


def test_antialias_averages_a_signal_by_a_triangle_as_wide_as_the_step():
    signal, weight = random(12, seed=3), random(3, seed=4)
    output, winner = si_conv1d(
        signal.view(1, 1, 12), weight.view(1, 1, 3), scales=(1, 0.5), antialias=True, return_winner=True
    )
    level = averaged_signal(signal.tolist(), 0.5)
    responses = [sum(weight[k].item() * level[q + k] for k in range(3)) for q in range(4)]
    won = 0
    for p in range(10):
        plain = sum(weight[k].item() * signal[p + k].item() for k in range(3))
        place = 0.5 * (p - 4.5) + 1.5
        expected = plain
        if -0.5 <= place <= 3.5:
            inside = min(max(place, 0), 3)
            before = min(int(inside), 2)
            aligned = responses[before] * (1 - (inside - before)) + responses[before + 1] * (inside - before)
            won += aligned > plain
            expected = max(plain, aligned)
        assert output[0, 0, p].item() == pytest.approx(expected, abs=1e-12)
    assert int(winner.sum()) == won > 0
    assert not torch.equal(output, si_conv1d(signal.view(1, 1, 12), weight.view(1, 1, 3), scales=(1, 0.5)))


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv3d itself
@pytest.mark.parametrize("kernel", [(2, 3, 3), (3, 2, 3), (3, 3, 2), (4, 3, 2)])
def test_same_pads_the_axis_whose_kernel_is_even(kernel):
    images, weight = random(1, 2, 5, 6, 7), random(3, 2, *kernel, seed=1)
    assert_close(si_conv3d(images, weight, padding="same", scales=(1,)), F.conv3d(images, weight, padding="same"))
    totals = [k - 1 for k in kernel]
    pads = [number for total in reversed(totals) for number in (total // 2, total - total // 2)]
    more = si_conv3d(images, weight, padding="same", scales=(1, 0.5))
    assert more.shape == images[:, :1].expand(1, 3, 5, 6, 7).shape
    assert bool((more >= F.conv3d(F.pad(images, pads), weight) - 1e-12).all())
