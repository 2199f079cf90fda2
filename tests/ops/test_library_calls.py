"""The calls of PyTorch that the layer rests on, each as the layer makes it, over thin and odd shapes.

An error of the library is ours to a user: oneDNN has left outputs unwritten for some of these shapes. The references
are sums and products in float64 that call none of the functions under test.

| call | in | swept by |
| --- | --- | --- |
| `F.conv2d` | `ops.convolution` | `test_the_convolution_of_a_canvas` |
| `F.conv_transpose2d` | `ops.convolution` | `test_the_convolution_of_a_canvas` |
| `aten.convolution_backward` | `ops.convolution` | `test_the_convolution_of_a_canvas` |
| `torch.embedding_bag` | `ops.resampling` | `test_weighted_sums` |
| `aten.hardtanh_backward` | `ops.cpu` | `test_the_derivative_of_hardtanh` |
| `torch.maximum` into a region | `ops.cpu` | `test_the_maximum_into_a_region` |
| `Tensor.unique`, `bincount`, `index_add_` | `ops.resampling` | `test_resampling.py`: transposed and compact maps |
| `torch.bmm`, `F.pad`, `torch.cat` of a GPU | `ops.convolution` | `test_triton.py`, `test_cuda.py` |
"""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv import si_conv2d
from scaleconv.ops import cpu
from scaleconv.ops.convolution import convolve, sampled_grad, weight_grad
from scaleconv.ops.resampling import _weighted_sums

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def convolved(images, weight, stride, dilation, groups, size):
    """A product for each tap of the kernel."""
    parts = []
    for some, filters in zip(images.chunk(groups, 1), weight.chunk(groups, 0), strict=True):
        total = 0
        for tap in product(*map(range, weight.shape[2:])):
            rows, columns = (
                slice(d * k, d * k + t * (n - 1) + 1, t) for k, d, t, n in zip(tap, dilation, stride, size, strict=True)
            )
            total = total + torch.einsum("nchw,mc->nmhw", some[..., rows, columns], filters[:, :, tap[0], tap[1]])
        parts.append(total)
    return torch.cat(parts, 1)


