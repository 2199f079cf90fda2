"""Any in-place operation may follow the layer, in every layout: its results are tensors of their own, not views."""

from itertools import product

import pytest
import torch

from helpers.loops import tensors_of
from scaleconv import SIConv1d, rotation, si_conv1d, si_conv2d, si_conv3d, ti_conv2d
from scaleconv.ops.custom_op import is_channels_last

SCALES = (0.5, 1, 2)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CALLS = {
    "dense": ((2, 3, 9, 8), (4, 3, 3, 3), {"padding": 1}),
    "many channels": ((2, 16, 6, 5), (4, 16, 3, 3), {"padding": 1}),
    "strided": ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": 2}),
    "depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4}),
    "one pixel": ((2, 3, 1, 1), (4, 3, 3, 3), {"padding": 1}),
    "one output": ((2, 3, 3, 3), (4, 3, 3, 3), {}),
    "one image": ((1, 3, 6, 5), (4, 3, 3, 3), {}),
    "one channel": ((2, 1, 6, 5), (1, 1, 3, 3), {}),
    "no images": ((0, 3, 6, 5), (4, 3, 3, 3), {}),
}


@pytest.mark.parametrize("memory_format", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("shape", "weight_shape", "call"), CALLS.values(), ids=CALLS)
def test_results_are_tensors_of_their_own_laid_out_as_those_of_conv2d(shape, weight_shape, call, memory_format):
    images, weight = (each.contiguous(memory_format=memory_format) for each in tensors_of(shape, weight_shape)[:2])
    torch.compiler.reset()
    for function in (si_conv2d, torch.compile(si_conv2d, backend="aot_eager", fullgraph=True)):
        output, winner = function(images, weight, **call, scales=SCALES, return_winner=True)
        assert not output._is_view()
        assert not winner._is_view()
        if len(images):  # without any, the layout says nothing
            assert output.stride() == torch.nn.functional.conv2d(images, weight, **call).stride()

    def gradients(activate):
        leaves = [tensor.detach().requires_grad_() for tensor in (images, weight)]
        return torch.autograd.grad(activate(si_conv2d(*leaves, **call, scales=SCALES)).square().sum(), leaves)

    in_place = gradients(lambda output: output.mul_(3).add_(1).relu_())
    copied = gradients(lambda output: torch.relu(output * 3 + 1))
    for found, expected in zip(in_place, copied, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_in_place_operations_follow_signals_volumes_single_images_and_rotations():
    torch.manual_seed(0)
    calls = {
        "signals": (si_conv1d, (2, 3, 12), (4, 3, 3), {"scales": SCALES}),
        "one signal": (si_conv1d, (3, 12), (4, 3, 3), {"scales": SCALES}),
        "volumes": (si_conv3d, (1, 2, 5, 6, 7), (2, 2, 3, 3, 3), {"scales": SCALES}),
        "one image": (si_conv2d, (3, 9, 9), (4, 3, 3, 3), {"scales": SCALES}),
        "rotations": (ti_conv2d, (2, 3, 9, 9), (4, 3, 3, 3), {"transforms": [rotation(0), rotation(30)]}),
        "one scale": (si_conv2d, (2, 3, 9, 9), (4, 3, 3, 3), {"scales": (1,)}),
    }
    for function, shape, weight_shape, options in calls.values():
        images, weight = torch.randn(shape), torch.randn(weight_shape, requires_grad=True)
        (in_place,) = torch.autograd.grad(function(images, weight, **options).relu_().sum(), weight)
        (copied,) = torch.autograd.grad(function(images, weight, **options).relu().sum(), weight)
        torch.testing.assert_close(in_place, copied, rtol=0, atol=0)
    SIConv1d(3, 4, 3)(torch.rand(2, 3, 9)).add_(1).sum().backward()


def test_pytorch_and_we_agree_on_what_is_channels_last():
    """`conv2d` puts its output into channels_last where PyTorch takes the input for that."""
    for shape in product((1, 2), (1, 3), (1, 4), (1, 5)):
        tensor = torch.rand(shape)
        made = {
            "contiguous": tensor,
            "channels_last": tensor.to(memory_format=torch.channels_last),
            "copied": tensor.clone(memory_format=torch.channels_last),
            "permuted": tensor.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
            "sliced": torch.rand(*shape[:3], 2 * shape[3])[..., ::2],
        }
        for name, each in made.items():
            weight = torch.rand(2, shape[1], 1, 1)
            output = torch.nn.functional.conv2d(each, weight, padding=1)  # large enough to have one layout alone
            expected = output.is_contiguous(memory_format=torch.channels_last)
            assert expected != output.is_contiguous()
            assert is_channels_last(each) == expected, (name, shape, each.stride())
