"""Scenes: where digits lie, what their pixels are labelled, and that nothing but the arguments decides it."""

import math
from itertools import combinations

import pytest
import torch

from scaleconv.data import BACKGROUND, Fixed, Uniform, make_scaled, make_scenes
from scaleconv.data.scenes import CHUNK, GAP, INK

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
    pairs = [
        torch.stack([b[:2] - a[2:], a[:2] - b[2:]]).amax(1)  # how far the second lies beyond the first, and before it
        for boxes, digits in zip(scenes.boxes, scenes.digits, strict=True)
        for a, b in combinations(boxes[digits >= 0], 2)
    ]
    for side in (0, 1):
        assert min(pair.max() for pair in pairs if pair.argmax() == side) == GAP


def test_the_first_digit_is_always_shown_and_large_ones_not_all(embedded):
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


def numbered(side):
    """A digit whose pixels all differ, and none is 0: each tells its row and column."""
    return torch.arange(1, side * side + 1, dtype=torch.uint8).view(1, side, side)


def test_a_piece_is_a_window_of_a_digit_at_a_place_of_its_own():
    """The digit, of 15×15, has other numbers than the window of 12×12 that is a piece: 4 places along each axis."""
    whole, found = numbered(15), set()
    scenes = make_scenes(whole, torch.tensor([7]), Fixed(1.0), 60, 41, digits=1, pieces=1, noise=0.0)
    for image, labels, (box,) in zip(scenes.images[:, 0], scenes.labels, scenes.boxes.tolist(), strict=True):
        top, left, bottom, right = box
        assert (bottom - top, right - left) == (15, 15)
        rest = (image * 255).round().int()
        rest[top:bottom, left:right] = 0
        rows, columns = (rest.any(axis).nonzero()[:, 0] for axis in (1, 0))
        if not len(rows):  # no free place was found
            continue
        piece = rest[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        corner = divmod(int(piece[0, 0]) - 1, 15)
        assert torch.equal(piece, whole[0, corner[0] : corner[0] + 12, corner[1] : corner[1] + 12].int())
        assert (labels[rest > 0] == BACKGROUND).all()
        found.add(corner)
    assert {row for row, _ in found} == {column for _, column in found} == {0, 1, 2, 3}
    assert len(found) > 8  # of 16: along the two axes they are drawn apart


def test_a_digit_may_lie_at_any_place_up_to_the_edge():
    """A block of 3×3 has 3 places along each side of a scene of 5×5."""
    block = torch.full((1, 3, 3), 255, dtype=torch.uint8)
    scenes = make_scenes(block, torch.tensor([1]), Fixed(1.0), 200, 5, digits=1, pieces=0, noise=0.0)
    corners = [tuple(box[0][:2]) for box in scenes.boxes.tolist()]
    assert set(corners) == {(row, column) for row in range(3) for column in range(3)}
    assert scenes.images.sum((1, 2, 3)).unique().tolist() == [9]


def test_noise_is_normal_of_the_deviation_asked_for_and_is_cut_at_black_and_white():
    """Where a scene is black, half of it stays black, and the rest has the mean and square of half a normal one."""
    dot = torch.full((1, 1, 1), 255, dtype=torch.uint8)
    dark = {"digits": 1, "pieces": 0, "noise": 0.1}
    scenes = make_scenes(dot, torch.tensor([1]), Fixed(1.0), 4, 95, **dark)
    black = scenes.images[:, 0][scenes.labels == BACKGROUND].double() / 0.1
    assert len(black) == 4 * (95 * 95 - 1)
    assert (black == 0).double().mean() == pytest.approx(0.5, abs=0.01)
    assert black.mean() == pytest.approx((2 * math.pi) ** -0.5, abs=0.015)
    assert black.square().mean() == pytest.approx(0.5, abs=0.03)
    assert scenes.images.max() == 1
    first, second = scenes.images[:2]
    assert ((first > 0) == (second > 0)).double().mean() == pytest.approx(0.5, abs=0.05)  # each has its own
    other = make_scenes(dot, torch.tensor([1]), Fixed(1.0), 1, 95, seed=1, **dark).images[0]
    assert ((first > 0) == (other > 0)).double().mean() == pytest.approx(0.5, abs=0.05)


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
