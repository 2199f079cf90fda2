"""A few hundred drawn calls and damaged files in every run; `make fuzz` draws as many as asked for."""

import math
from collections import Counter
from itertools import permutations
from unittest import mock

import pytest
import torch

import fuzz
from fuzz import cases, files
from helpers.loops import aligned_by_loops, tensors_of
from helpers.tolerance import assert_close
from scaleconv.data import sets
from scaleconv.experiments import checkpoint, records


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize("part", range(4))
def test_drawn_calls_agree_with_their_references(part):
    passed = Counter(cases.run(0, number, kinds=cases.QUICK) for number in range(75 * part, 75 * part + 75))
    assert passed.total() == 75
    assert set(passed) >= {"si_conv2d", "ti_conv2d", "refused"}


@pytest.mark.parametrize(
    ("seed", "number", "kind"),
    [
        (101, 6119, "ti_conv2d"),
        (102, 6750, "si_conv2d"),
        (102, 6839, "ti_conv2d"),  # so far: groups, and an axis of one pixel; a gradient was that of other pixels
        (7, 45, "si_conv2d, long strides"),  # depthwise at scale 1: the process was killed
        # One thread, a stride of (1, n), and memory that was used before: oneDNN does not write all of its results.
        (109, 2191, "si_conv2d"),
        (108, 7032, "si_conv2d, transformed"),
        (109, 15350, "ti_conv2d"),
        # One scale, one thread: a strided 1×1 filter ended the process.
        (110, 4063, "si_conv2d"),
        (113, 22228, "ti_conv2d"),  # groups, and a batch of one
    ],
)
def test_what_once_failed_is_right(seed, number, kind):
    used = [torch.full((size,), math.nan) for size in range(10, 4000, 7)]
    del used
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert cases.run(seed, number, kinds={kind: cases.KINDS[kind]}) == kind
    finally:
        torch.set_num_threads(threads)


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


WRONG = {
    "output": lambda output, winner: (output + 1e-2 * output.abs().max(), winner),
    "winner": lambda output, winner: (output, torch.where(winner == 0, winner.max(), 0).to(winner)),
    "gradient": lambda output, winner: (output.detach() + 1.1 * (output - output.detach()), winner),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_of_the_layer_is_found(fault, monkeypatch):
    def faulty(*tensors, **arguments):
        output, winner = correct(*tensors, **arguments)
        return WRONG[fault](output, winner) if output.numel() else (output, winner)

    correct, found = cases.si_conv2d, []
    monkeypatch.setattr(cases, "si_conv2d", faulty)
    for number in range(20):
        try:
            cases.check_si_conv2d(cases.Random(f"fault {number}"), "cpu")
        except AssertionError as error:
            found.append(fault in str(error))
    assert sum(found) >= 5


@pytest.mark.parametrize("part", range(4))
def test_damaged_files_are_refused_by_name_or_read_as_if_whole(part):
    passed = Counter(files.run(0, number) for number in range(75 * part, 75 * part + 75))
    assert passed.total() == 75
    assert set(passed) >= {"idx", "record", "checkpoint", "set", "item", "image"}


FAULTS = {
    "a record's checksum is not checked": (records, "checksum", lambda *_: mock.ANY, files.check_record),
    "a checkpoint's checksum is not checked": (checkpoint, "_checksum", lambda *_: mock.ANY, files.check_checkpoint),
    "a set's layout is not checked": (sets, "_check_layout", lambda *_: None, files.check_set),
    "a message does not name its file": (records, "brief", lambda _: 1 / 0, files.check_record),
}


@pytest.mark.parametrize(("module", "name", "fault", "check"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_reader_is_found(module, name, fault, check, monkeypatch, tmp_path):
    for numbers in (n for count in (1, 2, 4) for n in permutations(range(4), count)):
        files.whole_records(numbers)
    for kind in ("plain", "method", "weights", "training"):
        files.whole_checkpoint(kind)
    files.whole_set()
    monkeypatch.setattr(module, name, fault)
    found = 0
    for number in range(300):
        (folder := tmp_path / str(number)).mkdir()
        try:
            check(cases.Random(f"fault {number}"), folder)
        except (AssertionError, ArithmeticError):
            found += 1
    assert found >= 1


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_worker_process_finds_what_it_runs(kind):
    """Spawned processes do not import the `__main__` of a package."""
    assert fuzz.run_case.__module__ == "fuzz"
    for number in range(3):
        found, passed, reason = fuzz.run_case(kind, 0, "cpu", number)
        assert (found, passed is None, reason) == (number, False, None)
