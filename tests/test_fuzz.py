"""A few hundred drawn calls in every run; `make fuzz` draws as many as asked for."""

from collections import Counter

import pytest
import torch

from fuzz import cases
from helpers.loops import aligned_by_loops, tensors_of
from helpers.tolerance import assert_close


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize("part", range(4))
def test_drawn_calls_agree_with_their_references(part):
    passed = Counter(cases.run(0, number) for number in range(75 * part, 75 * part + 75))
    assert passed.total() == 75
    assert set(passed) >= {"si_conv2d", "ti_conv2d", "refused", "convert"}


def test_the_matrices_of_the_fuzzer_are_the_loops():
    """Two references that share no code."""
    for scales, stride, antialias in (((0.7, 1.0, 1.6), (2, 1), False), ((1.0, 0.45), (1, 1), True)):
        images, weight, bias = tensors_of((2, 4, 9, 7), (4, 2, 3, 2))
        call = {"stride": stride, "padding": (1, 0), "dilation": (1, 2), "groups": 2}
        loops = aligned_by_loops(images, weight, bias, **call, scales=scales, antialias=antialias)
        maps = [((s, 0.0), (0.0, s)) for s in scales]
        call["padding"] = [(1, 1), (0, 0)]
        aligned = cases.aligned_responses(images, weight, bias, **call, maps=maps, antialias=antialias)
        loops = torch.from_numpy(loops)
        assert torch.equal(aligned.isinf(), loops.isinf())
        assert_close(aligned[~aligned.isinf()], loops[~loops.isinf()])


@pytest.mark.parametrize("fault", ["output", "winner", "gradient"])
def test_a_fault_of_the_layer_is_found(fault, monkeypatch):
    def faulty(*tensors, **arguments):
        output, winner = correct(*tensors, **arguments)
        if not output.numel():
            return output, winner
        if fault == "output":
            output = output + 1e-2 * output.abs().max()
        if fault == "winner":
            winner = torch.where(winner == 0, winner.max(), 0).to(winner)
        if fault == "gradient":
            output = output.detach() + 1.1 * (output - output.detach())
        return output, winner

    correct = cases.si_conv2d
    monkeypatch.setattr(cases, "si_conv2d", faulty)
    found = 0
    for number in range(20):
        dice = cases.Random(f"fault {number}")
        try:
            cases.check_si_conv2d(dice, "cpu")
        except AssertionError as error:
            found += fault in str(error)
    assert found >= 5
