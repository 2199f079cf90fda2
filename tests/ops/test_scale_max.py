"""Plans executed on a CPU, in every form and layout of canvases: one result, that of the loops, and its gradients."""

from collections import Counter
from itertools import product

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from helpers import reference
from helpers.loops import aligned_by_loops, calls, random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import DEFAULT_SCALES
from scaleconv.ops.call import make_call
from scaleconv.ops.geometry import competing_order
from scaleconv.ops.levels import traceable_conv
from scaleconv.ops.plan import Budget, make_plan
from scaleconv.ops.scale_max import CPU_CHUNK, scale_max_backward, scale_max_forward

FORMS = (None, "dense", "strided", "im2col")
BUDGETS = {"default": None, "shared": Budget(10**9, 10**9), "bands": Budget(0, 60)}


def traceable_grads(tensors, call, sent):
    """Gradients by autograd through the plain operations, which share no code with the plans."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors[:2]]
    output, _ = traceable_conv(*leaves, None, call)
    return torch.autograd.grad(output, leaves, sent)


def test_every_form_and_layout_agrees_with_the_loops_forward_and_with_autograd_backward():
    seen = Counter()

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(), st.integers(0, 2**31))
    def agree(call, seed):
        tensors = tensors_of(*call[:2], seed=seed)
        aligned = aligned_by_loops(*tensors, *call[2:])
        expected = torch.from_numpy(aligned.max(0))
        clear = torch.from_numpy(reference.gap(aligned) > 1e-9)
        order = torch.tensor(competing_order(call[6].index(1), len(call[6])))
        sent = random(*expected.shape, seed=seed + 3) * clear  # two levels that are equal share no gradient
        true_grads = traceable_grads(tensors, make_call(*call), sent)
        for form, budget in product(FORMS, BUDGETS.values()):
            plan = make_plan(make_call(*call), call[0][0], False, form, budget)
            output, winner = scale_max_forward(*tensors, plan)
            assert_close(output, expected)
            assert np.array_equal(order[winner.long()][clear].numpy(), aligned.argmax(0)[clear.numpy()])
            grads = scale_max_backward(sent, *tensors[:2], winner, plan, (True, True))
            for actual, true in zip(grads, true_grads, strict=True):
                assert_close(actual, true)
            seen.update({canvas.form for canvas in plan.canvases})
            seen["several strips of a level"] += any(
                count > 1 for count in Counter(s.code for c in plan.canvases for s in c.strips).values()
            )
            seen["gathered"] += any(canvas.taps is not None for canvas in plan.canvases)
            seen["everything on a canvas"] += plan.identity is None

    agree()
    assert min(seen[form] for form in FORMS[1:]) >= 20, seen
    assert min(seen["several strips of a level"], seen["gathered"], seen["everything on a canvas"]) >= 20, seen


@pytest.mark.parametrize(("channels", "form"), [(2, "dense"), (16, "dense"), (16, "im2col"), (12, "strided")])
def test_images_taken_in_chunks_give_what_each_gives_alone(channels, form):
    shape, weight_shape = (23, channels, 40, 36), (12, channels, 3, 3)
    images, weight, bias = tensors_of(shape, weight_shape)
    call = make_call(shape, weight_shape, padding=1, scales=(1, 0.6, 2))
    plan = make_plan(call, len(images), False, form)
    bytes_of_an_image = [8 * canvas.elements(call) for canvas in plan.canvases]
    assert (
        len(images) * max(bytes_of_an_image) > 2 * CPU_CHUNK > 4 * max(bytes_of_an_image)
    )  # chunks, of several images
    output, winner = scale_max_forward(images, weight, bias, plan)
    sent = random(*output.shape, seed=3)
    to_images, to_weight = scale_max_backward(sent, images, weight, winner, plan, (True, True))
    total = torch.zeros_like(weight)
    for one in range(len(images)):
        some = slice(one, one + 1)
        alone = scale_max_forward(images[some], weight, bias, plan)
        assert_close(output[some], alone[0])
        assert torch.equal(winner[some], alone[1])
        grads = scale_max_backward(sent[some], images[some], weight, alone[1], plan, (True, True))
        assert_close(to_images[some], grads[0])
        total += grads[1]
    assert_close(to_weight, total)


@pytest.mark.parametrize(("form", "budget"), list(product(FORMS, BUDGETS.values())))
def test_a_gradient_not_needed_is_none_and_the_other_unchanged(form, budget):
    images, weight, _ = tensors_of((2, 3, 7, 6), (4, 3, 3, 2))
    plan = make_plan(make_call(images.shape, weight.shape, scales=(2, 1, 0.7)), 2, False, form, budget)
    output, winner = scale_max_forward(images, weight, None, plan)
    sent = random(*output.shape, seed=3)
    both = scale_max_backward(sent, images, weight, winner, plan, (True, True))
    first, none = scale_max_backward(sent, images, weight, winner, plan, (True, False))
    assert torch.equal(first, both[0])
    assert none is None
    none, second = scale_max_backward(sent, images, weight, winner, plan, (False, True))
    assert torch.equal(second, both[1])
    assert none is None


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scales", [(2, 0.6, 1, 1.5), (1.5, 1, 0.6, 2), (1, 2, 1.5, 0.6)])
def test_a_tie_goes_to_the_scale_listed_first_among_those_that_cover(scales, form, budget):
    """Every level of a blank image answers with 0, so the scale listed first among those that cover wins."""
    images, weight = torch.zeros(1, 2, 8, 9), random(3, 2, 3, 3, dtype=torch.float32)
    call = make_call(images.shape, weight.shape, scales=scales)
    plan = make_plan(call, 1, False, form, budget)
    _, winner = scale_max_forward(images, weight, None, plan)
    aligned = aligned_by_loops(
        images.double(), weight.double(), torch.zeros(3).double(), (1, 1), (0, 0), (1, 1), 1, scales
    )
    expected = np.isfinite(aligned).argmax(0)  # the first that covers
    assert len(np.unique(expected)) > 1 or scales[0] >= 1
    assert np.array_equal(torch.tensor(competing_order(scales.index(1), len(scales)))[winner.long()].numpy(), expected)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_has_an_empty_output_and_a_zero_gradient_of_the_weight(form):
    images, weight, bias = tensors_of((0, 16, 9, 8), (4, 16, 3, 3))
    plan = make_plan(make_call(images.shape, weight.shape, scales=DEFAULT_SCALES), 0, False, form)
    output, winner = scale_max_forward(images, weight, bias, plan)
    assert output.shape == winner.shape == (0, 4, 7, 6)
    to_images, to_weight = scale_max_backward(output, images, weight, winner, plan, (True, True))
    assert to_images.shape == images.shape
    assert torch.equal(to_weight, torch.zeros_like(weight))
