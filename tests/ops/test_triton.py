"""Plans executed by the Triton kernels against float64: on a GPU, elsewhere through Triton's interpreter."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from helpers.loops import calls, random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import rotation, scaling, shear
from scaleconv.ops.call import make_call
from scaleconv.ops.plan import Budget, make_plan
from scaleconv.ops.scale_max import scale_max_backward, scale_max_forward

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
EVERYTHING_SHARED, SPLIT = Budget(10**9, 10**9), Budget(0, 10**9)


@pytest.fixture(autouse=True)
def unchecked_integers(monkeypatch):
    """As compiled kernels have them: the interpreter looks for overflows, which takes two fifths of its time."""
    if not ON_GPU:
        from triton.runtime.interpreter import interpreter_builder

        unchecked = replace(interpreter_builder.options, sanitize_overflow=False)
        monkeypatch.setattr(interpreter_builder, "options", unchecked)


@pytest.fixture(autouse=True)
def whole_float32():
    """Products of float32 as such: TF32 has the accuracy of a 16-bit type."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def plans_of(input_shape, weight_shape, call, antialias=False, form=None, budget=None):
    """The plan of a GPU, and one of a CPU that takes every level as the paper does."""
    checked = make_call(input_shape, weight_shape, **call, antialias=antialias)
    of_gpu = make_plan(checked, input_shape[0], True, form, budget)
    return of_gpu, make_plan(checked, input_shape[0], False, "dense")


def assert_agrees_with_float64(tensors, of_gpu, of_cpu, dtype=torch.float32):
    """Output, winner and gradients; the gradients in float64 for the winners that the kernels found."""
    exact = [None if tensor is None else tensor.double() for tensor in tensors]
    output, winner = scale_max_forward(*(None if t is None else t.to(DEVICE) for t in tensors), of_gpu)
    expected, true_winner = scale_max_forward(*exact, of_cpu)
    assert output.dtype == dtype
    assert_close(output.cpu(), expected, dtype)
    if dtype == torch.float32:
        assert (winner.cpu() != true_winner).double().mean() < 0.02  # where two levels are equal in float32
    sent = random(*output.shape, seed=9, dtype=dtype)
    moved = [tensor.to(DEVICE) for tensor in tensors[:2]]
    grads = scale_max_backward(sent.to(DEVICE), *moved, winner, of_gpu, (True, True))
    true_grads = scale_max_backward(sent.double(), *exact[:2], winner.cpu(), of_cpu, (True, True))
    for got, true in zip(grads, true_grads, strict=True):
        assert got.dtype == dtype
        assert_close(got.cpu(), true, dtype)


