"""Operation counts against sums done by hand, and against what the matrices really hold."""

import pytest

from scaleconv import DEFAULT_SCALES, macs


@pytest.mark.parametrize(
    ("size", "kernel", "direct", "chosen"), [(28, 7, 11.7, 4.3), (11, 5, 13.1, 4.4)], ids=["first", "second"]
)
def test_convolutions_in_units_of_one_conv2d(size, kernel, direct, chosen):
    cost = macs((1, 36, size, size), (64, 36, kernel, kernel))
    assert round(cost.direct.convolution / cost.conv2d.convolution, 1) == direct
    assert round(cost.chosen.convolution / cost.conv2d.convolution, 1) == chosen


def test_conv2d_is_counted_as_usual():
    cost = macs((5, 4, 9, 11), (6, 2, 3, 2), stride=(2, 1), padding=1, groups=2)
    assert cost.conv2d.total == 5 * 6 * 2 * 3 * 2 * 5 * 12


def test_an_unbatched_input_counts_as_one_image():
    assert macs((4, 9, 11), (6, 4, 3, 2)) == macs((1, 4, 9, 11), (6, 4, 3, 2))
    assert macs((4, 9, 11), (6, 4, 3, 2)).conv2d.total == 6 * 4 * 3 * 2 * 7 * 10


def test_one_level_by_hand():
    cost = macs((3, 2, 4, 5), (7, 2, 3, 3), scales=(1, 2))
    plain = 7 * 2 * 9 * 2 * 3
    assert cost.direct.convolution == 3 * (plain + 7 * 2 * 9 * 6 * 8)
    transform = 2 * (8 * 4 * 5 + 8 * 5 * 10)
    align = 7 * (2 * 6 * 8 + 2 * 8 * 3)
    assert cost.direct.resampling == 3 * (transform + align)
    assert cost.patches.convolution == 3 * 2 * plain
    assert cost.patches.resampling == 3 * 2 * (6 * 4 * 5 + 6 * 5 * 9)


def test_the_chosen_order_is_never_dearer():
    for stride in (1, 2):
        cost = macs((1, 16, 24, 20), (8, 16, 3, 5), stride, scales=(1, 0.3, 0.8, 1.1, 3))
        assert cost.chosen.total <= min(cost.direct.total, cost.patches.total)


def test_the_cost_does_not_grow_with_the_largest_scale():
    narrow = macs((1, 64, 28, 28), (64, 64, 3, 3), padding=1)
    wide = macs((1, 64, 28, 28), (64, 64, 3, 3), padding=1, scales=[s * s for s in DEFAULT_SCALES])
    assert wide.direct.total > 2 * narrow.direct.total
    assert wide.chosen.total < 1.1 * narrow.chosen.total


def test_scale_one_alone_costs_one_conv2d():
    cost = macs((2, 3, 8, 8), (4, 3, 3, 3), scales=(1,))
    assert cost.direct == cost.patches == cost.chosen == cost.conv2d
    assert cost.conv2d.resampling == 0


def test_a_whole_scale_costs_one_convolution_of_what_the_outputs_meet():
    """4 × 4 outputs, 2 · 2 rows apart: 4·3 + 3 = 15 rows; rows first, C·15·W·(H + 15)."""
    cost = macs((1, 1, 9, 9), (2, 1, 3, 3), 2, scales=(1, 2))
    assert (cost.chosen.convolution, cost.chosen.resampling) == (2 * (16 * 2 * 9), 15 * 9 * (9 + 15))
