"""A module in place of the filter: the layer's numbers where both are defined, and the same rules everywhere else."""

import copy
import io
import math
import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.torch_version import TorchVersion

from helpers import reference
from helpers.loops import aligned_by_loops, calls, random, tensors_of
from helpers.tolerance import assert_close
from scaleconv import DEFAULT_SCALES, ScaleInvariant, si_conv2d

SCALES = (0.6, 1.0, 1.7)
POOLS = ("max", "logsumexp", "mean")


def trunk(channels=2):
    """A strided and padded module with map output."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 5, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.Conv2d(4, 3, 3)
    ).double()


# Before torch 2.13 the size behind such a pooling is even or odd in a compiled graph, also without our layer.
pooled = pytest.mark.skipif(torch.__version__ < TorchVersion("2.13"), reason="torch fixes pooled sizes")


def classifier(channels=2):
    return nn.Sequential(nn.Conv2d(channels, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()


@given(calls(), st.integers(0, 99))
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
def test_around_a_convolution_it_is_the_layer(call, seed):
    input_shape, weight_shape, stride, padding, dilation, groups, scales, antialias = call
    images, weight, bias = tensors_of(input_shape, weight_shape, seed)
    conv = nn.Conv2d(input_shape[1], weight_shape[0], weight_shape[2:], stride, padding, dilation, groups).double()
    conv.load_state_dict({"weight": weight, "bias": bias})
    grid = {}
    if padding == "same":  # with an even reach it puts the odd pixel behind, which sizes do not show
        total = [d * (k - 1) for d, k in zip(dilation, weight_shape[2:], strict=True)]
        grid = {"stride": 1, "offset": [n / 2 - n // 2 for n in total]}
        assume(min(scales) * min(input_shape[2:]) >= 2)
    output, winner = ScaleInvariant(conv, scales, antialias=antialias, **grid)(images, return_winner=True)
    call = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "scales": scales}
    expected, layer_winner = si_conv2d(images, weight, bias, **call, antialias=antialias, return_winner=True)
    assert output.shape == expected.shape
    assert (output - expected).abs().max() < 1e-10
    aligned = aligned_by_loops(images, weight, bias, **call, antialias=antialias)
    clear = torch.from_numpy(reference.gap(aligned) > 1e-9)
    assert torch.equal(winner[clear], layer_winner[clear])


def windows(images, height, width):
    """The centre of the image, doubled and halved by PyTorch's own resizing; its edge goes on around it."""
    around = F.pad(images, (8, 8, 8, 8), mode="replicate")
    for factor in (1, 2, 0.5):
        level = F.interpolate(around, scale_factor=factor, mode="bilinear", align_corners=False)
        top, left = (level.shape[2] - height) // 2, (level.shape[3] - width) // 2
        yield level[..., top : top + height, left : left + width]


@pytest.mark.parametrize("pool", ["max", "logsumexp", "mean"])
def test_levels_of_a_given_size_are_windows_about_the_centre_of_any_image(pool):
    module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 8 * 14, 3)).double()
    images = random(4, 2, 12, 20, seed=1)
    answers = torch.stack([module(window) for window in windows(images, 8, 14)])
    expected = {"max": answers.amax(0), "mean": answers.mean(0), "logsumexp": answers.logsumexp(0)}[pool]
    output, winner = ScaleInvariant(module, (1, 2, 0.5), size=(8, 14), pool=pool)(images, return_winner=True)
    torch.testing.assert_close(output, expected)
    assert torch.equal(winner.long(), answers.argmax(0))


def test_one_level_of_a_given_size_is_the_module_on_the_window():
    module = nn.Flatten()
    images = random(2, 1, 12, 9, seed=2)
    assert torch.equal(ScaleInvariant(module, (1,), size=(8, 5))(images), module(images[..., 2:-2, 2:-2]))
    square = random(2, 1, 7, 7, seed=3)
    assert torch.equal(ScaleInvariant(module, (1, 2), size=7, keep=(1, 1))(square), module(square))


@pytest.mark.parametrize("scales", [(1,), (1, 2)])
def test_levels_of_a_given_size_are_for_vectors(scales):
    with pytest.raises(
        ValueError, match=r"`module` must return \(N, D\) with a `size` \(=\(6, 6\)\), got \(., 3, 4, 4\)"
    ):
        ScaleInvariant(CONV, scales, size=6)(torch.rand(1, 2, 9, 9))


# A blob in an image, through a module of Gaussian filters, has a closed form.

