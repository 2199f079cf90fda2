"""Smoothing by the formula of the published recipe; places of shifted digits."""

import math

import pytest
import torch

from scaleconv.data import make_scaled
from scaleconv.data.sets import shift, smooth


def by_formula(image, scale):
    """The recipe pixel by pixel: 2/π · arctan(0.02 · (I − 128)), I smoothed by σ = 7/8 · s; black to 0, white to 1."""
    sigma, size = 7 / 8 * scale, len(image)
    kernel = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-40, 41)}
    total = sum(kernel.values())

    def contrast(intensity):
        return 2 / math.pi * math.atan(0.02 * (intensity - 128))

    black, white = contrast(0), contrast(255)
    result = torch.zeros(size, size, dtype=torch.float64)
    for y in range(size):
        for x in range(size):
            smoothed = sum(
                image[j][i] * kernel[y - j] * kernel[x - i] / total**2 for j in range(size) for i in range(size)
            )
            result[y, x] = (contrast(255 * float(smoothed)) - black) / (white - black)
    return result


@pytest.mark.parametrize("scale", [0.5, 1.3, 3.0])
def test_digits_are_smoothed_and_contrasted_by_the_published_formula(scale):
    image = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = smooth(image.view(1, 1, 7, 7), scale)[0, 0]
    torch.testing.assert_close(found, by_formula(image.tolist(), scale), rtol=0, atol=1e-12)


def test_every_image_is_smoothed_by_its_own_scale_whatever_the_batch(monkeypatch):
    images = torch.rand(5, 1, 6, 9, dtype=torch.float64)
    scales = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.3], dtype=torch.float64)
    together = smooth(images, scales)
    for one, image, scale in zip(together, images, scales.tolist(), strict=True):
        torch.testing.assert_close(one, smooth(image.unsqueeze(0), scale)[0])
    monkeypatch.setattr("scaleconv.data.sets.CHUNK", 2)
    assert torch.equal(smooth(images, scales), together)


def test_a_digit_looks_the_same_at_twice_the_scale(embedded):
    small, large = (smooth(make_scaled(embedded.images[:8], s, int(28 * s), "bicubic"), s) for s in (1, 2))
    seen = torch.nn.functional.avg_pool2d(large, 2)
    plain = torch.nn.functional.avg_pool2d(make_scaled(embedded.images[:8], 2, 56, "bicubic"), 2)
    original = make_scaled(embedded.images[:8], 1, 28)
    assert (seen - small).norm() / small.norm() < 0.1
    assert (seen - small).norm() / small.norm() < (plain - original).norm() / original.norm()


def test_a_scale_that_is_not_above_0_is_refused():
    with pytest.raises(ValueError, match=r"`scales` must be above 0, got 0\.0"):
        smooth(torch.zeros(1, 1, 4, 4), 0.0)


def corners(images):
    """Where the first row and column with anything in it lie, and how many there are from the first to the last."""
    found = []
    for axis in (2, 1):
        occupied = (images[:, 0].amax(axis) > 0).int()
        first, last = occupied.argmax(1), occupied.shape[1] - 1 - occupied.flip(1).argmax(1)
        found.append((first, last - first + 1))
    return found


def test_shifted_digits_stay_whole_and_lie_everywhere_there_is_room():
    images = torch.zeros(400, 1, 12, 10)
    images[:, :, 4:8, 3:7] = 1  # an original of 4×4, in the middle
    moved = shift(images, 1.0, 4, seed=1)
    for (first, count), room, middle in zip(corners(moved), (4, 3), (4, 3), strict=True):
        assert (count == 4).all()  # what left on one side would come back on the other
        assert set((first - middle).tolist()) == set(range(-room, room + 1))
    assert torch.equal(moved.sum((1, 2, 3)), images.sum((1, 2, 3)))
    assert torch.equal(moved, shift(images, 1.0, 4, seed=1))
    assert not torch.equal(moved, shift(images, 1.0, 4, seed=2))


def test_a_digit_as_large_as_the_canvas_stays_where_it_is():
    images = torch.rand(9, 1, 8, 8)
    scales = torch.tensor([2.0] * 4 + [3.0] * 4 + [0.5])
    moved = shift(images, scales, 4, seed=0)
    assert torch.equal(moved[:8], images[:8])
