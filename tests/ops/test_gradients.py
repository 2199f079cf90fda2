"""Backward: the gradient of the winner, once and twice, against finite differences and against the loops."""

from collections import Counter
from itertools import product

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.profiler import ProfilerActivity, profile

from helpers import reference
from helpers.loops import random, tensors_of
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
    for seed in range(2000):
        images, weight, bias = tensors_of((1, 2, 6, 7), (2, 2 // groups, 3, 2), seed=3 * seed)
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
    raise AssertionError("no such tensors among 2000 seeds")


@pytest.mark.parametrize("call", CASES.values(), ids=CASES)
def test_gradients_match_finite_differences_once_and_twice(call):
    tensors = apart(**call)

    def layer(*tensors):
        return si_conv2d(*tensors, **call, scales=SCALES)

    assert torch.autograd.gradcheck(layer, tensors)
    assert torch.autograd.gradcheck(layer, tensors, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, tensors, check_fwd_over_rev=True, fast_mode=True)


def test_gradients_of_many_channels_match_finite_differences_once_and_twice():
    tensors = [tensor.requires_grad_() for tensor in tensors_of((2, 16, 5, 4), (2, 16, 3, 2), seed=7)]

    def layer(*tensors):
        return si_conv2d(*tensors, scales=SCALES)

    assert torch.autograd.gradcheck(layer, tensors, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, tensors, check_fwd_over_rev=True, fast_mode=True)


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


def test_an_infinite_gradient_goes_to_the_winner_only():
    """Times the 0 of a level that lost, it would be NaN."""
    images, weight, bias = apart()
    output, winner = si_conv2d(images, weight, bias, scales=SCALES, return_winner=True)
    gradient = torch.zeros_like(output)
    gradient[tuple((winner == 1).nonzero()[0])] = torch.inf
    (actual,) = torch.autograd.grad(output, weight, gradient)
    assert actual.isinf().sum() == weight[0].numel()
    assert not actual.isnan().any()


@pytest.mark.parametrize("wanted", [list(w) for w in product([True, False], repeat=3) if any(w)], ids=str)
def test_only_the_gradients_asked_for_are_computed(wanted):
    every = apart()
    tensors = [tensor.detach().clone().requires_grad_(want) for tensor, want in zip(every, wanted, strict=True)]
    output = si_conv2d(*tensors, scales=SCALES)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        output.square().sum().backward()
    computed = Counter(event.name for event in profiled.events())
    # a canvas with two levels beside scale 1, whose gradients one call gives
    assert computed["aten::convolution_backward"] == (2 if wanted[1] else int(wanted[0]))
    assert computed["aten::conv_transpose2d"] == wanted[0]
    si_conv2d(*every, scales=SCALES).square().sum().backward()
    for tensor, full, want in zip(tensors, every, wanted, strict=True):
        if want:
            assert torch.equal(tensor.grad, full.grad)
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("channels", [2, 16])
def test_gradients_of_each_image_by_vmap_are_those_of_each_image_alone(channels):
    images, weight, bias = tensors_of((3, channels, 6, 7), (2, channels, 3, 2), seed=5)

    def loss(weight, image):
        return si_conv2d(image, weight, bias, scales=SCALES).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(weight, images)
    alone = torch.stack([grad(loss)(weight, image) for image in images])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_hessian_for_the_weight_is_that_of_the_winning_responses():
    images, weight, bias = (tensor.detach() for tensor in apart())

    def layer(weight):
        return si_conv2d(images, weight, bias, scales=SCALES)

    responses = jacrev(layer)(weight).flatten(0, 3).flatten(1)  # (outputs, weights): linear given the winners
    second = hessian(lambda weight: layer(weight).square().sum())(weight)
    assert torch.allclose(second.reshape(24, 24), 2 * responses.T @ responses, atol=1e-10)


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


WEIGHT = random(3, 2, 3, 3, seed=4)


def layer(images):
    return si_conv2d(images, WEIGHT, padding=1, scales=SCALES)


def columns(images):
    """The Jacobian, one output after the other, in reverse mode."""
    images = images.detach().requires_grad_()
    output = layer(images)
    rows = [torch.autograd.grad(each, images, retain_graph=True)[0] for each in output.flatten()]
    return torch.stack(rows).view(*output.shape, *images.shape)


def test_forward_mode_of_a_batch_is_that_of_its_images():
    images, moved = random(3, 2, 5, 4), random(3, 2, 5, 4, seed=2)
    expected = torch.stack([jvp(layer, (one,), (by,))[1] for one, by in zip(images, moved, strict=True)])
    torch.testing.assert_close(jvp(vmap(layer), (images,), (moved,))[1], expected)
    torch.testing.assert_close(vmap(lambda one, by: jvp(layer, (one,), (by,))[1])(images, moved), expected)


def test_jacobians_of_all_kinds_are_the_gradients_of_the_outputs():
    images = random(1, 2, 4, 3)
    expected = columns(images)
    found = {
        "jacfwd": jacfwd(layer)(images),
        "jacrev": jacrev(layer)(images),
        "jacfwd of vmap": jacfwd(vmap(layer))(images),
        "jacrev of vmap": jacrev(vmap(layer))(images),
        "vectorised": torch.autograd.functional.jacobian(layer, images, vectorize=True),
        "forward, vectorised": torch.autograd.functional.jacobian(
            layer, images, vectorize=True, strategy="forward-mode"
        ),
    }
    for name, each in found.items():
        torch.testing.assert_close(each, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False)])
def test_a_batch_of_gradients_is_one_after_the_other(wanted):
    given = [random(2, 2, 5, 4), WEIGHT.clone(), random(3, seed=8)]
    leaves = [each.requires_grad_(want) for each, want in zip(given, wanted, strict=True)]
    asked = [each for each, want in zip(leaves, wanted, strict=True) if want]
    output = si_conv2d(*leaves, padding=1, scales=SCALES)
    sent = random(3, *output.shape, seed=9)
    batched = torch.autograd.grad(output, asked, sent, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(output, asked, each, retain_graph=True) for each in sent]
    for found, expected in zip(batched, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))
