"""Which code evaluates the layer: fused kernels where they apply, plain PyTorch elsewhere, or one of them by choice."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

BACKENDS = ("auto", "torch", "triton")
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)

_chosen = "auto"
Result = TypeVar("Result")


def on_its_device(function: Callable[..., Result]) -> Callable[..., Result]:
    """Run a function on the GPU of its first tensor: kernels are launched on the current one, which may be another."""

    @wraps(function)
    def guarded(first: torch.Tensor, *others: Any) -> Result:
        with torch.cuda.device_of(first):
            return function(first, *others)

    return guarded


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Evaluate the layers called inside by one kind of code, in all threads.

    Args:
        name: `auto` takes the fused kernels on a GPU wherever they apply; `torch` never does; `triton` refuses calls to
            which they do not apply.

    Example:
        >>> with backend("torch"):
        ...     current_backend()
        'torch'
    """
    global _chosen
    if name not in BACKENDS:
        raise ValueError(f"`name` must be one of {', '.join(BACKENDS)}, got {name!r}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def current_backend() -> str:
    """The choice in force."""
    return _chosen


@torch.compiler.assume_constant_result
def missing_for_kernels(device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps the fused kernels from such a tensor; None if nothing does."""
    return _missing(device, dtype)


@lru_cache(maxsize=64)
def _missing(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in KERNEL_TYPES:
        return f"a type among {', '.join(str(kind) for kind in KERNEL_TYPES)}, got {dtype}"
    if find_spec("triton") is None:
        return "the package triton"
    if os.environ.get("TRITON_INTERPRET") == "1":  # the kernels run anywhere, slowly
        return None
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return f"an NVIDIA GPU of compute capability 8.0 or later, got {device}"
    return None
