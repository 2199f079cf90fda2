"""The fused kernels against float64: on a GPU as they are, elsewhere through Triton's interpreter."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.nn import functional as F

import reference
from kernel_calls import DEVICE, assert_agrees_with_float64, by_kernels, expected_grads, leaves_of, random, sign
from scaleconv import DEFAULT_SCALES, SIConv2d, si_conv2d
from scaleconv.ops import library
from scaleconv.ops.backends import backend
from scaleconv.ops.cache import BoundedCache
from scaleconv.ops.signature import make_signature
from tolerance import assert_close

pytest.importorskip("triton")
from scaleconv.ops import chunks
from scaleconv.ops.kernels import call as call_module
from scaleconv.ops.kernels.patch_tables import make_patch_tables

pytestmark = pytest.mark.usefixtures("whole_float32")
GOLDEN = Path(__file__).parents[1] / "golden" / "si_conv2d.npz"
CALLS = {
    "one channel": ((2, 1, 8, 7), (5, 1, 5, 4), {}),
    "padded": ((1, 8, 6, 5), (20, 8, 3, 3), {"padding": 1}),
    "strided groups": ((1, 6, 7, 6), (6, 3, 3, 5), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    "strided": ((1, 4, 9, 8), (5, 4, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((1, 3, 9, 8), (4, 3, 3, 2), {"dilation": (2, 1), "padding": 1}),
    "same, even kernel": ((1, 5, 6, 7), (4, 5, 4, 3), {"padding": "same"}),
    "depthwise": ((1, 3, 7, 6), (3, 1, 3, 3), {"padding": 1, "groups": 3}),
    "empty": ((0, 4, 9, 10), (4, 4, 3, 3), {}),
}


@pytest.mark.parametrize("case", range(6))
def test_golden_cases(case):
    golden = np.load(GOLDEN)
    names = [name for name in ("input", "weight", "bias") if f"{case}/{name}" in golden]
    leaves = [torch.from_numpy(golden[f"{case}/{name}"]).to(DEVICE, torch.float32) for name in names]
    output, winner = by_kernels(leaves, json.loads(str(golden[f"{case}/spec"])), return_winner=True)
    assert_close(output.cpu(), torch.from_numpy(golden[f"{case}/output"]), torch.float32)
    other = winner.cpu() != torch.from_numpy(golden[f"{case}/winner"])
    assert other.double().mean() < 1e-3  # where two levels are equal in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "weight_shape", "call"), CALLS.values(), ids=CALLS)
def test_output_and_gradients_agree_with_float64(shape, weight_shape, call, dtype):
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter knows no bfloat16; needs a GPU")
    assert_agrees_with_float64(shape, weight_shape, call, dtype)


@settings(max_examples=12, deadline=None)
@given(
    size=st.tuples(st.integers(5, 11), st.integers(5, 11)),
    channels=st.integers(1, 4),
    maps=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    scales=st.sampled_from([DEFAULT_SCALES, (1, 0.5, 2), (3, 1), (1.3, 0.7, 1)]),
    seed=st.integers(0, 99),
)
def test_random_calls_agree_with_the_loops(size, channels, maps, kernel, stride, padding, scales, seed):
    leaves = [random(1, channels, *size, seed=seed), random(maps, channels, *kernel, seed=seed + 1)]
    call = {"stride": stride, "padding": padding, "scales": scales}
    assume(min(n + 2 * padding - k for n, k in zip(size, kernel, strict=True)) >= 0)
    assume(len(sign(leaves, call).plan.levels) > 1)  # a single level is conv2d
    output, winner = (result.cpu() for result in by_kernels(leaves, call, return_winner=True))
    exact = [leaf.double().cpu().numpy() for leaf in leaves]
    pads = ((padding, padding), (padding, padding))
    aligned = reference.si_conv2d(*exact, np.zeros(maps), (stride, stride), pads, (1, 1), 1, scales)
    assert_close(output, torch.from_numpy(aligned.max(0)), torch.float32)
    clear = reference.gap(aligned) > 1e-4
    assert np.array_equal(winner.numpy()[clear], aligned.argmax(0)[clear])


RULES = {
    "whole": lambda *_: "whole",
    "strided": lambda _, level: "strided" if level.regular else "whole",
    "apart": lambda _, level: "whole" if level.scale == 1 else "apart",
    "small ones whole": lambda _, level: "whole" if level.scale < 1.1 else None,
    "some apart": lambda _, level: dict(zip(DEFAULT_SCALES, ("apart", None, "whole", "apart"), strict=False)).get(
        level.scale
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", ["padded", "strided", "dilated", "same, even kernel"])
def test_the_order_in_which_a_level_is_taken_changes_nothing(name, rule, monkeypatch):
    monkeypatch.setattr(call_module, "library_form", rule)
    monkeypatch.setattr(call_module, "CALLS", BoundedCache(entries=8, nbytes=2**30))
    shape, weight_shape, call = CALLS[name]
    leaves = leaves_of(shape, weight_shape)
    output, winner = by_kernels(leaves, call, return_winner=True)
    expected, true_winner = si_conv2d(*(leaf.detach().double() for leaf in leaves), **call, return_winner=True)
    assert_close(output.cpu(), expected.cpu(), torch.float32)
    assert torch.equal(winner, true_winner)
    sent = random(*output.shape, seed=9)
    grads = torch.autograd.grad(output, leaves, sent)
    for got, true in zip(grads, expected_grads(leaves, call, sent), strict=True):
        assert_close(got.cpu(), true.cpu(), torch.float32)


@pytest.mark.parametrize("scales", [(2, 0.6, 1, 1.5), (1.5, 1, 0.6, 2), (1, 2)])
@pytest.mark.parametrize("rule", [lambda *_: None, RULES["whole"], RULES["apart"], RULES["small ones whole"]])
def test_a_tie_goes_to_the_scale_listed_first(scales, rule, monkeypatch):
    monkeypatch.setattr(call_module, "library_form", rule)
    monkeypatch.setattr(call_module, "CALLS", BoundedCache(entries=8, nbytes=2**30))
    leaves = [torch.zeros(1, 1, 8, 8, device=DEVICE), random(2, 1, 3, 3)]  # all levels that cover give zero
    _, winner = by_kernels(leaves, {"scales": scales}, return_winner=True)
    with backend("torch"):
        _, expected = si_conv2d(*leaves, scales=scales, return_winner=True)
    assert torch.equal(winner, expected)


def test_a_library_takes_the_levels_of_wide_layers_in_the_form_that_moves_least():
    wide = make_signature((64, 56, 56), (64, 64, 3, 3), 1, 1, 1, 1, (0.63, 1, 2, 2.5, 4))
    forms = {level.scale: call_module.library_form(wide, level) for level in wide.plan.levels}
    assert forms == {1: "whole", 0.63: "whole", 2: "strided", 2.5: "apart", 4: "apart"}
    points = make_signature((64, 56, 56), (64, 64, 1, 1), 1, 0, 1, 1, (0.63, 1, 1.5))
    forms = {level.scale: call_module.library_form(points, level) for level in points.plan.levels}
    assert forms == {1: "whole", 0.63: "whole", 1.5: "apart"}
    image = make_signature((1, 28, 28), (36, 1, 7, 7), 1, 0, 1, 1, DEFAULT_SCALES)
    assert not any(call_module.library_form(image, level) for level in image.plan.levels)


@pytest.mark.parametrize(
    ("shape", "weight_shape", "call"),
    [((4, 1, 6, 5), (2, 1, 3, 4), {}), ((3, 4, 5, 4), (6, 2, 3, 3), {"padding": 1, "stride": 2, "groups": 2})],
)
def test_images_side_by_side_give_the_same_as_one_after_the_other(shape, weight_shape, call, monkeypatch):
    results = []
    for least in (1, 1000):
        monkeypatch.setattr(chunks, "SIDE_BY_SIDE", least)
        leaves = leaves_of(shape, weight_shape)
        output, winner = by_kernels(leaves, call, return_winner=True)
        grads = torch.autograd.grad(output, leaves[1:], random(*output.shape, seed=9))
        results.append([output, winner, *grads])
    assert torch.equal(results[0][1], results[1][1])
    for beside, after in zip(*results, strict=True):
        assert_close(beside.float().cpu(), after.float().cpu(), torch.float32)


def test_images_in_chunks_give_the_same_bits_as_all_at_once(monkeypatch):
    leaves = leaves_of((5, 3, 5, 4), (4, 3, 3, 3))
    whole = by_kernels(leaves, {})
    sent = random(*whole.shape, seed=9)
    grads = torch.autograd.grad(whole, leaves, sent)
    monkeypatch.setattr(chunks, "WORKSPACE", 4)
    monkeypatch.setattr(chunks, "LITTLE", 0)
    taken = []
    some = chunks.chunk_images
    monkeypatch.setattr(chunks, "chunk_images", lambda *a: (taken.append(1) or chunk for chunk in some(*a)))
    pieces = by_kernels(leaves, {})
    assert len(taken) > 1
    assert torch.equal(whole, pieces)
    for a, b in zip(grads, torch.autograd.grad(pieces, leaves, sent), strict=True):
        assert_close(a.cpu(), b.cpu())


@pytest.mark.parametrize(
    ("images", "size", "pieces"),
    [(128, 11, [64, 64]), (200, 11, [67, 67, 66]), (60, 11, [30, 30]), (64, 22, [8] * 8)],
)
def test_pyramids_are_made_for_enough_images_to_lie_side_by_side_if_that_is_little(images, size, pieces, monkeypatch):
    monkeypatch.setattr(chunks, "LITTLE", 2**24)
    monkeypatch.setattr(chunks, "ENOUGH", 2**26)
    signature = make_signature((36, size, size), (1, 36, 5, 5), 1, 0, 1, 1, [2 ** (k / 11) for k in range(12)])
    tables = make_patch_tables(signature, signature.plan.levels, False, torch.device("cpu"))
    taken = chunks.chunk_pyramids(torch.empty(images, 36, size, size), signature, tables, 1)
    assert [some.stop - some.start for some, _, _ in taken] == pieces


def test_repeated_calls_give_the_same_bits():
    runs = []
    for _ in range(2):
        leaves = leaves_of((1, 4, 5, 4), (5, 4, 3, 3))
        output = by_kernels(leaves, {"padding": 1})
        runs.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_layout_of_the_input_is_that_of_the_output(memory_format):
    images, weight = random(2, 4, 9, 8).to(memory_format=memory_format), random(6, 4, 3, 3, seed=1)
    output = by_kernels([images, weight], {})
    assert output.is_contiguous(memory_format=memory_format)
    every_second = random(4, 4, 9, 16)[::2, :, :, ::2]
    assert torch.equal(by_kernels([every_second, weight], {}), by_kernels([every_second.contiguous(), weight], {}))


def test_very_large_values_stay_right():
    images, weight = random(1, 2, 9, 8) * 1e18, random(3, 2, 3, 3, seed=1) * 1e15
    expected = si_conv2d(images.double(), weight.double())
    assert_close(by_kernels([images, weight], {}).cpu() / 1e33, expected.cpu() / 1e33, torch.float32)


@pytest.mark.parametrize("local", [False, True])
def test_a_nan_reaches_the_outputs_that_see_it_and_no_other(local, request):
    if local:
        request.getfixturevalue("local_filters")
    images, weight = random(2, 1, 9, 8), random(2, 1, 3, 3, seed=1)
    clean = by_kernels([images, weight], {})
    images[0, 0, 3, 4] = torch.nan
    output, winner = by_kernels([images, weight], {}, return_winner=True)
    lost = output.isnan()
    assert lost[F.conv2d(images, weight).isnan()].all()  # at least where conv2d has it
    assert not lost[1].any()
    assert not lost[0, :, -1, 0].any()
    assert torch.equal(output[~lost], clean[~lost])
    assert winner.max() < len(DEFAULT_SCALES)


@pytest.mark.parametrize("workspace", [chunks.WORKSPACE, 4])
def test_slices_of_a_batch_with_filters_of_their_own_are_one_call(workspace, monkeypatch):
    monkeypatch.setattr(chunks, "WORKSPACE", workspace)
    if workspace == 4:  # a slice or two at a time
        monkeypatch.setattr(chunks, "LITTLE", 0)
    images, weights, biases = random(3, 1, 2, 5, 4), random(3, 5, 2, 3, 3, seed=1), random(3, 5, seed=2)
    leaves = [tensor.requires_grad_() for tensor in (images, weights, biases)]
    with backend("triton"):
        together = torch.vmap(lambda *slices: si_conv2d(*slices, padding=1))(*leaves)
    apart = torch.stack([si_conv2d(*slices, padding=1) for slices in zip(*leaves, strict=True)])
    assert_close(together.cpu(), apart.cpu())
    sent = random(*apart.shape, seed=9)
    grads = [torch.autograd.grad(result, leaves, sent) for result in (together, apart)]
    for got, true in zip(*grads, strict=True):
        assert_close(got.cpu(), true.cpu())
    with backend("triton"):
        shared = torch.vmap(lambda some: si_conv2d(some, weights[0]))(images)
    assert_close(shared.cpu(), si_conv2d(images.flatten(0, 1), weights[0]).unflatten(0, (3, 1)).cpu())


def test_the_operator_keeps_the_promises_of_the_library():
    leaves = leaves_of((1, 3, 6, 5), (4, 3, 3, 3))
    settings_ = ([1, 1], [1, 1, 1, 1], [1, 1], 1, 1, [0.7, 1.0, 1.5], False)
    torch.library.opcheck(library.si_conv2d, (*leaves, *settings_))
    torch.library.opcheck(library.si_conv2d, (*leaves, *settings_[:5], [1.0], False))


def test_a_compiled_layer_calls_the_operator_and_takes_any_batch_size():
    layer = SIConv2d(3, 4, 3, padding=1).to(DEVICE)
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, backend=keep, fullgraph=True, dynamic=True)
    with backend("triton"):
        for images in (2, 3, 5):
            batch = random(images, 3, 6, 7, seed=images)
            assert torch.equal(compiled(batch), layer(batch))
    assert len(graphs) == 1
    assert any(node.target is torch.ops.scaleconv.si_conv2d.default for node in graphs[0].graph.nodes)


def test_derivatives_of_derivatives_and_tangents_are_those_of_the_plain_path():
    leaves = leaves_of((1, 2, 8, 7), (3, 2, 3, 3))[:2]
    seconds, tangents = [], []
    for name in ("triton", "torch"):
        with backend(name):
            (first,) = torch.autograd.grad(si_conv2d(*leaves).square().sum(), leaves[:1], create_graph=True)
            seconds.append(torch.autograd.grad(first.square().sum(), leaves[1])[0])
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(leaves[0].detach(), torch.ones_like(leaves[0]))
                tangents.append(forward_ad.unpack_dual(si_conv2d(dual, leaves[1].detach())).tangent)
    assert_close(*(second.cpu() for second in seconds))
    assert torch.equal(*tangents)


def test_autocast_takes_the_kernels_in_its_type():
    layer = SIConv2d(3, 4, 3).to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16), backend("triton"):
        output = layer(random(1, 3, 7, 6))
    assert output.dtype == torch.bfloat16
    assert "si_conv2d" in output.grad_fn.name()


def test_the_choice_of_the_code_is_checked():
    images, weight = random(1, 2, 9, 8), random(3, 2, 3, 3)
    with pytest.raises(ValueError, match="`name` must be one of auto, torch, triton, got 'cuda'"), backend("cuda"):
        pass
    with pytest.raises(ValueError, match=r"`backend` 'triton' needs a type among .*, got torch.float64"):
        by_kernels([images.double(), weight.double()], {})
    with backend("torch"):
        assert "si_conv2d" not in si_conv2d(images, weight.requires_grad_()).grad_fn.name()
