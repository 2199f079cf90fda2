"""Which form each level takes, and how levels lie on canvases: the rules on concrete shapes, the tiling on any call."""

from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from helpers.loops import calls
from scaleconv import DEFAULT_SCALES, rotation
from scaleconv.ops.call import Call, make_call
from scaleconv.ops.convolution import safe_arguments
from scaleconv.ops.plan import MOST_PATCHES, Budget, choose_form, make_plan

SCALES = (0.63, 1, 1.26, 1.6, 2, 2.5, 4)
EVERYTHING_SHARED, NOTHING_SHARED, BANDS = Budget(10**9, 10**9), Budget(0, 10**9), Budget(0, 60)


def forms(image, weight, gpu, groups=1):
    call = make_call(image, weight, padding=1, groups=groups, scales=SCALES)
    return {level.scales[0]: choose_form(call, level, gpu) for level in call.levels}


def strips_of(plan):
    return [strip for canvas in plan.canvases for strip in canvas.strips]


def codes_by_canvas(plan):
    return [[strip.code for strip in canvas.strips] for canvas in plan.canvases]


WHOLE_STRIDED = {scale: "strided" if scale in (2, 4) else "dense" for scale in SCALES}
GATHERED = dict.fromkeys(SCALES, "im2col")
# 56² outputs have patches of 9 · 56² = 28,224 pixels; the levels hold (56·s)² of them, cut to whole numbers, and a CPU
# gathers up to four times as many. 1.26: 4 · 70² = 19,600 are too few; 1.6: 4 · 89² = 31,684.
ENLARGED_GATHERED = {1: "dense", 0.63: "dense", 1.26: "dense"} | dict.fromkeys((1.6, 2, 2.5, 4), "im2col")
# Channels of images and of filters, groups, size of the kernel; the forms on a CPU and on a GPU.
FORMS = {
    "many channels": (64, 64, 1, 3, ENLARGED_GATHERED, WHOLE_STRIDED),
    "sixteen channels": (16, 64, 1, 3, ENLARGED_GATHERED, WHOLE_STRIDED),
    "fifteen channels": (15, 64, 1, 3, WHOLE_STRIDED, GATHERED),
    "one channel": (1, 36, 1, 7, WHOLE_STRIDED, GATHERED),
    "groups": (64, 64, 2, 3, WHOLE_STRIDED, GATHERED),
    "depthwise": (64, 64, 64, 3, WHOLE_STRIDED, WHOLE_STRIDED),
}


