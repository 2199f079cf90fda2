"""ReLU and pooling in one pass, the sum of a bias, and transposition, against PyTorch: interpreted without a GPU."""

import pytest
import torch
from torch.nn import functional as F

from tolerance import assert_close

pytest.importorskip("triton")
from scaleconv.ops import library
from scaleconv.ops.kernels import column_sum as sums
from scaleconv.ops.kernels import relu_pool as kernels
from scaleconv.ops.kernels.turn import turn
from scaleconv.ops.relu_pool import relu_pool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = {
    "even": ((2, 4, 6, 8), 2),
    "cut windows": ((2, 8, 7, 5), 2),
    "cut to a pixel": ((3, 4, 7, 10), 3),
    "smaller than a window": ((2, 4, 2, 1), 3),
    "every pixel a window": ((2, 4, 3, 5), 1),
    "one channel": ((2, 1, 9, 7), 2),
    "six channels": ((2, 6, 5, 7), 3),
    "odd channels": ((2, 37, 5, 4), 2),
    "many programs": ((3, 36, 9, 8), 2),
    "one image": ((1, 4, 5, 5), 2),
    "empty": ((0, 4, 7, 5), 2),
}


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def by_torch(images, kernel):
    return F.max_pool2d(F.relu(images), kernel, kernel, ceil_mode=True)


def assert_same(images, kernel):
    """Output and gradient of the operator are those of PyTorch: no number is computed, so they are equal."""
    ours, theirs = images.detach().clone().requires_grad_(), images.detach().clone().requires_grad_()
    output, _ = relu_pool(ours, kernel)
    expected = by_torch(theirs, kernel)
    assert torch.equal(output.nan_to_num(-1), expected.nan_to_num(-1))
    sent = random(*expected.shape, seed=1, dtype=images.dtype)
    got, true = (torch.autograd.grad(*pair, sent)[0] for pair in ((output, ours), (expected, theirs)))
    assert got.dtype == images.dtype
    assert torch.equal(got, true)
    return output, got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("shape", "kernel"), CALLS.values(), ids=CALLS)
def test_output_and_gradient_are_those_of_relu_then_pooling(shape, kernel, memory_format, dtype):
    results = assert_same(random(*shape, dtype=dtype).to(memory_format=memory_format), kernel)
    assert all(result.is_contiguous(memory_format=torch.channels_last) for result in results)


@pytest.mark.parametrize("kernel", [2, 3])
def test_the_first_of_equal_values_gets_the_gradient(kernel):
    images = random(2, 4, 7, 8).mul(2).round()  # few different values, zero among them
    assert_same(images, kernel)
    assert_same(torch.ones_like(images), kernel)


def test_the_winner_is_counted_along_the_rows_of_the_whole_window():
    images = -torch.ones(1, 1, 3, 3, device=DEVICE)
    images[0, 0, 1, 0] = images[0, 0, 0, 2] = images[0, 0, 2, 2] = 5
    output, winner = relu_pool(images, 2)
    assert output.flatten().tolist() == [5, 5, 0, 5]
    assert winner.flatten().tolist() == [2, 0, kernels.NOBODY, 0]


def test_where_nothing_is_positive_nothing_learns():
    for value in (0.0, -1.0, -torch.inf):
        output, grad = assert_same(torch.full((1, 4, 4, 5), value, device=DEVICE), 2)
        assert not output.any()
        assert not grad.any()


def test_a_nan_wins_its_window_and_no_other():
    images = random(2, 4, 7, 8)
    images[0, 1, 2, 3] = images[1, :, 4, 4] = images[1, :, 4, 5] = images[1, 0, 6, 7] = torch.nan
    images[1, 2, 5, 5] = images[0, 0, 0, 0] = torch.inf
    output, _ = assert_same(images, 2)
    assert output.isnan().sum() == 6


def test_any_strides_are_taken():
    every_second = random(4, 8, 9, 16)[::2, ::2, :, ::2]
    assert_same(every_second, 2)
    assert_same(random(3, 4, 5, 6).transpose(2, 3), 2)
    images = random(2, 4, 6, 6).requires_grad_()
    output, _ = relu_pool(images, 2)
    (got,) = torch.autograd.grad(output.sum(), images)  # sends one number, expanded
    (true,) = torch.autograd.grad(by_torch(images, 2).sum(), images)
    assert torch.equal(got, true)


def test_values_that_do_not_lie_at_multiples_of_an_access_are_taken():
    memory = random(1 + 2 * 5 * 6 * 4)
    images = memory[1:].view(2, 5, 6, 4).permute(0, 3, 1, 2)
    assert torch.equal(relu_pool(images, 2)[0], by_torch(images, 2))


