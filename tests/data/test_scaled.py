"""The generator against a literal per-pixel reference, and the properties the set is built on."""

import math
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from scaleconv.data import Uniform, cut_off, make_scaled

SCALES = [0.3, 0.5, 0.77, 1.0, 1.6]


def triangle(x):
    return max(0.0, 1 - abs(x))


def cubic(x):
    x = abs(x)
    if x <= 1:
        return 1.25 * x**3 - 2.25 * x**2 + 1
    return -0.75 * x**3 + 3.75 * x**2 - 6 * x + 3 if x < 2 else 0.0


def read(image, u, v, kernel, width):
    """One value of the image at (u, v), everything outside it zero; the kernel is `width` times as wide."""
    radius = math.ceil(2 * width)
    total, weight = 0.0, 0.0
    for i in range(math.floor(u) - radius, math.floor(u) + radius + 2):
        for j in range(math.floor(v) - radius, math.floor(v) + radius + 2):
            w = kernel((u - i) / width) * kernel((v - j) / width)
            weight += w
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += w * float(image[i, j]) / 255
    return min(max(total / weight, 0.0), 1.0)


def reference(image, scale, size, interpolation="bilinear", antialias=False):
    kernel = cubic if interpolation == "bicubic" else triangle
    width = max(1.0, 1 / scale) if antialias else 1.0
    (H, W), (height, breadth) = image.shape, size
    return np.array(
        [
            [
                read(
                    image,
                    (p - (height - 1) / 2) / scale + (H - 1) / 2,
                    (q - (breadth - 1) / 2) / scale + (W - 1) / 2,
                    kernel,
                    width,
                )
                for q in range(breadth)
            ]
            for p in range(height)
        ]
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [28, 40])
def test_real_digits_match_the_reference(embedded, scale, size):
    digits = embedded.images[[0, 61]]
    made = make_scaled(digits, scale, size, truncate="allow")
    assert made.shape == (2, 1, size, size)
    assert made.dtype == torch.float32
    for digit, image in zip(digits.numpy(), made[:, 0].numpy(), strict=True):
        assert np.abs(image - reference(digit, scale, (size, size))).max() < 1e-6


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_shape_matches_the_reference(interpolation, antialias, data):
    height, width = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    size = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    scales = data.draw(st.lists(st.floats(0.25, 3), min_size=1, max_size=3))
    images = np.random.default_rng(0).integers(0, 256, (len(scales), height, width), np.uint8)
    made = make_scaled(images, np.array(scales), size, interpolation, antialias, truncate="allow")
    assert made.shape == (len(scales), 1, *size)
    for image, scale, result in zip(images, scales, made[:, 0].numpy(), strict=True):
        expected = reference(image, scale, size, interpolation, antialias)
        # bicubic reads 16 pixels, whose rounded weights add up
        assert np.abs(result - expected).max() < (1e-6 if interpolation == "bilinear" else 3e-6)


def test_centre_goes_to_centre_not_corner_to_corner():
    image = torch.zeros(1, 5, 7, dtype=torch.uint8)
    image[0, 2, 3] = 255
    made = make_scaled(image, 2.0, (9, 11))[0, 0]
    assert made[4, 5] == 1
    assert made[4, 4] == made[4, 6] == made[3, 5] == made[5, 5] == 0.5


def test_outside_the_image_is_background():
    white = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    made = make_scaled(white, 1.0, 8)[0, 0]
    assert made[2:6, 2:6].eq(1).all()
    assert made.sum() == 16


