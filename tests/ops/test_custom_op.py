"""The layer inside torch.compile, torch.export, make_fx and torch.func: one graph for all sizes, numbers of eager."""

from itertools import product

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from helpers.loops import random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import DEFAULT_SCALES, SIConv2d, si_conv2d
from scaleconv.ops import custom_op

SCALES = (0.6, 1.0, 1.7)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SIZES = [(2, 9, 8), (3, 9, 8), (3, 12, 8), (5, 12, 11), (7, 10, 13), (2, 16, 9)]
SIZES += [(4, 7, 7), (4, 20, 6), (6, 6, 20), (9, 8, 9), (2, 15, 15), (3, 11, 10)]
SIZES += [(8, 10, 10), (2, 33, 7), (3, 9, 40), (5, 14, 14), (6, 21, 12), (7, 13, 28), (2, 32, 32), (4, 17, 18)]


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch.compiler.reset()


def tensors(batch=2, height=9, width=8, channels=2):
    return [t.requires_grad_() for t in tensors_of((batch, channels, height, width), (3, channels, 3, 3), seed=batch)]


def step(layer, inputs, **call):
    output = layer(*inputs, **call)
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


def assert_compiled_agrees(compiled, inputs, **call):
    for actual, expected in zip(step(compiled, inputs, **call), step(si_conv2d, inputs, **call), strict=True):
        assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_a_call_with_scales_compiles_with_free_sizes():
    compiled = torch.compile(si_conv2d, fullgraph=True, dynamic=True, backend="eager")
    images, weight, bias = (tensor.detach() for tensor in tensors())
    assert torch.equal(compiled(images, weight, bias, scales=SCALES), si_conv2d(images, weight, bias, scales=SCALES))


def test_code_from_inductor_agrees_with_eager_forward_and_backward():
    assert_compiled_agrees(torch.compile(si_conv2d, fullgraph=True), tensors(channels=16), padding=1)