BLUR, DEEPER_BLUR, BLOB = 1.5, 1.0, 8.0
# Of the height of the blob. Linear reading at a spacing of d is off by d²/8 times the curvature at most: for the
# smallest blob, 2·(1/8)/6.4² when the level is sampled and 2·((2/1.26)²/8)·0.91/45 when it is aligned.
ALIGNED_TO = 0.02


def gaussian(sigma, taps):
    line = torch.exp(-((torch.arange(taps, dtype=torch.float64) - (taps - 1) / 2) ** 2) / (2 * sigma**2))
    return torch.outer(line, line).view(1, 1, taps, taps) / line.sum() ** 2


def blurring_module():
    """Stride 2, offset 5 − 3 + 2·(4 − 2) = 6, and a blur of BLUR² + (2·DEEPER_BLUR)²."""
    layers = [nn.Conv2d(1, 1, 11, stride=2, padding=3, bias=False), nn.Conv2d(1, 1, 9, padding=2, bias=False)]
    layers[0].weight.data, layers[1].weight.data = gaussian(BLUR, 11), gaussian(DEEPER_BLUR, 9)
    return nn.Sequential(*layers)


def blob(size, centre, sigma):
    lines = [
        torch.exp(-((torch.arange(n, dtype=torch.float64) - c) ** 2) / (2 * sigma**2))
        for n, c in zip(size, centre, strict=True)
    ]
    return torch.outer(*lines).view(1, 1, *size)


def closed_form(shape, centre, sigma, scale):
    """What level `scale` answers at the outputs, aligned: the blob, blurred by 1/scale times the module's blur."""
    variance = sigma**2 + (BLUR**2 + (2 * DEEPER_BLUR) ** 2) / scale**2
    lines = [
        torch.exp(-((2 * torch.arange(n, dtype=torch.float64) + 6 - c) ** 2) / (2 * variance))
        for n, c in zip(shape, centre, strict=True)
    ]
    return sigma**2 / variance * torch.outer(*lines).view(1, 1, *shape)


@given(
    st.tuples(st.integers(80, 95), st.integers(80, 95)),
    st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    st.floats(0.8, 1.25),
    st.sampled_from([1.26, 1.59, 2.0]),
    st.sampled_from(["own", "input"]),
)
@settings(max_examples=30, deadline=None, database=None)
def test_answers_of_a_strided_padded_module_are_aligned(size, shift, factor, scale, level_size):
    """A blob that is moved and rescaled: what is pooled is the closed form, to the stated error."""
    centre = [(n - 1) / 2 + moved for n, moved in zip(size, shift, strict=True)]
    images = blob(size, centre, BLOB * factor)
    layer = ScaleInvariant(blurring_module(), (1, scale), pool="max", size=level_size)
    output, winner = layer(images, return_winner=True)
    of_level = [closed_form(output.shape[2:], centre, BLOB * factor, each) for each in (1, scale)]
    near = of_level[0] > 0.5  # where no filter of the enlarged level, cropped or not, reaches past its edge
    assert near.sum() > 10
    assert (output - torch.maximum(*of_level))[near].abs().max() < ALIGNED_TO
    clear = near & ((of_level[0] - of_level[1]).abs() > 2 * ALIGNED_TO)
    assert torch.equal(winner[clear] == 1, (of_level[1] > of_level[0])[clear])
    assert (layer.stride, layer.offset) == ((2, 2), (6, 6))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("size", ["own", "input"])
def test_vectors_are_pooled_over_a_loop_of_scales(pool, size):
    module, images = classifier(), random(3, 2, 11, 14)
    scores = []
    for scale in SCALES:
        sizes = [math.floor(scale * n + 1e-6) for n in (11, 14)] if size == "own" else [11, 14]
        level = np.zeros((3, 2, *sizes))
        for i, j in np.ndindex(*sizes):
            u = [(q - (h - 1) / 2) / scale + (n - 1) / 2 for q, h, n in zip((i, j), sizes, (11, 14), strict=True)]
            for number, image in enumerate(images.numpy()):
                level[number, :, i, j] = reference.read(image, *u)
        scores.append(module(torch.from_numpy(level)))
    stacked = torch.stack(scores)
    expected = {"max": stacked.amax(0), "mean": stacked.mean(0), "logsumexp": stacked.exp().sum(0).log()}[pool]
    output, winner = ScaleInvariant(module, SCALES, pool=pool, size=size)(images, return_winner=True)
    assert_close(output, expected)
    assert torch.equal(winner, stacked.argmax(0).byte())
    assert winner.dtype == torch.uint8


