"""Time and memory of calls: one clock, one capture of CUDA graphs, one interleaved comparison.

Everything that is compared is timed once in every repeat, so that drift (clock rates, temperature, other load) affects
all candidates alike; torch.utils.benchmark times one after the other. A short call is iterated until its timing is long
enough. What must not be timed is prepared before the clock starts. On a GPU the clock is either that of the device, by
CUDA events, or that of the host, which only launches the kernels. Imports torch alone.
"""

import gc
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .ops.torch_private import free_cublas_workspaces

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]
Candidate = TypeVar("Candidate", bound=Call)

MIN_MS = 2.0  # a shorter timing would mostly be the clock and the first launch
MAX_ITERATIONS = 100
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one iteration: median, minimum and maximum over the repeats; and the iterations of a timing."""

    median_ms: float
    min_ms: float
    max_ms: float
    iterations: int


@dataclass(frozen=True)
class Memory:
    """MiB on a GPU: allocated before a call (weights, input, gradient of the output), and at the peak of the call."""

    held_mib: float
    peak_mib: float


@dataclass(frozen=True)
class Workload:
    """What one timing runs.

    Attributes:
        prepare: takes a number of iterations, makes what is not to be timed, and returns what is.
        host: time how long the host takes to launch one iteration on an idle GPU, and do not wait for the GPU.
    """

    prepare: Callable[[int], Call]
    host: bool = False


def repeated(call: Call, *, host: bool = False) -> Workload:
    """The workload that repeats one call, and needs no preparation; the host is timed for one call only."""

    def prepare(count: int) -> Call:
        def run() -> None:
            for _ in range(count):
                call()

        return call if host else run

    return Workload(prepare, host)


def milliseconds(run: Call, device: str) -> float:
    """Wall time of `run`; on a GPU by events, until its last kernel has ended."""
    if torch.device(device).type != "cuda":
        return _wall_milliseconds(run)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _wall_milliseconds(run: Call) -> float:
    begin = time.perf_counter()
    result = run()
    taken = 1000 * (time.perf_counter() - begin)
    del result  # freed after the clock was read
    return taken


def captured(call: Call, before: Call = lambda: None) -> Callable[[], None]:
    """Capture a call in a CUDA graph; the function that is returned replays it without the host.

    Args:
        call: what is captured. It runs a few times first, so that libraries choose their algorithms and buffers.
        before: runs before each of these calls, and before the capture, to undo what the last call has changed.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            before()
            call()
        before()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_held: Call = call) -> None:  # a graph works in the memory of its call, and does not hold it
        graph.replay()

    return replay


def time_interleaved(
    workloads: Mapping[Key, Workload], device: str, repeats: int, tick: Callable[[], None] = lambda: None
) -> dict[Key, Timing]:
    """Time every workload once per repeat, each repeat beginning with the next one.

    Three calls of each come first and do not count; the shortest says how many iterations make a timing long enough.

    Args:
        workloads: what to time.
        device: where they run.
        repeats: timings of each.
        tick: called after every repeat.
    """
    iterations = {key: _iterations(workload, device) for key, workload in workloads.items()}
    samples: dict[Key, list[float]] = {key: [] for key in workloads}
    keys = list(workloads)
    for repeat in range(repeats):
        first = repeat % max(len(keys), 1)
        for key in keys[first:] + keys[:first]:
            samples[key].append(_sample(workloads[key], iterations[key], device) / iterations[key])
        tick()
    return {key: Timing(median(ms), min(ms), max(ms), iterations[key]) for key, ms in samples.items()}


def _sample(workload: Workload, iterations: int, device: str) -> float:
    run = workload.prepare(iterations)
    if not workload.host:
        return milliseconds(run, device)
    torch.cuda.synchronize()  # until the GPU is idle
    return _wall_milliseconds(run)


def _iterations(workload: Workload, device: str) -> int:
    once = min(_sample(workload, 1, device) for _ in range(WARM_UP))
    return 1 if workload.host else min(max(math.ceil(MIN_MS / max(once, 1e-6)), 1), MAX_ITERATIONS)


def peak_memory(call: Call, device: str) -> Memory | None:
    """Memory of one call on a GPU, after cached memory was released; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize()
    gc.collect()
    free_cublas_workspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return Memory(held / 2**20, torch.cuda.max_memory_allocated() / 2**20)


class LayerPass:
    """Forward and backward of a layer on one input; called, it does both.

    The forward pass is that of training, with what it keeps for the backward pass. Gradients are those of the
    parameters and, unless `input_grad` is False, of the input; the gradient of the output is a fixed random tensor.
    """

    def __init__(
        self,
        layer: nn.Module,
        images: Tensor,
        layout: torch.memory_format = torch.contiguous_format,
        *,
        input_grad: bool = True,
    ) -> None:
        self.layer, self.images = layer, images.requires_grad_(input_grad)
        self.inputs = [*layer.parameters(), *([images] if input_grad else [])]
        with torch.no_grad():
            shape = layer(images).shape
        random = torch.Generator(images.device).manual_seed(1)
        grad = torch.randn(shape, generator=random, device=images.device)
        self.grad = grad.to(images.dtype, memory_format=layout)

    def forward(self) -> Tensor:
        output: Tensor = self.layer(self.images)
        return output

    def backward(self, output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, self.inputs, self.grad, allow_unused=True)

    def __call__(self) -> tuple[Tensor, ...]:
        return self.backward(self.forward())

    def only_backward(self, count: int) -> Call:
        """The backward passes of forward passes that are not timed."""
        outputs = [self.forward() for _ in range(count)]

        def run() -> None:
            while outputs:
                self.backward(outputs.pop())

        return run


def compare(
    candidates: Mapping[Key, Callable[[], Candidate]],
    workloads: Callable[[Callable[[], Candidate]], Mapping[str, Workload]],
    device: str,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[Key, dict[str, Any]]:
    """Measure the memory of each candidate while it is alone, then time all of them interleaved.

    Args:
        candidates: functions that make what is measured, a call without arguments.
        workloads: takes such a function and returns what to time, by name.
        device, repeats, tick: as in `time_interleaved`.

    Returns:
        For each candidate its timings by name, `memory` and `error`. One that raises a RuntimeError or a ValueError
        before the timings has only an error, its kind and first line, and the others are compared without it.
    """
    memory: dict[Key, Memory | None] = {}
    timed: dict[tuple[Key, str], Workload] = {}
    errors: dict[Key, str] = {}

    @contextmanager
    def noting(key: Key) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            errors[key] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

    for key, make in candidates.items():
        with noting(key):
            memory[key] = _memory_alone(make, device)
    for key in memory:
        with noting(key):
            timed |= {(key, name): workload for name, workload in workloads(candidates[key]).items()}
    times = time_interleaved(timed, device, repeats, tick)
    found: dict[Key, dict[str, Any]] = {}
    for key in candidates:
        timings = {name: timing for (other, name), timing in times.items() if other == key}
        found[key] = {"memory": memory.get(key), "error": errors.get(key), **timings}
    return found


def _memory_alone(make: Callable[[], Call], device: str) -> Memory | None:
    """Memory of a call after a few that plan, compile and allocate. On a CPU, one call shows whether it works."""
    call = make()
    for _ in range(WARM_UP if torch.device(device).type == "cuda" else 1):
        call()
    return peak_memory(call, device)
