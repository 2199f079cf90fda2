"""Resampling along an axis as a small matrix, and its application to images.

A linear sampling of n positions from a line of length L is an n×L matrix, known in advance. Applied to rows and columns
it resamples an image; its transpose carries gradients back. Unlike `F.interpolate`, both are plain matrix products:
fast, deterministic and differentiable any number of times. No sizes or coordinates are decided here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .geometry import Axis, AxisLevel

# Channels from which side by side is the faster on CPUs; with a few, such as those of a colour image, it is far slower.
SIDE_BY_SIDE = 16


def sampling_matrix(coordinates: Tensor, length: int, support: float = 1.0) -> Tensor:
    """Weights that read a line at the given coordinates, linear between neighbours, edge pixels clamped.

    Shapes: coordinates (..., n) → matrix (..., n, length).

    A `support` above 1 widens the triangle to that many pixels a side, which averages pixels instead of skipping them
    where the line is shrunk (antialiasing).
    """
    pixels = torch.arange(length, dtype=coordinates.dtype, device=coordinates.device)
    distance = (coordinates.clamp(0, length - 1).unsqueeze(-1) - pixels).abs()
    weights = (1 - distance / support).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True) if support > 1 else weights


def transform_matrix(axis: Axis, level: AxisLevel, support: float = 1.0) -> Tensor:
    """T_s along one axis, in float64: (size, length)."""
    return sampling_matrix(torch.tensor(level.sources, dtype=torch.float64, device="cpu"), axis.length, support)


def align_matrix(level: AxisLevel) -> Tensor:
    """The inverse of T_s on the responses, at the covered positions, in float64: (covered, response_size)."""
    return sampling_matrix(torch.tensor(level.targets, dtype=torch.float64, device="cpu"), level.response_size)


def patch_matrix(axis: Axis, level: AxisLevel, support: float = 1.0) -> Tensor:
    """Transform, kernel taps and alignment along one axis in one, in float64: (covered · kernel, length).

    Row (p, k) reads what tap k of the kernel meets when the response is aligned to output p:
    E[(p, k)] = Σ_q B[p, q] · A[t·q + d·k − P], where the rows of A that lie in the padding are zero.
    """
    padded = F.pad(transform_matrix(axis, level, support), (0, 0, *axis.padding))  # (P + h + P, H)
    taps = torch.arange(axis.kernel, device="cpu") * axis.dilation  # (K,)
    position = torch.tensor(level.targets, dtype=torch.float64, device="cpu").clamp(0, level.response_size - 1)
    before = position.long()
    after = (before + 1).clamp(max=level.response_size - 1)

    def met(response: Tensor) -> Tensor:
        return padded[response.unsqueeze(1) * axis.stride + taps]  # (covered, K, H)

    return torch.lerp(met(before), met(after), (position - before).view(-1, 1, 1)).flatten(0, 1)


def filter_matrix(axis: Axis, level: AxisLevel) -> Tensor:
    """Resamples the kernel of a regular level whose outputs all meet the input alike, in float64: (pixels, kernel).

    Output p meets as many pixels, from the first one that output 0 meets plus t·p on; each tap has its share of them.
    """
    first, pixels = axis.meets(level)
    return patch_matrix(axis, level)[: axis.kernel, first : first + pixels].mT


def strided_matrix(axis: Axis, level: AxisLevel, support: float = 1.0) -> Tensor:
    """Transform and alignment of a regular level along one axis in one, in float64: (rows, length).

    All outputs read at the same fraction f between two responses, so the level may be moved by it beforehand:
    S[j] = (1 − f) · A[j − P] + f · A[j + t − P], from the first sample that the first output meets to the last of the
    last. A convolution of this, `level.step` times the stride apart, gives the outputs.
    """
    padded = F.pad(transform_matrix(axis, level, support), (0, 0, axis.padding[0], axis.padding[1] + axis.stride))
    before = int(level.targets[0])
    start = axis.stride * before
    rows = axis.stride * level.step * (len(level.targets) - 1) + axis.dilation * (axis.kernel - 1) + 1
    here, next_one = padded[start : start + rows], padded[start + axis.stride : start + axis.stride + rows]
    return torch.lerp(here, next_one, level.targets[0] - before)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resample images (N, C, H, W) with one matrix for each axis, rows (h, H) and columns (w, W): (N, C, h, w).

    Few channels are resampled one by one, many side by side, as they lie in a channels_last image.
    """
    if images.shape[1] < SIDE_BY_SIDE:
        return rows @ torch.matmul(images, columns.mT)
    pixels = images.permute(0, 2, 3, 1)  # (N, H, W, C)
    lines = (rows @ pixels.flatten(2)).unflatten(2, pixels.shape[2:])  # (N, h, W, C)
    return torch.matmul(columns, lines).permute(0, 3, 1, 2)


def gather_patches(images: Tensor, kernel: Sequence[int], rows: Tensor, columns: Tensor) -> Tensor:
    """What a kernel (Kh, Kw) meets at every output, its taps as channels.

    Shapes: images (N, C, H, W), rows (H0·Kh, H) and columns (W0·Kw, W) of `patch_matrix` → (N, Kw·Kh·C, H0, W0).
    """
    pixels = images.permute(0, 2, 3, 1)  # (N, H, W, C)
    lines = (rows @ pixels.flatten(2)).unflatten(2, pixels.shape[2:]).unflatten(1, (-1, kernel[0]))  # (N, H0, Kh, W, C)
    met = columns @ lines.transpose(2, 3).flatten(3)  # (N, H0, W0·Kw, Kh·C)
    patches: Tensor = met.unflatten(2, (-1, kernel[1])).flatten(3)  # (N, H0, W0, Kw·Kh·C)
    return patches.permute(0, 3, 1, 2)


def spread_patches(patches: Tensor, kernel: Sequence[int], rows: Tensor, columns: Tensor) -> Tensor:
    """The transpose of `gather_patches`: (N, Kw·Kh·C, H0, W0) → (N, C, H, W)."""
    met = patches.permute(0, 2, 3, 1).unflatten(3, (kernel[1], -1)).flatten(2, 3)  # (N, H0, W0·Kw, Kh·C)
    lines = (columns.mT @ met).unflatten(3, (kernel[0], -1)).transpose(2, 3).flatten(1, 2)  # (N, H0·Kh, W, C)
    pixels: Tensor = (rows.mT @ lines.flatten(2)).unflatten(2, lines.shape[2:])  # (N, H, W, C)
    return pixels.permute(0, 3, 1, 2)
