"""Filters of each position in place of interpolated images, against float64 and the plain path."""

import pytest
import torch
from torch.nn import functional as F

from kernel_calls import DEVICE, assert_agrees_with_float64, by_kernels, leaves_of, random
from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.ops import library
from scaleconv.ops.backends import backend
from scaleconv.ops.signature import make_signature
from tolerance import assert_close

pytest.importorskip("triton")
from scaleconv.ops import chunks
from scaleconv.ops.kernels import call as call_module

pytestmark = pytest.mark.usefixtures("whole_float32")
LOCAL = {
    "one channel": ((2, 1, 6, 5), (3, 1, 3, 2), {}),
    "padded": ((2, 3, 5, 4), (5, 3, 3, 3), {"padding": 1}),
    "strided": ((1, 4, 7, 5), (5, 4, 3, 4), {"stride": (2, 1), "padding": 1}),
    "same, even kernel": ((1, 2, 4, 5), (3, 2, 4, 3), {"padding": "same"}),
    "empty": ((0, 4, 9, 10), (4, 4, 3, 3), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOCAL)
def test_local_filters_agree_with_float64(name, dtype, local_filters):
    if DEVICE == "cpu" and (dtype == torch.bfloat16 or (dtype == torch.float16 and name != "padded")):
        pytest.skip("takes long through the interpreter, which knows no bfloat16; needs a GPU")
    assert_agrees_with_float64(*LOCAL[name], dtype)
    assert local_filters or name == "empty"


def test_local_filters_of_antialiased_levels_and_of_parts(local_filters):
    leaves = leaves_of((1, 3, 5, 6), (4, 3, 3, 3))
    assert_close(
        by_kernels(leaves, {"antialias": True}).cpu(),
        si_conv2d(*(leaf.detach().double() for leaf in leaves), antialias=True).cpu(),
        torch.float32,
    )
    assert len(local_filters) > 1  # not all levels at once
    images, weights = random(2, 2, 2, 5, 4), random(2, 4, 2, 3, 3, seed=1)
    leaves = [tensor.requires_grad_() for tensor in (images, weights)]
    with backend("triton"):
        together = torch.vmap(lambda *slices: si_conv2d(*slices, padding=1))(*leaves)
    apart = torch.stack([si_conv2d(*slices, padding=1) for slices in zip(*leaves, strict=True)])
    assert_close(together.cpu(), apart.cpu())
    sent = random(*apart.shape, seed=9)
    for got, true in zip(*(torch.autograd.grad(result, leaves, sent) for result in (together, apart)), strict=True):
        assert_close(got.cpu(), true.cpu())


def test_a_tie_among_local_filters_goes_to_the_scale_listed_first(local_filters):
    leaves = [torch.zeros(1, 1, 8, 8, device=DEVICE), random(2, 1, 3, 3)]
    for scales in ((2, 0.6, 1, 1.5), (1.5, 1, 0.6, 2)):
        _, winner = by_kernels(leaves, {"scales": scales}, return_winner=True)
        with backend("torch"):
            _, expected = si_conv2d(*leaves, scales=scales, return_winner=True)
        assert torch.equal(winner, expected)
    assert local_filters


def test_many_images_of_few_filters_are_met_by_local_filters():
    paper = make_signature((36, 11, 11), (64, 36, 5, 5), 1, 0, 1, 1, DEFAULT_SCALES)
    wide = make_signature((256, 14, 14), (256, 256, 3, 3), 1, 1, 1, 1, DEFAULT_SCALES)
    device = torch.device("cpu")
    assert call_module.make_call(paper, 768, 6, False, device).local
    assert not call_module.make_call(paper, 128, 6, False, device).local
    assert not call_module.make_call(wide, 768, 1, False, device).local
    assert not call_module.make_call(paper, 768, 6, False, device).direct


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("channels", [1, 2])
def test_plain_convolutions_of_parts_are_those_of_the_library(channels, padding, local_filters, monkeypatch):
    monkeypatch.setattr(chunks, "SIDE_BY_SIDE", 1)
    leaves = leaves_of((4, channels, 6, 5), (6, channels, 3, 3))
    output, _ = library.si_conv2d(*leaves, [1, 1], [padding] * 4, [1, 1], 1, 2, [1.0], False)
    images, weight, bias = leaves
    parts = (slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 6))
    expected = torch.cat([F.conv2d(images[some], weight[own], bias[own], padding=padding) for some, own in parts])
    assert_close(output.cpu(), expected.cpu())
    sent = random(*expected.shape, seed=9)
    grads = [torch.autograd.grad(result, leaves, sent) for result in (output, expected)]
    for got, true in zip(*grads, strict=True):
        assert_close(got.cpu(), true.cpu())
