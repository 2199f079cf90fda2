"""Tables of the levels that are evaluated on patches: at the output positions only, whatever their scale.

The kernels work on one buffer per image that holds these levels one after the other, each rescaled and framed with the
zeros of the padding (the pyramid). A level is evaluated at the output positions, on patches interpolated between the
two nearest responses of each axis, which is exact because resampling and convolution commute. On the way back each
pixel of the input adds up the gradients of all patches it takes part in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry import Axis, AxisLevel, Level
from ..resample import patch_matrix, transform_matrix
from ..signature import Signature
from .bands import Bands, level_support, make_bands

TAPS_MULTIPLE = 128  # the taps of a filter are padded with zeros to a multiple of every block size


@dataclass(frozen=True)
class PatchTables:
    """All tables of these levels, on one device.

    Attributes:
        codes: the index in `scales` of each level, which is its value in the winner map.
        plain: how many levels, the first ones, are the identity, which needs no interpolation.
        pyramid: makes the levels of an image.
        where: (levels, positions); for each output position, four times the pixel of the pyramid under the first tap,
            plus 2 and 1 where the neighbouring response to the right and below takes part; -1 where it is not covered.
        right, below: (levels, positions), the weight of those neighbours.
        row_steps: for each level, pixels of the pyramid from one response to the one below.
        col_step: and to the one on its right.
        tap_pixels: (levels, padded taps), pixels of the pyramid from the first tap of a patch to each of its taps.
        tap_channels: (padded taps), the channel of each tap within its group.
        positions: outputs per image and channel.
        taps: of a filter, without the padding.
        row_offsets, row_weights: (levels, height, entries); for each row of the input, where the gradients of patches
            lie that it takes part in, and with what weight; those without weight come last.
        col_offsets, col_weights: the same for its columns.
        row_counts: (levels, height), entries that have weight in each row.
        col_counts: for each level, entries that have weight in any column.
    """

    codes: Tensor
    plain: int
    pyramid: Bands
    where: Tensor
    right: Tensor
    below: Tensor
    row_steps: Tensor
    col_step: int
    tap_pixels: Tensor
    tap_channels: Tensor
    positions: int
    taps: int
    row_offsets: Tensor
    row_weights: Tensor
    col_offsets: Tensor
    col_weights: Tensor
    row_counts: Tensor
    col_counts: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def interpolates(self) -> bool:
        """Whether there are levels besides the identity."""
        return len(self) > self.plain

    @property
    def nbytes(self) -> int:
        own = sum(table.nbytes for table in vars(self).values() if isinstance(table, Tensor))
        return own + self.pyramid.nbytes


def make_patch_tables(
    signature: Signature, levels: Sequence[Level], antialias: bool, device: torch.device
) -> PatchTables:
    """The tables of at least one level."""
    height, width = signature.height, signature.width
    padded = [(level.height.size + sum(height.padding), level.width.size + sum(width.padding)) for level in levels]
    starts = accumulate((h * w for h, w in padded), initial=0)
    supports = [level_support(level, antialias) for level in levels]
    pyramid = make_bands(
        [_framed(height, level.height, support) for level, support in zip(levels, supports, strict=True)],
        [_framed(width, level.width, support) for level, support in zip(levels, supports, strict=True)],
        device,
    )
    where, right, below = (
        torch.stack(tables)
        for tables in zip(
            *(_where(signature, level, start, w) for level, start, (_, w) in zip(levels, starts, padded, strict=False)),
            strict=True,
        )
    )
    per_group = signature.in_channels // signature.groups
    patch = height.kernel * width.kernel * signature.in_channels
    rows = [
        _entries(height, level.height, support, width.output_size * patch, width.kernel * per_group)
        for level, support in zip(levels, supports, strict=True)
    ]
    cols = [
        _entries(width, level.width, support, patch, per_group) for level, support in zip(levels, supports, strict=True)
    ]
    row_offsets, row_weights = _stack(rows, height.length, device)
    col_offsets, col_weights = _stack(cols, width.length, device)

    def integers(values: Tensor | list[int]) -> Tensor:
        return torch.as_tensor(values).to(device, torch.int32).contiguous()

    return PatchTables(
        codes=integers([level.index for level in levels]),
        plain=int(levels[0].scale == 1),
        pyramid=pyramid,
        where=integers(where),
        right=right.to(device, torch.float32).contiguous(),
        below=below.to(device, torch.float32).contiguous(),
        row_steps=integers([height.stride * w for _, w in padded]),
        col_step=width.stride,
        tap_pixels=integers(_pad_taps(torch.stack([_tap_pixels(signature, w) for _, w in padded]))),
        tap_channels=integers(_pad_taps(torch.arange(per_group).repeat(height.kernel * width.kernel))),
        positions=height.output_size * width.output_size,
        taps=height.kernel * width.kernel * per_group,
        row_offsets=row_offsets,
        row_weights=row_weights,
        col_offsets=col_offsets,
        col_weights=col_weights,
        row_counts=(row_weights != 0).sum(2, dtype=torch.int32),
        col_counts=(col_weights != 0).sum(2, dtype=torch.int32).amax(1),
    )


def pool_tables(tables: PatchTables, size: tuple[int, int], kernel: int, scales: int) -> PatchTables:
    """The tables of windows in place of positions: each level at each place of a window is a level of its own.

    The strongest of those is what max-pooling finds. A tie goes to the first place, and there to the scale listed
    first, as if the scales had competed before the places. Not for the gradient of the input.

    Args:
        tables: of the positions.
        size: rows and columns of them.
        kernel: side and stride of the windows, which are cut where they reach over the edge.
        scales: how many the layer has.
    """
    levels = len(tables)
    counts = [-(-length // kernel) for length in size]
    rows, cols = (torch.arange(count * kernel).view(count, kernel) for count in counts)  # (windows, places)
    inside = (rows < size[0])[:, None, :, None] & (cols < size[1])[None, :, None, :]  # (rows, cols, places …)
    position = torch.where(inside, rows[:, None, :, None] * size[1] + cols[None, :, None, :], 0)
    position, inside = (table.flatten(2).flatten(0, 1).mT.to(tables.where.device) for table in (position, inside))
    places = torch.arange(kernel**2, device=tables.codes.device)

    def taken(table: Tensor) -> Tensor:
        return table[:, position].flatten(0, 1).contiguous()  # (levels · places, windows)

    codes = places[None, :] * scales + tables.codes[:, None]
    return replace(
        tables,
        codes=codes.flatten().to(torch.int32),
        plain=tables.plain * kernel**2,
        where=torch.where(inside.repeat(levels, 1), taken(tables.where), -1),
        right=taken(tables.right),
        below=taken(tables.below),
        row_steps=tables.row_steps.repeat_interleave(kernel**2),
        tap_pixels=tables.tap_pixels.repeat_interleave(kernel**2, 0),
        positions=counts[0] * counts[1],
    )


def _framed(axis: Axis, level: AxisLevel, support: float) -> Tensor:
    """T_s along one axis, with rows of zeros for the padding."""
    return F.pad(transform_matrix(axis, level, support), (0, 0, *axis.padding))


def _where(signature: Signature, level: Level, start: int, padded_width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of one level in `where`, `right` and `below`."""
    height, width = signature.height, signature.width
    (row, below), (col, right) = _responses(height, level.height), _responses(width, level.width)
    pixel = start + row[:, None] * height.stride * padded_width + col[None, :] * width.stride
    packed = 4 * pixel + 2 * (right > 0).long()[None, :] + (below > 0).long()[:, None]
    covered = (row >= 0)[:, None] & (col >= 0)[None, :]
    weights = torch.broadcast_tensors(right[None, :], below[:, None])
    return torch.where(covered, packed, -1).flatten(), weights[0].flatten(), weights[1].flatten()


def _tap_pixels(signature: Signature, padded_width: int) -> Tensor:
    height, width = signature.height, signature.width
    rows = torch.arange(height.kernel) * height.dilation * padded_width
    cols = torch.arange(width.kernel) * width.dilation
    pixels = (rows[:, None] + cols[None, :]).flatten()
    return pixels.repeat_interleave(signature.in_channels // signature.groups)  # (Kh · Kw · C / groups)


def _pad_taps(taps: Tensor) -> Tensor:
    return F.pad(taps, (0, -taps.shape[-1] % TAPS_MULTIPLE))


def _responses(axis: Axis, level: AxisLevel) -> tuple[Tensor, Tensor]:
    """For every output position the response it reads, -1 if it is not covered, and the weight of the next one."""
    first, weight = torch.full((axis.output_size,), -1), torch.zeros(axis.output_size, dtype=torch.float64)
    position = torch.tensor(level.targets, dtype=torch.float64).clamp(0, level.response_size - 1)
    covered = slice(*level.covered)
    first[covered] = position.long()
    weight[covered] = position - position.long()
    return first, weight


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