@pytest.mark.parametrize("dim", [0, 1])
def test_vmap_makes_one_batch(dim):
    images = random(3, 2, 4, 5, 6).requires_grad_()
    output, winner = torch.vmap(lambda some: relu_pool(some, 2), in_dims=dim)(images)
    expected = torch.stack([by_torch(some, 2) for some in images.unbind(dim)])
    assert torch.equal(output, expected)
    assert winner.shape == expected.shape
    sent = random(*expected.shape, seed=1)
    got, true = (torch.autograd.grad(result, images, sent)[0] for result in (output, expected))
    assert torch.equal(got, true)


def test_the_operator_keeps_the_promises_of_the_library():
    torch.library.opcheck(relu_pool, (random(2, 4, 5, 7).requires_grad_(), 2))
    torch.library.opcheck(relu_pool, (random(2, 1, 5, 7).requires_grad_(), 3))


def test_arguments_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="`kernel` must be from 1 to 15, got 16"):
        relu_pool(random(1, 1, 16, 16), 16)
    with pytest.raises(ValueError, match="`kernel` must be from 1 to 15, got 0"):
        relu_pool(random(1, 1, 16, 16), 0)
    with pytest.raises(ValueError, match=r"`input` must be of shape \(N, C, H, W\) with pixels, got \(1, 2, 0, 3\)"):
        relu_pool(random(1, 2, 0, 3), 2)
    monkeypatch.setattr(kernels, "LARGEST", kernels.ACCESSES + 8)
    relu_pool(random(2, 4, 4, 4), 2)
    with pytest.raises(ValueError, match="`input` must have at most 8 windows, 4 channels at a time"):
        relu_pool(random(2, 4, 4, 5), 2)


def test_the_largest_window_tells_its_last_place_from_none():
    images = -torch.ones(2, 1, 15, 15, device=DEVICE)
    images[0, :, 14, 14] = 1
    _, grad = assert_same(images, 15)
    assert grad.count_nonzero() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 3), (2, 700, 36), (3, 64, 1), (1, 9000, 1), (2, 130, 100), (1, 0, 4)])
@pytest.mark.parametrize("programs", [sums.PROGRAMS, 4])
def test_column_sums_agree_with_float64(shape, programs, dtype, monkeypatch):
    monkeypatch.setattr(sums, "PROGRAMS", programs)
    source = random(*shape, dtype=dtype)
    got = sums.column_sum(source)
    assert got.dtype == torch.float32
    assert_close(got.cpu(), source.double().sum(1).cpu())


@pytest.mark.parametrize(("rows", "block", "tiles"), [(61952, 64, 6), (6272, 64, 6), (1, 64, 1), (10**6, 64, 2000)])
def test_every_row_has_a_program_and_every_program_a_row(rows, block, tiles):
    splits, each = sums.choose_splits(rows, block, tiles)
    assert (splits - 1) * each < rows <= splits * each
    assert splits * tiles <= max(sums.PROGRAMS, tiles)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("images", [6, 0])
def test_the_gradient_of_the_bias_is_the_sum_of_each_part(images, dtype, memory_format):
    grad = random(images, 5, 4, 3, dtype=dtype).to(memory_format=memory_format)
    got = library._bias_grad(grad, 3)
    assert got.dtype == dtype
    expected = grad.double().unflatten(0, (3, -1)).sum((1, 3, 4)).flatten()
    assert_close(got.cpu(), expected.cpu(), dtype)


def test_only_the_gradient_of_the_bias_is_made_where_no_other_is_needed(monkeypatch):
    images, weight, bias = random(2, 2, 6, 5), random(4, 2, 3, 3, seed=1), random(4, seed=2).requires_grad_()
    output, _ = library.si_conv2d(images, weight, bias, [1, 1], [0] * 4, [1, 1], 1, 1, [1.0, 0.7], False)
    sent = random(*output.shape, seed=9).contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr("scaleconv.ops.fused.fused_backward", None)
    (grad,) = torch.autograd.grad(output, bias, sent)
    assert_close(grad.cpu(), sent.double().sum((0, 2, 3)).cpu(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (65, 130), (3, 200), (200, 3), (0, 5), (5, 0)])
def test_a_turned_matrix_is_its_transpose(shape, dtype):
    source = torch.arange(shape[0] * shape[1], device=DEVICE).view(shape).to(dtype)
    turned = turn(source)
    assert turned.is_contiguous()
    assert torch.equal(turned, source.T)
