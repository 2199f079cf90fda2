"""Which code evaluates the layer: fused kernels where they apply, plain PyTorch elsewhere, or one of them by choice."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

BACKENDS = ("auto", "torch", "triton")

_chosen: ContextVar[str] = ContextVar("scaleconv_backend", default="auto")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Evaluate the layers called inside by one kind of code.

    Args:
        name: `auto` takes the fused kernels where they apply and are the faster; `torch` never; `triton` wherever they
            apply at all, and refuses calls to which they do not.

    Example:
        >>> with backend("torch"):
        ...     current_backend()
        'torch'
    """
    if name not in BACKENDS:
        raise ValueError(f"`name` must be one of {', '.join(BACKENDS)}, got {name!r}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def current_backend() -> str:
    """The choice in force."""
    return _chosen.get()
