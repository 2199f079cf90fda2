"""Tables for the gradient of the input: how each level carries it from the output back to the input.

A level is taken back in the order that costs less. Direct: the gradient is spread over the level's responses,
convolved back to its pixels and collected on the input. Patches: it is multiplied with the filters where it is, which
gives the gradient of every interpolated patch, and these are collected on the input at once; what this costs does not
grow with the scale.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache import BoundedCache
from ..geometry import Axis, AxisLevel, Level
from ..resample import align_matrix, patch_matrix, transform_matrix
from ..signature import Signature
from .tables import Bands, level_support, make_bands

# Measured on an H200, in float32: multiplications of a library's convolution that take as long as one access to memory,
# and accesses that multiplying and collecting take for every element of a patch.
PRODUCTS_PER_ACCESS = 100
ACCESSES_PER_TAP = 8


@dataclass(frozen=True)
class DirectLevel:
    """One level in the direct order.

    Attributes:
        place: of the level in the plan, and so its value in the winner map.
        response, size: of the level, (height, width).
        spread: takes a gradient on the output to the level's responses (transposed alignment).
        collect: takes a gradient on the level's pixels to the input (transposed rescaling).
    """

    place: int
    response: tuple[int, int]
    size: tuple[int, int]
    spread: Bands
    collect: Bands

    def elements(self, signature: Signature) -> int:
        """Of the gradients on its responses and its pixels, for one image."""
        responses, pixels = self.response[0] * self.response[1], self.size[0] * self.size[1]
        return responses * signature.out_channels + pixels * signature.in_channels


@dataclass(frozen=True)
class PatchLevels:
    """The levels in the order of patches.

    Attributes:
        places: of the levels in the plan.
        row_offsets, row_weights: (levels, height, entries); for each row of the input, where the gradients of patches
            lie that it takes part in, and with what weight; those without weight come last.
        col_offsets, col_weights: the same for its columns.
        row_counts: (levels, height), entries that have weight in each row.
        col_counts: for each level, entries that have weight in any column.
    """

    places: Tensor
    row_offsets: Tensor
    row_weights: Tensor
    col_offsets: Tensor
    col_weights: Tensor
    row_counts: Tensor
    col_counts: Tensor

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class WayBack:
    """The levels of a call by the order in which they are taken back; the identity comes first if it is direct."""

    direct: tuple[DirectLevel, ...]
    patches: PatchLevels

    @property
    def nbytes(self) -> int:
        bands = sum(level.spread.nbytes + level.collect.nbytes for level in self.direct)
        tables: list[Tensor] = list(vars(self.patches).values())
        return bands + sum(table.nbytes for table in tables)


WAYS_BACK: BoundedCache[WayBack] = BoundedCache(entries=128, nbytes=256 * 2**20)


def make_way_back(signature: Signature, antialias: bool, parts: int, device: torch.device) -> WayBack:
    """The tables of a call, from the cache if they are there. A library's convolution knows no parts of a batch."""
    plain = parts == 1 and signature.groups == 1
    key = (signature, antialias, plain, device)
    way = WAYS_BACK.get(key)
    if way is None:
        with torch.inference_mode(False), torch.no_grad():
            way = _make_way_back(signature, antialias, plain, device)
        WAYS_BACK.put(key, way, way.nbytes)
    return way


def _make_way_back(signature: Signature, antialias: bool, plain: bool, device: torch.device) -> WayBack:
    direct, patches = [], []
    for place, level in enumerate(signature.plan.levels):
        if plain and _prefers_direct(signature, level):
            direct.append(_direct_level(signature, place, level, antialias, device))
        else:
            patches.append((place, level))
    return WayBack(tuple(direct), _patch_levels(signature, patches, antialias, device))


def _prefers_direct(signature: Signature, level: Level) -> bool:
    """Whether convolving back costs less than multiplying and collecting patches, in accesses to memory."""
    filters, channels = signature.out_channels, signature.in_channels
    pixels = level.height.size * level.width.size
    responses = level.height.response_size * level.width.response_size
    taps = signature.height.kernel * signature.width.kernel * channels
    positions = signature.height.output_size * signature.width.output_size
    moved = 0 if level.scale == 1 else 2 * responses * filters + 3 * pixels * channels
    return moved + pixels * taps * filters / PRODUCTS_PER_ACCESS < ACCESSES_PER_TAP * positions * taps


def _direct_level(signature: Signature, place: int, level: Level, antialias: bool, device: torch.device) -> DirectLevel:
    height, width = (signature.height, level.height), (signature.width, level.width)
    support = level_support(level, antialias)

    def spread(axis: Axis, on: AxisLevel) -> Tensor:
        before, after = on.covered[0], axis.output_size - on.covered[1]
        return F.pad(align_matrix(on), (0, 0, before, after)).mT  # (responses, outputs)

    return DirectLevel(
        place=place,
        response=(level.height.response_size, level.width.response_size),
        size=(level.height.size, level.width.size),
        spread=make_bands([spread(*height)], [spread(*width)], device),
        collect=make_bands([transform_matrix(*height, support).mT], [transform_matrix(*width, support).mT], device),
    )


def _patch_levels(
    signature: Signature, levels: list[tuple[int, Level]], antialias: bool, device: torch.device
) -> PatchLevels:
    height, width = signature.height, signature.width
    per_group = signature.in_channels // signature.groups
    patch = height.kernel * width.kernel * signature.in_channels
    rows, cols = [], []
    for _, level in levels:
        support = level_support(level, antialias)
        rows.append(_entries(height, level.height, support, width.output_size * patch, width.kernel * per_group))
        cols.append(_entries(width, level.width, support, patch, per_group))
    row_offsets, row_weights = _stack(rows, height.length, device)
    col_offsets, col_weights = _stack(cols, width.length, device)
    row_counts = (row_weights != 0).sum(2, dtype=torch.int32)
    col_counts = (col_weights != 0).sum(2, dtype=torch.int32)
    col_counts = col_counts.amax(1) if len(levels) else col_counts
    places = torch.tensor([place for place, _ in levels], dtype=torch.int32, device=device)
    return PatchLevels(places, row_offsets, row_weights, col_offsets, col_weights, row_counts, col_counts)


def _entries(
    axis: Axis, level: AxisLevel, support: float, position_stride: int, tap_stride: int
) -> tuple[Tensor, Tensor]:
    """For each pixel of the axis where its patches lie, and its weight in them, those without weight last."""
    weights = patch_matrix(axis, level, support).mT  # (length, covered · kernel)
    position = level.covered[0] + torch.arange(len(level.targets)).repeat_interleave(axis.kernel)
    tap = torch.arange(axis.kernel).repeat(len(level.targets))
    order = (weights == 0).int().argsort(dim=1, stable=True)
    return (position * position_stride + tap * tap_stride)[order], weights.gather(1, order)


def _stack(entries: list[tuple[Tensor, Tensor]], length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    counts = [int((weights != 0).sum(1).max()) for _, weights in entries]
    offsets = torch.zeros((len(entries), length, max(counts, default=0)), dtype=torch.int32)
    values = torch.zeros(offsets.shape, dtype=torch.float32)
    for index, ((offset, weights), count) in enumerate(zip(entries, counts, strict=True)):
        offsets[index, :, :count] = offset[:, :count]
        values[index, :, :count] = weights[:, :count]
    return offsets.to(device), values.to(device)
