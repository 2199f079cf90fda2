"""The layer as dense matrices in float64, from the equations alone: quick, and autograd gives its gradients.

Shares no code with the package, nor with the nested loops of `helpers.reference`.
"""

import math

import numpy as np
import torch
from torch.nn import functional as F

EDGE = 1e-6


def read_matrix(places, size, interpolation="bilinear", border="clamp"):
    """What every place (n, 2) reads of an image of this size: (n, H·W), and whether it lies inside: (n,)."""
    high, wide = size
    inside = np.ones(len(places), dtype=bool)
    for axis, length in enumerate(size):
        inside &= (places[:, axis] >= -0.5 - EDGE) & (places[:, axis] <= length - 0.5 + EDGE)
    if interpolation == "nearest":
        first = np.trunc(places + np.copysign(0.5 + EDGE, places))
        corners = [(first, np.ones(len(places)))]
    else:
        low = np.floor(places)
        part = places - low
        corners = [
            (low + np.array([i, j]), np.abs(1 - i - part[:, 0]) * np.abs(1 - j - part[:, 1]))
            for i in (0, 1)
            for j in (0, 1)
        ]
    matrix = np.zeros((len(places), high * wide))
    for corner, weight in corners:
        y, x = (_pixel(corner[:, axis], length, border) for axis, length in enumerate(size))
        np.add.at(matrix, (np.arange(len(places)), y * wide + x), weight)
    return matrix, inside


def _pixel(number, length, border):
    number = number.astype(int)
    if border == "reflect" and length > 1:
        number = np.abs((number + length - 1) % (2 * (length - 1)) - (length - 1))
    return number.clip(0, length - 1)


def _triangles(samples, length, scale):
    """Antialiased reading along one axis: (h, H)."""
    places = ((np.arange(samples) - (samples - 1) / 2) / scale + (length - 1) / 2).clip(0, length - 1)
    weight = np.maximum(0, 1 - scale * np.abs(places[:, None] - np.arange(length)))
    return weight / weight.sum(1, keepdims=True)


def _grid(size):
    return np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), -1).reshape(-1, 2).astype(float)


def aligned_responses(
    images, weight, bias, stride, padding, dilation, groups, maps, interpolation="bilinear", border=None,
    antialias=False,
):  # fmt: skip
    """Aligned responses of every map, −inf where it takes no part: (maps, N, M, H0, W0).

    Args:
        padding: ((above, below), (left, right)).
        maps: 2×2 matrices; scales are multiples of the identity.
        border: None for that of scales: edge pixels clamped, and a level takes part where it reaches.
    """
    size, kernel = np.array(images.shape[2:]), np.array(weight.shape[2:])
    stride, dilation = np.array(stride), np.array(dilation)
    frame = (*padding[1], *padding[0])
    first = F.conv2d(F.pad(images, frame), weight, bias, tuple(stride), 0, tuple(dilation), groups)
    outputs = first.shape[2:]
    offset = dilation * (kernel - 1) / 2 - [padding[0][0], padding[1][0]]
    aligned = []
    for number in maps:
        matrix = np.array(number, dtype=float)
        reach = np.abs(matrix) @ size
        level_size = [
            int(n) if np.array_equal(matrix, np.eye(2)) else math.floor(r + EDGE)
            for n, r in zip(size, reach, strict=True)
        ]
        nothing = torch.full_like(first, -math.inf)
        if min(level_size) < 1:
            aligned.append(nothing)
            continue
        centre, level_centre = (size - 1) / 2, (np.array(level_size) - 1) / 2
        places = (_grid(level_size) - level_centre) @ np.linalg.inv(matrix).T + centre
        if antialias and matrix[0, 0] < 1:
            sampling = np.kron(*(_triangles(h, n, matrix[0, 0]) for h, n in zip(level_size, size, strict=True)))
        else:
            if border is None:  # a scale: the edge pixel is read, not what lies between it and its mirror image
                places = places.clip(0, size - 1)
            sampling, inside = read_matrix(places, size, interpolation, border or "clamp")
            if border == "zeros":
                sampling[~inside] = 0
        level = (images.flatten(2) @ torch.from_numpy(sampling).T).unflatten(2, level_size)
        padded = F.pad(level, frame)
        if min((np.array(padded.shape[2:]) - dilation * (kernel - 1) - 1) // stride + 1) < 1:
            aligned.append(nothing)
            continue
        response = F.conv2d(padded, weight, bias, tuple(stride), 0, tuple(dilation), groups)
        read = ((stride * _grid(outputs) + offset - centre) @ matrix.T + level_centre - offset) / stride
        lengths = np.array(response.shape[2:])
        alignment, inside = read_matrix(
            read if border else read.clip(0, lengths - 1), lengths, interpolation, border or "clamp"
        )
        if border is None:
            inside = read_matrix(read, lengths)[1]
        elif border != "zeros":
            inside[:] = True
        found = (response.flatten(2) @ torch.from_numpy(alignment).T).unflatten(2, outputs)
        aligned.append(torch.where(torch.from_numpy(inside).view(*outputs), found, -math.inf))
    return torch.stack(aligned)