@pytest.mark.parametrize("pool", POOLS)
def test_maps_are_pooled_over_the_levels_that_cover(pool):
    """An unpadded kernel at a small scale does not reach the border: other levels answer there, with all the weight."""
    conv, images, scales = nn.Conv2d(2, 3, 5).double(), random(2, 2, 12, 9), (0.6, 0.8, 1, 1.5)
    arrays = [tensor.detach().numpy() for tensor in (images, conv.weight, conv.bias)]
    aligned = reference.si_conv2d(*arrays, (1, 1), ((0, 0), (0, 0)), (1, 1), 1, scales)
    counts = np.isfinite(aligned).sum(0)
    assert {2, 4} <= set(counts.flatten())
    sums = np.exp(aligned).sum(0)
    expected = {
        "max": aligned.max(0),
        "mean": np.where(np.isfinite(aligned), aligned, 0).sum(0) / counts,
        "logsumexp": np.log(sums * len(scales) / counts),
    }[pool]
    assert_close(ScaleInvariant(conv, scales, pool=pool)(images), torch.from_numpy(expected))


@pytest.mark.parametrize("pool", POOLS)
def test_a_level_too_small_for_the_module_takes_no_part(pool):
    conv, images = nn.Conv2d(2, 3, 6).double(), random(2, 2, 9, 8)
    output = ScaleInvariant(conv, (0.5, 1), pool=pool)(images)
    assert_close(output, conv(images) + (math.log(2) if pool == "logsumexp" else 0))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("options", [{"scales": (1,)}, {"keep": (0.9, 1.1)}], ids=str)
@pytest.mark.parametrize("module", [trunk().float(), classifier().float()], ids=["maps", "vectors"])
def test_one_level_is_the_module_bit_for_bit(module, options, pool):
    images = torch.rand(3, 2, 31, 30)
    layer = ScaleInvariant(module, pool=pool, **options)
    output, winner = layer(images, return_winner=True)
    assert torch.equal(output, module(images))
    assert (winner == layer.scales.index(1)).all()


@pytest.mark.parametrize("pool", ["max", "logsumexp"])
def test_keep_is_a_pyramid_of_fewer_levels_whose_winners_keep_their_names(pool):
    module, images = trunk(), random(2, 2, 40, 33)
    layer = ScaleInvariant(module, pool=pool)
    # The first range means 2^(−2/3). It is set at any time.
    for keep, scales, before in (((0.63, 1), DEFAULT_SCALES[:3], 0), ((1, math.inf), DEFAULT_SCALES[2:], 2)):
        layer.keep = keep
        output, winner = layer(images, return_winner=True)
        expected, fewer = ScaleInvariant(module, scales, pool=pool)(images, return_winner=True)
        assert_close(output, expected)
        assert torch.equal(winner, fewer + before)
    layer.keep = (2, 3)
    with pytest.raises(ValueError, match="`keep` must be 'all' or a range"):
        layer(images)


def test_a_tie_goes_to_the_scale_listed_first():
    module, images = nn.AvgPool2d(2, 1), torch.ones(1, 1, 9, 9)
    for scales, first in (((2, 1, 0.5), 0), ((1, 2, 0.5), 0)):
        _, winner = ScaleInvariant(module, scales)(images, return_winner=True)
        assert (winner == first).all()


def test_nan_reaches_what_sees_it_and_nothing_else():
    images = random(1, 1, 16, 16)
    images[0, 0, 3, 3] = math.nan
    conv = nn.Conv2d(1, 2, 3).double()
    layer = si_conv2d(images, conv.weight, conv.bias, scales=SCALES)
    assert torch.equal(ScaleInvariant(conv, SCALES)(images).isnan(), layer.isnan())
    assert 0 < layer.isnan().sum() < layer.numel() / 2


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("make", [classifier, lambda: nn.Sequential(nn.Conv2d(2, 2, 3, 2, 1), nn.Tanh()).double()])
@pytest.mark.parametrize("size", ["own", "input"])
def test_derivatives_and_their_derivatives_are_right(make, pool, size):
    layer = ScaleInvariant(make(), (0.7, 1, 1.4), pool=pool, size=size)
    images = random(1, 2, 6, 7).requires_grad_()
    leaves = [images, *layer.parameters()]

    def run(images, *_parameters):
        return layer(images)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.fixture
