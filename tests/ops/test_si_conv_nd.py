"""One and three axes: the layer against nested loops over any number of them, against conv1d and conv3d."""

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional as F

from helpers.loops import LAYERS, assert_loops_agree, calls, random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import si_conv3d

PLAIN = {1: F.conv1d, 3: F.conv3d}
SCALES = (0.6, 1.0, 1.7)


@pytest.mark.parametrize(("axes", "examples"), [(1, 120), (3, 40)])
def test_agrees_with_the_loop_reference(axes, examples):
    seen = Counter()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(axes))
    def agree(call):
        winner = assert_loops_agree(*call)
        another_wins = bool((winner != call[6].index(1)).any())
        seen.update({"another wins": another_wins, "antialias": another_wins and call[-1] and min(call[6]) < 0.7})

    agree()
    assert seen["another wins"] > examples // 2
    assert seen["antialias"] > examples // 10


@pytest.mark.parametrize("axes", [1, 3])
def test_scale_one_alone_is_the_plain_convolution_bit_for_bit(axes):
    tensors = tensors_of((2, 4, *(7, 6, 5)[:axes]), (4, 2, *(3, 2, 3)[:axes]), dtype=torch.float32)
    call = {"padding": 1, "stride": 2, "groups": 2}
    assert torch.equal(LAYERS[axes](*tensors, **call, scales=(1,)), PLAIN[axes](*tensors, **call))


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv3d itself
@pytest.mark.parametrize("kernel", [(2, 3, 3), (3, 2, 3), (3, 3, 2), (4, 3, 2)])
def test_same_pads_the_axis_whose_kernel_is_even(kernel):
    images, weight = random(1, 2, 5, 6, 7), random(3, 2, *kernel, seed=1)
    assert_close(si_conv3d(images, weight, padding="same", scales=(1,)), F.conv3d(images, weight, padding="same"))


@pytest.mark.parametrize("axes", [1, 3])
def test_gradients_match_finite_differences_once_and_twice(axes):
    shapes = {1: ((2, 2, 8), (2, 2, 3)), 3: ((1, 1, 4, 3, 4), (2, 1, 2, 2, 2))}[axes]
    tensors = [tensor.requires_grad_() for tensor in tensors_of(*shapes, seed=5)]

    def layer(*tensors):
        return LAYERS[axes](*tensors, padding=1, scales=SCALES)

    assert torch.autograd.gradcheck(layer, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, tensors, fast_mode=True)


@pytest.mark.parametrize("axes", [1, 3])
def test_images_without_a_batch_empty_batches_views_and_compiled_code_are_taken(axes):
    shape, kernel = (9, 8, 7)[:axes], (3, 2, 3)[:axes]
    images, weight, bias = tensors_of((2, 2, *shape), (3, 2, *kernel))
    layer = LAYERS[axes]
    output, winner = layer(images, weight, bias, scales=SCALES, return_winner=True)
    alone = layer(images[0], weight, bias, scales=SCALES, return_winner=True)
    assert_close(alone[0], output[0])
    assert torch.equal(alone[1], winner[0])
    assert layer(images[:0], weight, bias, scales=SCALES).shape == (0, *output.shape[1:])
    every_other = torch.stack([images, images + 1], -1).flatten(-2)[..., ::2]
    assert_close(layer(every_other, weight, bias, scales=SCALES), output)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(images, weight, bias, scales=SCALES), output)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_have_the_numbers_of_float64(axes, dtype):
    tensors = tensors_of((2, 2, *(9, 8, 7)[:axes]), (3, 2, *(3, 3, 3)[:axes]), dtype=dtype)
    output = LAYERS[axes](*tensors, padding=1, scales=SCALES)
    assert output.dtype == dtype
    assert_close(output, LAYERS[axes](*(t.double() for t in tensors), padding=1, scales=SCALES))
