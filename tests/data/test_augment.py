"""Augmentation: what becomes of an image for given draws, and that its mask follows."""

import pytest
import torch

from scaleconv.data.augment import augment
from scaleconv.data.rescale import rescale, rescale_masks

IMAGES = torch.rand(4, 2, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(4)
DRAWS = torch.tensor(
    [[0.0, 0.0, 0.0, 0.0], [0.25, 0.5, 0.75, 0.51], [0.5, 1.0, 0.5, 0.49], [1.0, 0.25, 1.0, 0.9]], dtype=torch.float64
)
EDGE = {"antialias": True, "border": "edge"}


def expected(images=IMAGES, scales=1.0, **placed):
    return rescale(images, scales, **placed, **EDGE)


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({}, [0.5, 0.5**0.5, 1, 2]),  # halved as often as doubled
        ({"law": "uniform"}, [0.5, 0.875, 1.25, 2]),
        ({"rescale": (0.1, 10.0)}, [0.1, 0.1**0.5, 1, 10]),  # also beyond the usual ones
        ({"rescale": (1.0, 3.0), "law": "uniform"}, [1, 1.5, 2, 3]),
    ],
)
def test_the_first_draw_is_the_scale_between_least_and_largest(options, scales):
    found, labels = augment(IMAGES, LABELS, DRAWS, ["scale"], **options)
    torch.testing.assert_close(found, expected(scales=torch.tensor(scales, dtype=torch.float64)))
    assert labels is LABELS


def test_the_next_two_shift_by_up_to_an_eighth_down_and_to_the_right():
    shift = torch.tensor([[-0.125, -0.125], [0, 0.0625], [0.125, 0], [-0.0625, 0.125]], dtype=torch.float64)
    torch.testing.assert_close(augment(IMAGES, LABELS, DRAWS, ["crop"])[0], expected(shift=shift))


def test_the_last_flips_every_second_image():
    found, _ = augment(IMAGES, LABELS, DRAWS, ["flip"])
    assert torch.equal(found, torch.stack([IMAGES[0].flip(2), IMAGES[1], IMAGES[2].flip(2), IMAGES[3]]))


def test_all_are_applied_at_once_by_the_interpolation_asked_for_and_nothing_if_nothing_is():
    kinds = ["flip", "scale", "crop"]
    placed = {
        "scales": 0.5 * 4 ** DRAWS[:, 0],
        "shift": 0.25 * DRAWS[:, 1:3] - 0.125,
        "flip": torch.tensor([True, False, True, False]),
    }
    for interpolation in ("bilinear", "bicubic"):
        found, _ = augment(IMAGES, LABELS, DRAWS, kinds, interpolation=interpolation)
        torch.testing.assert_close(found, expected(interpolation=interpolation, **placed))
    masks = torch.randint(0, 5, (4, 9, 12), generator=torch.Generator().manual_seed(1))
    assert torch.equal(augment(IMAGES, masks, DRAWS, kinds)[1], rescale_masks(masks, **placed))
    for one, other in zip(augment(IMAGES, masks, DRAWS, []), (IMAGES, masks), strict=True):
        assert one is other


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="`augment` must be some of scale, flip, crop, got 'rotate'"):
        augment(IMAGES, LABELS, DRAWS, ["rotate"])
    with pytest.raises(ValueError, match=r"`law` \(='normal'\) must be one of log, uniform"):
        augment(IMAGES, LABELS, DRAWS, ["scale"], law="normal")
