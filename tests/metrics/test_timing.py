"""Each repeat runs every workload once, only what is meant is timed, short calls are iterated; passes and memory."""

from types import SimpleNamespace

import pytest
import torch
from scaleconv.metrics.timing import (
    WARM_UP,
    LayerPass,
    Workload,
    captured,
    compare,
    milliseconds,
    peak_memory,
    repeated,
    time_interleaved,
)
from torch import nn

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def pause(monkeypatch):
    """Let time pass, in ms, on a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr("scaleconv.metrics.timing.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_time(milliseconds):
        now[0] += milliseconds / 1000

    return pass_time


def test_every_repeat_runs_every_workload_once_and_begins_with_the_next(pause):
    order = []
    workloads = {name: repeated(lambda name=name: (order.append(name), pause(3))) for name in "abc"}
    time_interleaved(workloads, "cpu", 4, warm_up=1)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc"


def test_a_repeat_is_told_when_it_is_over(pause):
    seen = []
    time_interleaved({"a": repeated(lambda: (seen.append("call"), pause(3)))}, "cpu", 2, lambda: seen.append("tick"))
    assert seen == ["call"] * WARM_UP + ["call", "tick"] * 2


def test_the_median_the_least_and_the_most_are_kept_and_warming_up_is_not(pause):
    pauses = iter([*[1000] * (WARM_UP - 1), 4, 40, 20, 200])
    timing = time_interleaved({"a": repeated(lambda: pause(next(pauses)))}, "cpu", 3)["a"]
    assert (timing.min_ms, timing.median_ms, timing.max_ms) == pytest.approx((20, 40, 200))
    assert timing.iterations == 1


@pytest.mark.parametrize("warming", [(500, 300, 0.6), (0.6, 500, 300), (500, 0.6, 300)])
def test_the_shortest_call_of_warming_up_says_how_many_are_needed(pause, warming):
    """A first call compiles and a later one may be disturbed: 4 calls of 0.6 ms last over 2 ms."""
    pauses = iter([*warming, *[0.6] * 4])
    timing = time_interleaved({"a": repeated(lambda: pause(next(pauses)))}, "cpu", 1)["a"]
    assert timing.iterations == 4
    assert next(pauses, None) is None


@pytest.mark.parametrize(("length", "iterations"), [(0.4, 5), (1.5, 2), (1e-5, 100), (0, 100)])
def test_a_short_call_is_repeated_until_the_timing_lasts(pause, length, iterations):
    calls = []
    timing = time_interleaved({"a": repeated(lambda: (calls.append(1), pause(length)))}, "cpu", 1)["a"]
    assert timing.iterations == iterations
    assert len(calls) == WARM_UP + iterations
    assert timing.median_ms == pytest.approx(length)


def test_preparation_is_not_timed(pause):
    def prepare(count):
        pause(50 * count)
        return lambda: pause(3 * count)

    assert time_interleaved({"a": Workload(prepare)}, "cpu", 1)["a"].median_ms == pytest.approx(3)


def test_the_host_is_timed_from_an_idle_device_until_the_call_returns(pause, monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (order.append("|"), pause(50)))
    durations = {"a": iter([9, 3, 0.1, 4]), "b": iter([1, 1, 1, 1])}
    calls = {name: lambda name=name: (order.append(name), pause(next(durations[name]))) for name in "ab"}
    workloads = {name: repeated(call, host=True) for name, call in calls.items()}
    timings = time_interleaved(workloads, "cpu", 3, warm_up=1)
    assert "".join(order) == "|a|b" + "|a|b" + "|b|a" + "|a|b"
    assert (timings["a"].min_ms, timings["a"].median_ms, timings["a"].max_ms) == pytest.approx((0.1, 3, 4))
    assert timings["a"].iterations == 1  # however short


def test_a_host_frees_the_result_after_the_clock_was_read(pause, monkeypatch):
    class Result:
        def __del__(self):
            pause(30)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    workload = repeated(lambda: (pause(2), Result())[1], host=True)
    assert time_interleaved({"a": workload}, "cpu", 1)["a"].median_ms == pytest.approx(2)


@pytest.fixture
def conv_pass():
    torch.manual_seed(0)
    return LayerPass(nn.Conv2d(2, 3, 3), torch.rand(2, 2, 5, 5))


def test_gradients_are_those_of_autograd_the_input_included(conv_pass):
    weight, bias, images = conv_pass()
    layer, inputs = conv_pass.layer, conv_pass.images
    (layer(inputs) * conv_pass.grad).sum().backward()
    for mine, theirs in ((weight, layer.weight), (bias, layer.bias), (images, inputs)):
        assert torch.allclose(mine, theirs.grad, atol=1e-5)
    assert layer.weight.grad is not weight


def test_the_gradient_of_the_output_is_fixed_and_random(conv_pass):
    again = LayerPass(conv_pass.layer, conv_pass.images)
    assert torch.equal(conv_pass.grad, again.grad)
    assert conv_pass.grad.std() > 0.5


def test_backward_alone_runs_no_forward_while_it_is_timed(conv_pass):
    calls = []
    conv_pass.layer.register_forward_hook(lambda *_: calls.append("forward"))
    conv_pass.images.register_hook(lambda _: calls.append("backward"))
    run = conv_pass.only_backward(2)
    assert calls == ["forward"] * 2
    run()
    assert calls == ["forward"] * 2 + ["backward"] * 2


def test_without_the_gradient_of_the_input_only_parameters_have_one(conv_pass):
    alone = LayerPass(conv_pass.layer, torch.rand(2, 2, 5, 5), input_grad=False)
    assert [grad.shape for grad in alone()] == [(3, 2, 3, 3), (3,)]


def test_the_gradient_of_the_output_has_the_layout_that_is_asked_for(conv_pass):
    last = LayerPass(conv_pass.layer, torch.rand(2, 2, 5, 5).bfloat16().float(), torch.channels_last)
    assert last.grad.is_contiguous(memory_format=torch.channels_last)
    assert conv_pass.grad.is_contiguous()


def test_what_fails_has_an_error_and_the_others_are_timed():
    made = []

    def good():
        made.append("good")
        return lambda: None

    def bad():
        raise RuntimeError("no such\nkernel")

    def late():
        if made.count("late") == 1:
            raise RuntimeError("no memory")
        made.append("late")
        return lambda: None

    candidates = {"good": good, "bad": bad, "late": late}
    measured = compare(candidates, lambda make: {"call": repeated(make())}, "cpu", 1)
    assert {key: found.error for key, found in measured.items()} == {
        "good": None,
        "bad": "RuntimeError: no such",
        "late": "RuntimeError: no memory",
    }
    assert [list(found.timings) for found in measured.values()] == [["call"], [], []]
    assert made.count("good") == 2  # once alone, once among the others
    assert measured["good"].fields() == {"call": measured["good"].timings["call"], "memory": None, "error": None}


def test_a_cpu_has_no_peak():
    calls = []
    assert peak_memory(lambda: calls.append(1), "cpu") is None
    assert calls == []


@cuda
def test_the_peak_counts_what_is_held_and_what_is_made():
    peak_memory(lambda: None, "cuda")  # releases what other tests left: garbage, and workspaces of the libraries
    held = torch.zeros(2**18, device="cuda")  # 1 MiB
    before = torch.cuda.memory_allocated() / 2**20
    memory = peak_memory(lambda: held.repeat(8), "cuda")
    assert memory.held_mib == before
    assert memory.peak_mib == pytest.approx(before + 8, abs=0.1)


@cuda
def test_a_captured_call_is_replayed():
    counter = torch.zeros((), device="cuda")
    replay = captured(lambda: counter.add_(1))
    before = counter.item()
    assert milliseconds(lambda: [replay() for _ in range(3)], "cuda") > 0
    assert counter.item() == before + 3


@cuda
def test_what_a_captured_call_changes_is_undone_before_each_call_and_before_the_capture():
    counter = torch.zeros((), device="cuda")
    replay = captured(lambda: counter.add_(1), counter.zero_)
    assert counter.item() == 0
    replay()
    assert counter.item() == 1
