"""The layer under any linear transforms: against nested loops, against rot90, and as every tool of torch sees it."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional as F

from helpers import reference
from helpers.loops import random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import TIConv2d, affine, rotation, scaling, shear, si_conv2d, ti_conv2d
from scaleconv.ops.call import make_call
from scaleconv.ops.levels import traceable_conv
from scaleconv.ops.plan import PlaneStrip, make_plan

MIXED = (rotation(0), rotation(30), scaling(1.5, 0.7), shear(0.4), rotation(90))
READINGS = [(how, border) for how in ("bilinear", "nearest") for border in ("zeros", "clamp", "reflect")]


@st.composite
def transforms(draw):
    """One transform of any kind, the exact ones often."""
    kind = draw(st.sampled_from(["rotation", "quarter", "scales", "shear", "mirror", "any"]))
    if kind == "rotation":
        return rotation(draw(st.floats(-180, 180)))
    if kind == "quarter":
        return rotation(draw(st.sampled_from([45, 90, 135, 180, 270])))
    if kind == "scales":
        return scaling(draw(st.sampled_from([0.5, 0.8, 1.0, 1.7, 2.0])), draw(st.floats(0.4, 2.2)))
    if kind == "shear":
        return shear(draw(st.floats(-1, 1)), draw(st.floats(-0.7, 0.7)))
    if kind == "mirror":
        return affine(draw(st.sampled_from([((1, 0), (0, -1)), ((-1, 0), (0, 2)), ((0, 1), (1, 0))])))
    return rotation(draw(st.floats(-180, 180))) @ scaling(draw(st.floats(0.5, 1.8)), draw(st.floats(0.5, 1.8)))


@st.composite
def calls(draw):
    """Arguments of any valid call, every axis different, small enough for the loops."""
    groups = draw(st.integers(1, 2))
    weight_shape = (groups * draw(st.integers(1, 2)), *(draw(st.integers(1, n)) for n in (2, 3, 4)))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    size = [d * (k - 1) + draw(st.integers(2, 6)) for d, k in zip(dilation, weight_shape[2:], strict=True)]
    others = draw(st.lists(transforms(), min_size=1, max_size=3, unique=True))
    listed = draw(st.permutations([rotation(0), *(each for each in others if each != rotation(0))]))
    input_shape = (draw(st.integers(1, 2)), groups * weight_shape[1], *size)
    reading = draw(st.sampled_from(READINGS))
    return input_shape, weight_shape, stride, padding, dilation, groups, tuple(listed), *reading


def options(call):
    names = ("stride", "padding", "dilation", "groups", "transforms", "interpolation", "border")
    return dict(zip(names, call[2:], strict=True))


def aligned_by_loops(tensors, stride, padding, dilation, groups, transforms, interpolation, border):
    pads, matrices = [(p, p) for p in padding], [transform.matrix for transform in transforms]
    arrays = [tensor.detach().numpy() for tensor in tensors]
    return reference.ti_conv2d(*arrays, stride, pads, dilation, groups, matrices, interpolation, border)


def test_output_agrees_with_the_loop_reference_and_gradients_with_autograd():
    seen = Counter()

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(), st.integers(0, 2**31))
    def agree(call, seed):
        tensors = tensors_of(*call[:2], seed=seed)
        aligned = aligned_by_loops(tensors, *call[2:])
        expected, clear = torch.from_numpy(aligned.max(0)), torch.from_numpy(reference.gap(aligned) > 1e-9)
        true_winner = torch.from_numpy(aligned.argmax(0))
        leaves, others = ([tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2))
        output, winner = ti_conv2d(*leaves, **options(call), return_winner=True)
        assert_close(output, expected)
        assert torch.equal(winner[clear].long(), true_winner[clear])
        checked = make_call(*call[:2], **options(call))
        plain, _ = traceable_conv(*others, checked)
        assert_close(plain, expected)
        sent = random(*output.shape, seed=seed) * clear  # two levels that are equal share no gradient
        grads = (torch.autograd.grad(found, given, sent) for found, given in ((output, leaves), (plain, others)))
        for actual, true in zip(*grads, strict=True):
            assert_close(actual, true)
        seen.update([call[-2], call[-1]])
        plan = make_plan(checked, len(tensors[0]), False)
        seen["mixed"] += any(isinstance(canvas.strips[0], PlaneStrip) for canvas in plan.canvases)
        seen["uncovered"] += bool(np.isinf(aligned).any())
        seen["strided"] += max(call[2]) > 1
        seen["another wins"] += bool((true_winner != call[6].index(rotation(0))).any())

    agree()
    assert min(seen[each] for each in ("zeros", "clamp", "reflect", "nearest", "bilinear")) >= 30, seen
    assert min(seen[each] for each in ("mixed", "strided", "another wins")) >= 65, seen
    assert seen["uncovered"] >= 12, seen


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 7), (6, 9)])
def test_a_quarter_turn_is_the_convolution_of_the_turned_image_turned_back(size, turns):
    images, weight, bias = tensors_of((2, 3, *size), (4, 3, 3, 3))
    both = ti_conv2d(images, weight, bias, transforms=[rotation(0), rotation(90 * turns)])
    turned = torch.rot90(F.conv2d(torch.rot90(images, turns, (2, 3)), weight, bias), -turns, (2, 3))
    assert_close(both, torch.maximum(F.conv2d(images, weight, bias), turned))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_quarter_turns_of_whole_numbers_are_exact(order):
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.float32).view(2, 3, 6, 6) % 7 % 3
    weight = torch.arange(4 * 3 * 3 * 3, dtype=torch.float32).view(4, 3, 3, 3) % 5 % 2
    turns = [rotation(90 * k) for k in order]
    output, winner = ti_conv2d(images, weight, transforms=turns, return_winner=True)
    aligned = torch.stack([torch.rot90(F.conv2d(torch.rot90(images, k, (2, 3)), weight), -k, (2, 3)) for k in order])
    assert torch.equal(output, aligned.amax(0))
    tied = (aligned == aligned.amax(0)).sum(0) > 1
    assert tied.any()
    first = (aligned == aligned.amax(0)).int().argmax(0)  # ties go to the one listed first
    assert torch.equal(winner.long(), first)
    assert torch.equal(
        ti_conv2d(torch.rot90(images, 1, (2, 3)), weight, transforms=turns), torch.rot90(output, 1, (2, 3))
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [2, 16])
def test_pure_scales_are_si_conv2d_bit_for_bit(channels, dtype):
    tensors = tensors_of((2, channels, 11, 10), (3, channels, 3, 3), dtype=dtype)
    scales = (0.63, 1.7, 1.0, 2.0)
    ours = ti_conv2d(*tensors, 1, 1, transforms=[scaling(s) for s in scales], return_winner=True)
    for actual, expected in zip(ours, si_conv2d(*tensors, padding=1, scales=scales, return_winner=True), strict=True):
        assert torch.equal(actual, expected)


def test_the_identity_alone_is_conv2d_bit_for_bit():
    images, weight, bias = tensors_of((2, 3, 7, 8), (4, 3, 3, 3), dtype=torch.float32)
    for interpolation, border in READINGS:
        output = ti_conv2d(images, weight, bias, transforms=[rotation(0)], interpolation=interpolation, border=border)
        assert torch.equal(output, F.conv2d(images, weight, bias))


@pytest.mark.parametrize("channels", [1, 16])
def test_an_uncovered_position_never_wins(channels):
    """All responses are negative, so that a zero that was filled in would win at the corners."""
    images, weight = torch.ones(1, channels, 9, 9), -torch.ones(1, channels, 3, 3)
    for listed in ([rotation(0), rotation(45) @ scaling(0.5)], [rotation(45) @ scaling(0.5), rotation(0)]):
        output, winner = ti_conv2d(images, weight, transforms=listed, return_winner=True)
        corners = (0, 0, [0, 0, 6, 6], [0, 6, 0, 6])
        assert output[corners].tolist() == [-9 * channels] * 4
        assert winner[corners].tolist() == [listed.index(rotation(0))] * 4
        assert (winner != listed.index(rotation(0))).any()  # zeros of the canvas, which the filter prefers


def test_zeros_clamp_and_reflect_show_the_kernel_what_they_say():
    """A bright image that is turned by 45° leaves the corners of its canvas to the border."""
    images, weight = torch.ones(1, 1, 8, 8), torch.full((1, 1, 3, 3), -1 / 9)
    outputs = {
        border: ti_conv2d(images, weight, transforms=[rotation(0), rotation(45)], border=border)
        for border in ("zeros", "clamp", "reflect")
    }
    assert outputs["zeros"].max() > -0.9  # corners of the canvas are zeros, which a negative filter prefers
    for border in ("clamp", "reflect"):
        torch.testing.assert_close(outputs[border], torch.full((1, 1, 6, 6), -1.0))


def test_nearest_rounds_half_away_from_zero():
    """Shrunk to half, sample q reads at 2q + ½ of eight pixels, and so takes pixel 2q + 1."""
    images = torch.arange(8.0).view(1, 1, 1, 8)
    output, winner = ti_conv2d(
        images, torch.ones(1, 1, 1, 1), transforms=[rotation(0), scaling(0.5, 1)], interpolation="nearest",
        return_winner=True,
    )  # fmt: skip
    # Output p reads responses (1, 3, 5, 7) at p/2 − ¼, rounded: 0, 0, 1, 1, …
    assert output.flatten().tolist() == [1, 1, 3, 3, 5, 5, 7, 7]
    assert winner.flatten().tolist() == [1, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(("interpolation", "border"), READINGS)
def test_gradients_match_finite_differences_once_and_twice(interpolation, border):
    call = {"padding": 1, "stride": (1, 2), "interpolation": interpolation, "border": border, "transforms": MIXED}
    arguments = ((1, 2), (1, 1), (1, 1), 1, MIXED, interpolation, border)
    for seed in range(100):
        tensors = tensors_of((1, 2, 4, 5), (2, 2, 2, 2), seed=3 * seed)
        gap = reference.gap(aligned_by_loops(tensors, *arguments))
        if ((gap > 1e-4) | (gap == 0)).all():  # levels that are equal read the same pixels, and stay equal
            break
    else:
        raise AssertionError("no such tensors among 100 seeds")
    tensors = [tensor.requires_grad_() for tensor in tensors]

    def layer(*tensors):
        return ti_conv2d(*tensors, **call)

    assert torch.autograd.gradcheck(layer, tensors)
    assert torch.autograd.gradcheck(layer, tensors, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, tensors, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize(("interpolation", "border"), [("bilinear", "zeros"), ("nearest", "reflect")])
def test_compiled_and_exported_layers_agree_with_eager(interpolation, border):
    torch.compiler.reset()
    layer = TIConv2d(2, 3, 3, padding=1, transforms=MIXED, interpolation=interpolation, border=border).double()
    images = random(2, 2, 9, 8)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (images, random(3, 2, 11, 7)):
        grads = [torch.autograd.grad(f(batch).square().sum(), list(layer.parameters())) for f in (compiled, layer)]
        assert_close(compiled(batch), layer(batch))
        for actual, expected in zip(*grads, strict=True):
            assert_close(actual, expected)
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (images,), dynamic_shapes=shapes).module()
    for count in (1, 2, 5):
        batch = random(count, 2, 9, 8, seed=count)
        assert_close(program(batch), layer(batch))


@pytest.mark.parametrize("dynamic", [True, None])
def test_transforms_from_a_closure_are_compiled(dynamic):
    torch.compiler.reset()
    transforms, (images, weight, _) = [scaling(0.7), rotation(0), rotation(30)], tensors_of((2, 2, 6, 5), (3, 2, 3, 3))

    def call(images):
        return ti_conv2d(images, weight, transforms=transforms)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert_close(compiled(images), call(images))


def test_an_exported_rotation_takes_any_height_and_width():
    layer = TIConv2d(2, 3, 3, transforms=[rotation(0), rotation(30), rotation(90)]).double()
    names = [torch.export.Dim("batch"), torch.export.Dim("height", min=8), torch.export.Dim("width", min=8)]
    shapes = ({0: names[0], 2: names[1], 3: names[2]},)
    program = torch.export.export(layer, (random(2, 2, 12, 11),), dynamic_shapes=shapes).module()
    for size in ((2, 9, 8), (3, 12, 15), (1, 20, 8)):
        images = random(size[0], 2, *size[1:])
        assert_close(program(images), layer(images))


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, 0), (0, 0, 0)])
def test_vmap_maps_images_or_weights_or_both(mapped):
    shapes = [(2, 2, 6, 5), (3, 2, 3, 2), (3,)]
    stacked = [
        random(*shape, seed=n) if dim is None else random(2, *shape, seed=n)
        for n, (shape, dim) in enumerate(zip(shapes, mapped, strict=True))
    ]
    together = torch.vmap(lambda *t: ti_conv2d(*t, transforms=MIXED), in_dims=mapped)(*stacked)
    for one in range(2):
        alone = [t if dim is None else t[one] for t, dim in zip(stacked, mapped, strict=True)]
        assert_close(together[one], ti_conv2d(*alone, transforms=MIXED))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [2, 16])
def test_other_types_have_the_numbers_of_float64(channels, dtype):
    tensors = tensors_of((2, channels, 9, 8), (3, channels, 3, 3), dtype=dtype)
    output = ti_conv2d(*tensors, padding=1, transforms=MIXED)
    assert output.dtype == dtype
    assert_close(output, ti_conv2d(*(t.double() for t in tensors), padding=1, transforms=MIXED))


def test_layouts_and_views_change_nothing():
    images, weight, bias = tensors_of((2, 4, 9, 8), (3, 4, 3, 3))
    expected = ti_conv2d(images, weight, bias, transforms=MIXED)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(ti_conv2d(last, weight, bias, transforms=MIXED), expected)
    assert ti_conv2d(last, weight, bias, transforms=MIXED).is_contiguous(memory_format=torch.channels_last)
    strided = random(2, 4, 9, 16)
    view = strided[..., ::2]
    assert_close(
        ti_conv2d(view, weight, bias, transforms=MIXED),
        ti_conv2d(view.clone(memory_format=torch.contiguous_format), weight, bias, transforms=MIXED),
    )
    assert torch.equal(ti_conv2d(images[0], weight, bias, transforms=MIXED), expected[0])


def test_an_empty_batch_gives_empty_results_and_zero_gradients():
    images, weight = torch.zeros(0, 2, 6, 7, requires_grad=True), random(3, 2, 3, 3).float().requires_grad_()
    output, winner = ti_conv2d(images, weight, transforms=MIXED, return_winner=True)
    assert output.shape == winner.shape == (0, 3, 4, 5)
    output.sum().backward()
    assert weight.grad.abs().max() == 0
    assert images.grad.shape == images.shape


def test_a_pixel_that_is_not_finite_reaches_only_the_outputs_that_see_it():
    images, weight, bias = tensors_of((2, 2, 9, 8), (3, 2, 3, 3), dtype=torch.float32)
    turned = [rotation(0), rotation(30)]
    clean = ti_conv2d(images, weight, bias, transforms=turned)
    images[0, 0, 0, 0] = torch.nan
    output = ti_conv2d(images, weight, bias, transforms=turned)
    assert output[0, :, 0, 0].isnan().all()
    assert torch.equal(output[1], clean[1])
    assert torch.equal(output[0, :, 4:, 4:], clean[0, :, 4:, 4:])
