"""Each repeat runs every workload once, only what is meant is timed, short calls are iterated; memory and graphs."""

from types import SimpleNamespace

import pytest
import torch

from scaleconv.bench.timing import WARM_UP, milliseconds, peak_memory, repeated, time_host, time_interleaved
from scaleconv.experiments.sgd import captured

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def pause(monkeypatch):
    """Let time pass, in ms, on a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr("scaleconv.bench.timing.time", SimpleNamespace(perf_counter=lambda: now[0]))

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

    assert time_interleaved({"a": prepare}, "cpu", 1)["a"].median_ms == pytest.approx(3)


def test_the_host_is_timed_from_an_idle_device_until_the_call_returns(pause, monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (order.append("|"), pause(50)))
    durations = {"a": iter([3, 9, 4]), "b": iter([1, 1, 1])}
    calls = {name: lambda name=name: (order.append(name), pause(next(durations[name]))) for name in "ab"}
    timings = time_host(calls, 3)
    assert "".join(order) == "|a|b" + "|b|a" + "|a|b" + "|"
    assert (timings["a"].min_ms, timings["a"].median_ms, timings["a"].max_ms) == pytest.approx((3, 4, 9))
    assert timings["b"].median_ms == pytest.approx(1)


def test_a_cpu_has_no_peak():
    calls = []
    assert peak_memory(lambda: calls.append(1), "cpu") is None
    assert calls == []


@cuda
def test_the_peak_counts_what_is_held_and_what_is_made():
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