@pytest.mark.parametrize(("channels", "filters", "groups", "kernel", "on_cpu", "on_gpu"), FORMS.values(), ids=FORMS)
def test_forms_follow_from_channels_groups_and_the_device(channels, filters, groups, kernel, on_cpu, on_gpu):
    shapes = (channels, 56, 56), (filters, channels // groups, kernel, kernel)
    assert forms(*shapes, gpu=False, groups=groups) == on_cpu
    assert forms(*shapes, gpu=True, groups=groups) == on_gpu


def test_a_cpu_gathers_no_more_patches_than_it_can_keep():
    at_most = {2: "im2col", 2.5: "im2col"}
    beyond = {2: "strided", 2.5: "dense"}
    assert 9 * 120**2 <= MOST_PATCHES < 9 * 121**2
    for size, expected in ((120, at_most), (121, beyond)):
        taken = forms((64, size, size), (64, 64, 3, 3), gpu=False)
        assert {scale: taken[scale] for scale in expected} == expected


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("budget", [None, EVERYTHING_SHARED, BANDS], ids=["default", "shared", "bands"])
@pytest.mark.parametrize("form", [None, "dense", "strided", "im2col"])
def test_canvases_tile_what_each_level_covers_exactly_once(form, budget, gpu):
    seen = Counter()

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(), st.booleans())
    def tile(drawn, depthwise):
        input_shape, (filters, _, *kernel), *others = drawn
        if depthwise:
            input_shape, others[3] = (input_shape[0], filters, *input_shape[2:]), filters
        weight_shape = (filters, input_shape[1] // others[3], *kernel)
        call = make_call(input_shape, weight_shape, *others)
        plan = make_plan(call, input_shape[0], gpu, form, budget)
        for level in call.levels:
            times = torch.zeros(call.output_size, dtype=torch.int)
            for strip in strips_of(plan):
                times[strip.outputs] += strip.code == level.code
            if level.code == plan.identity:
                times += 1
            expected = torch.zeros_like(times)
            expected[slice(*level.height.covered), slice(*level.width.covered)] = 1
            assert torch.equal(times, expected)
        codes = [strip.code for strip in strips_of(plan)]
        assert codes == sorted(codes)  # the order in which they compete; a winner's code only grows
        for strip in strips_of(plan):
            assert [len(axis) for axis in strip.align] == [part.stop - part.start for part in strip.outputs]
        seen["strips"] += len(codes)
        seen["cut"] += len(codes) > len(set(codes))
        seen["shared"] += any(len(canvas.strips) > 1 for canvas in plan.canvases)

    tile()
    assert seen["strips"] > 10
    assert (seen["cut"] > 0) == (budget == BANDS)
    assert seen["shared"] > 0 or not (gpu and budget != BANDS and form in ("dense", "strided"))


@pytest.mark.parametrize("gpu", [False, True])
def test_a_band_exceeds_its_budget_only_if_it_is_a_single_row(gpu):
    call = make_call((2, 30, 20), (3, 2, 3, 3), scales=(1, 0.7, 1.7, 2))
    plan = make_plan(call, 1, gpu, "dense", Budget(0, 2500))
    rows = [strip.outputs[0] for strip in strips_of(plan)]
    assert len(rows) > 6
    for canvas in plan.canvases:
        (strip,) = canvas.strips
        height = strip.outputs[0].stop - strip.outputs[0].start
        assert canvas.elements(call) <= 2 * 2500 or height == 1  # rows that two bands read are read twice


@pytest.mark.parametrize("scales", [(0.6, 1, 1.4, 2), (2, 1, 1.4, 0.6)], ids=["widest last", "narrowest last"])
def test_shared_canvases_hold_all_levels_one_below_the_other(scales):
    """Scale 2 is the widest: output p reads its 11 responses at 2·p + 0.25, up to 10.25, so their 23 columns."""
    call = make_call((16, 13, 11), (4, 16, 3, 3), stride=2, padding=1, scales=scales)
    plan = make_plan(call, 2, True, "dense", EVERYTHING_SHARED)
    (canvas,) = plan.canvases
    assert plan.identity is None
    assert [strip.code for strip in canvas.strips] == [0, 1, 2, 3]
    end = response_end = 0
    for strip in canvas.strips:
        assert strip.top >= end
        assert strip.response_top >= response_end
        assert strip.top == 2 * strip.response_top  # responses lie where a convolution of the canvas puts them
        end = strip.top + len(strip.sample[0])
        response_end = strip.response_top + strip.align[0].length
    assert end <= canvas.size[0]
    assert response_end <= canvas.response[0]
    assert (canvas.size[1], canvas.response[1]) == (23, 11)


def test_levels_about_as_wide_share_a_canvas_on_a_gpu_and_none_does_on_a_cpu():
    call = make_call((64, 40, 40), (64, 64, 3, 3), padding=1, scales=(1, 0.8, 0.75, 0.5, 0.45))
    shared = {gpu: codes_by_canvas(make_plan(call, 64, gpu)) for gpu in (False, True)}
    assert shared[True] == [[1, 2], [3, 4]]  # 32 and 30 columns; 20 and 18
    assert shared[False] == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("images", "channels", "size", "together"),
    [
        (64, 16, 10, True),
        (64, 16, 11, False),
        (27, 16, 11, True),
        (28, 16, 11, False),
        (64, 15, 10, False),
        (32, 1, 10, True),
        (33, 1, 10, False),
        (1, 1, 28, True),
        (1, 1, 29, False),
    ],
)
def test_small_levels_are_patches_on_one_canvas_on_a_cpu(images, channels, size, together):
    """The patches have 9 · (25 + 100 + 100) pixels of size 10, 9 · (25 + 121 + 121) of size 11; of size 28, 15,876.

    So 27 images of 16 channels and size 11, or 32 of few channels and size 10, have the most that are taken.
    """
    scales = (0.5, 1, 2, 2.5)
    call = make_call((channels, size, size), (64, channels, 3, 3), padding=1, scales=scales)
    plan = make_plan(call, images, False)
    assert plan.identity == 0
    assert (codes_by_canvas(plan) == [[1, 2, 3]]) == together
    if together:  # at the responses where a level has fewer of them than there are outputs
        responses = [tuple(axis.length for axis in strip.align) for strip in strips_of(plan)]
        assert responses == [(size // 2, size // 2), (size, size), (size, size)]
        assert plan.canvases[0].response == (sum(high * wide for high, wide in responses), 1)


def test_a_library_convolves_the_input_itself_for_scale_one_unless_it_has_company_or_a_kernel_of_ours():
    def identity(image, weight, gpu, images=64, groups=1, **how):
        return make_plan(make_call(image, weight, groups=groups), images, gpu, **how).identity

    wide = ((64, 40, 40), (64, 64, 3, 3))
    assert identity(*wide, gpu=False) == identity(*wide, gpu=True) == 0
    assert identity(*wide, gpu=True, images=1) is None
    assert identity(*wide, gpu=True, budget=EVERYTHING_SHARED) is None
    assert identity((1, 28, 28), (36, 1, 7, 7), gpu=True, budget=NOTHING_SHARED) is None  # planar
    assert identity((64, 40, 40), (64, 1, 3, 3), gpu=True, groups=64, budget=NOTHING_SHARED) is None
    assert identity((64, 40, 40), (64, 1, 3, 3), gpu=False, groups=64) == 0


@pytest.mark.parametrize(
    ("image", "weight", "groups", "planar"),
    [
        ((1, 28, 28), (36, 1, 7, 7), 1, True),
        ((15, 20, 20), (8, 15, 3, 3), 1, True),
        ((64, 20, 20), (64, 32, 3, 3), 2, True),
        ((16, 20, 20), (8, 16, 3, 3), 1, False),
        ((8, 20, 20), (8, 1, 3, 3), 8, False),
    ],
    ids=["one channel", "few channels", "groups", "many channels", "depthwise"],
)
def test_images_lie_innermost_only_on_a_gpu_and_with_few_channels_or_groups(image, weight, groups, planar):
    call = make_call(image, weight, groups=groups)
    for gpu in (False, True):
        plan = make_plan(call, 4, gpu, budget=NOTHING_SHARED)
        assert plan.planar == (gpu and planar)
        assert {canvas.planar for canvas in plan.canvases} == {plan.planar}


def test_levels_of_a_small_layer_on_a_gpu_are_dense_and_share_one_canvas():
    for image, weight, groups in (((1, 28, 28), (36, 1, 7, 7), 1), ((16, 20, 20), (8, 16, 3, 3), 1)):
        plan = make_plan(make_call(image, weight, groups=groups), 4, True)
        (canvas,) = plan.canvases
        assert (canvas.form, len(canvas.strips), plan.identity, plan.planar) == ("dense", 6, None, False)


def test_a_form_that_is_asked_for_is_taken_by_every_level_that_can_have_it():
    call = make_call((4, 12, 12), (3, 4, 5, 5), scales=(0.6, 1, 1.9, 2))
    for form in ("dense", "im2col"):
        assert {c.form for c in make_plan(call, 1, False, form).canvases} == {form}
    strided = make_plan(call, 1, False, "strided")
    codes = {level.code: level.scales[0] for level in call.levels}
    assert {codes[c.strips[0].code]: c.form for c in strided.canvases} == {0.6: "dense", 1.9: "dense", 2: "strided"}
    depthwise = make_call((4, 12, 12), (4, 1, 5, 5), groups=4, scales=(0.6, 1, 1.9))
    assert {c.form for c in make_plan(depthwise, 1, True, "im2col").canvases} == {"dense"}


def test_a_strided_level_is_sampled_where_its_outputs_read_and_a_gathered_one_under_every_tap():
    call = make_call((1, 12, 12), (3, 1, 5, 5), padding=2, scales=(1, 2))
    (strided,) = make_plan(call, 1, False, "strided").canvases
    assert (strided.size, strided.response, strided.stride) == ((27, 27), (12, 12), (2, 2))  # 2 · 11 + 5 rows
    (gathered,) = make_plan(call, 1, False, "im2col").canvases
    assert (gathered.size, gathered.response, gathered.stride) == ((60, 60), (12, 12), (5, 5))  # 12 · 5 rows
    assert gathered.shape(3, 1) == (3, 12, 12, 25)


def test_a_plan_is_made_once():
    shapes = ((2, 9, 8), (3, 2, 3, 3))
    plan = make_plan(make_call(*shapes), 2, False)
    assert make_plan(make_call(*shapes), 2, False) is make_plan(make_call(*shapes), 3, False) is plan
    assert make_plan(make_call(*shapes, antialias=True), 2, False) is not plan
    assert make_plan(make_call(*shapes), 2, True) is not plan
    assert make_plan(make_call(*shapes, scales=DEFAULT_SCALES[1:]), 2, False) is not plan


def test_a_call_from_the_arguments_of_the_operator_is_the_call_itself():
    """So that compiled code has the plans of eager code."""
    call = make_call((5, 4, 9, 8), (6, 2, 3, 2), (2, 1), (1, 0), (1, 2), 2, (0.7, 1, 3), True)
    assert Call.of((4, 9, 8), (6, 2, 3, 2), *call.arguments) == call
    turned = make_call((4, 9, 8), (6, 2, 3, 2), groups=2, transforms=[rotation(0), rotation(30)], border="clamp")
    assert Call.of((4, 9, 8), (6, 2, 3, 2), *turned.arguments) == turned


@given(calls(), st.sampled_from([None, "dense", "strided", "im2col"]), st.booleans())
def test_a_library_is_given_a_stride_only_for_several_taps_and_several_outputs(drawn, form, gpu):
    call = make_call(*drawn)
    strides = [(safe_arguments(call).stride, call.output_size)]
    plan = make_plan(call, drawn[0][0], gpu, form)
    strides += [(canvas.stride, canvas.response) for canvas in plan.canvases]
    for given_stride, outputs in strides:
        for one, taps, count in zip(given_stride, drawn[1][2:], outputs, strict=True):
            assert one == 1 or (taps > 1 and count > 1)
