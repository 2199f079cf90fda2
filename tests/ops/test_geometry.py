"""The geometry against numbers worked out by hand, one test per convention, on odd and unequal sizes."""

from itertools import product

import pytest

from scaleconv.ops.geometry import Axis, PlaneLevel, competing_order, place_levels, scaled


def axis(length, kernel=1, stride=1, padding=(0, 0), dilation=1):
    return Axis(length, kernel, stride, padding, dilation)


@pytest.mark.parametrize(
    ("length", "scale", "size"),
    [(9, 0.5, 4), (10, 0.7, 7), (10, 0.7 - 1e-9, 7), (10, 0.7 - 1e-6, 6), (7, 2, 14), (28, 1.26, 35), (5, 1, 5)],
)
def test_level_sizes_round_down_with_slack(length, scale, size):
    assert axis(length).level(scale).size == size


def levels_of(height, width, scales):
    return place_levels(height, width, tuple(scaled(scale, 2) for scale in scales))


def test_samples_keep_the_centre_of_the_image():
    assert axis(5).level(2).sources == (-0.25, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.25)
    assert axis(7).level(0.5).sources == (1, 3, 5)


# Axis, scale; responses of the level, outputs that it covers, and where these read.
LEVELS = {
    "the centre of the kernel stays": (axis(8, kernel=3), 2, 14, (0, 6), (1.5, 3.5, 5.5, 7.5, 9.5, 11.5)),
    # outputs 0, 1, 2 stand over pixels 1, 3, 5 of 7; at scale 2 those lie at 2.5, 6.5, 10.5 of 14 samples
    "strides follow the kernel, not the grid": (axis(7, kernel=3, stride=2), 2, 6, (0, 3), (0.75, 2.75, 4.75)),
    # output p stands over pixel p + ½, which lies at 2p + 1.5 of the level, and response v stands over v + ½
    "uneven padding counts the leading side": (axis(5, kernel=2, padding=(0, 1)), 2, 10, (0, 5), (1, 3, 5, 7, 9)),
    "a shrunk level covers only the middle": (axis(12, kernel=5), 0.5, 2, (2, 6), (-0.25, 0.25, 0.75, 1.25)),
    "half a response beyond the last is covered": (axis(4), 0.5, 2, (0, 4), (-0.25, 0.25, 0.75, 1.25)),
}


@pytest.mark.parametrize(("on", "scale", "responses", "covered", "targets"), LEVELS.values(), ids=LEVELS)
def test_outputs_read_the_responses_over_the_same_point_of_the_pattern(on, scale, responses, covered, targets):
    level = on.level(scale)
    assert (level.response_size, level.covered, level.targets) == (responses, covered, targets)


def test_coverage_forgives_a_millionth_at_either_end_and_no_more():
    # at scale 0.6, outputs 1 and 6 read the 3 responses at -½ and 2½; a scale d above moves them 2.5·d further out
    assert axis(12, kernel=5).level(0.6).covered == (1, 7)
    assert axis(12, kernel=5).level(0.6 + 0.9e-6 / 2.5).covered == (1, 7)
    assert axis(12, kernel=5).level(0.6 + 1.1e-6 / 2.5).covered == (2, 6)


def test_a_position_on_the_edge_but_for_rounding_is_covered():
    level = axis(23, kernel=2, stride=3, padding=(2, 2)).level(2.2)
    assert level.covered[0] == 0
    assert -0.5 - 1e-14 < level.targets[0] < -0.5


@pytest.mark.parametrize("scale", [0.1, 0.3])
def test_a_level_too_small_takes_no_part(scale):
    assert axis(8, kernel=3).level(scale) is None


def test_an_empty_level_takes_no_part_even_if_padding_holds_the_kernel():
    assert axis(4, kernel=3, padding=(2, 2)).level(0.2) is None


def test_a_level_must_fit_on_both_axes():
    levels = levels_of(axis(20, kernel=3), axis(4, kernel=3), (0.5, 1))
    assert [level.scales for level in levels] == [(1, 1)]


def test_levels_compete_so_that_ties_go_to_the_scale_listed_first():
    levels = levels_of(axis(9), axis(9), (3, 2, 1, 0.5))
    competing = [(level.scales[0], level.code, level.wins_ties) for level in levels]
    assert competing == [(1, 0, False), (2, 1, True), (3, 2, True), (0.5, 3, False)]


def test_a_level_that_takes_no_part_keeps_its_code_to_itself():
    levels = levels_of(axis(9, kernel=5), axis(9, kernel=5), (0.2, 2, 1, 0.3, 3))
    kept = [(level.scales[0], level.code) for level in levels]
    assert kept == [(1, 0), (2, 1), (3, 4)]


