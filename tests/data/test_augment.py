"""Rescaling and augmentation: what is drawn, and what becomes of the pixels."""

import pytest
import torch

from scaleconv.data.augment import (
    AUGMENTATIONS,
    Placement,
    draw_placement,
    place,
    place_masks,
    rescale,
    rescale_masks,
)
from scaleconv.data.masks import IGNORE


def placement(count, scale=1.0, shift=(0.0, 0.0), flip=False):
    ones = torch.ones(count, dtype=torch.float64)
    return Placement(scale * ones, torch.tensor([shift] * count, dtype=torch.float64), torch.full((count,), flip))


def sampled(image, scale, shift, flip):
    """The same by loops over pixels: bilinear, edges repeated; for enlarged images."""
    height, width = image.shape
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y = (row - (height - 1) / 2 - shift[0] * height) / scale + (height - 1) / 2
            x = (column - (width - 1) / 2 - shift[1] * width) / scale + (width - 1) / 2
            x = width - 1 - x if flip else x
            y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
            top, left = min(int(y), height - 2), min(int(x), width - 2)
            for dy, wy in ((0, 1 - (y - top)), (1, y - top)):
                for dx, wx in ((0, 1 - (x - left)), (1, x - left)):
                    result[row, column] += wy * wx * image[top + dy, left + dx]
    return result


@pytest.mark.parametrize(
    ("scale", "shift", "flip"), [(1.0, (0.1, -0.12), False), (1.7, (0, 0.05), True), (2, (0, 0), False)]
)
def test_a_placement_is_bilinear_sampling_with_repeated_edges(scale, shift, flip):
    images = torch.rand(2, 3, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = place(images, placement(2, scale, shift, flip))
    for image, result in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        torch.testing.assert_close(result, sampled(image, scale, shift, flip), rtol=0, atol=1e-12)


def test_what_shrinks_is_averaged_and_not_skipped():
    stripes = torch.zeros(1, 1, 40, 40, dtype=torch.float64)
    stripes[..., ::2] = 1
    smaller = rescale(stripes, 0.4)  # single pixels would be read a quarter off: 0.25 and 0.75
    assert smaller[0, 0, 20, 15:25].sub(0.5).abs().max() < 0.1
    assert rescale(torch.full((1, 1, 7, 5), 0.3), 0.4).sub(0.3).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (4.0, [0.5, 0.75, 1, 0.75, 0.5]),  # reads at 1.5, 1.75, 2, 2.25, 2.5
        # Reads at the edges and in the middle, over a triangle of 4 pixels on either side: 0.5 of 1 + … + 0.25 + 0 at
        # an edge, 1 of 0.5 + 0.75 + 1 + 0.75 + 0.5 in the middle.
        (0.25, [0.5 / 2.5, 0.5 / 2.5, 1 / 3.5, 0.5 / 2.5, 0.5 / 2.5]),
    ],
)
def test_any_scale_is_taken_as_it_is_also_beyond_those_that_are_drawn(scale, expected):
    line = torch.tensor([0.0, 0, 1, 0, 0], dtype=torch.float64).expand(1, 1, 5, 5)
    wanted = torch.tensor(expected, dtype=torch.float64).expand(1, 1, 5, 5)
    torch.testing.assert_close(rescale(line, scale), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(rescale(line.mT, scale), wanted.mT, rtol=0, atol=1e-12)
    mask = torch.arange(9, dtype=torch.uint8).expand(1, 9, 9)
    row = {4.0: [3, 3, 4, 4, 4, 4, 5, 5, 5], 0.25: [IGNORE] * 3 + [0, 4, 8] + [IGNORE] * 3}[scale]
    assert rescale_masks(mask, scale)[0, 4].tolist() == row


def test_nothing_to_do_changes_nothing():
    images = torch.rand(2, 1, 6, 7)
    assert rescale(images, 1.0) is images
    assert torch.equal(place(images, placement(2)), images)


def test_a_draw_depends_on_seed_epoch_and_index_and_not_on_the_batch():
    kinds = ("scale", "flip", "crop")
    whole = draw_placement(kinds, 1, 2, range(50))
    part = draw_placement(kinds, 1, 2, [41, 7])
    for name in ("scale", "shift", "flip"):
        assert torch.equal(getattr(whole, name)[[41, 7]], getattr(part, name))
    for other in (draw_placement(kinds, 2, 2, range(50)), draw_placement(kinds, 1, 3, range(50))):
        assert not torch.equal(other.scale, whole.scale)


def test_what_is_drawn_for_an_image_is_independent():
    """Of 4,000 images, correlations are within 0.06, four standard errors."""
    drawn = draw_placement(AUGMENTATIONS, 0, 1, range(4000))
    rows = torch.stack([drawn.scale.log2(), drawn.shift[:, 0], drawn.shift[:, 1], drawn.flip.double()])
    assert (rows.corrcoef() - torch.eye(4)).abs().max() < 0.06


def test_draws_fill_their_ranges_and_only_what_is_asked_for():
    drawn = draw_placement(("scale", "flip", "crop"), 0, 1, range(2000))
    assert 0.5 <= drawn.scale.min() < 0.51
    assert 1.98 < drawn.scale.max() < 2
    assert abs(float(drawn.scale.log2().mean())) < 0.05
    assert 0.124 < float(drawn.shift.abs().max()) <= 0.125
    assert 900 < int(drawn.flip.sum()) < 1100
    still = draw_placement(("flip",), 0, 1, range(20))
    assert still.scale.unique().tolist() == [1]
    assert not still.shift.any()
    with pytest.raises(ValueError, match="`augment` must be some of scale, flip, crop, got 'rotate'"):
        draw_placement(("rotate",), 0, 1, [0])


def test_a_mask_moves_with_its_image():
    """Away from the border of a shape, image and mask agree, whatever is drawn."""
    shapes = torch.zeros(8, 32, 32, dtype=torch.uint8)
    shapes[:, 6:16, 8:24] = shapes[:, 16:26, 4:12] = 1
    drawn = draw_placement(AUGMENTATIONS, 0, 1, range(8))
    moved, seen = place_masks(shapes, drawn), place(shapes[:, None].double(), drawn)[:, 0]
    assert len({tuple(mask.flatten().tolist()) for mask in moved}) == 8
    labelled = moved != IGNORE
    assert not labelled.all()  # where an image shrinks, its edge is repeated, but has no label
    assert (seen - moved).abs()[labelled].median() < 1e-9
    assert ((seen - moved).abs()[labelled] > 0.6).float().mean() < 0.02


def test_a_mask_keeps_its_numbers_and_loses_them_beyond_the_edge():
    mask = torch.arange(36, dtype=torch.uint8).view(1, 6, 6)
    assert torch.equal(rescale_masks(mask, 1.0), mask)
    assert rescale_masks(mask, 2.0).unique().tolist() == [*range(7, 11), *range(13, 17), *range(19, 23), *range(25, 29)]
    small = rescale_masks(mask, 0.5)
    assert (small[0, 0] == IGNORE).all()
    assert int((small != IGNORE).sum()) == 9
    assert torch.equal(place_masks(mask, placement(1, flip=True)), mask.flip(2))
    moved = place_masks(mask, placement(1, shift=(1 / 6, 0)))
    assert torch.equal(moved[0, 1:], mask[0, :-1])
    assert moved[0, 0].unique().tolist() == [IGNORE]
