"""The layer inside torch.compile and torch.export."""

import pytest
import torch

from scaleconv import DEFAULT_SCALES, SIConv2d, si_conv2d
from scaleconv.ops.levels import LEVEL_MAPS

SCALES = (0.6, 1.0, 1.7)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch.compiler.reset()


def tensors(batch=2, height=9, channels=2):
    generator = torch.Generator().manual_seed(batch)
    shapes = ((batch, channels, height, 8), (3, channels, 3, 3), (3,))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def step(layer, inputs, **call):
    output = layer(*inputs, **call)
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


def assert_compiled_agrees(compiled, inputs, **call):
    for actual, expected in zip(step(compiled, inputs, **call), step(si_conv2d, inputs, **call), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def test_compiled_forward_and_backward_agree_with_eager():
    assert_compiled_agrees(torch.compile(si_conv2d, fullgraph=True), tensors(channels=16))


def test_compiled_code_follows_new_sizes_and_arguments():
    compiled = torch.compile(si_conv2d, fullgraph=True, backend="aot_eager")
    for batch, height, padding in ((2, 9, 1), (5, 9, 1), (5, 11, 1), (5, 12, 1), (5, 12, 0)):
        assert_compiled_agrees(compiled, tensors(batch, height), padding=padding, scales=SCALES)


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "scales": [(1, 2), (1, 3), (1.0, 1.5), [0.7, 1], DEFAULT_SCALES],
        "stride": [[1, 2], [2, 1], [2, 3], 2],
        "padding": [0, (1, 0), [2, 1], "same"],
        "groups": [1, 2],
    }.items(),
)
def test_compiled_code_follows_new_values_of(name, values):
    compiled = torch.compile(si_conv2d, fullgraph=True, backend="eager")
    for value in values:
        images, weight, _ = (tensor.detach() for tensor in tensors(channels=4))
        weight = weight[:2, : 4 // value] if name == "groups" else weight
        assert torch.equal(compiled(images, weight, **{name: value}), si_conv2d(images, weight, **{name: value}))


@pytest.mark.parametrize("channels", [4, 16])
def test_compiled_code_takes_free_sizes(channels):
    layer = SIConv2d(channels, 3, 3, scales=SCALES)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, height in ((2, 9), (3, 9), (3, 12)):
        images = torch.rand(batch, channels, height, 8)
        (actual,), (expected,) = (torch.autograd.grad(f(images).sum(), layer.weight) for f in (compiled, layer))
        torch.testing.assert_close(actual, expected)


def test_a_new_batch_size_compiles_once_more_and_then_never():
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(si_conv2d, fullgraph=True, backend=counter)
    for batch in (2, 3, 5, 7, 11):
        compiled(*(tensor.detach() for tensor in tensors(batch)))
    assert counter.frame_count == 2


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_batch_free_and_the_matrices_constant(strict):
    layer = SIConv2d(2, 3, 3)
    LEVEL_MAPS.clear()
    program = torch.export.export(
        layer, (torch.rand(2, 2, 9, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=strict
    )
    images = torch.rand(7, 2, 9, 8)
    assert torch.equal(program.module()(images), layer(images))
    assert "arange" not in program.graph_module.code
