"""Derivatives of batches and batches of derivatives, wherever `conv2d` has them: against one call after the other."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from helpers.loops import random
from scaleconv import rotation, scaling, si_conv2d, ti_conv2d

WEIGHT, SCALES = random(3, 2, 3, 3, seed=4), (0.7, 1, 1.5)


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


def test_a_hessian_is_that_of_reverse_mode_twice():
    images = random(1, 2, 4, 3)

    def cubed(images):
        return layer(images).pow(3).sum()

    torch.testing.assert_close(hessian(cubed)(images), torch.autograd.functional.hessian(cubed, images))


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


@pytest.mark.parametrize("dynamic", [True, None])
def test_transforms_from_a_closure_are_compiled(dynamic):
    torch._dynamo.reset()
    transforms, images = [scaling(0.7), rotation(0), rotation(30)], random(2, 2, 6, 5)

    def call(images):
        return ti_conv2d(images, WEIGHT, transforms=transforms)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(images), call(images))