def compiler():
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("make", "size", "backend"),
    [
        pytest.param(trunk, "own", "eager", marks=pooled),
        pytest.param(trunk, "input", "eager", marks=pooled),
        (classifier, "own", "eager"),
        (classifier, "input", "aot_eager"),  # traces the backward pass, too, which takes long
        (classifier, (31, 30), "eager"),
    ],
)
def test_many_sizes_are_compiled_at_most_twice(make, size, backend):
    """And before it was ever called: the grid is found while it is traced."""
    layer, counter = ScaleInvariant(make(), (1, 1.7), size=size), CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for number, shape in enumerate([(3, 31, 30), (4, 31, 30), (6, 36, 41), (5, 50, 29)]):
        images = random(shape[0], 2, *shape[1:], seed=number)
        actual, expected = compiled(images), layer(images)
        assert_close(actual, expected)
        grads = [torch.autograd.grad(f.square().sum(), list(layer.parameters())) for f in (actual, expected)]
        for one, other in zip(*grads, strict=True):
            assert_close(one, other)
    assert counter.frame_count <= 2


@pytest.mark.usefixtures("compiler")
def test_compiled_gradients_through_aligned_maps_are_those_of_eager():
    layer, images = ScaleInvariant(trunk(), (1, 1.7)), random(2, 2, 31, 30)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(f(images).square().sum(), list(layer.parameters())) for f in (compiled, layer)]
    for one, other in zip(*grads, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("make", "size", "strict"),
    [
        pytest.param(trunk, "own", False, marks=pooled),
        pytest.param(trunk, "input", True, marks=pooled),
        (classifier, "own", False),
        (classifier, "input", True),
        (classifier, (31, 30), False),
        (classifier, 26, True),
    ],
)
def test_it_is_exported_with_any_batch_height_and_width(make, size, strict):
    layer = ScaleInvariant(make(), (0.6, 1), size=size, pool="logsumexp")
    names = [torch.export.Dim("batch"), torch.export.Dim("height", min=24), torch.export.Dim("width", min=24)]
    shapes = {"x": {0: names[0], 2: names[1], 3: names[2]}, "return_winner": None}
    program = torch.export.export(layer, (random(2, 2, 31, 30), True), dynamic_shapes=shapes, strict=strict).module()
    for number, (batch, height, width) in enumerate([(1, 31, 30), (5, 31, 30), (3, 24, 47)]):
        images = random(batch, 2, height, width, seed=number)
        actual, expected = program(images, True), layer(images, True)
        assert_close(actual[0], expected[0])
        assert torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("make", [trunk, classifier])
def test_it_works_in_every_floating_point_type(make, pool, dtype):
    layer, images = ScaleInvariant(make(), SCALES, pool=pool), random(2, 2, 31, 30)
    expected = layer(images)
    actual = layer.to(dtype)(images.to(dtype))
    assert actual.dtype == dtype
    assert_close(actual, expected)


@pytest.mark.parametrize("size", ["own", "input"])
def test_autocast_reaches_the_module(size):
    layer, images = ScaleInvariant(trunk().float(), SCALES, size=size), torch.rand(2, 2, 31, 30)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(images).dtype == torch.bfloat16


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("size", "norm"), [("own", "joint"), ("input", "joint"), ("input", "level")])
def test_the_module_sees_levels_in_the_layout_of_the_input(layout, size, norm):
    module = nn.Conv2d(3, 4, 3).double()
    seen = []
    layer = ScaleInvariant(module, SCALES, size=size, norm=norm, stride=1, offset=1)
    module.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    images = random(2, 3, 11, 10)
    output = layer(images.contiguous(memory_format=layout))
    assert len(seen) == (1 if (size, norm) == ("input", "joint") else 3)
    assert all(level.is_contiguous(memory_format=layout) for level in seen)
    assert_close(output, layer(images))


def test_copies_and_files_compute_the_same():
    layer, images = ScaleInvariant(trunk(), SCALES, pool="mean", keep=(0.5, 1)), random(2, 2, 31, 30)
    expected, stream = layer(images), io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (copy.deepcopy(layer), torch.load(stream, weights_only=False)):
        assert torch.equal(other(images), expected)
        assert other.stride == (4, 4)


def test_the_state_is_that_of_the_module_and_repr_names_the_settings():
    layer = ScaleInvariant(nn.Conv2d(1, 1, 3), (1, 2), stride=1, offset=1, antialias=True)
    assert list(layer.state_dict()) == ["module.weight", "module.bias"]
    assert "scales=(1, 2), pool='max', keep='all', size='own', stride=(1.0, 1.0), offset=(1.0, 1.0)" in repr(layer)
    assert "norm='joint', antialias=True" in repr(layer)


