"""What the kernels read instead of computing: for every level, where its pixels, responses and outputs lie.

The kernels work on one buffer per image that holds all levels one after the other, each rescaled and framed with the
zeros of the padding (the pyramid). A level is then evaluated at the output positions only, on patches interpolated
between the two nearest responses of each axis, which is exact because resampling and convolution commute. Everything
that depends on geometry is a table, made in float64 once per call signature and cached on the device.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache import BoundedCache
from ..geometry import Axis, AxisLevel, Level
from ..resample import transform_matrix
from ..signature import Signature

TAPS_MULTIPLE = 128  # the taps of a filter are padded with zeros to a multiple of every block size


@dataclass(frozen=True)
class Bands:
    """A separable resampling whose matrices have few, neighbouring non-zeros in each row.

    The result can be several images of different sizes, one after the other.

    Attributes:
        row_first, col_first: the first pixel that a row (column) of the matrices reads.
        row_weights, col_weights: (rows, taps), what it takes of that pixel and those after it.
        pixel_rows, pixel_cols: for each pixel of the result, its row of the row and of the column matrices.
    """

    row_first: Tensor
    row_weights: Tensor
    col_first: Tensor
    col_weights: Tensor
    pixel_rows: Tensor
    pixel_cols: Tensor

    @property
    def pixels(self) -> int:
        return len(self.pixel_rows)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())


@dataclass(frozen=True)
class Tables:
    """All tables of a call, on one device.

    Attributes:
        pyramid: makes the levels of an image.
        where: (levels, positions); for each output position, four times the pixel of the pyramid under the first tap,
            plus 2 and 1 where the neighbouring response to the right and below takes part; -1 where it is not covered.
        right, below: (levels, positions), the weight of those neighbours.
        row_steps: for each level, pixels of the pyramid from one response to the one below.
        col_step: and to the one on its right.
        offsets: (levels, taps), elements from the first tap of a patch to each of its taps.
        wins_ties: for each level, whether it wins where it only equals the levels before it.
        levels: how many take part.
        positions: outputs per image and channel.
        taps: of a filter, without the padding.
    """

    pyramid: Bands
    where: Tensor
    right: Tensor
    below: Tensor
    row_steps: Tensor
    col_step: int
    offsets: Tensor
    wins_ties: Tensor
    levels: int
    positions: int
    taps: int

    @property
    def nbytes(self) -> int:
        own = (self.where, self.right, self.below, self.row_steps, self.offsets, self.wins_ties)
        return sum(table.nbytes for table in own) + self.pyramid.nbytes


TABLES: BoundedCache[Tables] = BoundedCache(entries=128, nbytes=256 * 2**20)


def make_tables(signature: Signature, antialias: bool, device: torch.device) -> Tables:
    """The tables of a call, from the cache if they are there."""
    key = (signature, antialias, device)
    tables = TABLES.get(key)
    if tables is None:
        with torch.inference_mode(False), torch.no_grad():
            tables = _make_tables(signature, antialias, device)
        TABLES.put(key, tables, tables.nbytes)
    return tables


def _make_tables(signature: Signature, antialias: bool, device: torch.device) -> Tables:
    height, width, levels = signature.height, signature.width, signature.plan.levels
    padded = [_padded_size(signature, level) for level in levels]
    starts = [0, *accumulate(h * w for h, w in padded)]
    pyramid_rows, pyramid_cols = [], []
    for level in levels:
        support = level_support(level, antialias)
        pyramid_rows.append(_framed(transform_matrix(height, level.height, support), height))
        pyramid_cols.append(_framed(transform_matrix(width, level.width, support), width))
    kernel = (height.kernel, width.kernel)
    channels = signature.in_channels
    taps = kernel[0] * kernel[1] * (channels // signature.groups)

    def place(level: Level, start: int, padded_width: int) -> tuple[Tensor, Tensor, Tensor]:
        (row, below), (col, right) = _responses(height, level.height), _responses(width, level.width)
        pixel = start + row[:, None] * height.stride * padded_width + col[None, :] * width.stride
        packed = 4 * pixel + 2 * (right > 0).long()[None, :] + (below > 0).long()[:, None]
        covered = (row >= 0)[:, None] & (col >= 0)[None, :]
        grid = torch.zeros(packed.shape, dtype=torch.float64)
        return torch.where(covered, packed, -1), grid + right[None, :], grid + below[:, None]

    def tap_offsets(padded_width: int) -> Tensor:
        rows = torch.arange(kernel[0]) * height.dilation * padded_width
        cols = torch.arange(kernel[1]) * width.dilation
        within = torch.arange(channels // signature.groups)
        offsets = ((rows[:, None] + cols[None, :]) * channels)[:, :, None] + within  # (Kh, Kw, C / groups)
        return F.pad(offsets.flatten(), (0, -taps % TAPS_MULTIPLE))

    places = [place(level, start, w) for level, start, (_, w) in zip(levels, starts, padded, strict=False)]
    where, right, below = (torch.stack([entry[i].flatten() for entry in places]) for i in range(3))

    def on_device(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(device, dtype).contiguous()

    return Tables(
        pyramid=make_bands(pyramid_rows, pyramid_cols, device),
        where=on_device(where, torch.int32),
        right=on_device(right, torch.float32),
        below=on_device(below, torch.float32),
        row_steps=on_device(torch.tensor([height.stride * w for _, w in padded]), torch.int32),
        col_step=width.stride,
        offsets=on_device(torch.stack([tap_offsets(w) for _, w in padded]), torch.int32),
        wins_ties=on_device(torch.tensor([level.wins_ties for level in levels]), torch.int32),
        levels=len(levels),
        positions=height.output_size * width.output_size,
        taps=taps,
    )


def level_support(level: Level, antialias: bool) -> float:
    """Pixels to each side that a sample of the level takes in."""
    return max(1.0, 1 / level.scale) if antialias else 1.0


def _padded_size(signature: Signature, level: Level) -> tuple[int, int]:
    return (
        level.height.size + sum(signature.height.padding),
        level.width.size + sum(signature.width.padding),
    )


def _framed(matrix: Tensor, axis: Axis) -> Tensor:
    """The matrix with rows of zeros for the padding."""
    return F.pad(matrix, (0, 0, *axis.padding))


def _responses(axis: Axis, level: AxisLevel) -> tuple[Tensor, Tensor]:
    """For every output position the response it reads, -1 if it is not covered, and the weight of the next one."""
    first, weight = torch.full((axis.output_size,), -1), torch.zeros(axis.output_size, dtype=torch.float64)
    position = torch.tensor(level.targets, dtype=torch.float64).clamp(0, level.response_size - 1)
    covered = slice(*level.covered)
    first[covered] = position.long()
    weight[covered] = position - position.long()
    return first, weight


def make_bands(rows: list[Tensor], cols: list[Tensor], device: torch.device) -> Bands:
    """Bands of the images that these matrices make, one after the other."""
    row_first, row_weights = _concatenate(rows)
    col_first, col_weights = _concatenate(cols)
    pixel_rows, pixel_cols = [], []
    row_start = col_start = 0
    for row, col in zip(rows, cols, strict=True):
        pixel_rows.append((row_start + torch.arange(len(row))).repeat_interleave(len(col)))
        pixel_cols.append((col_start + torch.arange(len(col))).repeat(len(row)))
        row_start, col_start = row_start + len(row), col_start + len(col)
    return Bands(
        row_first=row_first.to(device, torch.int32),
        row_weights=row_weights.to(device, torch.float32).contiguous(),
        col_first=col_first.to(device, torch.int32),
        col_weights=col_weights.to(device, torch.float32).contiguous(),
        pixel_rows=torch.cat(pixel_rows).to(device, torch.int32),
        pixel_cols=torch.cat(pixel_cols).to(device, torch.int32),
    )


def _concatenate(matrices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """First column and weights of the band in every row; bands are as wide as the widest and stay inside the matrix."""
    spans = []
    for matrix in matrices:
        filled = matrix != 0
        first = torch.where(filled.any(1), filled.int().argmax(1), 0)
        last = torch.where(filled.any(1), matrix.shape[1] - 1 - filled.int().flip(1).argmax(1), 0)
        spans.append((first, last))
    taps = max(int((last - first).max()) + 1 for first, last in spans)
    firsts, weights = [], []
    for matrix, (first, _) in zip(matrices, spans, strict=True):
        first = first.clamp(max=max(matrix.shape[1] - taps, 0))
        band = first[:, None] + torch.arange(taps)
        inside = F.pad(matrix, (0, max(taps - matrix.shape[1], 0)))
        firsts.append(first)
        weights.append(inside.gather(1, band))
    return torch.cat(firsts), torch.cat(weights)