def test_scale_one_competes_first_then_those_before_it_and_then_those_behind():
    assert competing_order(2, 5) == (2, 1, 0, 3, 4)
    assert competing_order(0, 1) == (0,)


def test_axes_are_planned_apart():
    levels = levels_of(axis(8, kernel=3), axis(11, kernel=2, stride=2), (1, 2))
    level = levels[1]
    assert (level.height.size, level.width.size) == (16, 22)
    assert (level.height.response_size, level.width.response_size) == (14, 11)


@pytest.mark.parametrize(
    ("on", "scale", "step"),
    [
        (axis(8, kernel=3), 2, 2),  # targets 1.5, 3.5, …
        (axis(8, kernel=3, stride=2, dilation=2), 3, 3),  # targets 2.5, 5.5
        (axis(8, kernel=3), 1.5, 0),
        (axis(5, kernel=3, padding=(2, 2)), 2, 0),  # targets −0.5 … 11.5, where there are 12 responses
        (axis(5, kernel=2, padding=(1, 1)), 2, 2),  # targets 0, 2, … 10 of 11
        (axis(5, kernel=5), 2.5, 1),  # a single one
    ],
)
def test_targets_that_lie_evenly_within_the_responses_have_a_step(on, scale, step):
    assert on.level(scale).step == step


def test_each_axis_has_a_scale_of_its_own_and_may_be_mirrored():
    levels = place_levels(axis(8, kernel=3), axis(6, kernel=2), ((1, 0, 0, 1), (2, 0, 0, -0.5)))
    level = levels[1]
    assert (level.size, level.response) == ((16, 3), (14, 2))
    assert level.width.sources == (4.5, 2.5, 0.5)


def test_a_map_that_mixes_the_axes_has_the_bounding_box_as_its_canvas():
    levels = place_levels(axis(8, kernel=3, padding=(1, 1)), axis(5), ((1, 0, 0, 1), (0, -1, 2, 0.5)))
    level = levels[1]
    assert isinstance(level, PlaneLevel)
    assert (level.size, level.response, level.output) == ((5, 18), (5, 18), (8, 5))
    assert level.sampled == (range(-1, 6), range(18))


@pytest.mark.parametrize("border", ["zeros", "clamp", "reflect"])
def test_only_zeros_leave_positions_uncovered(border):
    level = axis(14, kernel=3).level(0.5, border)  # outputs read at −0.75, −0.25, … 4.75 of responses 0 … 4
    assert level.targets[0] == pytest.approx(-0.25 if border == "zeros" else -0.75)
    assert level.covered == ((1, 11) if border == "zeros" else (0, 12))


def test_taps_are_blind_where_they_read_padding_alone():
    for length, kernel, stride, before, after, dilation in product(
        range(1, 6), range(1, 5), range(1, 4), range(4), range(4), (1, 2)
    ):
        axis = Axis(length, kernel, stride, (before, after), dilation)
        reads = [
            [0 <= stride * q + dilation * tap - before < length for q in range(axis.output_size)]
            for tap in range(kernel)
        ]
        if axis.output_size > 0:
            assert axis.has_blind_taps == (not all(map(any, reads)))


@pytest.mark.parametrize("scale", [1, 1.5])
def test_a_kernel_is_cropped_by_the_pairs_of_outer_taps_that_read_padding_alone_at_every_size(scale):
    cropped = 0
    for length, kernel, stride, before, after, dilation in product(
        (1, 2, 3), (1, 3, 4, 5), (1, 2), (0, 2, 5), (2, 5), (1, 3)
    ):
        axis = Axis(length, kernel, stride, (before, after), dilation)
        if axis.output_size < 1:
            continue
        sees = [
            any(
                0 <= stride * q + dilation * tap - before < size
                for size in range(1, int(scale * length) + 1)
                for q in range(axis.response_size(size))
            )
            for tap in range(kernel)
        ]
        taps = (kernel - axis.cropped(scale).kernel) // 2
        assert not any(sees[:taps] + sees[kernel - taps :])
        more_padding = dilation * (taps + 1) <= min(before, after)
        if stride == 1 and more_padding and 2 * taps + 2 <= kernel:
            assert sees[taps] or sees[kernel - 1 - taps]
        assert axis.cropped(scale).kernel_centre == axis.kernel_centre
        assert all(axis.cropped(scale).response_size(size) == axis.response_size(size) for size in range(1, 9))
        cropped += taps
    assert cropped >= 10