SMALL = {"scales": (1, 0.7, 1.5)}
BOTH = {"dense", "strided"}
BOTH_SIDES = {"scales": (1, 2), "groups": 3, "stride": 2, "padding": 1}
# Shapes, arguments, form and budget; then what the plan is: its forms, whether planar, strips on the first canvas.
CASES = {
    "dense, shared": ((1, 16, 4, 3), (2, 16, 2, 2), SMALL, "dense", EVERYTHING_SHARED, {"dense"}, False, 3),
    "dense, each alone": ((1, 16, 4, 3), (2, 16, 2, 2), {"scales": (1, 0.7)}, "dense", SPLIT, {"dense"}, False, 1),
    "strided": ((1, 16, 4, 3), (3, 16, 2, 2), {"scales": (1, 2)}, "strided", SPLIT, {"strided"}, False, 1),
    "many channels": ((1, 16, 4, 3), (2, 16, 2, 2), {"scales": (1, 0.7, 2)}, None, SPLIT, BOTH, False, 1),
    "planar groups": ((2, 4, 4, 3), (4, 2, 2, 2), {"scales": (0.7, 1), "groups": 2}, None, SPLIT, {"im2col"}, True, 1),
    "planar, strided": (
        (3, 1, 5, 4), (2, 1, 3, 2), {"scales": (2, 1), "stride": (2, 1)}, None, SPLIT, {"im2col"}, True, 1
    ),
    "depthwise": ((1, 3, 4, 3), (3, 1, 2, 2), SMALL | {"groups": 3}, None, None, {"dense"}, False, 3),
    "depthwise, strided": ((1, 3, 5, 4), (3, 1, 2, 2), BOTH_SIDES, None, SPLIT, BOTH, False, 1),
    "bands": ((1, 16, 5, 4), (2, 16, 2, 2), {"scales": (1, 1.5)}, "dense", Budget(0, 150), {"dense"}, False, 1),
    "planar bands": ((2, 1, 5, 4), (2, 1, 2, 2), {"scales": (1, 1.5)}, None, Budget(0, 100), {"im2col"}, True, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_canvas_agrees_with_float64(name):
    shape, weight_shape, call, form, budget, forms, planar, strips = CASES[name]
    of_gpu, of_cpu = plans_of(shape, weight_shape, call, form=form, budget=budget)
    assert {canvas.form for canvas in of_gpu.canvases} == forms
    assert of_gpu.planar == planar
    assert len(of_gpu.canvases[0].strips) == strips
    assert len(of_gpu.canvases) > len(call["scales"]) or "bands" not in name
    assert_agrees_with_float64(tensors_of(shape, weight_shape, dtype=torch.float32), of_gpu, of_cpu)


TURNED = (shear(0.4), rotation(0), rotation(30), rotation(90), scaling(1.4, 0.8))
# Shapes, stride, padding, groups, reading.
MIXED = {
    "rotated": ((2, 16, 4, 3), (2, 16, 2, 2), 1, 1, 1, "bilinear", "zeros"),
    "few channels, strided": ((1, 2, 5, 4), (3, 2, 2, 3), (2, 1), 1, 1, "bilinear", "reflect"),
    "depthwise": ((1, 3, 4, 5), (3, 1, 2, 2), 1, 0, 3, "nearest", "zeros"),
    "one tap": ((1, 2, 5, 4), (2, 1, 1, 1), 2, 0, 2, "nearest", "reflect"),
}


@pytest.mark.parametrize("name", MIXED)
def test_maps_that_mix_the_axes_agree_with_float64(name):
    shape, weight_shape, stride, padding, groups, *reading = MIXED[name]
    levels = dict(zip(("transforms", "interpolation", "border"), (TURNED, *reading), strict=True))
    call = make_call(shape, weight_shape, stride, padding, groups=groups, **levels)
    plans = [make_plan(call, shape[0], gpu) for gpu in (True, False)]
    assert_agrees_with_float64(tensors_of(shape, weight_shape, dtype=torch.float32), *plans)


def test_an_image_of_any_size_that_is_one_long_row_fits_into_a_grid():
    from scaleconv.ops.triton.steps import _blocks

    for size, channels in (((1, 2**12), 64), ((1, 2**22), 256), ((1, 2**24), 1000)):
        (_, blocks), (_, block_x, block_c) = _blocks(size, 1, channels, torch.float32)
        assert blocks < 2**16
        assert blocks * block_x * block_c >= size[1] * channels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.skipif(not ON_GPU, reason="the interpreter takes long; needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_16_bit_types_agree_with_float64(name, dtype):
    shape, weight_shape, call, form, budget, *_ = CASES[name]
    tensors = tensors_of(shape, weight_shape, dtype=dtype)
    assert_agrees_with_float64(tensors, *plans_of(shape, weight_shape, call, form=form, budget=budget), dtype)


@settings(max_examples=500 if ON_GPU else 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    calls(),
    st.sampled_from([None, "dense", "strided", "im2col"]),
    st.sampled_from([None, EVERYTHING_SHARED, SPLIT, Budget(0, 200)]),
    st.sampled_from([1, 5, 16]),
    st.integers(0, 2**31),
)
def test_any_call_agrees_with_float64(call, form, budget, wider, seed):
    (images, channels, *size), (filters, per_group, *kernel), stride, padding, dilation, groups, scales, antialias = (
        call
    )
    assume(all(a == b or abs(a - b) > 1e-6 * b for a in scales for b in scales))  # or rounding decides who wins
    if not ON_GPU:
        images, wider = 1, 1
        size = [min(n, d * (k - 1) + 3) for n, d, k in zip(size, dilation, kernel, strict=True)]
    shape, weight_shape = (images, channels * wider, *size), (filters, per_group * wider, *kernel)
    arguments = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "scales": scales}
    tensors = tensors_of(shape, weight_shape, seed=seed, dtype=torch.float32)
    assert_agrees_with_float64(tensors, *plans_of(shape, weight_shape, arguments, antialias, form, budget))


@pytest.mark.parametrize(("form", "budget"), [("dense", EVERYTHING_SHARED), ("dense", SPLIT), ("im2col", SPLIT)])
@pytest.mark.parametrize("scales", [(0.6, 2, 1, 1.5), (1, 0.6, 2)])
def test_a_tie_goes_to_the_scale_listed_first(scales, form, budget):
    images, weight = torch.zeros(1, 1, 6, 5), random(1, 1, 3, 2, dtype=torch.float32)
    of_gpu, of_cpu = plans_of(images.shape, weight.shape, {"scales": scales}, form=form, budget=budget)
    winners = [
        scale_max_forward(images.to(to), weight.to(to), None, plan)[1].cpu()
        for to, plan in ((DEVICE, of_gpu), ("cpu", of_cpu))
    ]
    assert len(winners[1].unique()) == (2 if scales[0] < 1 else 1)
    assert torch.equal(*winners)


@pytest.mark.parametrize(("channels", "form"), [(1, "im2col"), (16, "dense")])
def test_a_nan_reaches_the_outputs_that_see_it_and_no_other(channels, form):
    images, weight, bias = tensors_of((1, channels, 6, 5), (1, channels, 2, 2), dtype=torch.float32)
    call = {"scales": (1, 0.7, 1.5)}
    of_gpu, of_cpu = plans_of(images.shape, weight.shape, call, form=form, budget=EVERYTHING_SHARED)
    images[0, 0, 1, 1] = torch.nan
    outputs = [
        scale_max_forward(*(tensor.to(to) for tensor in (images, weight, bias)), plan)[0].cpu()
        for to, plan in ((DEVICE, of_gpu), ("cpu", of_cpu))
    ]
    lost = outputs[1].isnan()
    assert 4 < lost.sum() < 0.7 * lost.numel()
    assert torch.equal(outputs[0].isnan(), lost)
    assert_close(outputs[0][~lost], outputs[1][~lost])


def test_an_empty_batch_has_a_zero_gradient_of_the_weight():
    images, weight, bias = (t.to(DEVICE) for t in tensors_of((0, 16, 9, 8), (4, 16, 3, 3), dtype=torch.float32))
    plan, _ = plans_of(images.shape, weight.shape, {})
    output, winner = scale_max_forward(images, weight, bias, plan)
    assert output.shape == winner.shape == (0, 4, 7, 6)
    _, to_weight = scale_max_backward(output, images, weight, winner, plan, (True, True))
    assert torch.equal(to_weight, torch.zeros_like(weight))
