"""Time and memory of calls: clocks, CUDA graphs, interleaved timing, peak memory. The only timer of the package.

Everything that is compared is timed once in every repeat, so that drift (clock rates, temperature, other load) affects
all candidates alike. A short call is iterated until its timing is long enough. What must not be timed is prepared
before the clock starts. On a GPU the clock is either that of the device, by CUDA events, or that of the host, which
only launches the kernels.
"""

import gc
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..ops.torch_private import free_cublas_workspaces

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
    """MiB on a GPU: allocated before a pass (weights, input, gradient of the output), and at the peak of the pass."""

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


def host_milliseconds(run: Call) -> float:
    """Wall time until `run` returns, on a GPU that was idle before."""
    torch.cuda.synchronize()
    return _wall_milliseconds(run)


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
    kept = (graph, call)  # a graph works in the memory of what it was captured from, and does not hold it

    def replay() -> None:
        kept[0].replay()

    return replay


def time_interleaved(
    workloads: Mapping[Key, Workload],
    device: str,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    *,
    warm_up: int = WARM_UP,
) -> dict[Key, Timing]:
    """Time every workload once per repeat, after calls that do not count; the order rotates from repeat to repeat.

    Args:
        workloads: what to time.
        device: where they run.
        repeats: timings of each.
        tick: called after every repeat.
        warm_up: calls of each before the first timing.
    """
    iterations = {key: _iterations(workload, device, warm_up) for key, workload in workloads.items()}
    samples: dict[Key, list[float]] = {key: [] for key in workloads}
    for repeat in range(repeats):
        for key in _rotated(workloads, repeat):
            samples[key].append(_sample(workloads[key], iterations[key], device) / iterations[key])
        tick()
    return {key: Timing(median(ms), min(ms), max(ms), iterations[key]) for key, ms in samples.items()}


def _sample(workload: Workload, iterations: int, device: str) -> float:
    run = workload.prepare(iterations)
    return host_milliseconds(run) if workload.host else milliseconds(run, device)


def _iterations(workload: Workload, device: str, warm_up: int) -> int:
    """How many iterations make a timing long enough; finding out also warms up. The host is timed for one call."""
    once = min(_sample(workload, 1, device) for _ in range(warm_up))
    return 1 if workload.host else min(max(math.ceil(MIN_MS / max(once, 1e-6)), 1), MAX_ITERATIONS)


def _rotated(keys: Iterable[Key], repeat: int) -> list[Key]:
    """The keys, each repeat beginning with the next one."""
    ordered = list(keys)
    first = repeat % max(len(ordered), 1)
    return ordered[first:] + ordered[:first]


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


@dataclass(frozen=True)
class Measured:
    """What was measured of one candidate: the timing of each workload by name, the memory, or why there is neither."""

    timings: Mapping[str, Timing]
    memory: Memory | None
    error: str | None

    def fields(self) -> dict[str, Any]:
        """All of it by name, for a row that has a field for each."""
        return {**self.timings, "memory": self.memory, "error": self.error}


def compare(
    candidates: Mapping[Key, Callable[[], Candidate]],
    workloads: Callable[[Callable[[], Candidate]], Mapping[str, Workload]],
    device: str,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[Key, Measured]:
    """Measure the memory of each candidate while it is alone, then time all of them interleaved.

    Args:
        candidates: functions that make what is measured, a call without arguments.
        workloads: takes such a function and returns what to time, by name.
        device, repeats, tick: as in `time_interleaved`.

    Returns:
        For each candidate what was measured. One that raises a RuntimeError or a ValueError has an error, and the
        others go on.
    """
    memory: dict[Key, Memory | None] = {}
    timed: dict[tuple[Key, str], Workload] = {}
    errors: dict[Key, str] = {}
    for key, make in candidates.items():
        try:
            memory[key] = _memory_alone(make, device)
        except (RuntimeError, ValueError) as error:
            errors[key] = one_line(error)
    for key, make in candidates.items():
        if key not in errors:
            try:
                timed |= {(key, name): workload for name, workload in workloads(make).items()}
            except (RuntimeError, ValueError) as error:
                errors[key] = one_line(error)
    times = time_interleaved(timed, device, repeats, tick)
    timings: dict[Key, dict[str, Timing]] = {key: {} for key in candidates}
    for (key, name), timing in times.items():
        timings[key][name] = timing
    return {key: Measured(timings[key], memory.get(key), errors.get(key)) for key in candidates}


def _memory_alone(make: Callable[[], Call], device: str) -> Memory | None:
    """Memory of a call after a few that plan, compile and allocate. On a CPU, one call shows whether it works."""
    call = make()
    for _ in range(WARM_UP if torch.device(device).type == "cuda" else 1):
        call()
    return peak_memory(call, device)


def one_line(error: Exception) -> str:
    """The kind of error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
