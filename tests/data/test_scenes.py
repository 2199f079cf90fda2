"""Scenes: where digits lie, what their pixels are labelled, and that nothing but the arguments decides it."""

import pytest
import torch

from scaleconv.data import BACKGROUND, Fixed, Uniform, make_scaled, make_scenes
from scaleconv.data.scenes import CHUNK, GAP, INK, _noise

NAMES = ("images", "labels", "digits", "scales", "boxes")
RANGE = Uniform(0.4, 2.2)


@pytest.fixture(scope="module", params=[RANGE, Fixed(1.0)], ids=str)
def scenes(embedded, request):
    return make_scenes(embedded.images, embedded.labels, request.param, CHUNK + 6, noise=0.0, pieces=0)


def test_every_digit_lies_in_its_box_as_it_was_scaled_and_its_pixels_have_its_label(scenes, embedded):
    """Written out for one digit at a time, on a canvas that holds it alone."""
    for index in (0, 1, CHUNK + 5):
        expected, labels = torch.zeros(96, 96), torch.full((96, 96), BACKGROUND)
        for digit, scale, box in zip(scenes.digits[index], scenes.scales[index], scenes.boxes[index], strict=True):
            if digit < 0:
                continue
            alone = make_scaled(embedded.images[digit : digit + 1], float(scale), 96)[0, 0]
            rows, columns = alone.any(1).nonzero(), alone.any(0).nonzero()
            shape = alone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            top, left, bottom, right = box.tolist()
            assert (bottom - top, right - left) == tuple(shape.shape)
            expected[top:bottom, left:right] += shape
            labels[top:bottom, left:right][shape >= INK] = embedded.labels[digit]
        assert torch.equal(scenes.images[index, 0], expected)
        assert torch.equal(scenes.labels[index], labels)


def test_digits_lie_inside_and_keep_a_gap(scenes):
    assert scenes.boxes.min() >= 0
    assert scenes.boxes.max() <= 96
    for boxes, digits in zip(scenes.boxes, scenes.digits, strict=True):
        found = boxes[digits >= 0]
        for first in range(len(found)):
            for second in range(first):
                a, b = found[first], found[second]
                apart = torch.cat([b[:2] - a[2:], a[:2] - b[2:]]).max()
                assert apart >= GAP


def test_the_first_digit_always_finds_room_and_large_ones_do_not_all(embedded):
    small, large = (make_scenes(embedded.images, embedded.labels, Fixed(s), 20, 64) for s in (0.5, 2.2))
    assert (small.digits[:, 0] >= 0).all()
    assert (large.digits[:, 0] >= 0).all()
    assert (small.digits >= 0).sum() > (large.digits >= 0).sum() >= 20


def test_a_shorter_set_is_the_beginning_of_a_longer_one_and_another_seed_another_set(embedded):
    longer, shorter, other = (
        make_scenes(embedded.images, embedded.labels, RANGE, count, 72, seed=seed)
        for count, seed in ((CHUNK + 3, 1), (CHUNK - 3, 1), (3, 2))
    )
    for name in NAMES:
        assert torch.equal(getattr(longer, name)[: CHUNK - 3], getattr(shorter, name))
    assert not torch.equal(longer.digits[:3], other.digits)
    assert not torch.equal(longer.boxes[:3], other.boxes)


def test_scales_of_a_range_are_all_over_it_and_a_fixed_one_is_fixed(embedded):
    spread = make_scenes(embedded.images, embedded.labels, RANGE, 20).scales
    assert spread.min() < 0.5
    assert spread.max() > 2.1
    fixed = make_scenes(embedded.images, embedded.labels, Fixed(1.3), 2)
    assert (fixed.scales == 1.3).all()


def test_pieces_add_ink_but_no_label(embedded):
    cluttered = make_scenes(embedded.images, embedded.labels, Fixed(1.0), 8, digits=2, pieces=4, noise=0.0)
    inside = torch.zeros_like(cluttered.labels, dtype=torch.bool)
    for index, boxes in enumerate(cluttered.boxes):
        for top, left, bottom, right in boxes.tolist():
            inside[index, top:bottom, left:right] = True
    outside = cluttered.images[:, 0].masked_fill(inside, 0)
    assert (outside.flatten(1).amax(1) > 0.5).all()
    assert (cluttered.labels[~inside] == BACKGROUND).all()


def test_noise_is_centred_of_the_deviation_asked_for_and_stays_in_range(embedded):
    noise = _noise(4, 96, 0)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.std().item() == pytest.approx(1, abs=0.02)
    clean, noisy = (make_scenes(embedded.images, embedded.labels, RANGE, 4, noise=level) for level in (0.0, 0.1))
    torch.testing.assert_close(noisy.images, (clean.images + 0.1 * noise.unsqueeze(1)).clamp(0, 1))
    assert torch.equal(noisy.labels, clean.labels)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "`count` must be at least 1, got 0"),
        ({"digits": 0}, "`digits` must be at least 1, got 0"),
        ({"pieces": -1}, "`pieces` must be at least 0, got -1"),
        ({"noise": -0.1}, "`noise` must be a standard deviation of at least 0, got -0.1"),
        ({"size": 40, "scales": Fixed(2.2)}, r"`size` \(=40\) must hold each digit whole, .* needs 5\d×5\d pixels"),
    ],
)
def test_wrong_arguments_are_named(embedded, changes, words):
    with pytest.raises(ValueError, match=words):
        make_scenes(embedded.images, embedded.labels, **{"scales": RANGE, "count": 2, **changes})
    with pytest.raises(ValueError, match="`labels` must be one for each of the images"):
        make_scenes(embedded.images, embedded.labels[:5], RANGE, 2)
