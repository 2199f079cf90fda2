"""Clocks for CPU and GPU, timing in turns, and peak memory.

All contenders of a comparison run once in every repeat, so that whatever drifts (clocks, temperature, other load) hits
them alike. A timing takes as many iterations as make it last; what must not be timed is prepared before the clock runs.
"""

import gc
import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Run = Callable[[], None]
Work = Callable[[int], Run]  # prepares so many iterations, and returns what is to be timed
Tick = Callable[[str], None]  # told after every repeat, for display only

LEAST_MS = 2.0  # a shorter timing would show the clock and the first launch
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


def repeated(call: Callable[[], object]) -> Work:
    """The work that does the same call again and again, and needs no preparation."""

    def prepare(count: int) -> Run:
        def run() -> None:
            for _ in range(count):
                call()

        return run

    return prepare


def milliseconds(run: Run, device: str) -> float:
    """How long it takes, on a GPU until the last kernel has ended."""
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


def time_in_turns(
    works: Mapping[Key, Work],
    device: str,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    *,
    warm_up: int = WARM_UP,
) -> dict[Key, Timing]:
    """Time every work once per repeat, after some calls that do not count; each repeat begins with another one."""
    iterations = {key: _iterations(work, device, warm_up) for key, work in works.items()}
    samples: dict[Key, list[float]] = {key: [] for key in works}
    keys = list(works)
    for repeat in range(repeats):
        first = repeat % max(len(keys), 1)
        for key in keys[first:] + keys[:first]:
            run = works[key](iterations[key])
            samples[key].append(milliseconds(run, device) / iterations[key])
        tick()
    return {key: Timing(median(times), min(times), max(times), iterations[key]) for key, times in samples.items()}


def _iterations(work: Work, device: str, warm_up: int) -> int:
    """How many iterations make a timing long enough; the calls that tell it also warm up."""
    once = min(milliseconds(work(1), device) for _ in range(warm_up))
    return min(max(math.ceil(LEAST_MS / max(once, 1e-6)), 1), MOST_ITERATIONS)


def peak_memory(call: Callable[[], object], device: str) -> Memory | None:
    """Memory of one call on a GPU, everything not alive given back first; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # they belong to whoever multiplied matrices before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return Memory(held / 2**20, torch.cuda.max_memory_allocated() / 2**20)