CONV = nn.Conv2d(2, 3, 3)
WRONG_ARGUMENTS = {
    "no module": ({"module": len}, TypeError, "`module` must be a torch.nn.Module, got builtin_function_or_method"),
    "scales": ({"scales": (2,)}, ValueError, "`scales` must contain 1, got (2.0,)"),
    "pool": ({"pool": "min"}, ValueError, "`pool` must be one of 'max', 'logsumexp', 'mean', got 'min'"),
    "size": ({"size": "same"}, ValueError, "`size` must be one of 'own', 'input', got 'same'"),
    "size of none": ({"size": 0}, ValueError, "`size` must be at least 1, got 0"),
    "size of three": ({"size": (1, 2, 3)}, ValueError, "a number or a pair of numbers, got 3 of them"),
    "norm": ({"norm": None}, ValueError, "`norm` must be one of 'joint', 'level', got None"),
    "keep of text": ({"keep": "some"}, TypeError, "`keep` must be 'all' or a range (low, high), got 'some'"),
    "keep of one": ({"keep": (1,)}, TypeError, "`keep` must be 'all' or a range (low, high), got (1,)"),
    "keep a number": ({"keep": 2.0}, TypeError, "`keep` must be 'all' or a range (low, high), got 2.0"),
    "keep without 1": ({"keep": (1.2, 2)}, ValueError, "that contains 1, the scale that covers every position, got (1"),
    "keep backwards": ({"keep": (2, 0.5)}, ValueError, "that contains 1, the scale that covers every position, got (2"),
    "keep of nothing": ({"keep": (math.nan, 2)}, ValueError, "that contains 1"),
    "antialias": ({"antialias": "no"}, TypeError, "`antialias` must be True or False, got 'no'"),
    "stride alone": ({"stride": 2}, ValueError, "`stride` and `offset` must be given together, got 2 and None"),
    "offset alone": ({"offset": 0}, ValueError, "`stride` and `offset` must be given together, got None and 0"),
    "zero stride": ({"stride": 0, "offset": 0}, ValueError, "`stride` must be above 0, got 0"),
    "stride of text": ({"stride": "2", "offset": 0}, TypeError, "`stride` must be a number, a pair of numbers, or"),
    "three strides": ({"stride": (1, 2, 3), "offset": 0}, ValueError, "or a pair for each map, got 3 of them"),
    "infinite offset": ({"stride": 1, "offset": math.inf}, ValueError, "`offset` must be a number, a pair of numbers"),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ScaleInvariant(**{"module": CONV, **arguments})


WRONG_INPUTS = {
    "array": (np.ones((1, 2, 9, 9)), TypeError, "`x` must be a tensor, got ndarray"),
    "rank": (torch.rand(2, 9, 9), ValueError, "`x` must be (N, C, H, W), got shape (2, 9, 9)"),
    "integers": (torch.ones(1, 2, 9, 9).int(), TypeError, "`x` must be of a floating-point type, got torch.int32"),
}


@pytest.mark.parametrize(("images", "error", "message"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_images_are_named(images, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ScaleInvariant(CONV)(images)


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


WRONG_ANSWERS = {
    "nothing": (lambda x: None, TypeError, "`module` must return tensors, got NoneType: give a module whose forward"),
    "counts": (lambda x: {"n": len(x)}, TypeError, "`module` must return tensors, got dict with 'n'"),
    "a loss": (
        lambda x: {"out": [x, x.mean()]},
        ValueError,
        "`module` must return (N, D) or (N, D, H, W) with N (=3), got shape () in ['out'][1]: give a module whose",
    ),
    "boxes": (
        lambda x: (x, x.mean((2, 3)).argmax(1, keepdim=True)),
        TypeError,
        "`module` must return floating-point types, got torch.int64 in [1]",
    ),
    "tokens": (lambda x: x.flatten(2), ValueError, "must return (N, D) or (N, D, H, W) with N (=3), got shape"),
    "other batch": (lambda x: x[:1], ValueError, "with N (=3), got shape (1, 2, 9, 9)"),
}


@pytest.mark.parametrize(("make", "error", "message"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
@pytest.mark.parametrize("scales", [(1,), (1, 2)])
def test_wrong_answers_of_a_module_are_named(make, error, message, scales):
    with pytest.raises(error, match=re.escape(message)):
        ScaleInvariant(Returns(make), scales)(torch.rand(3, 2, 9, 9))


def test_vectors_that_grow_with_the_level_are_refused_and_one_size_is_offered():
    images = torch.rand(3, 2, 9, 9)
    message = "`module` must return one D for levels of all sizes, unless `size` is 'input' or given, got 162 and 648"
    with pytest.raises(ValueError, match=re.escape(message)):
        ScaleInvariant(nn.Flatten(), (1, 2))(images)
    assert ScaleInvariant(nn.Flatten(), (1, 2), size="input")(images).shape == (3, 162)


CLOSE = (0.99, 1, 1.01, 1.02)  # of which the three last have one size


@pytest.mark.parametrize(
    ("options", "batches", "in_evaluation"),
    [
        ({"scales": CLOSE}, [6, 2], [6, 2]),
        ({"scales": CLOSE, "norm": "level"}, [2] * 4, [6, 2]),
        ({"scales": SCALES}, [2] * 3, [2] * 3),
        ({"scales": SCALES, "size": "input"}, [6], [6]),
        ({"scales": SCALES, "size": "input", "norm": "level"}, [2] * 3, [6]),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [trunk, classifier])
def test_levels_of_one_size_go_through_the_module_in_one_call(make, options, batches, in_evaluation):
    images, seen = random(2, 2, 24, 25), []
    pyramid = ScaleInvariant(make(), **options)
    pyramid(images)  # finds the grid
    pyramid.module.register_forward_pre_hook(lambda _module, inputs: seen.append(len(inputs[0])))
    outputs = [pyramid(images), pyramid.eval()(images)]
    assert seen == batches + in_evaluation
    assert_close(*outputs)


class Backbone(nn.Module):
    """Maps at two strides and scores, held by a dictionary, as a detection backbone answers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, 2, 1).double(), nn.Conv2d(3, 4, 3, 2, 1).double()

    def forward(self, x):
        near = self.first(x)
        far = self.second(near)
        return OrderedDict(near=near, far=[far, None], scores=far.mean((2, 3)), version=2)


@pytest.mark.parametrize("size", ["own", "input"])
def test_every_tensor_of_an_answer_is_pooled_as_if_it_were_the_only_one(size):
    torch.manual_seed(0)
    backbone, images = Backbone(), random(2, 2, 33, 30)
    pyramid = ScaleInvariant(backbone, SCALES, size=size)
    output, winner = pyramid(images, return_winner=True)
    assert isinstance(output, OrderedDict)
    assert list(output) == ["near", "far", "scores", "version"]
    assert (output["far"][1], output["version"], pyramid.stride) == (None, 2, ((2, 2), (4, 4)))
    far = nn.Sequential(backbone.first, backbone.second)
    alone = (
        (backbone.first, output["near"], winner["near"]),
        (far, output["far"][0], winner["far"][0]),
        (nn.Sequential(far, nn.AdaptiveAvgPool2d(1), nn.Flatten()), output["scores"], winner["scores"]),
    )
    for module, found, places in alone:
        expected, won = ScaleInvariant(module, SCALES, size=size)(images, return_winner=True)
        assert_close(found, expected)
        assert torch.equal(places, won)


def test_the_grids_of_several_maps_may_be_given():
    backbone, images = Backbone(), random(2, 2, 33, 30)
    given = ScaleInvariant(backbone, SCALES, stride=((2, 2), (4, 4)), offset=((0, 0), (0, 0)))
    assert_close(given(images)["near"], ScaleInvariant(backbone, SCALES)(images)["near"])
    wrong = ScaleInvariant(backbone, SCALES, stride=((2, 2), (4, 4), (8, 8)), offset=((0, 0),) * 3)
    with pytest.raises(ValueError, match=re.escape("for each map of the module (=2), got 3 and 3")):
        wrong(images)


def test_a_module_of_one_size_is_told_how_to_take_levels_and_other_errors_are_its_own():
    module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 8 * 8, 3))
    message = "`module` must take levels of other sizes than the image (8×8 pixels), but not that of 16×16"
    with pytest.raises(ValueError, match=f"{re.escape(message)}.* with `size='input'` all levels have the size of the"):
        ScaleInvariant(module, (1, 2))(torch.rand(3, 2, 8, 8))
    with pytest.raises(RuntimeError, match="to have 5 channels, but got 2"):
        ScaleInvariant(nn.Conv2d(5, 3, 3), (1, 2))(torch.rand(3, 2, 8, 8))
