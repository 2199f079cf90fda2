"""How a call is divided: which levels a library's convolution takes whole, and which the kernels take in what order.

A library convolves faster than a kernel that has to interpolate what it multiplies, but a level taken whole grows with
the square of its scale. Where many images meet few filters, the filters are interpolated instead of the images. The
cheapest order is taken, by times measured on an H200.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..cache import BoundedCache
from ..cost import strided_size
from ..geometry import Level
from ..signature import Signature
from .direct_tables import DirectLevel, Form, make_direct_level
from .local_tables import MOST_CHANNELS, LocalTables, count_cells, make_local_tables
from .patch_tables import PatchTables, make_patch_tables, pool_tables

# In accesses to memory that take as long: forward, and both ways back.
LIBRARY_PRODUCTS = ((64, 100), (16, 45))  # products of the library in one access, for at least so many channels
MOVED = 7  # for every pixel of a level, from and to the input
ALIGNED = 5  # for every response
PATCH_ACCESSES = 4  # for every tap at every position
PATCH_PRODUCTS = 11  # further products in one access

IMAGES_PER_FILTER = 1  # images from which local filters are worth their making, and at least
LEAST_IMAGES = 64
LEAST_CHANNELS = 8  # fewer leave the products of local filters too little to do
LOCAL_FILTERS = 9 * 2**20  # elements of the local filters that are made at once, unless one level needs more
MOST_LOCAL_FILTERS = 2**26  # elements at scale 1, were each position to have its own


@dataclass(frozen=True)
class Call:
    """The levels of a call by the order in which they are taken, with their tables; the identity comes first.

    Attributes:
        direct: levels taken whole.
        patches: those taken on patches; of those with local filters, the gradient of the weight.
        local: those with local filters, as many together as are to be made at once. A single level has only the
            gradient of its input from them.
    """

    direct: tuple[DirectLevel, ...]
    patches: PatchTables | None
    local: tuple[LocalTables, ...] = ()

    @property
    def several(self) -> bool:
        """Whether there is anything to choose among."""
        return len(self.direct) + (len(self.patches) if self.patches else 0) > 1

    @property
    def nbytes(self) -> int:
        local = sum(tables.nbytes for tables in self.local)
        return local + sum(level.nbytes for level in self.direct) + (self.patches.nbytes if self.patches else 0)


CALLS: BoundedCache[Call] = BoundedCache(entries=128, nbytes=512 * 2**20)
POOLED: BoundedCache[PatchTables] = BoundedCache(entries=32, nbytes=128 * 2**20)


def make_call(signature: Signature, images: int, parts: int, antialias: bool, device: torch.device) -> Call:
    """Divide a call, from the cache if it was met before. A library knows no parts of a batch."""
    library = parts == 1 and signature.groups == 1
    many = images // parts >= max(LEAST_IMAGES, IMAGES_PER_FILTER * signature.out_channels)
    key = (signature, library, many, antialias, device)
    call = CALLS.get(key)
    if call is None:
        with torch.inference_mode(False), torch.no_grad():
            call = _make_call(signature, library, many, antialias, device)
        CALLS.put(key, call, call.nbytes)
    return call


def make_pooled(signature: Signature, pool: int, device: torch.device) -> PatchTables:
    """The tables of the windows of a first layer, all levels on patches, from the cache if they were met before."""
    key = (signature, pool, device)
    tables = POOLED.get(key)
    if tables is None:
        with torch.inference_mode(False), torch.no_grad():
            patches = make_patch_tables(signature, signature.plan.levels, False, device)
            tables = pool_tables(patches, output_size(signature), pool, len(signature.scales))
        POOLED.put(key, tables, tables.nbytes)
    return tables


def output_size(signature: Signature) -> tuple[int, int]:
    return signature.height.output_size, signature.width.output_size


def _make_call(signature: Signature, library: bool, many: bool, antialias: bool, device: torch.device) -> Call:
    levels = signature.plan.levels
    if many and suits_local(signature):
        together = _together(signature, levels, antialias)
        local = tuple(make_local_tables(signature, some, antialias, device) for some in together)
        return Call((), make_patch_tables(signature, levels, antialias, device), local)
    forms = [library_form(signature, level) if library else None for level in levels]
    if forms[0] is None:  # the identity starts the maximum
        forms = [None] * len(levels)
    direct = tuple(
        make_direct_level(signature, level, form, antialias, device)
        for level, form in zip(levels, forms, strict=True)
        if form
    )
    rest = [level for level, form in zip(levels, forms, strict=True) if not form]
    return Call(direct, make_patch_tables(signature, rest, antialias, device) if rest else None)


def _together(signature: Signature, levels: Sequence[Level], antialias: bool) -> list[list[Level]]:
    """The levels whose local filters are made at once."""
    groups: list[list[Level]] = []
    taken = LOCAL_FILTERS
    for level in levels:
        need = count_cells(signature, level, antialias) * signature.in_channels * signature.out_channels
        if taken + need > LOCAL_FILTERS:
            groups.append([])
            taken = 0
        groups[-1].append(level)
        taken += need
    return groups


def suits_local(signature: Signature) -> bool:
    """Whether local filters, one for each position, can be made of these filters, and are not too many."""
    height, width = signature.height, signature.width
    positions = height.output_size * width.output_size if len(signature.plan.levels) > 1 else 1  # plain: all the same
    elements = positions * signature.in_channels * signature.out_channels
    return (
        signature.groups == 1
        and height.dilation == width.dilation == 1  # otherwise pixels that take no part lie between those that do
        and LEAST_CHANNELS <= signature.in_channels <= MOST_CHANNELS
        and elements * height.kernel * width.kernel <= MOST_LOCAL_FILTERS
    )


def library_form(signature: Signature, level: Level) -> Form | None:
    """The form in which a library convolves a level at the least cost; None if the kernels on patches cost less."""
    filters, channels = signature.out_channels, signature.in_channels
    rate = next((rate for least, rate in LIBRARY_PRODUCTS if min(channels, filters) >= least), 0)
    if not rate:
        return None
    height, width = signature.height, signature.width
    taps = height.kernel * width.kernel * channels
    positions = height.output_size * width.output_size

    def cost(pixels: int, responses: int, met: float) -> float:
        """`met` are the pixels for which the gradient takes as long as for those of a plain convolution."""
        moved = 0 if level.scale == 1 else ALIGNED * responses * filters + MOVED * pixels * channels
        return moved + (2 * responses + met) * taps * filters / rate

    pixels, apart = level.height.size * level.width.size, positions * height.kernel * width.kernel
    whole = cost(pixels, level.height.response_size * level.width.response_size, pixels)
    costs: dict[Form, float] = {"whole": whole}
    if level.scale != 1:
        costs["apart"] = cost(apart, positions, 2 / 3 * apart)
    if level.regular:
        rows, columns = strided_size(signature, level)
        costs["strided"] = cost(rows * columns, positions, rows * columns)
    form = min(costs, key=lambda form: costs[form])
    patches = positions * taps * (PATCH_ACCESSES + filters / PATCH_PRODUCTS) + MOVED * pixels * channels
    return form if costs[form] < patches else None