def test_shrinking_without_antialiasing_agrees_with_pytorch():
    images = torch.randint(0, 256, (3, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for interpolation in ("bilinear", "bicubic"):
        options = {"mode": interpolation, "align_corners": False}
        expected = F.interpolate(images[:, None].double() / 255, scale_factor=0.5, **options)
        made = make_scaled(images, 0.5, 14, interpolation)
        inner = slice(1, -1)  # PyTorch repeats the edge where ours is background
        error = (made[..., inner, inner] - expected.clamp(0, 1)[..., inner, inner]).abs().max()
        assert error < 3e-6, interpolation


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_scale_one_returns_the_digit_bit_for_bit(embedded, interpolation, antialias):
    digits = embedded.images[:500]
    assert torch.equal(make_scaled(digits, 1.0, 28, interpolation, antialias)[:, 0], digits.float() / 255)
    floats = torch.rand(3, 9, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make_scaled(floats, 1.0, (9, 6), interpolation, antialias)[:, 0], floats)


def moments(images):
    """Mass, and centre of mass from the centre of the canvas, of images (N, H, W)."""
    images = images.double()
    positions = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
    mass = images.sum((1, 2))
    return mass, torch.stack([(images.sum(2) * positions).sum(1), (images.sum(1) * positions).sum(1)]) / mass


@pytest.fixture(scope="module")
def rescaled(embedded):
    """Moments of the digits, and of the digits at a scale."""
    at_scale = cache(lambda scale: moments(make_scaled(embedded.images, scale, 48)[:, 0]))
    return moments(embedded.images.double() / 255), at_scale


# Canvas pixels, over all 10,000 digits: root mean square, and the mean, which would show a drift. Plain bilinear skips
# pixels below scale 0.5, so one thin digit may move by 2 pixels at 0.3; the wrong centre would move all by 0.35.
@pytest.mark.parametrize(
    ("scale", "rms", "drift"),
    [(0.3, 0.16, 0.02), (0.5, 0.006, 5e-4), (0.77, 0.055, 3e-3), (1, 1e-7, 1e-8), (1.6, 0.02, 3e-3)],
)
def test_centre_of_mass_stays_at_the_scaled_place(rescaled, scale, rms, drift):
    (_, before), at_scale = rescaled
    _, after = at_scale(scale)
    error = after - scale * before
    assert error.square().mean().sqrt() < rms
    assert error.mean(1).abs().max() < drift


@pytest.mark.parametrize(("scale", "error"), [(0.3, 2e-3), (0.5, 1e-6), (0.77, 2e-3), (1, 1e-6), (1.6, 1e-4)])
def test_area_grows_as_the_square_of_the_scale(rescaled, scale, error):
    (before, _), at_scale = rescaled
    after, _ = at_scale(scale)
    assert abs(float(after.sum() / before.sum()) / scale**2 - 1) < error


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_order_and_batch_size_do_not_change_a_bit(embedded, interpolation, antialias):
    digits, scales = embedded.images[:300], torch.from_numpy(Uniform(0.3, 1.4).draw(300, 1))
    whole = make_scaled(digits, scales, 40, interpolation, antialias)
    for chunk in (3, 64, 299, 1000):
        assert torch.equal(make_scaled(digits, scales, 40, interpolation, antialias, chunk=chunk), whole), chunk
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make_scaled(digits[order], scales[order], 40, interpolation, antialias), whole[order])
    alone = [make_scaled(digits[k : k + 1], scales[k : k + 1], 40, interpolation, antialias) for k in range(20)]
    assert torch.equal(torch.cat(alone), whole[:20])


@pytest.mark.parametrize(("interpolation", "antialias"), [("bilinear", False), ("bicubic", False), ("bicubic", True)])
def test_sums_are_exact_in_any_order(interpolation, antialias):
    """The same sums in whole numbers, as Python adds them: what the bit-identity rests on."""
    from scaleconv.data.scaled import STEP, _axis_weights

    image = torch.randint(0, 256, (6, 6), generator=torch.Generator().manual_seed(0))
    for scale in (0.31, 0.77, 1 / 1.0825, 1.37):
        weights = _axis_weights(torch.tensor([scale], dtype=torch.float64), 6, 7, interpolation, antialias)[0]
        whole = [[round(w / STEP) for w in row] for row in weights.tolist()]
        assert [[w * STEP for w in row] for row in whole] == weights.tolist()
        made = make_scaled(image[None], scale, 7, interpolation, antialias, truncate="allow")[0, 0]
        for p in range(7):
            for q in range(7):
                total = sum(whole[p][i] * int(image[i, j]) * whole[q][j] for i in range(6) for j in range(6))
                assert abs(total) < 2**53
                value = min(max(total * STEP * STEP / 255, 0.0), 1.0)
                assert made[p, q].item() == np.float32(value)


def test_the_number_of_threads_does_not_change_a_bit(embedded):
    before, made = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        made.append(make_scaled(embedded.images[:2000], 0.77, 28))
    torch.set_num_threads(before)
    assert torch.equal(*made)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_change_a_bit(embedded):
    scales = torch.from_numpy(Uniform(0.3, 1).draw(len(embedded), 0))
    for interpolation in ("bilinear", "bicubic"):
        here = make_scaled(embedded.images, scales, 28, interpolation)
        there = make_scaled(embedded.images.cuda(), scales, 28, interpolation)
        assert there.is_cuda
        assert torch.equal(there.cpu(), here)


def test_foreground_that_would_be_cut_off_is_an_error():
    images = torch.zeros(3, 9, 9, dtype=torch.uint8)
    images[:, 4, 4] = 255
    images[1, 0, 4] = 1  # 4 pixels above the centre
    assert make_scaled(images, 1.0, 9).shape == (3, 1, 9, 9)
    assert make_scaled(images, 1.125, 9).shape == (3, 1, 9, 9)  # 4.5: its centre meets the edge
    with pytest.raises(
        ValueError, match=r"`size` \(=9×9\).* 1 of 3 digits, first digit 1 at scale 1.5 by 1.5 pixels"
    ) as e:
        make_scaled(images, 1.5, 9)
    assert "12×12" in str(e.value)
    assert "truncate='allow'" in str(e.value)
    assert make_scaled(images, 1.5, 12).shape == (3, 1, 12, 12)
    assert make_scaled(images, 1.5, 9, truncate="allow").shape == (3, 1, 9, 9)
    assert cut_off(images, 1.5, 9).tolist() == [0, 1.5, 0]
    assert cut_off(images, 1.5, (9, 40)).tolist() == [0, 1.5, 0]
    assert cut_off(images, 1.5, (40, 9)).tolist() == [0, 0, 0]


def test_the_papers_large_canvas_cuts_the_107_test_digits_that_touch_the_border(embedded):
    # Only strokes on the outermost rows and columns leave a 40×40 canvas, above scale 20 / 13.5 = 1.48.
    border = torch.ones(28, 28, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    touching = (embedded.images[:, border] != 0).any(1)
    assert int(touching.sum()) == 107
    assert torch.equal(cut_off(embedded.images, 1.6, 40) > 0, touching)
    assert cut_off(embedded.images, 1.6, 40).max() == pytest.approx(1.6)
    assert not cut_off(embedded.images, 1.48, 40).any()
    assert not cut_off(embedded.images, 1.6, 44).any()
    assert not cut_off(embedded.images, 1.0, 28).any()


def test_blank_and_missing_images_are_fine():
    assert make_scaled(torch.zeros(2, 5, 5, dtype=torch.uint8), 3.0, 5).eq(0).all()
    assert make_scaled(torch.zeros(0, 5, 5, dtype=torch.uint8), torch.zeros(0), 7).shape == (0, 1, 7, 7)


def test_images_of_any_layout_and_type_are_taken_alike(embedded):
    digits = embedded.images[:4]
    expected = make_scaled(digits, 0.6, 28)
    strided = torch.empty(4, 28, 56, dtype=torch.uint8)[..., ::2].copy_(digits)
    for same in (digits[:, None], digits.numpy(), digits.long(), strided):
        assert torch.equal(make_scaled(same, 0.6, 28), expected)
    assert (make_scaled(digits / 255, 0.6, 28) - expected).abs().max() < 1e-6


DIGIT = torch.zeros(2, 5, 5, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((DIGIT[0], 1.0, 5), {}, "`images` .of shape"),
        ((torch.zeros(2, 3, 5, 5), 1.0, 5), {}, "`images` .of shape"),
        ((DIGIT.bool(), 1.0, 5), {}, "`images` .of torch.bool"),
        ((DIGIT.float() + 2, 1.0, 5), {}, "`images` .from 2 to 2."),
        ((DIGIT.long() - 1, 1.0, 5), {}, "`images` .from -1 to -1."),
        ((DIGIT.float() / 0, 1.0, 5), {}, "`images` .from nan"),
        ((DIGIT, torch.ones(3), 5), {}, "`scales` .of shape .3,.."),
        ((DIGIT, torch.tensor([1.0, 0.0]), 5), {}, "`scales` .=0.0 at index 1."),
        ((DIGIT, math.nan, 5), {}, "`scales` .=nan at index 0."),
        ((DIGIT, 1.0, 0), {}, "`size` .=0."),
        ((DIGIT, 1.0, (3, 0)), {}, "`size`"),
        ((DIGIT, 1.0, 5), {"interpolation": "nearest"}, "`interpolation` .='nearest'."),
        ((DIGIT, 1.0, 5), {"truncate": "maybe"}, "`truncate` .='maybe'."),
        ((DIGIT, 1.0, 5), {"chunk": 0}, "`chunk` .=0."),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        make_scaled(*arguments, **options)
