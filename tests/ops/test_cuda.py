"""The layer on a GPU: the numbers of the CPU, to the tolerance of each type."""

import pytest
import torch
from torch import nn

from fuzz.cases import Checkpointed
from helpers.loops import tensors_of
from helpers.tolerance import TOLERANCE
from scaleconv import ScaleInvariant, si_conv2d

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CALLS = {
    "plain": ((3, 4, 13, 12), (6, 4, 3, 3), {}),
    "one channel": ((3, 1, 28, 28), (8, 1, 7, 7), {}),
    "strided": ((2, 4, 15, 11), (6, 2, 3, 5), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    "dilated": ((2, 4, 15, 14), (4, 4, 3, 2), {"dilation": (2, 1), "padding": 1}),
    "same": ((2, 4, 9, 10), (4, 4, 4, 3), {"padding": "same"}),
    "empty": ((0, 4, 9, 10), (4, 4, 3, 3), {}),
}


def results(tensors, call, winners=None):
    """Output and gradients, where the gradient sent back is the same for every type.

    Rounding can change a winner, and so the way of its gradient: nothing is sent where the `winners` are others.
    """
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output, winner = si_conv2d(*leaves, **call, return_winner=True)
    sent = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape).to(output)
    output.backward(sent if winners is None else torch.where(winner == winners.to(winner.device), sent, 0))
    return [output, *(leaf.grad for leaf in leaves)]


def winners_of(tensors, call):
    return si_conv2d(*tensors, **call, return_winner=True)[1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "weight_shape", "call"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_output_and_gradients_agree_with_float64_on_the_cpu(shape, weight_shape, call, dtype, memory_format):
    tensors = tensors_of(shape, weight_shape, dtype=dtype)
    exact = [tensor.double() for tensor in tensors]
    previous = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        moved = [tensor.cuda() for tensor in tensors]
        moved[0] = moved[0].to(memory_format=memory_format)
        actual = results(moved, call, winners_of(exact, call))
        expected = results(exact, call, winners_of(moved, call))
    finally:
        torch.backends.cudnn.allow_tf32 = previous
    for got, true in zip(actual, expected, strict=True):
        assert got.dtype == dtype
        if true.numel():
            difference = (got.double().cpu() - true).norm() / true.norm().clamp(min=1e-30)
            assert difference < 3 * TOLERANCE[dtype]


def test_runs_repeat_bit_for_bit_when_torch_is_asked_to_be_deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        tensors = [
            torch.rand(s, generator=torch.Generator().manual_seed(1)).cuda() for s in ((8, 4, 20, 20), (6, 4, 3, 3))
        ]
        first, second = (results(tensors, {}) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_layer_moved_to_the_gpu_and_back_gives_the_same():
    tensors = [torch.rand(s, dtype=torch.float64) for s in ((2, 3, 12, 12), (4, 3, 3, 3))]
    before = si_conv2d(*tensors)
    si_conv2d(*(tensor.cuda() for tensor in tensors))
    assert torch.equal(si_conv2d(*tensors), before)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_need_not_be_on_the_current_gpu():
    tensors = [torch.rand(s, dtype=torch.float64).float() for s in ((2, 3, 12, 12), (4, 3, 3, 3))]
    expected = results([tensor.cuda() for tensor in tensors], {})
    actual = results([tensor.to("cuda:1") for tensor in tensors], {})
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("shape", "weight_shape", "call"),
    [
        ((2, 3, 16, 15), (8, 3, 3, 3), {"padding": 1}),  # CHWN inside
        ((2, 32, 16, 15), (8, 32, 3, 3), {"padding": 1}),
        ((2, 8, 16, 15), (8, 1, 3, 3), {"groups": 8, "stride": 2}),
        ((2, 32, 1, 1), (8, 32, 3, 3), {"padding": 1}),
        ((64, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),  # scale 1 by the library
    ],
    ids=["few channels", "many channels", "depthwise", "one pixel", "large"],
)
def test_in_place_operations_may_follow_the_layer(shape, weight_shape, call, dtype, memory_format):
    torch.manual_seed(0)
    images = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=memory_format)
    weight = torch.randn(weight_shape, device="cuda", dtype=dtype, requires_grad=True)
    output, winner = si_conv2d(images, weight, **call, return_winner=True)
    assert not output._is_view()
    assert not winner._is_view()
    (in_place,) = torch.autograd.grad(output.mul_(3).relu_().sum(), weight)
    (copied,) = torch.autograd.grad((si_conv2d(images, weight, **call) * 3).relu().sum(), weight)
    torch.testing.assert_close(in_place, copied)
    compiled = torch.compile(lambda: si_conv2d(images, weight, **call).mul_(3).relu_().sum(), backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(), weight)[0], copied)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_in_a_pyramid_gives_the_gradients_without_it(reentrant):
    found = []
    for kind in (None, reentrant):
        torch.manual_seed(0)
        stem = nn.Conv2d(3, 4, 3, padding=1)
        blocks = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(True)) for _ in range(2)]
        module = nn.Sequential(stem, Checkpointed(blocks, [kind] * 2)).double().cuda()
        images = torch.rand(3, 3, 20, 18, device="cuda", dtype=torch.float64)
        ScaleInvariant(module, (0.6, 1, 1.7))(images).square().sum().backward()
        found.append([parameter.grad for parameter in module.parameters()])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)
