"""The layer inside torch.compile and torch.export, and the caches behind it."""

import threading

import pytest
import torch

from scaleconv import SIConv2d, si_conv2d
from scaleconv.ops.levels import level_maps


def tensors(batch=2, height=9):
    generator = torch.Generator().manual_seed(batch)
    shapes = ((batch, 2, height, 8), (3, 2, 3, 3), (3,))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def step(layer, inputs, **call):
    output = layer(*inputs, **call)
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


def assert_compiled_agrees(compiled, inputs, **call):
    for actual, expected in zip(step(compiled, inputs, **call), step(si_conv2d, inputs, **call), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def test_compiled_forward_and_backward_agree_with_eager():
    assert_compiled_agrees(torch.compile(si_conv2d, fullgraph=True), tensors())


def test_compiled_code_follows_new_sizes_and_arguments():
    compiled = torch.compile(si_conv2d, fullgraph=True, backend="aot_eager")
    for batch, height, padding in ((2, 9, 1), (5, 9, 1), (5, 11, 1), (5, 12, 1), (5, 12, 2), (5, 12, 0)):
        assert_compiled_agrees(compiled, tensors(batch, height), padding=padding)


def test_a_new_batch_size_compiles_once_more_and_then_never():
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(si_conv2d, fullgraph=True, backend=counter)
    for batch in (2, 3, 5, 7, 11):
        compiled(*(tensor.detach() for tensor in tensors(batch)))
    assert counter.frame_count == 2


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_batch_free_and_the_matrices_constant(strict):
    layer = SIConv2d(2, 3, 3)
    level_maps.cache_clear()
    program = torch.export.export(
        layer, (torch.rand(2, 2, 9, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=strict
    )
    images = torch.rand(7, 2, 9, 8)
    assert torch.equal(program.module()(images), layer(images))
    assert "arange" not in program.graph_module.code


def test_matrices_made_under_tracing_or_inference_serve_ordinary_calls():
    images, weight, bias = (tensor.detach() for tensor in tensors())
    for first in (torch.inference_mode(), torch.device("meta"), torch.no_grad()):
        level_maps.cache_clear()
        with first:
            si_conv2d(images, weight, bias)
        weight.requires_grad_()
        gradient = torch.autograd.grad(si_conv2d(images, weight, bias).sum(), weight, create_graph=True)[0]
        assert gradient.isfinite().all()


def test_caches_are_bounded():
    for height in range(9, 9 + 2 * level_maps.cache_info().maxsize):
        si_conv2d(torch.zeros(1, 1, height, 3), torch.zeros(1, 1, 3, 3), scales=(1, 2))
    assert level_maps.cache_info().currsize <= level_maps.cache_info().maxsize == 128


def test_threads_share_the_caches():
    images, weight, bias = (tensor.detach() for tensor in tensors())
    expected = si_conv2d(images, weight, bias)
    wrong = []

    def work():
        for _ in range(20):
            level_maps.cache_clear()
            if not torch.equal(si_conv2d(images, weight, bias), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_layer_moved_to_another_device_follows():
    layer = SIConv2d(2, 3, 3)
    layer(torch.rand(1, 2, 9, 8))
    assert layer.to("meta")(torch.rand(1, 2, 9, 8, device="meta")).device.type == "meta"
