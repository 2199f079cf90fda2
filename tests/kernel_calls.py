"""Calls of the layer by the fused kernels: on a GPU as they are, elsewhere through Triton's interpreter."""

import torch

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.ops.backends import backend
from scaleconv.ops.levels import level_maps
from scaleconv.ops.pool import pool_backward
from scaleconv.ops.signature import make_signature
from tolerance import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ARGUMENTS = (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1), ("scales", DEFAULT_SCALES))


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def leaves_of(shape, weight_shape, dtype=torch.float32):
    shapes = (shape, weight_shape, weight_shape[:1])
    return [random(*s, seed=seed, dtype=dtype).requires_grad_() for seed, s in enumerate(shapes)]


def by_kernels(leaves, call, **further):
    with backend("triton"):
        return si_conv2d(*leaves, **call, **further)


def sign(leaves, call):
    return make_signature(leaves[0].shape, leaves[1].shape, *(call.get(name, default) for name, default in ARGUMENTS))


def expected_grads(leaves, call, sent):
    """In float64, for the winners that the kernels found: those of a 16-bit type are others here and there."""
    signature = sign(leaves, call)
    _, winner = by_kernels(leaves, call, return_winner=True)
    place_of = torch.zeros(len(signature.scales), dtype=torch.uint8, device=winner.device)
    for place, level in enumerate(signature.plan.levels):
        place_of[level.index] = place
    levels = level_maps(signature, False, torch.float64, winner.device)
    exact = [leaf.detach().double() for leaf in leaves[:2]]
    return pool_backward(sent.double(), *exact, place_of[winner.int()], levels, (True, True, True))


def assert_agrees_with_float64(shape, weight_shape, call, dtype):
    """Output and gradients of a call by the kernels."""
    leaves = leaves_of(shape, weight_shape, dtype)
    output = by_kernels(leaves, call)
    assert_close(output.cpu(), si_conv2d(*(leaf.detach().double() for leaf in leaves), **call).cpu(), dtype)
    sent = random(*output.shape, seed=9, dtype=dtype)
    grads = torch.autograd.grad(output, leaves, sent)
    for got, true in zip(grads, expected_grads(leaves, call, sent), strict=True):
        assert got.dtype == dtype
        assert_close(got.cpu(), true.cpu(), dtype)
