"""Convolution, ReLU and pooling as one operator, against the three in float64: interpreted without a GPU."""

import pytest
import torch
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.ops.first_layer import first_layer
from tolerance import assert_close

pytest.importorskip("triton")
from scaleconv.ops import chunks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = {
    "plain": ((2, 1, 8, 7), (5, 1, 3, 4), (1.0,), 2),
    "plain, windows cut": ((2, 3, 9, 8), (4, 3, 3, 3), (1.0,), 3),
    "scales": ((2, 1, 9, 8), (3, 1, 4, 3), DEFAULT_SCALES, 2),
    "scales, windows cut": ((1, 2, 8, 9), (4, 2, 3, 3), (0.7, 1.0, 1.9), 3),
    "as wide as in the networks": ((4, 1, 11, 12), (36, 1, 7, 7), (0.8, 1.0, 1.5), 2),
    "many taps": ((4, 1, 14, 13), (36, 1, 9, 9), (0.8, 1.0, 1.5), 2),
    "plain, many taps": ((4, 1, 14, 13), (36, 1, 9, 9), (1.0,), 2),
    "identity listed last": ((1, 1, 8, 9), (4, 1, 3, 3), (1.5, 1.0), 2),
    "empty": ((0, 1, 8, 7), (5, 1, 3, 4), (1.0,), 2),
}


@pytest.fixture(autouse=True)
def whole_float32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def one_after_the_other(images, weight, bias, scales, pool):
    return F.max_pool2d(F.relu(si_conv2d(images, weight, bias, scales=scales)), pool, pool, ceil_mode=True)


def leaves_of(weight_shape, *, parts=1):
    shapes = ((parts * weight_shape[0], *weight_shape[1:]), (parts * weight_shape[0],))
    return [random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes, start=1)]


def in_float64(images, leaves, scales, pool, sent):
    leaves = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    output = one_after_the_other(images.cpu().double(), *leaves, scales, pool)
    return [output, *torch.autograd.grad(output, leaves, sent.cpu().double())]


@pytest.mark.parametrize("side_by_side", [1, 1000])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_three_layers_one_after_the_other(name, side_by_side, monkeypatch):
    monkeypatch.setattr(chunks, "SIDE_BY_SIDE", side_by_side)
    shape, weight_shape, scales, pool = CALLS[name]
    images, leaves = random(*shape), leaves_of(weight_shape)
    output, _ = first_layer(images, *leaves, list(scales), pool, 1)
    sent = random(*output.shape, seed=9)
    grads = torch.autograd.grad(output, leaves, sent)
    for got, true in zip([output, *grads], in_float64(images, leaves, scales, pool, sent), strict=True):
        assert got.shape == true.shape
        assert_close(got.cpu().double(), true, torch.float32)


@pytest.mark.parametrize("scales", [(1.0,), (0.8, 1.0, 1.6)])
def test_slices_have_filters_of_their_own(scales):
    images = random(3, 4, 1, 8, 7)
    weight, bias = random(3, 5, 1, 3, 3, seed=1).requires_grad_(), random(3, 5, seed=2).requires_grad_()
    output, _ = torch.vmap(lambda x, w, b: first_layer(x, w, b, list(scales), 2, 1))(images, weight, bias)
    sent = random(*output.shape, seed=9)
    grads = torch.autograd.grad(output, [weight, bias], sent)
    for index in range(3):
        leaves = [weight[index], bias[index]]
        true = in_float64(images[index], leaves, scales, 2, sent[index])
        for got, expected in zip([output[index], *(grad[index] for grad in grads)], true, strict=True):
            assert_close(got.cpu().double(), expected, torch.float32)


def test_where_nothing_is_positive_nothing_learns():
    images, (weight, bias) = random(2, 1, 6, 6), leaves_of((3, 1, 3, 3))
    low = bias.detach() - 100
    low[1] += 200
    output, winner = first_layer(images, weight, low.requires_grad_(), [1.0], 2, 1)
    assert (output[:, [0, 2]] == 0).all()
    assert (output[:, 1] > 0).all()
    assert (winner[:, [0, 2]] == 255).all()
    assert (winner[:, 1] < 4).all()
    to_weight, to_bias = torch.autograd.grad(output.sum(), [weight, low])
    assert (to_weight[[0, 2]] == 0).all()
    assert (to_weight[1] != 0).all()
    assert to_bias.tolist() == [0, output[:, 1].numel(), 0]


def test_what_is_zero_is_not_positive():
    weight, bias = leaves_of((2, 1, 3, 3))
    output, winner = first_layer(torch.zeros(1, 1, 6, 6, device=DEVICE), weight, torch.zeros_like(bias), [1.0], 2, 1)
    assert (output == 0).all()
    assert (winner == 255).all()


