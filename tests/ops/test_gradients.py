"""Backward: the gradient of the winner, once and twice, against finite differences and against the loops."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.func import grad, vmap

import reference
from scaleconv import si_conv2d

SCALES = (0.6, 1.0, 1.7)
CASES = {
    "plain": {},
    "strided": {"stride": (2, 1), "padding": (1, 2)},
    "dilated": {"dilation": (1, 2), "padding": 1},
    "grouped": {"groups": 2},
    "uneven padding": {"padding": "same"},
}


def apart(groups=1, least=1e-4, **call):
    """Tensors for which the two best levels differ by `least` everywhere, so that no perturbation swaps the winner."""
    pads = call.get("padding", 0)
    pads = (pads, pads) if isinstance(pads, int) else pads
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(1, 2, 6, 7, generator=generator, dtype=torch.float64)
        weight = torch.randn(2, 2 // groups, 3, 2, generator=generator, dtype=torch.float64)
        bias = torch.randn(2, generator=generator, dtype=torch.float64)
        aligned = reference.si_conv2d(
            images.numpy(),
            weight.numpy(),
            bias.numpy(),
            call.get("stride", (1, 1)),
            [(1, 1), (0, 1)] if pads == "same" else [(p, p) for p in pads],
            call.get("dilation", (1, 1)),
            groups,
            SCALES,
        )
        if reference.gap(aligned).min() > least:
            return [tensor.requires_grad_() for tensor in (images, weight, bias)]
    raise AssertionError("no such tensors among 1000 seeds")


@pytest.mark.parametrize("call", CASES.values(), ids=CASES)
def test_gradients_match_finite_differences_once_and_twice(call):
    tensors = apart(**call)

    def layer(*tensors):
        return si_conv2d(*tensors, **call, scales=SCALES)

    assert torch.autograd.gradcheck(layer, tensors)
    assert torch.autograd.gradgradcheck(layer, tensors)


def test_gradient_goes_to_the_winner_only():
    """The gradient of one output for the weight is what the winning level, and no other, shows the kernel there."""
    images, weight, bias = apart()
    output, winner = si_conv2d(images, weight, bias, scales=SCALES, return_winner=True)
    assert set(winner.unique().tolist()) == {0, 1, 2}
    zeros = [torch.zeros(2, dtype=torch.float64).numpy(), (1, 1), [(0, 0), (0, 0)], (1, 1), 1, SCALES]
    shown = {}
    for tap in range(12):
        basis = torch.zeros(12, dtype=torch.float64)
        basis[tap] = 1
        shown[tap] = reference.si_conv2d(images.detach().numpy(), basis.view(1, 2, 3, 2).numpy(), *zeros)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in output.shape[1:])).tolist():
        (gradient,) = torch.autograd.grad(output[0][tuple(place)], weight, retain_graph=True)
        m, y, x = place
        level = winner[0, m, y, x].item()
        expected = [shown[tap][level, 0, 0, y, x] for tap in range(12)]
        assert torch.allclose(gradient[m].flatten(), torch.tensor(expected), atol=1e-12)
        assert gradient[1 - m].abs().max() == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=3, max_size=3).filter(any))
def test_only_the_gradients_asked_for_are_computed(wanted):
    tensors = [tensor.detach().clone().requires_grad_(want) for tensor, want in zip(apart(), wanted, strict=True)]
    si_conv2d(*tensors, scales=SCALES).square().sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == wanted
    every = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    si_conv2d(*every, scales=SCALES).square().sum().backward()
    for tensor, full in zip(tensors, every, strict=True):
        assert tensor.grad is None or torch.equal(tensor.grad, full.grad)


def test_winner_carries_no_gradient():
    output, winner = si_conv2d(*apart(), scales=SCALES, return_winner=True)
    assert output.requires_grad
    assert not winner.requires_grad


def test_per_sample_gradients_by_vmap():
    _, weight, bias = (tensor.detach() for tensor in apart())
    images = torch.randn(3, 2, 6, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(weight, image):
        return si_conv2d(image, weight, bias, scales=SCALES).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(weight, images)
    alone = torch.stack([grad(loss)(weight, image) for image in images])
    assert torch.allclose(together, alone, atol=1e-12)


def test_memory_kept_for_backward_is_the_input_the_weight_and_one_byte_per_output():
    images, weight = torch.rand(2, 3, 12, 12, requires_grad=True), torch.rand(4, 3, 3, 3, requires_grad=True)
    kept = []

    def pack(tensor):
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = si_conv2d(images, weight)
    assert sorted(kept, key=str) == sorted(
        [(images.shape, torch.float32), (weight.shape, torch.float32), (output.shape, torch.uint8)], key=str
    )
