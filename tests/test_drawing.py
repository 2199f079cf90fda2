"""Pictures share their colours: of winning scales in order, of angles in a circle, dimmed by the response."""

from itertools import pairwise

import torch

from scaleconv.drawing import angle_colours, dimming, reach_of, scale_colours


def lightness(colour):
    """CIE L* of (red, green, blue) in sRGB."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    luminance = sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16


def test_larger_scales_are_lighter_and_none_is_dark():
    found = [lightness(colour) for colour in scale_colours([0.5, 0.63, 0.79, 1, 1.26, 1.59, 2])]
    assert found[0] > 45
    assert min(larger - smaller for smaller, larger in pairwise(found)) > 3


def test_scale_one_has_the_same_colour_whatever_the_other_scales_are():
    assert scale_colours([1, 4])[0] == scale_colours([0.5, 1])[1]
    assert (reach_of([1]), reach_of([1, 4, 0.5]), reach_of([0.125, 1])) == (1, 2, 3)


def test_angles_go_round_in_colours():
    first, near, opposite, last = (torch.tensor(colour) for colour in angle_colours([0, 1, 180, 359]))
    assert (last - near).abs().max() < 0.1 < (opposite - first).abs().max()
    assert angle_colours([360, -90]) == angle_colours([0, 270])


def test_a_weak_response_is_dimmed_and_a_constant_one_is_not():
    assert dimming(torch.tensor([-1.0, 0.0, 0.0, 4.0, 1.0])).tolist() == [0, 0, 0, 1, 0.5]
    assert dimming(torch.full((3,), 2.0)).tolist() == [1, 1, 1]
