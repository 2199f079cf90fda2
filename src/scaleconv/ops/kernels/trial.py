"""Block sizes by trial, where `torch.backends.cudnn.benchmark` is on, which asks the same of PyTorch's convolutions.

A layer is tried once, on random numbers, and what was found is kept in a file in the user's cache; another batch size
tries again only if the kernels take the images in another order. Without that switch, where deterministic algorithms
are asked for, and while a CUDA graph is captured, sizes come from tables.
"""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor
from triton.errors import TritonError

Blocks = TypeVar("Blocks", bound=tuple[int | None, ...])

VERSION = 1  # of the kernels; what was found for another counts no more
TIMINGS = 5
LAUNCHES = 4  # in a timing
GAIN = 0.97  # of the time of the table's blocks, at most, is what others must take
TOLERANCE = 2e-2  # of the largest element: what rounding changes, and a wrong product does not

Prepare = Callable[[], Callable[[Blocks], tuple[Tensor, ...]]]

_chosen: dict[str, tuple[int | None, ...]] = {}


def choose(
    kernel: str, layer: tuple[object, ...], device: torch.device, table: Blocks,
    others: Callable[[Blocks], Sequence[Blocks]], prepare: Prepare[Blocks],
) -> Blocks:  # fmt: skip
    """The blocks of a kernel for a layer: those of the table, or the fastest, if trials are wanted.

    Args:
        kernel, layer: what is launched, and all that its speed depends on but the batch size.
        device: where.
        table: to start with.
        others: those to try as well, given the table's; one that does not compile or gives another result is left out.
        prepare: makes random inputs and buffers, and returns what launches the kernel on them with some blocks, and
            hands over the results.
    """
    if not torch.backends.cudnn.benchmark or torch.are_deterministic_algorithms_enabled():
        return table
    key = " ".join(map(str, (kernel, *layer, _name(device), f"triton {triton.__version__}", f"kernels {VERSION}")))
    if key not in _chosen:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return table
        candidates = [table, *others(table)]
        kept = _read().get(key)
        if isinstance(kept, list) and tuple(kept) in candidates:
            _chosen[key] = tuple(kept)
        elif found := fastest(candidates, prepare, device):
            _chosen[key] = found
            _write({**_read(), key: list(found)})
        else:
            _chosen[key] = table  # in this process
    return _chosen[key]  # type: ignore[return-value]


def fastest(candidates: Sequence[Blocks], prepare: Prepare[Blocks], device: torch.device) -> Blocks | None:
    """The fastest blocks whose results are those of the first; None without memory to find out."""
    table = best = candidates[0]
    try:
        launch = prepare()
        expected = [result.clone() for result in launch(table)]
        least = GAIN * _milliseconds(partial(launch, table), device)
    except torch.OutOfMemoryError:
        return None
    for blocks in candidates[1:]:
        try:
            right = all(map(_agree, launch(blocks), expected))
            taken = _milliseconds(partial(launch, blocks), device) if right else math.inf
        except (TritonError, RuntimeError):  # too large for the GPU, or for the compiler
            continue
        if taken < least:
            best, least = blocks, taken
    return best


def on_random_numbers(
    launch: Callable[..., Tensor | None],
    codes: Tensor,
    inputs: Sequence[Tensor],
    results: Sequence[Tensor] = (),
    taps: int | None = None,
) -> Callable[[Blocks], tuple[Tensor, ...]]:
    """What launches a kernel with some blocks, and hands over its results.

    Args:
        launch: takes blocks, inputs and results; fills the results, or returns one.
        codes: of the levels.
        inputs: in whose place random ones are taken, of the same layout; bytes are winners.
        results: in whose place others are filled, from zero each time.
        taps: of the filters, which are the last of the inputs; behind them are zeros, as many as some blocks read.
    """
    generator = torch.Generator(codes.device).manual_seed(0)  # the random numbers of the program stay as they are

    def random_like(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.uint8:
            return torch.empty_like(tensor).normal_(generator=generator)
        places = torch.randint(len(codes), tensor.shape, generator=generator, device=tensor.device)
        return torch.empty_like(tensor).copy_(codes[places])

    tried, filled = [random_like(tensor) for tensor in inputs], tuple(torch.empty_like(tensor) for tensor in results)
    if taps is not None:
        tried[-1][:, taps:] = 0

    def attempt(blocks: Blocks) -> tuple[Tensor, ...]:
        for tensor in filled:
            tensor.zero_()
        made = launch(blocks, *tried, *filled)
        return filled if made is None else (made,)

    return attempt


def _agree(result: Tensor, expected: Tensor) -> bool:
    """Whether numbers are the same but for rounding, and winners but for a few that rounding decides."""
    if result.dtype == torch.uint8:
        return float((result != expected).float().mean()) < TOLERANCE if result.numel() else True
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(result, expected, rtol=0, atol=TOLERANCE * largest)


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(TIMINGS):
        _wait(device)
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        _wait(device)
        times.append(1000 * (time.perf_counter() - start) / LAUNCHES)
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@lru_cache(maxsize=16)
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def file() -> Path:
    """Where what was found is kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("scaleconv", appauthor=False)) / "blocks.json"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(file().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or damaged: then it is found again
        return {}
    return found if isinstance(found, dict) else {}


def _write(found: dict[str, Any]) -> None:
    """Keep what was found, whole or not at all; without a place to write, this process alone knows it."""
    part = file().with_name(f".blocks.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(part, file())
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
