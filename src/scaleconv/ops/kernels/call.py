"""How a call is divided: which levels a library's convolution takes whole, and which the kernels take on patches.

A library convolves faster than a kernel that has to interpolate what it multiplies, but a level taken whole grows with
the square of its scale. The cheaper order is taken, by times measured on an H200.
"""

from dataclasses import dataclass

import torch

from ..cache import BoundedCache
from ..geometry import Level
from ..signature import Signature
from .direct_tables import DirectLevel, make_direct_level
from .patch_tables import PatchTables, make_patch_tables

# In accesses to memory that take as long: forward, and both ways back.
LIBRARY_PRODUCTS = ((64, 100), (16, 45))  # products of the library in one access, for at least so many channels
PATCH_ACCESSES = 14  # for every tap at every position
PATCH_PRODUCTS = 25  # further products in one access


@dataclass(frozen=True)
class Call:
    """The levels of a call by the order in which they are taken, with their tables; the identity comes first."""

    direct: tuple[DirectLevel, ...]
    patches: PatchTables | None

    @property
    def several(self) -> bool:
        """Whether there is anything to choose among."""
        return len(self.direct) + (len(self.patches) if self.patches else 0) > 1

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self.direct) + (self.patches.nbytes if self.patches else 0)


CALLS: BoundedCache[Call] = BoundedCache(entries=128, nbytes=512 * 2**20)


def make_call(signature: Signature, parts: int, antialias: bool, device: torch.device) -> Call:
    """Divide a call, from the cache if it was met before. A library knows no parts of a batch."""
    library = parts == 1 and signature.groups == 1
    key = (signature, library, antialias, device)
    call = CALLS.get(key)
    if call is None:
        with torch.inference_mode(False), torch.no_grad():
            call = _make_call(signature, library, antialias, device)
        CALLS.put(key, call, call.nbytes)
    return call


def _make_call(signature: Signature, library: bool, antialias: bool, device: torch.device) -> Call:
    levels = signature.plan.levels
    whole = [level for level in levels if library and prefers_direct(signature, level)]
    if levels[0] not in whole:  # the identity starts the maximum
        whole = []
    direct = tuple(make_direct_level(signature, level, antialias, device) for level in whole)
    rest = [level for level in levels if level not in whole]
    return Call(direct, make_patch_tables(signature, rest, antialias, device) if rest else None)


def prefers_direct(signature: Signature, level: Level) -> bool:
    """Whether a library's convolution of the whole level costs less than the kernels on patches."""
    filters, channels = signature.out_channels, signature.in_channels
    rate = next((rate for least, rate in LIBRARY_PRODUCTS if min(channels, filters) >= least), 0)
    if not rate:
        return False
    pixels = level.height.size * level.width.size
    responses = level.height.response_size * level.width.response_size
    taps = signature.height.kernel * signature.width.kernel * channels
    positions = signature.height.output_size * signature.width.output_size
    moved = 0 if level.scale == 1 else 5 * responses * filters + 7 * pixels * channels
    direct = moved + (2 * responses + pixels) * taps * filters / rate
    return direct < positions * taps * (PATCH_ACCESSES + filters / PATCH_PRODUCTS)
