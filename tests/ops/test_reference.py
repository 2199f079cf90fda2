"""The layer against golden cases, and against the nested loops of `reference`."""

import json
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from loops import assert_loops_agree, calls
from scaleconv import si_conv2d
from scaleconv.ops.cost import prefers_filter, prefers_patches
from scaleconv.ops.signature import make_signature

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

    @settings(max_examples=350, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(calls(), st.integers(0, 2**31))
    def agree(call, seed):
        assert_loops_agree(*call, seed=seed)
        signature = make_signature(*call[:-1])
        levels = [level for level in signature.plan.levels if level.scale != 1]
        orders = {prefers_patches(signature, level) for level in levels if not level.regular}
        seen["compared"] += bool(levels)
        seen["by patches"] += True in orders
        seen["directly"] += False in orders
        by_filter = {prefers_filter(signature, level) for level in levels if level.regular}
        seen["by filters"] += True in by_filter
        seen["by strides"] += False in by_filter
        seen["past the edge"] += any(level.scale in (2, 3) and not level.regular for level in levels)
        seen["too small"] += len(levels) + 1 < len(signature.scales)
        seen["shrunk below 0.4"] += any(level.scale < 0.4 for level in levels)
        seen["enlarged by three"] += any(level.scale > 3 for level in levels)

    agree()
    assert seen["compared"] >= 200
    assert min(seen["by patches"], seen["directly"]) >= 60, seen
    assert seen["by strides"] >= 20, seen
    assert min(seen["past the edge"], seen["by filters"]) >= 5, seen
    assert min(seen["too small"], seen["shrunk below 0.4"], seen["enlarged by three"]) >= 10, seen


@pytest.mark.parametrize(("maps", "kernel", "patches"), [(2, 3, False), (6, 1, True)], ids=["whole levels", "patches"])
def test_antialiasing_weighs_pixels_by_a_triangle_as_wide_as_the_shrinking_in_both_orders(maps, kernel, patches):
    call = (1, 1, 13, 11), (maps, 1, kernel, kernel), (1, 1), (0, 0), (1, 1), 1, (0.45, 1, 0.8, 1.5)
    signature = make_signature(*call)
    assert all(prefers_patches(signature, level) == patches for level in signature.plan.levels if level.scale < 1)
    assert_loops_agree(*call, antialias=True)