@pytest.mark.parametrize("scales", [(1.0,), (1.5, 1.0, 0.8), (1.0, 0.2)])  # the last is too small to take part
def test_winners_are_counted_by_place_and_there_by_scale(scales):
    images, (weight, bias) = random(2, 1, 8, 9), leaves_of((3, 1, 3, 3))
    output, winner = first_layer(images, weight, bias, list(scales), 3, 1)
    responses, by = si_conv2d(images, weight, bias, scales=scales, return_winner=True)
    _, places = F.max_pool2d(F.relu(responses), 3, 3, ceil_mode=True, return_indices=True)
    rows, cols = places // responses.shape[3] % 3, places % responses.shape[3] % 3
    codes = (rows * 3 + cols) * len(scales) + by.long().flatten(2).gather(2, places.flatten(2)).view_as(places)
    assert torch.equal(winner.long(), torch.where(output > 0, codes, 255))
    assert len(winner.unique()) > 5


def test_a_tie_goes_to_the_first_place_and_there_to_the_scale_listed_first():
    images = torch.ones(1, 1, 6, 6, device=DEVICE)
    weight = torch.ones(1, 1, 1, 1, device=DEVICE)
    for scales, code in (((2.0, 1.0), 0), ((1.0, 2.0), 0)):
        _, winner = first_layer(images, weight, None, list(scales), 3, 1)
        assert (winner == code).all()


def test_a_nan_comes_through():
    images = random(1, 1, 6, 6)
    images[0, 0, 0, 0] = torch.nan
    output, _ = first_layer(images, random(2, 1, 3, 3, seed=1), None, [1.0], 2, 1)
    assert output[0, :, 0, 0].isnan().all()
    assert not output[0, :, 1, 1].isnan().any()


@pytest.mark.parametrize(("count", "parts"), [(5, 1), (6, 3)])
def test_chunks_of_images_give_the_same(count, parts, monkeypatch):
    images, leaves = random(count, 1, 8, 7), leaves_of((4, 1, 3, 3), parts=parts)
    whole, _ = first_layer(images, *leaves, list(DEFAULT_SCALES), 2, parts)
    sent = random(*whole.shape, seed=9)
    grads = torch.autograd.grad(whole, leaves, sent)
    monkeypatch.setattr(chunks, "WORKSPACE", 1)
    monkeypatch.setattr(chunks, "LITTLE", 0)
    pieces, _ = first_layer(images, *leaves, list(DEFAULT_SCALES), 2, parts)
    assert torch.equal(whole, pieces)
    for got, expected in zip(torch.autograd.grad(pieces, leaves, sent), grads, strict=True):
        assert_close(got.cpu(), expected.cpu())


def test_a_gradient_of_the_input_is_refused():
    images = random(1, 1, 6, 6).requires_grad_()
    output, _ = first_layer(images, random(2, 1, 3, 3), None, [1.0], 2, 1)
    with pytest.raises(NotImplementedError, match="input of a first layer must not require"):
        output.sum().backward()


REFUSED = {
    "winners": (
        {"pool": 7, "scales": DEFAULT_SCALES},
        r"`pool` \(=7\) must .* its square times the 6 scales at most 255",
    ),
    "pool": ({"pool": 0}, r"`pool` \(=0\) must be at least 1"),
    "scales": ({"scales": (0.5, 2.0)}, "`scales` must contain 1"),
    "channels": ({"channels": 2}, r"of as many channels, got \(2, 2, 9, 9\) and \(4, 1, 3, 3\)"),
    "size": ({"size": 2}, r"`input` \(2, 1, 2, 2\) must be at least as large as the kernel"),
    "parts": ({"parts": 3}, r"`parts` \(=3\) must divide the 2 images and the 4 filters"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call, message):
    call = {"pool": 2, "scales": (1.0,), "channels": 1, "size": 9, "parts": 1, **call}
    images = random(2, call["channels"], call["size"], call["size"])
    with pytest.raises(ValueError, match=message):
        first_layer(images, random(4, 1, 3, 3), None, list(call["scales"]), call["pool"], call["parts"])


def test_types_that_the_kernels_do_not_take_are_refused():
    with pytest.raises(TypeError, match=r"got torch\.float64, torch\.float64"):
        first_layer(random(1, 1, 6, 6).double(), random(2, 1, 3, 3).double(), None, [1.0], 2, 1)


def test_the_operator_keeps_the_promises_of_the_library():
    weight, bias = leaves_of((3, 1, 3, 3))
    torch.library.opcheck(first_layer, (random(2, 1, 7, 6), weight, bias, [0.8, 1.0], 2, 1))
