"""Resampling by bags: the same numbers as by matrices, and only where nothing but numbers is wanted."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx

from loops import assert_loops_agree, calls, random
from scaleconv import SIConv2d, si_conv2d
from scaleconv.ops import bags as bags_module
from scaleconv.ops import levels, pool
from scaleconv.ops.bags import make_bags, resample_by_bags
from tolerance import assert_close


@pytest.fixture
def taken(monkeypatch):
    """Bags that were made use of."""
    uses = []
    resample = pool.resample_by_bags
    monkeypatch.setattr(pool, "resample_by_bags", lambda *a: (uses.append(a[1]), resample(*a))[1])
    return uses


@pytest.fixture(params=["few channels", "many channels"])
def by_bags(request, taken, monkeypatch):
    """Take bags whatever the type and the sizes, of few images at a time."""
    monkeypatch.setattr(levels, "BAG_TYPES", (torch.float64,))
    monkeypatch.setattr(levels, "LEAST_PIXELS", (0, 0))
    monkeypatch.setattr(bags_module, "ENTRIES", 100)
    for module in (levels, bags_module):
        monkeypatch.setattr(module, "SIDE_BY_SIDE", 1 if request.param == "many channels" else 1000)
    levels.LEVEL_MAPS.clear()
    yield taken
    levels.LEVEL_MAPS.clear()


def matrices(*shapes):
    """Matrices with zeros, and one row that reads nothing."""
    made = [random(*shape, seed=index) for index, shape in enumerate(shapes)]
    for matrix in made:
        matrix[matrix.abs() < 0.5] = 0
        matrix[1] = 0
    return made


@pytest.mark.parametrize("channels", [1, 3, 15, 16, 20])
@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize("entries", [1, 1500, 10**6])
def test_bags_are_the_products_with_both_matrices_there_and_back(channels, images, entries, monkeypatch):
    monkeypatch.setattr(bags_module, "ENTRIES", entries)
    rows, columns = matrices((7, 5), (6, 4))
    there, back = make_bags(rows, columns, (), torch.float64)
    source = random(images, channels, 5, 4).to(memory_format=torch.channels_last)
    result = resample_by_bags(source, there, channels)
    assert_close(result, torch.einsum("nchw,ph,qw->ncpq", source, rows, columns))
    assert_close(resample_by_bags(result, back, channels), torch.einsum("ncpq,ph,qw->nchw", result, rows, columns))


@pytest.mark.parametrize("images", [1, 3])
def test_taps_become_channels(images):
    rows, columns = matrices((7 * 3, 5), (6 * 2, 4))
    there, back = make_bags(rows, columns, (3, 2), torch.float64)
    source = random(images, 16, 5, 4)
    patches = resample_by_bags(source, there, 16)
    taps = (rows.view(7, 3, 5), columns.view(6, 2, 4))
    assert_close(patches, torch.einsum("nchw,pkh,qlw->nlkcpq", source, *taps).reshape(images, -1, 7, 6))
    sent = random(*patches.shape, seed=9)
    spread = resample_by_bags(sent, back, 16)
    assert_close((spread * source).sum(), (patches * sent).sum())


def test_the_layer_agrees_with_the_loops(by_bags):
    @settings(max_examples=60, deadline=None, database=None)
    @given(calls(), st.integers(0, 2**31))
    def agree(call, seed):
        assert_loops_agree(*call, seed=seed)

    agree()
    assert len(by_bags) > 20


@pytest.mark.parametrize(
    ("shape", "weight_shape", "call"),
    [
        ((3, 2, 9, 8), (4, 2, 3, 2), {"padding": 1, "scales": (0.6, 1, 1.3, 1.9, 2, 3.3)}),
        ((2, 4, 7, 9), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": (0, 2), "scales": (1, 0.8, 1.6)}),
        ((2, 3, 9, 9), (2, 3, 4, 2), {"padding": "same", "scales": (1, 0.7, 2.5)}),
    ],
)
def test_gradients_are_those_by_matrices(shape, weight_shape, call, by_bags):
    leaves = [random(*shape, seed=index).requires_grad_() for index, shape in enumerate((shape, weight_shape))]
    output = si_conv2d(*leaves, **call)
    assert by_bags
    sent = random(*output.shape, seed=5)
    grads = torch.autograd.grad(output, leaves, sent, retain_graph=True)
    used = len(by_bags)
    again = torch.autograd.grad(output, leaves, sent, create_graph=True)
    assert len(by_bags) == used  # to be differentiated once more, it takes matrices
    for actual, expected in zip(grads, again, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_types_of_networks_take_bags(dtype, layout, taken):
    input, weight, bias = random(2, 16, 12, 11), random(8, 16, 3, 3, seed=1), random(8, seed=2)
    rounded = [tensor.to(dtype) for tensor in (input, weight, bias)]
    output = si_conv2d(rounded[0].to(memory_format=layout), *rounded[1:], padding=1)
    assert taken
    assert output.is_contiguous(memory_format=layout)
    assert_close(output, si_conv2d(*(tensor.double() for tensor in rounded), padding=1), dtype)


def test_small_images_and_float64_take_matrices(taken):
    si_conv2d(torch.rand(2, 15, 47, 49), torch.rand(2, 15, 3, 3))
    si_conv2d(torch.rand(2, 16, 9, 11), torch.rand(2, 16, 3, 3))
    si_conv2d(torch.rand(2, 16, 20, 20, dtype=torch.float64), torch.rand(2, 16, 3, 3, dtype=torch.float64))
    assert not taken
    si_conv2d(torch.rand(2, 1, 48, 48), torch.rand(2, 1, 3, 3))
    used = len(taken)
    assert used
    si_conv2d(torch.rand(2, 16, 10, 10), torch.rand(2, 16, 3, 3))
    assert len(taken) > used


def test_an_empty_batch_gives_an_empty_output():
    weight = torch.rand(2, 16, 3, 3, requires_grad=True)
    output = si_conv2d(torch.rand(0, 16, 10, 10), weight)
    output.sum().backward()
    assert output.shape == (0, 2, 8, 8)
    assert not weight.grad.any()


def test_a_nan_reaches_the_outputs_that_see_it_and_no_other():
    images = torch.rand(1, 16, 30, 30)
    images[0, 3, 15, 15] = torch.nan
    output = si_conv2d(images, torch.rand(2, 16, 3, 3), padding=1, scales=(1, 0.63, 1.26, 1.59))
    hit = output.isnan()
    assert hit[..., 14:17, 14:17].all()
    assert not hit[..., :12, :].any()
    assert not hit[..., :, 19:].any()


def test_transforms_give_the_same(taken):
    images, weight = random(3, 16, 10, 10).float(), random(4, 16, 3, 3, seed=1).float()
    expected = si_conv2d(images, weight)
    used = len(taken)
    assert used
    assert_close(torch.vmap(lambda image: si_conv2d(image, weight))(images), expected)
    with torch.no_grad():
        assert_close(torch.vmap(lambda image: si_conv2d(image, weight))(images), expected)
    assert len(taken) == used  # what is batched takes matrices
    value, tangent = torch.func.jvp(lambda images: si_conv2d(images, weight), (images,), (images,))
    assert_close(value, expected)
    assert_close(tangent, expected)  # the layer is linear along a ray

    def energy(weight):
        return si_conv2d(images, weight).square().sum() / 2

    grad = torch.func.grad(energy)(weight)
    leaf = weight.clone().requires_grad_()
    energy(leaf).backward()
    assert_close(grad, leaf.grad)
    curvature = torch.func.grad(lambda weight: (torch.func.grad(energy)(weight) * weight).sum())(weight)
    assert_close(curvature, 2 * grad)  # the energy is quadratic along a ray


def test_traced_layers_take_matrices(taken):
    layer, images = SIConv2d(16, 4, 3), random(2, 16, 10, 10).float()
    expected = layer(images)
    used = len(taken)
    assert used
    assert_close(torch.export.export(layer, (images,)).module()(images), expected)
    assert_close(torch.compile(layer, backend="eager", fullgraph=True)(images), expected)
    assert_close(make_fx(layer)(images)(images), expected)
    assert len(taken) == used
