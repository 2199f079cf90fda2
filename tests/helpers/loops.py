"""Any valid call of the layer, its random tensors, and what the nested loops of `reference` make of it."""

import hypothesis.strategies as st
import numpy as np
import torch

from helpers import reference
from helpers.tolerance import assert_close
from scaleconv import si_conv2d


def random(*shape, seed=0, dtype=torch.float64):
    """Normal numbers that depend on the shape and the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors_of(input_shape, weight_shape, seed=0, dtype=torch.float64):
    """Images, weight and bias, each from a seed of its own."""
    shapes = (input_shape, weight_shape, weight_shape[:1])
    return [random(*shape, seed=seed + number, dtype=dtype) for number, shape in enumerate(shapes)]


def aligned_by_loops(images, weight, bias, stride, padding, dilation, groups, scales, antialias=False):
    """The aligned responses of every scale as `reference` has them, for pairs and for padding by name."""
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    by_name = {"valid": [(0, 0)] * 2, "same": [(t // 2, t - t // 2) for t in total]}
    pads = by_name[padding] if isinstance(padding, str) else [(p, p) for p in padding]
    arrays = (tensor.numpy() for tensor in (images, weight, bias))
    return reference.si_conv2d(*arrays, stride, pads, dilation, groups, scales, antialias)


def assert_loops_agree(input_shape, weight_shape, stride, padding, dilation, groups, scales, antialias, seed=0):
    tensors = tensors_of(input_shape, weight_shape, seed)
    call = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "scales": scales}
    output, winner = si_conv2d(*tensors, **call, antialias=antialias, return_winner=True)
    aligned = aligned_by_loops(*tensors, **call, antialias=antialias)
    assert_close(output, torch.from_numpy(aligned.max(0)))
    clear = reference.gap(aligned) > 1e-9
    assert np.array_equal(winner.numpy()[clear], aligned.argmax(0)[clear])


@st.composite
def calls(draw):
    """Arguments of any valid call with a second scale, every axis different, small enough for the loops."""
    groups = draw(st.integers(1, 2))
    weight_shape = (groups * draw(st.integers(1, 3)), *(draw(st.integers(1, n)) for n in (2, 4, 4)))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    kind = draw(st.sampled_from(["numbers", "numbers", "same", "valid"]))
    if kind == "same":
        stride = (1, 1)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) if kind == "numbers" else kind
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, weight_shape[2:], strict=True)]
    size = [draw(st.integers(n + 1, n + 6)) for n in extent]
    other = st.one_of(
        st.floats(0.2, 0.4),
        st.floats(0.4, 0.99),
        st.floats(1.01, 2),
        st.floats(2.01, 4 if max(size) < 10 else 2.5),
        st.sampled_from([2.0, 3.0]),
    )
    scales = draw(st.permutations([1.0, *draw(st.lists(other, min_size=1, max_size=3, unique=True))]))
    input_shape = (draw(st.integers(1, 2)), groups * weight_shape[1], *size)
    return input_shape, weight_shape, stride, padding, dilation, groups, tuple(scales), draw(st.booleans())