SIZES = [(1, 1), (1, 6), (6, 1), (3, 5), (7, 8)]
KERNELS = [(1, 1), (1, 3), (3, 1), (2, 2), (3, 3)]
STRIDES = [((1, 1), (1, 1)), ((1, 2), (1, 1)), ((2, 1), (1, 2)), ((1, 3), (2, 1)), ((3, 3), (1, 1))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("channels", "filters", "groups"), [(1, 8, 1), (2, 1, 1), (16, 3, 1), (4, 6, 2), (3, 3, 3)])
def test_the_convolution_of_a_canvas(channels, filters, groups, dtype):
    """Responses, and the gradients of canvas and weight, for every size, kernel, stride and dilation that fit."""
    tried = 0
    for size, kernel, (stride, dilation) in product(SIZES, KERNELS, STRIDES):
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        response = [(n - r - 1) // t + 1 for n, r, t in zip(size, reach, stride, strict=True)]
        if min(response) < 1:
            continue
        # Where there is one response, plans have a stride of 1, and no more pixels than it reads.
        steps = tuple(t if n > 1 else 1 for t, n in zip(stride, response, strict=True))
        size = [n if many > 1 else r + 1 for n, many, r in zip(size, response, reach, strict=True)]
        canvas = SimpleNamespace(planar=False, taps=None, size=size, response=response, stride=steps, dilation=dilation)
        plan = SimpleNamespace(gpu=False, call=SimpleNamespace(groups=groups, in_channels=channels))
        pixels = random(3, *size, channels, seed=1, dtype=dtype)
        weight = random(filters, channels // groups, *kernel, seed=2, dtype=dtype)
        sent = random(3, *response, filters, seed=3, dtype=dtype)
        exact = [pixels.double().permute(0, 3, 1, 2).requires_grad_(), weight.double().requires_grad_()]
        expected = convolved(*exact, steps, dilation, groups, response)
        to_images, to_weight = torch.autograd.grad(expected, exact, sent.double().permute(0, 3, 1, 2))
        for layout in (torch.contiguous_format, torch.channels_last):
            weight = weight.clone(memory_format=layout)
            assert_close(convolve(pixels, weight, canvas, plan).permute(0, 3, 1, 2), expected.detach(), dtype)
            assert_close(sampled_grad(sent, weight, canvas, plan).permute(0, 3, 1, 2), to_images, dtype)
            assert_close(weight_grad(sent, pixels, weight, canvas, plan), to_weight, dtype)
        tried += 1
    assert tried == 73


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
def test_strides_along_an_axis_of_one_pixel_do_not_matter(memory, dtype):
    """Such a tensor counts as contiguous whatever its stride there; the convolution of groups takes it at its word."""
    for kernel, stride, groups in product([(4, 1), (2, 1), (1, 1)], [(3, 1), (3, 2), (1, 3)], (1, 3)):
        images = random(3, 9, 12, 1, seed=1, dtype=dtype).contiguous(memory_format=memory)
        weight = random(6, 9 // groups, *kernel, seed=2, dtype=dtype).contiguous(memory_format=memory)
        call = {"stride": stride, "groups": groups, "scales": (1, 1.001)}
        leaves = [tensor.double().requires_grad_() for tensor in (images, weight)]
        expected = torch.autograd.grad(si_conv2d(*map(torch.Tensor.contiguous, leaves), **call).square().sum(), leaves)
        for odd in product((1, 27, 1000), repeat=2):
            given = [
                tensor.as_strided(tensor.shape, (*tensor.stride()[:3], step)).requires_grad_()
                for tensor, step in zip((images.clone(), weight.clone()), odd, strict=True)
            ]
            found = torch.autograd.grad(si_conv2d(*given, **call).square().sum(), given)
            for grad, true in zip(found, expected, strict=True):
                assert_close(grad, true, dtype)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_one_picture_of_a_camera_has_the_gradients_of_its_copy(dtype):
    """(H, W, C), permuted and unsqueezed, has the number of channels for a stride along the batch."""
    for kernel, padding, groups in product([(1, 1), (3, 3)], [(0, 0), (0, 2), (1, 1)], (1, 3)):
        picture = random(9, 5, 6, seed=1, dtype=dtype)
        images = picture.permute(2, 0, 1).unsqueeze(0)
        assert images.stride(0) == 6
        weight = random(9, 6 // groups, *kernel, seed=2, dtype=dtype).requires_grad_()
        call = {"padding": padding, "groups": groups, "scales": (1, 1.5)}
        copy = images.clone(memory_format=torch.contiguous_format)
        found, expected = (
            torch.autograd.grad(si_conv2d(given, weight, **call).square().sum(), (given, weight))
            for given in (images.requires_grad_(), copy.requires_grad_())
        )
        for grad, true in zip(found, expected, strict=True):
            assert_close(grad, true.double(), dtype)


def test_taps_that_read_padding_alone_have_no_gradient():
    """oneDNN leaves these weights unwritten in bfloat16, so memory that was used before shows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shape, kernel, padding, groups in [((1, 3, 2, 1), (4, 3), 2, 3), ((3, 4, 6, 1), (3, 4), (0, 3), 1)] * 5:
            used = [torch.full((size,), torch.nan, dtype=torch.bfloat16) for size in range(10, 8000, 7)]
            del used
            images = random(*shape, seed=1, dtype=torch.bfloat16)
            weight = random(9, shape[1] // groups, *kernel, seed=2, dtype=torch.bfloat16).requires_grad_()
            call = {"stride": 2, "padding": padding, "groups": groups}
            (found,) = torch.autograd.grad(si_conv2d(images, weight, **call, scales=(1, 1.001)).float().sum(), weight)
            exact = weight.detach().double().requires_grad_()
            plain = torch.nn.functional.conv2d(images.double(), exact, **call)
            assert_close(found, torch.autograd.grad(plain.sum(), exact)[0], torch.bfloat16)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weighted_sums(dtype):
    """Rows of none to nine entries, tables of any width: every vector length, and what is left over."""
    for width, rows in product([*range(1, 20), 31, 32, 33, 64, 100], (1, 2, 17)):
        table = random(11, width, seed=width, dtype=dtype)
        counts = torch.arange(rows) * 7 % 10
        first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        index = torch.arange(int(first[-1])) * 5 % 11
        weight = random(len(index), seed=rows, dtype=dtype)
        expected = torch.zeros(rows, width, dtype=torch.float64)
        for row in range(rows):
            for entry in range(first[row], first[row + 1]):
                expected[row] += weight[entry].double() * table[index[entry]].double()
        assert_close(_weighted_sums(table, first.int(), index.int(), weight), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_derivative_of_hardtanh(dtype):
    """It passes what stands beside the code, bit for bit, and makes all else 0, NaN and infinities included."""
    values = torch.tensor([1.5, -0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).tiny], dtype=dtype)
    for shape, code in product([(1,), (7,), (64,), (3, 5, 33)], range(6)):
        count = torch.Size(shape).numel()
        grad = values.repeat(count)[:count].view(shape)
        winner = (torch.arange(count) * 5 % 7).view(shape).to(dtype)
        expected = torch.where(winner == code, grad, 0)
        for given in (grad, grad.unsqueeze(0).mT.contiguous().mT.squeeze(0)):
            assert torch.equal(cpu.mask_by_winner(given, winner, code).nan_to_num(9), expected.nan_to_num(9))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8], ids=str)
def test_the_maximum_into_a_region(dtype):
    """It writes the region and nothing beside it, and keeps a NaN of either side."""
    for height, width, channels in product((1, 2, 5), (1, 3, 9), (1, 3, 16, 17)):
        whole = (random(2, height + 2, width + 3, channels, seed=1, dtype=torch.float64) * 50).abs().to(dtype)
        other = (random(2, height, width, channels, seed=2, dtype=torch.float64) * 50).abs().to(dtype)
        if dtype.is_floating_point:
            whole[0, 1, 1, 0] = other[1, 0, 0, 0] = torch.nan
        expected, region = whole.clone(), (slice(None), slice(1, height + 1), slice(1, width + 1))
        kept = expected[region]
        expected[region] = torch.where((kept >= other) | kept.isnan(), kept, other)
        torch.maximum(whole[region], other, out=whole[region])
        assert torch.equal(whole.nan_to_num(-1), expected.nan_to_num(-1))
