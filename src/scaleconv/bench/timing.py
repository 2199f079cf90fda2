"""Clocks for CPU and GPU, interleaved timing, and peak memory.

Everything that is compared runs once in every repeat, so that drift (clocks, temperature, other load) affects all
alike. A short call is iterated until the timing lasts; what must not be timed is prepared before the clock starts.
"""

import gc
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Run = Callable[[], None]
Workload = Callable[[int], Run]  # prepares so many iterations, and returns what is to be timed
Tick = Callable[[str], None]  # called after every repeat, for display only

LEAST_MS = 2.0  # a shorter timing would mostly be the clock and the first launch
MOST_ITERATIONS = 100
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one iteration: the median over the repeats, the least and the most, and iterations per timing."""

    median_ms: float
    min_ms: float
    max_ms: float
    iterations: int


@dataclass(frozen=True)
class Memory:
    """MiB on a GPU: what was held before a pass (weights, input, gradient of the output), and the peak during it."""

    held_mib: float
    peak_mib: float


def repeated(call: Callable[[], object]) -> Workload:
    """The workload that repeats one call, and needs no preparation."""

    def prepare(count: int) -> Run:
        def run() -> None:
            for _ in range(count):
                call()

        return run

    return prepare


def milliseconds(run: Run, device: str) -> float:
    """Wall time of `run`; on a GPU by events, until its last kernel has ended."""
    if torch.device(device).type != "cuda":
        begin = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - begin)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def time_interleaved(
    workloads: Mapping[Key, Workload],
    device: str,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    *,
    warm_up: int = WARM_UP,
) -> dict[Key, Timing]:
    """Time every workload once per repeat, after calls that do not count; the order rotates from repeat to repeat."""
    iterations = {key: _iterations(workload, device, warm_up) for key, workload in workloads.items()}
    samples: dict[Key, list[float]] = {key: [] for key in workloads}
    for repeat in range(repeats):
        for key in _rotated(workloads, repeat):
            run = workloads[key](iterations[key])
            samples[key].append(milliseconds(run, device) / iterations[key])
        tick()
    return {key: _summary(times, iterations[key]) for key, times in samples.items()}


def time_host(calls: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, Timing]:
    """Time the host needs to issue each call on a GPU: the device is idle before the call, and not waited for.

    The calls must have been warmed up.
    """
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    for repeat in range(repeats):
        for key in _rotated(calls, repeat):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            result = calls[key]()
            samples[key].append(1000 * (time.perf_counter() - begin))
            del result  # freed after the clock was read
    torch.cuda.synchronize()
    return {key: _summary(times, 1) for key, times in samples.items()}


def _rotated(keys: Iterable[Key], repeat: int) -> list[Key]:
    """The keys, each repeat beginning with the next one."""
    ordered = list(keys)
    first = repeat % max(len(ordered), 1)
    return ordered[first:] + ordered[:first]


def _summary(times: Sequence[float], iterations: int) -> Timing:
    return Timing(median(times), min(times), max(times), iterations)


def _iterations(workload: Workload, device: str, warm_up: int) -> int:
    """How many iterations make a timing long enough; finding out also warms up."""
    once = min(milliseconds(workload(1), device) for _ in range(warm_up))
    return min(max(math.ceil(LEAST_MS / max(once, 1e-6)), 1), MOST_ITERATIONS)


def peak_memory(call: Callable[[], object], device: str) -> Memory | None:
    """Memory of one call on a GPU, after cached memory was released; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # left by whoever multiplied matrices before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return Memory(held / 2**20, torch.cuda.max_memory_allocated() / 2**20)
