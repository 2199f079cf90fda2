"""The layer against golden cases, and against the nested loops of `reference`."""

import json
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from helpers.loops import assert_loops_agree, calls
from scaleconv import si_conv2d
from scaleconv.ops.call import make_call
from scaleconv.ops.plan import make_plan

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "si_conv2d.npz")


@pytest.mark.parametrize("case", range(6))
def test_golden_cases_match(case):
    arrays = {name.split("/")[1]: GOLDEN[name] for name in GOLDEN.files if name.startswith(f"{case}/")}
    spec = json.loads(str(arrays.pop("spec")))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    output, winner = si_conv2d(tensors["input"], tensors["weight"], tensors.get("bias"), **spec, return_winner=True)
    assert (output - tensors["output"]).abs().max() < 1e-10
    assert torch.equal(winner.long(), tensors["winner"])


def test_agrees_with_the_loop_reference():
    seen = Counter()

    # The same calls in every run, so that the counts below are the same, too.
    @settings(max_examples=250, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(), st.integers(0, 2**31))
    def agree(call, seed):
        assert_loops_agree(*call, seed=seed)
        checked = make_call(*call)
        levels = [level for level in checked.levels if level.scales[0] != 1]
        forms = {canvas.form for canvas in make_plan(checked, call[0][0], False).canvases}
        seen.update(forms)
        seen["compared"] += bool(levels)
        seen["past the edge"] += any(level.scales[0] in (2, 3) and not level.regular for level in levels)
        seen["too small"] += len(levels) + 1 < len(checked.matrices)
        seen["shrunk below 0.4"] += any(level.scales[0] < 0.4 for level in levels)
        seen["enlarged by three"] += any(level.scales[0] > 3 for level in levels)

    agree()
    assert seen["compared"] >= 150
    assert seen["dense"] >= 80, seen
    assert seen["strided"] >= 10, seen
    rare = ("past the edge", "too small", "shrunk below 0.4", "enlarged by three")
    assert min(seen[kind] for kind in rare) >= 3, seen


def test_many_channels_are_gathered_and_agree_with_the_loops():
    call = (2, 16, 9, 8), (3, 16, 2, 3), (1, 2), (1, 0), (1, 1), 1, (0.7, 1, 1.7, 2)
    plan = make_plan(make_call(*call), 2, False)
    assert [[strip.code for strip in canvas.strips] for canvas in plan.canvases] == [[1, 2, 3]]
    assert_loops_agree(*call, antialias=False)


@pytest.mark.parametrize("channels", [2, 16])
def test_taps_that_read_padding_alone_at_every_level_agree_with_the_loops(channels):
    call = (2, channels, 4, 3), (3, channels, 3, 5), (1, 2), (36, 8), (36, 4), 1, (0.7, 1, 2)
    assert [axis.kernel for axis in make_call(*call).cropped.axes] == [1, 3]
    assert_loops_agree(*call, antialias=False)


def test_the_gradient_of_taps_that_read_padding_alone_is_zero():
    images, weight = torch.rand(2, 3, 4, 4), torch.rand(5, 3, 3, 3, requires_grad=True)
    si_conv2d(images, weight, padding=36, dilation=36).sum().backward()
    seen = torch.zeros(3, 3, dtype=torch.bool)
    seen[1, 1] = True
    assert torch.equal((weight.grad != 0).expand(5, 3, 3, 3), seen.expand(5, 3, 3, 3))


@pytest.mark.parametrize("channels", [1, 16])
def test_antialiasing_weighs_pixels_by_a_triangle_as_wide_as_the_shrinking(channels):
    call = (1, channels, 13, 11), (2, channels, 3, 3), (1, 1), (0, 0), (1, 1), 1, (0.45, 1, 0.8, 1.5)
    assert_loops_agree(*call, antialias=True)