def test_compiled_code_follows_new_sizes():
    compiled = torch.compile(si_conv2d, fullgraph=True, backend="aot_eager")
    for batch, height in ((2, 9), (5, 9), (5, 11)):
        assert_compiled_agrees(compiled, tensors(batch, height), padding=1, scales=SCALES)


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "scales": [(1, 2), (1, 3), (1.0, 1.5), [0.7, 1], DEFAULT_SCALES],
        "stride": [[1, 2], [2, 1], [2, 3], 2],
        "padding": [0, (1, 0), [2, 1], "same"],
        "groups": [1, 2],
    }.items(),
)
def test_compiled_code_follows_new_values_of_every_argument(name, values):
    compiled = torch.compile(si_conv2d, fullgraph=True, backend="eager")
    for value in values:
        images, weight, _ = (tensor.detach() for tensor in tensors(channels=4))
        weight = weight[:2, : 4 // value] if name == "groups" else weight
        assert torch.equal(compiled(images, weight, **{name: value}), si_conv2d(images, weight, **{name: value}))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("channels", [4, 16])
def test_twenty_sizes_are_compiled_at_most_twice(channels, training):
    layer, counter = SIConv2d(channels, 3, 3, scales=SCALES), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for number, (batch, height, width) in enumerate(SIZES):
        images = random(batch, channels, height, width, seed=number, dtype=torch.float32)
        with torch.set_grad_enabled(training):
            actual, expected = compiled(images), layer(images)
        assert torch.equal(actual, expected)
        if training:
            grads = [torch.autograd.grad(f.square().sum(), [layer.weight, layer.bias]) for f in (actual, expected)]
            for got, true in zip(*grads, strict=True):
                assert_close(got, true)
    assert len(set(SIZES)) == 20
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("images", "weight"),
    [
        ("contiguous", "contiguous"),
        ("contiguous", "channels_last"),
        ("channels_last", "contiguous"),
        ("channels_last", "channels_last"),
    ],
)
def test_layouts_of_compiled_code_are_those_of_eager(images, weight, dynamic):
    layer = SIConv2d(4, 3, 3, padding=1, scales=SCALES).double().to(memory_format=LAYOUTS[weight])
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    batch = random(2, 4, 9, 8).contiguous(memory_format=LAYOUTS[images]).requires_grad_()
    leaves = [batch, layer.weight, layer.bias]
    outputs = [compiled(batch), layer(batch)]
    results = [[output, *torch.autograd.grad(output.square().sum(), leaves)] for output in outputs]
    with torch.no_grad():
        results[0].append(compiled(batch))
        results[1].append(layer(batch))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_autocast_is_compiled():
    layer = SIConv2d(3, 4, 3, scales=SCALES)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    images = random(2, 3, 9, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = compiled(images), layer(images)
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(actual, expected)
    grads = [torch.autograd.grad(output.float().square().sum(), layer.weight)[0] for output in (actual, expected)]
    assert grads[0].dtype == torch.float32
    assert_close(*grads, torch.bfloat16)


@pytest.mark.parametrize(("strict", "scales"), [(False, (1, 2)), (True, (0.6, 1))])
def test_an_exported_layer_takes_any_batch_height_and_width(strict, scales):
    layer = SIConv2d(2, 3, 3, stride=(2, 1), padding=(1, 0), scales=scales).double()
    names = [torch.export.Dim("batch"), torch.export.Dim("height", min=8), torch.export.Dim("width", min=8)]
    shapes = ({0: names[0], 2: names[1], 3: names[2]},)
    exported = torch.export.export(layer, (random(2, 2, 12, 11),), dynamic_shapes=shapes, strict=strict)
    assert not [node for node in exported.graph.nodes if "scaleconv" in str(node.target)]  # it runs without the package
    program = exported.module()
    for number, (batch, height, width) in enumerate(SIZES[:6]):
        images = random(batch, 2, height, width, seed=number)
        assert_close(program(images), layer(images))


def matrices(*scales):
    """The numbers of the operator for scales."""
    return [number for scale in scales for number in (scale, 0.0, 0.0, scale)]


SETTINGS = {
    "plain": ([1, 1], [0, 0, 0, 0], [1, 1], 1, matrices(0.7, 1.0, 1.5), "bilinear", "zeros", False),
    "padded": ([2, 1], [1, 1, 0, 1], [1, 2], 1, matrices(1.0, 2.0), "bilinear", "zeros", True),
    "groups": ([1, 1], [1, 1, 1, 1], [1, 1], 2, matrices(0.7, 1.0), "bilinear", "zeros", False),
    "one scale": ([1, 1], [1, 1, 1, 1], [1, 1], 1, matrices(1.0), "bilinear", "zeros", False),
    "rotated": ([2, 1], [1, 1, 0, 1], [1, 1], 1, [0.8, -0.6, 0.6, 0.8, *matrices(1.0)], "bilinear", "zeros", False),
    "reflected": ([1, 1], [1, 1, 1, 1], [1, 1], 2, [*matrices(1.0), 1, 0.5, 0, 1], "nearest", "reflect", False),
}


UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")


def operands(images, weight, groups):
    leaves = tensors_of((2, 4, 6, 7), (2, 4 // groups, 3, 2), dtype=torch.float32)
    leaves[0] = leaves[0].contiguous(memory_format=LAYOUTS[images])
    leaves[1] = leaves[1].contiguous(memory_format=LAYOUTS[weight])
    return leaves


@pytest.mark.parametrize("images", LAYOUTS)
@pytest.mark.parametrize("name", SETTINGS)
def test_both_operators_keep_their_promises_in_every_layout(name, images):
    """Every setting in either layout of each tensor, and every pair of layouts in half of the settings.

    AOT dispatch of the first operator traces the second one.
    """
    settings, alike = SETTINGS[name], list(SETTINGS).index(name) % 2
    (other,) = LAYOUTS.keys() - {images}
    leaves = [leaf.requires_grad_() for leaf in operands(images, images if alike else other, settings[3])]
    opcheck(custom_op.ti_conv2d, (*leaves[:2], leaves[2] if images == "contiguous" else None, *settings))
    tensors = [leaf.detach() for leaf in leaves]
    output, winner = custom_op.ti_conv2d(*tensors, *settings)
    for needed in ([True, True, True], [False, True, False]):
        arguments = (torch.ones_like(output), *tensors[:2], winner, *settings, needed)
        opcheck(custom_op.ti_conv2d_backward, arguments, test_utils=UNTRACED)


@pytest.mark.parametrize("shape", [(2, 1, 5, 4), (1, 3, 5, 4), (2, 3, 5, 1)], ids=str)
@pytest.mark.parametrize(("images", "weight"), list(product(LAYOUTS, repeat=2)))
def test_the_operator_keeps_its_promises_on_thin_tensors(shape, images, weight):
    kernel = (3, 1) if shape[3] == 1 else (3, 3)
    leaves = tensors_of(shape, (2, shape[1], *kernel), dtype=torch.float32)
    leaves[0] = leaves[0].contiguous(memory_format=LAYOUTS[images]).requires_grad_()
    leaves[1] = leaves[1].contiguous(memory_format=LAYOUTS[weight]).requires_grad_()
    opcheck(custom_op.ti_conv2d, (*leaves, *SETTINGS["plain"]))


def test_a_compiled_layer_calls_the_operator():
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    layer = SIConv2d(3, 4, 3, padding=1)
    torch.compile(layer, backend=keep, fullgraph=True, dynamic=True)(torch.rand(2, 3, 9, 8))
    assert any(node.target is torch.ops.scaleconv.ti_conv2d.default for node in graphs[0].graph.nodes)


def test_make_fx_keeps_the_operator_and_the_numbers():
    images, weight, bias = (tensor.detach() for tensor in tensors(channels=4))
    traced = make_fx(lambda *inputs: si_conv2d(*inputs, scales=SCALES))(images, weight, bias)
    assert any(node.target is torch.ops.scaleconv.ti_conv2d.default for node in traced.graph.nodes)
    assert torch.equal(traced(2 * images, weight, bias), si_conv2d(2 * images, weight, bias, scales=SCALES))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "mapped", [(0, None, None), (1, None, None), (None, 0, 0), (None, 1, None), (0, 0, 0), (1, 2, 0)]
)
def test_vmap_maps_images_or_weights_or_both(mapped, groups):
    shapes = [(2, 4, 7, 6), (4, 4 // groups, 3, 2), (4,)]
    call = {"scales": SCALES, "padding": 1, "groups": groups}
    stacked = [
        random(*shape, seed=number) if dim is None else random(3, *shape, seed=number).movedim(0, dim)
        for number, (shape, dim) in enumerate(zip(shapes, mapped, strict=True))
    ]
    together = torch.vmap(lambda *t: si_conv2d(*t, **call, return_winner=True), in_dims=mapped)(*stacked)
    for one in range(3):
        alone = [t if dim is None else t.select(dim, one) for t, dim in zip(stacked, mapped, strict=True)]
        output, winner = si_conv2d(*alone, **call, return_winner=True)
        assert_close(together[0][one], output)
        assert torch.equal(together[1][one], winner)


def test_gradients_flow_through_vmap():
    images, weights = random(3, 2, 2, 7, 6).requires_grad_(), random(3, 4, 2, 3, 2, seed=1).requires_grad_()
    together = torch.vmap(lambda *t: si_conv2d(*t, scales=SCALES))(images, weights)
    alone = torch.stack([si_conv2d(*t, scales=SCALES) for t in zip(images, weights, strict=True)])
    sent = random(*alone.shape, seed=2)
    grads = [torch.autograd.grad(result, [images, weights], sent) for result in (together, alone)]
    for actual, expected in zip(*grads, strict=True):
        assert_close(actual, expected)
