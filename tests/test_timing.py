"""Each repeat runs every workload once, only what is meant is timed, short calls are iterated; passes and memory."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaleconv import timing
from scaleconv.timing import (
    LayerPass,
    Workload,
    captured,
    compare,
    milliseconds,
    peak_memory,
    repeated,
    time_interleaved,
)

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def pause(monkeypatch):
    """Let time pass, in ms, on a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_time(milliseconds):
        now[0] += milliseconds / 1000

    return pass_time


def test_every_repeat_runs_every_workload_once_begins_with_the_next_and_ends_in_a_tick(pause):
    order = []
    workloads = {name: repeated(lambda name=name: (order.append(name), pause(3))) for name in "abc"}
    time_interleaved(workloads, "cpu", 4, lambda: order.append("|"))
    assert "".join(order) == "aaabbbccc" + "abc|" + "bca|" + "cab|" + "abc|"


@pytest.mark.parametrize("warming", [(500, 300, 0.6), (0.6, 500, 300), (500, 0.6, 300)])
def test_the_shortest_call_of_warming_up_says_how_many_are_needed(pause, warming):
    """A first call compiles and a later one may be disturbed: 4 calls of 0.6 ms last over 2 ms."""
    pauses = iter([*warming, *[0.6] * 4])
    found = time_interleaved({"a": repeated(lambda: pause(next(pauses)))}, "cpu", 1)["a"]
    assert found.iterations == 4
    assert next(pauses, None) is None


@pytest.mark.parametrize(("length", "iterations"), [(0.4, 5), (1.5, 2), (2.1, 1), (1e-5, 100), (0, 100)])
def test_a_short_call_is_repeated_until_the_timing_lasts(pause, length, iterations):
    calls = []
    found = time_interleaved({"a": repeated(lambda: (calls.append(1), pause(length)))}, "cpu", 1)["a"]
    assert (found.iterations, len(calls)) == (iterations, 3 + iterations)
    assert found.median_ms == pytest.approx(length)


def test_preparation_and_warming_up_are_not_timed_and_the_median_the_least_and_the_most_are_kept(pause):
    pauses = iter([1000, 1000, 4, 40, 20, 200])

    def prepare(count):
        pause(50 * count)
        return lambda: pause(next(pauses))

    found = time_interleaved({"a": Workload(prepare)}, "cpu", 3)["a"]
    assert (found.min_ms, found.median_ms, found.max_ms, found.iterations) == pytest.approx((20, 40, 200, 1))


def test_the_host_is_timed_from_an_idle_device_until_one_call_returns_and_its_result_is_freed_later(pause, monkeypatch):
    class Result:
        def __del__(self):
            pause(30)

    order, lengths = [], iter([1, 1, 1, 9, 0.1, 4])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (order.append("|"), pause(50)))
    workload = repeated(lambda: (order.append("a"), pause(next(lengths)), Result())[2], host=True)
    found = time_interleaved({"a": workload}, "cpu", 3)["a"]
    assert "".join(order) == "|a" * 6
    assert (found.min_ms, found.median_ms, found.max_ms) == pytest.approx((0.1, 4, 9))
    assert found.iterations == 1  # however short


def test_on_a_gpu_time_is_between_two_events_on_an_idle_device(monkeypatch):
    order = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            order.append(self)

        def elapsed_time(self, end):
            assert order == ["idle", self, "run", end, "idle"]
            return 7

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("idle"))
    assert milliseconds(lambda: order.append("run"), "cuda:0") == 7.0


@pytest.fixture
def conv_pass():
    torch.manual_seed(0)
    return LayerPass(nn.Conv2d(2, 3, 3), torch.rand(2, 2, 5, 5))


def test_gradients_are_those_of_autograd_for_a_fixed_random_gradient_of_the_output(conv_pass):
    weight, bias, images = conv_pass()
    layer, inputs = conv_pass.layer, conv_pass.images
    (layer(inputs) * conv_pass.grad).sum().backward()
    for mine, theirs in ((weight, layer.weight), (bias, layer.bias), (images, inputs)):
        assert torch.allclose(mine, theirs.grad, atol=1e-5)
    assert torch.equal(conv_pass.grad, LayerPass(layer, inputs).grad)
    assert conv_pass.grad.std() > 0.5
    alone = LayerPass(layer, torch.rand(2, 2, 5, 5), input_grad=False)
    assert [grad.shape for grad in alone()] == [(3, 2, 3, 3), (3,)]


def test_backward_alone_runs_no_forward_while_it_is_timed(conv_pass):
    calls = []
    conv_pass.layer.register_forward_hook(lambda *_: calls.append("forward"))
    conv_pass.images.register_hook(lambda _: calls.append("backward"))
    run = conv_pass.only_backward(2)
    assert calls == ["forward"] * 2
    run()
    assert calls == ["forward"] * 2 + ["backward"] * 2


def test_what_fails_has_an_error_and_the_comparison_goes_on(pause):
    made = []

    def make(name, ms=3):
        made.append(name)
        if name == "bad" or made.count("late") == 2:
            raise (RuntimeError if name == "bad" else ValueError)("no such\nkernel")
        return lambda: pause(ms)

    candidates = {name: lambda name=name: make(name) for name in ("bad", "good", "late")}
    found = compare(candidates, lambda make: {"call": repeated(make())}, "cpu", 1)
    assert made == ["bad", "good", "late", "good", "late"]  # alone, then together
    assert found["bad"] == {"memory": None, "error": "RuntimeError: no such"}
    assert found["late"] == {"memory": None, "error": "ValueError: no such"}
    assert found["good"]["call"].median_ms == pytest.approx(3)
    assert (found["good"]["error"], peak_memory(made.clear, "cpu"), len(made)) == (None, None, 5)


@cuda
def test_the_peak_counts_what_is_held_and_what_is_made():
    peak_memory(lambda: None, "cuda")  # releases what other tests left: garbage, and workspaces of the libraries
    held = torch.zeros(2**18, device="cuda")  # 1 MiB
    before = torch.cuda.memory_allocated() / 2**20
    memory = peak_memory(lambda: held.repeat(8), "cuda")
    assert memory.held_mib == before
    assert memory.peak_mib == pytest.approx(before + 8, abs=0.1)


@cuda
def test_a_captured_call_is_replayed_after_what_it_changed_was_undone():
    counter = torch.zeros((), device="cuda")
    replay = captured(lambda: counter.add_(1), counter.zero_)
    assert counter.item() == 0
    replay()
    replay()
    assert counter.item() == 2
