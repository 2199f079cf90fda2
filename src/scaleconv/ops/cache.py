"""A cache bounded by the bytes it holds as well as by its entries, safe under threads."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Forgets what was not used for longest; a value larger than the whole bound is not kept."""

    def __init__(self, entries: int, nbytes: int) -> None:
        self.max_entries, self.max_nbytes = entries, nbytes
        self.nbytes = 0
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: Value, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.max_nbytes or key in self._kept:  # another thread may have been faster
                return
            self._kept[key] = (value, nbytes)
            self.nbytes += nbytes
            while len(self._kept) > self.max_entries or self.nbytes > self.max_nbytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self.nbytes -= freed

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
