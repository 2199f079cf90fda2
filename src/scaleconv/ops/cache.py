"""A cache bounded by the bytes it holds, safe under threads; it says once if it is too small."""

import ctypes
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

from .checks import check_count

Value = TypeVar("Value")
ROUNDS = 3  # times that all entries made room for new ones, after which the cache is too small
SLICE = 2**26  # bytes that are forgotten between two returns of memory to the system


class BoundedCache(Generic[Value]):
    """Forgets what was not used for longest; a value larger than the whole bound is not kept."""

    def __init__(self, nbytes: int) -> None:
        self.max_nbytes, self.nbytes = nbytes, 0
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: Value, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.max_nbytes or key in self._entries:  # another thread may have been faster
                return
            self._entries[key] = (value, nbytes)
            self.nbytes += nbytes
            before = self._forgotten
            self._forgotten += self._make_room()
        if before // SLICE < self._forgotten // SLICE:
            return_memory()
        if before <= ROUNDS * self.max_nbytes < self._forgotten:
            warnings.warn(
                f"scaleconv keeps {self.max_nbytes / 2**20:.0f} MiB of resampling matrices, and these layers need "
                "more: each call makes them anew. scaleconv.resize_cache(nbytes) sets another bound.",
                stacklevel=2,
            )

    def resize(self, nbytes: int) -> None:
        """Set another bound."""
        nbytes = check_count("nbytes", nbytes, least=0)
        with self._lock:
            self.max_nbytes = nbytes
            self._make_room()
            self._forgotten = 0
        return_memory()

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = self._forgotten = 0

    def _make_room(self) -> int:
        """Forget what exceeds the bound: how many bytes."""
        freed = 0
        while self.nbytes - freed > self.max_nbytes:
            freed += self._entries.popitem(last=False)[1][1]
        self.nbytes -= freed
        return freed


def return_memory() -> None:
    """Give what is free back to the system, where the C library can.

    glibc keeps it, in pieces between what is in use. Matrices of ever new sizes fit into few of them: over a thousand
    sizes the process grew by as much as the cache may hold.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # macOS, musl and Windows have no such function
        return
