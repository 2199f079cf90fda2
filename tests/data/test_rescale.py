"""The rescaling against a reference in loops, its conventions one by one, and the generator of MNIST-Scale."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from scaleconv.data import Uniform, cut_off, make_scaled
from scaleconv.data.rescale import IGNORE, rescale, rescale_masks

OPTIONS = [
    {"interpolation": kernel, "antialias": antialias, "border": border}
    for kernel in ("bilinear", "bicubic")
    for antialias in (False, True)
    for border in ("zeros", "edge")
]
ZEROS = {"antialias": False, "border": "zeros"}
EDGE = {"antialias": True, "border": "edge"}


def triangle(x):
    return max(0.0, 1 - abs(x))


def cubic(x):
    x = abs(x)
    if x <= 1:
        return 1.25 * x**3 - 2.25 * x**2 + 1
    return -0.75 * x**3 + 3.75 * x**2 - 6 * x + 3 if x < 2 else 0.0


def weights(place, length, scale, interpolation, antialias, border):
    """What each pixel of an axis counts at a place, by name; all whole positions are added up, also those outside."""
    width = 1 / scale if antialias and scale < 1 else 1
    reach = math.ceil(2 * width) + 1
    positions = range(math.floor(place) - reach, math.floor(place) + reach + 2)
    if border == "edge":
        place, positions = min(max(place, 0), length - 1), range(length)
    kernel = {"bilinear": triangle, "bicubic": cubic}[interpolation]
    counts = {position: kernel((place - position) / width) for position in positions}
    return {i: count / sum(counts.values()) for i, count in counts.items() if 0 <= i < length}


def reference(image, scale, size, shift=(0, 0), flip=False, **options):
    """An image (H, W) on a canvas, pixel by pixel."""
    (height, width), (tall, wide) = image.shape, size
    result = np.zeros(size)
    for p in range(tall):
        for q in range(wide):
            y = (p - (tall - 1) / 2 - shift[0] * tall) / scale + (height - 1) / 2
            x = (q - (wide - 1) / 2 - shift[1] * wide) / scale + (width - 1) / 2
            rows = weights(y, height, scale, **options)
            columns = weights(width - 1 - x if flip else x, width, scale, **options)
            result[p, q] = sum(a * b * image[i, j] for i, a in rows.items() for j, b in columns.items())
    return result


def random(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize(
    ("shape", "size"), [((5, 8), (5, 8)), ((6, 3), (4, 9)), ((7, 7), (10, 10)), ((1, 2), (3, 1))], ids=str
)
def test_images_are_those_of_the_loops(shape, size, options):
    """Each image of a batch with its own scale, shift and flip; and all with one scale alone."""
    scales = [0.2, 0.45, 0.77, 1.0, 1.9, 3.3]
    images, shifts = random(6, 2, *shape), random(6, 2, seed=1) / 2 - 0.25
    flips = torch.tensor([True, False] * 3)
    found = rescale(images, torch.tensor(scales, dtype=torch.float64), size, shift=shifts, flip=flips, **options)
    for index, scale in enumerate(scales):
        for channel in (0, 1):
            image = images[index, channel].numpy()
            expected = reference(image, scale, size, shifts[index].tolist(), bool(flips[index]), **options)
            np.testing.assert_allclose(found[index, channel], expected, rtol=0, atol=1e-12)
    one = rescale(images[:, 0], 0.6, size, **options)
    for image, result in zip(images[:, 0].numpy(), one, strict=True):
        np.testing.assert_allclose(result, reference(image, 0.6, size, **options), rtol=0, atol=1e-12)


def test_centre_goes_to_centre_and_the_border_is_black_or_the_edge():
    white, ramp = torch.ones(1, 4, 4), torch.arange(1.0, 5).expand(1, 4, 4)
    assert rescale(white, 1.0, 8, **ZEROS).sum() == 16
    assert rescale(ramp, 1.0, 8, antialias=False, border="edge")[0, 0].tolist() == [1, 1, 1, 2, 3, 4, 4, 4]
    assert rescale(ramp, 2.0, 5, antialias=False, border="edge")[0, 0].tolist() == [1.5, 2, 2.5, 3, 3.5]


def test_a_shift_is_a_share_of_the_canvas_down_and_to_the_right_and_a_flip_exchanges_left_and_right():
    image = torch.zeros(1, 4, 8)
    image[0, 1, 2] = 1
    moved = rescale(image, 1.0, shift=torch.tensor([[0.25, 0.5]]), **ZEROS)
    assert moved.nonzero().tolist() == [[0, 2, 6]]
    assert torch.equal(rescale(image, 1.0, flip=torch.tensor([True]), **ZEROS), image.flip(2))


def test_what_shrinks_is_averaged_over_a_triangle_as_wide_as_the_step():
    """At scale 0.25 a pixel in the middle counts 1 of ½ + ¾ + 1 + ¾ + ½, and at an edge ½ of 1 + ¾ + ½ + ¼ + 0."""
    line = torch.tensor([0.0, 0, 1, 0, 0], dtype=torch.float64).expand(1, 1, 5, 5)
    wanted = [0.5 / 2.5, 0.5 / 2.5, 1 / 3.5, 0.5 / 2.5, 0.5 / 2.5]
    assert rescale(line, 0.25, **EDGE)[0, 0, 0].tolist() == pytest.approx(wanted)
    assert rescale(line.mT, 0.25, **EDGE)[0, 0, :, 0].tolist() == pytest.approx(wanted)
    skipped = rescale(line, 0.25, antialias=False, border="edge")[0, 0, 0]
    assert skipped.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_scale_one_returns_the_images_exactly(options):
    images = torch.rand(3, 2, 9, 6) * 2e3 - 1e3
    assert rescale(images, 1, **options) is images
    assert rescale(images, 1.0, (9, 6), **options) is images
    still, no = torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool)
    assert torch.equal(rescale(images, torch.ones(3), shift=still, flip=no, **options), images)
    digits = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    assert torch.equal(rescale(digits, 1.0, **options), digits.float() / 255)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_keep_their_type(kind):
    images = random(2, 1, 9, 200)
    found = rescale(images.to(kind), 0.6, **EDGE)
    assert found.dtype == kind
    eps = torch.finfo(kind).eps  # of the pixels; places are computed in float32 at least
    torch.testing.assert_close(found.double(), rescale(images, 0.6, **EDGE), rtol=0, atol=max(8 * eps, 1e-5))


def test_images_that_require_gradients_get_them():
    images = random(1, 1, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda images: rescale(images, 0.7, (4, 3), **EDGE), images)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_cuda_graph_captures_it(options):
    images, masks = torch.rand(4, 3, 12, 9, device="cuda"), torch.randint(0, 9, (4, 12, 9), device="cuda")
    scales, shift = torch.ones(4, device="cuda"), torch.zeros(4, 2, device="cuda")
    flip = torch.zeros(4, dtype=torch.bool, device="cuda")

    def both(scales=scales):
        placed = {"shift": shift, "flip": flip}
        return rescale(images, scales, **placed, **options), rescale_masks(masks, scales, **placed)

    both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, fixed = both(), both(0.5)
    scales.uniform_(0.3, 2)
    shift.uniform_(-0.2, 0.2)
    flip.copy_(torch.tensor([True, False, True, False]))
    graph.replay()
    for one, other in zip((*found, *fixed), (*both(), *both(0.5)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_has_the_nearest_number_and_none_beyond_the_edge():
    mask = torch.arange(9, dtype=torch.uint8).expand(1, 9, 9)
    rows = {4.0: [3, 3, 4, 4, 4, 4, 5, 5, 5], 0.25: [IGNORE] * 3 + [0, 4, 8] + [IGNORE] * 3, 1: [*range(9)]}
    for scale, row in rows.items():
        assert rescale_masks(mask, scale)[0, 4].tolist() == row
        assert rescale_masks(mask.mT, scale)[0, :, 4].tolist() == row
    # Of 6 pixels read at −0.5, 1.5 and 3.5; halves are rounded up.
    small = rescale_masks(torch.zeros(1, 6, 6, dtype=torch.uint8), 0.5)
    assert (small == 0).nonzero().tolist() == [[0, y, x] for y in (1, 2, 3) for x in (1, 2, 3)]


def test_a_mask_moves_with_its_image():
    """Where two neighbours have one number, image and mask agree, whatever the placement."""
    shapes = torch.zeros(8, 32, 24, dtype=torch.uint8)
    shapes[:, 6:16, 8:20] = shapes[:, 16:26, 4:12] = 1
    placed = {"shift": random(8, 2) / 4 - 0.125, "flip": torch.tensor([True, False] * 4)}
    scales = torch.linspace(0.5, 2, 8)
    moved = rescale_masks(shapes, scales, **placed)
    seen = rescale(shapes[:, None].double(), scales, antialias=False, border="edge", **placed)[:, 0]
    labelled, sharp = moved != IGNORE, (seen == 0) | (seen == 1)
    assert not labelled.all()
    assert (seen - moved)[labelled & sharp].abs().max() == 0
    assert (seen - moved)[labelled].abs().max() <= 0.75  # nearest in both directions: at least a quarter


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_digits_of_any_shape_are_those_of_the_loops(interpolation, antialias, data):
    height, width = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    size = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    scales = data.draw(st.lists(st.floats(0.25, 3), min_size=1, max_size=3))
    images = np.random.default_rng(0).integers(0, 256, (len(scales), height, width), np.uint8)
    made = make_scaled(images, np.array(scales), size, interpolation, antialias, truncate="allow")
    assert made.shape == (len(scales), 1, *size)
    options = {"interpolation": interpolation, "antialias": antialias, "border": "zeros"}
    for image, scale, result in zip(images, scales, made[:, 0].numpy(), strict=True):
        expected = reference(image / 255, scale, size, **options).clip(0, 1)
        # bicubic reads 16 pixels, whose rounded weights add up
        assert np.abs(result - expected).max() < (1e-6 if interpolation == "bilinear" else 3e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_order_and_batch_size_do_not_change_a_bit(embedded, interpolation, antialias):
    digits, scales = embedded.images[:300], torch.from_numpy(Uniform(0.3, 1.4).draw(300, 1))
    whole = make_scaled(digits, scales, 40, interpolation, antialias)
    for chunk in (3, 299):
        assert torch.equal(make_scaled(digits, scales, 40, interpolation, antialias, chunk=chunk), whole), chunk
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make_scaled(digits[order], scales[order], 40, interpolation, antialias), whole[order])


def test_sums_of_integers_are_exact_in_any_order():
    """The same sums in whole numbers, as Python adds them: what the bit-identity rests on."""
    image = torch.randint(0, 256, (6, 6), generator=torch.Generator().manual_seed(0))
    for scale in (0.31, 0.77, 1.37):
        ends = [(p - 3) / scale + 2.5 for p in range(7)]
        whole = [[round(triangle(u - i) * 2**22) for i in range(6)] for u in ends]
        made = make_scaled(image[None], scale, 7, truncate="allow")[0, 0]
        for p in range(7):
            for q in range(7):
                total = sum(whole[p][i] * int(image[i, j]) * whole[q][j] for i in range(6) for j in range(6))
                assert made[p, q].item() == np.float32(min(total / 2**44 / 255, 1.0))


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
    assert make_scaled(images, 1.125, 9).shape == (3, 1, 9, 9)  # 4.5: its centre meets the edge
    with pytest.raises(
        ValueError, match=r"`size` \(=9×9\).* 1 of 3 digits, first digit 1 at scale 1.5 by 1.5 pixels.* 12×12"
    ):
        make_scaled(images, 1.5, 9)
    assert make_scaled(images, 1.5, 12).shape == (3, 1, 12, 12)
    assert make_scaled(images, 1.5, 9, truncate="allow").shape == (3, 1, 9, 9)
    assert cut_off(images, 1.5, 9).tolist() == cut_off(images, 1.5, (9, 40)).tolist() == [0, 1.5, 0]
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


def test_images_of_any_layout_and_type_are_taken_alike(embedded):
    digits = embedded.images[:4]
    expected = make_scaled(digits, 0.6, 28)
    strided = torch.empty(4, 28, 56, dtype=torch.uint8)[..., ::2].copy_(digits)
    for same in (digits[:, None], digits.numpy(), digits.long(), strided):
        assert torch.equal(make_scaled(same, 0.6, 28), expected)
    assert (make_scaled(digits / 255, 0.6, 28) - expected).abs().max() < 3e-6  # places in float32
    assert make_scaled(torch.zeros(0, 5, 5, dtype=torch.uint8), torch.zeros(0), 7).shape == (0, 1, 7, 7)


DIGIT = torch.zeros(2, 5, 5, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_scaled(DIGIT[0], 1.0, 5), "`images` .of shape"),
        (lambda: make_scaled(torch.zeros(2, 3, 5, 5), 1.0, 5), "`images` .of shape"),
        (lambda: make_scaled(DIGIT.bool(), 1.0, 5), "`images` .of torch.bool"),
        (lambda: make_scaled(DIGIT.float() + 2, 1.0, 5), "`images` .from 2 to 2."),
        (lambda: make_scaled(DIGIT.long() - 1, 1.0, 5), "`images` .from -1 to -1."),
        (lambda: make_scaled(DIGIT.float() / 0, 1.0, 5), "`images` .from nan"),
        (lambda: make_scaled(DIGIT, torch.ones(3), 5), "`scales` .of shape .3,.."),
        (lambda: make_scaled(DIGIT.float(), torch.tensor([1.0, 0.0]), 5), "`scales` .=0.0 at index 1."),
        (lambda: make_scaled(DIGIT, math.nan, 5), "`scales` .=nan."),
        (lambda: make_scaled(DIGIT, 1.0, 0), "`size` .=0."),
        (lambda: make_scaled(DIGIT, 1.0, (3, 0)), "`size`"),
        (lambda: make_scaled(DIGIT, 1.0, 5, "nearest"), "`interpolation` .='nearest'."),
        (lambda: make_scaled(DIGIT, 1.0, 5, truncate="maybe"), "`truncate` .='maybe'."),
        (lambda: make_scaled(DIGIT, 1.0, 5, chunk=0), "`chunk` .=0."),
        (lambda: rescale(DIGIT, torch.tensor([1.0, -1.0]), **ZEROS), "`scales` .=-1.0 at index 1."),
        (lambda: rescale(DIGIT.float(), 0, **ZEROS), "`scales` .=0."),
        (lambda: rescale(DIGIT[:, :0], 1.0, **ZEROS), "`images` .of shape .2, 0, 5."),
        (lambda: rescale(DIGIT, 1.0, antialias=False, border="black"), "`border` .='black'. must be one of zeros"),
        (lambda: rescale(DIGIT, 1.0, shift=torch.zeros(2), **ZEROS), "`shift` .of shape .2,.. must be .2, 2."),
        (lambda: rescale(DIGIT, 1.0, flip=torch.zeros(2), **ZEROS), "`flip` .torch.float32.*must be .2,. of"),
        (lambda: rescale_masks(DIGIT, math.inf), "`scales` .=inf."),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_stay_between_black_and_white_where_bicubic_weights_overshoot():
    step = torch.zeros(1, 8, 8, dtype=torch.uint8)
    step[:, :, 4:] = 255
    floats, found = (rescale(x, 1.7, interpolation="bicubic", **ZEROS) for x in (step / 255.0, step))
    assert (floats.min() < -0.01, floats.max() > 1.01) == (True, True)
    torch.testing.assert_close(found, floats.clamp(0, 1), rtol=0, atol=1e-5)
