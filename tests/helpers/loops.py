"""Any valid call of the layer, its random tensors, and what the nested loops of `reference` make of it."""

import hypothesis.strategies as st
import numpy as np
import torch

from helpers import reference
from helpers.tolerance import assert_close
from scaleconv import si_conv1d, si_conv2d, si_conv3d

LAYERS = {1: si_conv1d, 2: si_conv2d, 3: si_conv3d}


def random(*shape, seed=0, dtype=torch.float64):
    """Normal numbers that depend on the shape and the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors_of(input_shape, weight_shape, seed=0, dtype=torch.float64):
    """Images, weight and bias, each from a seed of its own."""
    shapes = (input_shape, weight_shape, weight_shape[:1])
    return [random(*shape, seed=seed + number, dtype=dtype) for number, shape in enumerate(shapes)]


def pads_of(padding, dilation, kernel):
    """Before and after each axis, for numbers and for padding by name."""
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    by_name = {"valid": [(0, 0)] * len(total), "same": [(t // 2, t - t // 2) for t in total]}
    return by_name[padding] if isinstance(padding, str) else [(p, p) for p in padding]


def aligned_by_loops(images, weight, bias, stride, padding, dilation, groups, scales, antialias=False):
    """The aligned responses of every scale as `reference` has them, for any padding."""
    pads = pads_of(padding, dilation, weight.shape[2:])
    arrays = (tensor.numpy() for tensor in (images, weight, bias))
    return reference.si_conv2d(*arrays, stride, pads, dilation, groups, scales, antialias)


def assert_loops_agree(input_shape, weight_shape, stride, padding, dilation, groups, scales, antialias, seed=0):
    """Output and winner are those of the loops, over as many axes as there are strides; return the true winner."""
    tensors = tensors_of(input_shape, weight_shape, seed)
    call = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "scales": scales}
    output, winner = LAYERS[len(stride)](*tensors, **call, antialias=antialias, return_winner=True)
    aligned = aligned_by_loops(*tensors, **call, antialias=antialias)
    assert_close(output, torch.from_numpy(aligned.max(0)))
    clear = reference.gap(aligned) > 1e-9
    assert np.array_equal(winner.numpy()[clear], aligned.argmax(0)[clear])
    return aligned.argmax(0)


@st.composite
def calls(draw, axes=2):
    """Arguments of any valid call with a second scale, every axis different, small enough for the loops."""
    kernels, room, largest = {1: ((4,), 12, 4.0), 2: ((4, 4), 6, 4.0), 3: ((2, 2, 3), 3, 2.5)}[axes]

    def numbers(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * axes))

    groups = draw(st.integers(1, 2))
    weight_shape = (groups * draw(st.integers(1, 3)), *(draw(st.integers(1, n)) for n in (2, *kernels)))
    stride, dilation = numbers(1, 3), numbers(1, 3 if axes == 2 else 2)
    kind = draw(st.sampled_from(["numbers", "numbers", "same", "valid"]))
    if kind == "same":
        stride = (1,) * axes
    padding = numbers(0, 2 if axes == 2 else 1) if kind == "numbers" else kind
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, weight_shape[2:], strict=True)]
    size = [draw(st.integers(n + 1, n + room)) for n in extent]
    other = st.one_of(
        st.floats(0.2, 0.4),
        st.floats(0.4, 0.99),
        st.floats(1.01, 2),
        st.floats(2.01, largest if max(size) < 10 else 2.5),
        st.sampled_from([2.0, 3.0]),
    )
    scales = draw(st.permutations([1.0, *draw(st.lists(other, min_size=1, max_size=3, unique=True))]))
    input_shape = (draw(st.integers(1, 2)), groups * weight_shape[1], *size)
    return input_shape, weight_shape, stride, padding, dilation, groups, tuple(scales), draw(st.booleans())
