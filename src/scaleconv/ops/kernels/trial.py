"""Block sizes by trial, where `torch.backends.cudnn.benchmark` is on, which asks the same of PyTorch's convolutions.

A layer is tried once, whatever its batch size, and what was found is kept in a file in the user's cache. Without that
switch, where deterministic algorithms are asked for, and while a CUDA graph is captured, sizes come from tables.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
import triton
from torch import Tensor
from triton.errors import TritonError

Blocks = TypeVar("Blocks", bound=tuple[int | None, ...])

TIMINGS = 5
GAIN = 0.97  # of the time of the table's blocks, at most, is what others must take
TOLERANCE = 2e-2  # of the largest element: what rounding changes, and a wrong product does not

_found: dict[str, list[int | None]] = {}


def choose(
    kernel: str, layer: tuple[object, ...], device: torch.device, table: Blocks,
    others: Callable[[Blocks], Sequence[Blocks]], attempt: Callable[[Blocks], Tensor],
) -> Blocks:  # fmt: skip
    """The blocks of a kernel for a layer: those of the table, or the fastest, if trials are wanted.

    Args:
        kernel, layer: what is launched, and all that its speed depends on but the batch size.
        device: where.
        table: to start with.
        others: those to try as well, given the table's; one that does not compile or gives another result is left out.
        attempt: launches the kernel with some blocks on buffers of its own, and returns what it put out.
    """
    if not torch.backends.cudnn.benchmark or torch.are_deterministic_algorithms_enabled():
        return table
    key = " ".join(map(str, (kernel, *layer, _name(device), f"triton {triton.__version__}")))
    if not _found:
        _found.update(_read())
    if key not in _found:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return table
        _found[key] = list(fastest(table, others(table), attempt))
        _write({**_read(), **_found})
    return type(table)(_found[key])


def fastest(table: Blocks, others: Sequence[Blocks], attempt: Callable[[Blocks], Tensor]) -> Blocks:
    """The fastest blocks whose result is that of the table's."""
    expected = attempt(table)
    best, least = table, GAIN * _milliseconds(lambda: attempt(table), expected.device)
    for blocks in others:
        if blocks == table:
            continue
        try:
            result = attempt(blocks)
        except TritonError:  # too large for the GPU, or for the compiler
            continue
        if _agree(result, expected) and (taken := _milliseconds(lambda: attempt(blocks), expected.device)) < least:  # noqa: B023
            best, least = blocks, taken
    return best


def _agree(result: Tensor, expected: Tensor) -> bool:
    finite = expected.isfinite()
    largest = expected.where(finite, 0).abs().max() if expected.numel() else 0.0
    return torch.allclose(result, expected, rtol=0, atol=TOLERANCE * float(largest), equal_nan=True)


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(TIMINGS):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(1000 * (time.perf_counter() - start))
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


def _read() -> dict[str, list[int | None]]:
    try:
        found = json.loads(file().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or damaged: then it is found again
        return {}
    return found if isinstance(found, dict) else {}


def _write(found: dict[str, list[int | None]]) -> None:
    """Keep what was found, whole or not at all; without a place to write, this process alone knows it."""
    part = file().with_name(f".blocks.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(part, file())
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
