"""The layer written out as nested loops over pixels, in float64, from the equations alone.

Shares no code with the package. Slow, and meant to be read beside the docstrings of `si_conv2d` and `ti_conv2d`.
`padding` is ((before, after), …), an entry for each axis.
"""

import itertools
import math

import numpy as np

EDGE = 1e-6


def read(array, *places, support=1.0):
    """Value of (C, …) at a real position, under a triangle that reaches `support` pixels, edge pixels clamped: (C,)."""
    for place, length in zip(reversed(places), reversed(array.shape[1:]), strict=True):
        weight = np.maximum(0, 1 - abs(min(max(place, 0.0), length - 1.0) - np.arange(length)) / support)
        array = array @ (weight / weight.sum())
    return array


def beyond(place, length):
    return place < -0.5 - EDGE or place > length - 0.5 + EDGE


def convolve(level, weight, bias, stride, padding, dilation, groups):
    """Response (M, …) of one level (C, …) over any number of axes, None if the kernel does not fit."""
    padded = np.pad(level, ((0, 0), *padding))
    steps = list(zip(padded.shape[1:], weight.shape[2:], stride, dilation, strict=True))
    size = [(n - d * (k - 1) - 1) // t + 1 for n, k, t, d in steps]
    if min(*level.shape, *size) < 1:
        return None
    maps, channels = weight.shape[:2]
    response = np.zeros((maps, *size))
    for p in np.ndindex(*size):
        taps = np.ix_(*(t * i + d * np.arange(k) for i, (_, k, t, d) in zip(p, steps, strict=True)))
        seen = padded[:, *taps]
        for m in range(maps):
            first = m // (maps // groups) * channels
            response[(m, *p)] = bias[m] + np.vdot(seen[first : first + channels], weight[m])
    return response


def unaligned(images, weight, padding, stride, dilation, levels):
    """−inf for every level, image, map and output; and where the centre of the kernel starts, r."""
    axes = list(zip(images.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True))
    out = [(n + sum(p) - d * (k - 1) - 1) // t + 1 for n, k, p, t, d in axes]
    return np.full((levels, len(images), len(weight), *out), -np.inf), [
        d * (k - 1) / 2 - p[0] for _, k, p, _, d in axes
    ]


def si_conv2d(images, weight, bias, stride, padding, dilation, groups, scales, antialias=False):
    """Aligned responses of every scale over any number of axes, −inf where it takes no part: (S, N, M, …)."""
    sizes, call = images.shape[2:], (stride, padding, dilation, groups)
    aligned, r = unaligned(images, weight, padding, stride, dilation, len(scales))
    for (index, s), (n, image) in itertools.product(enumerate(scales), enumerate(images)):
        small = [length if s == 1 else math.floor(s * length + EDGE) for length in sizes]
        level = np.zeros((len(image), *small))
        for q in np.ndindex(*small):
            u = [(i - (h - 1) / 2) / s + (length - 1) / 2 for i, h, length in zip(q, small, sizes, strict=True)]
            level[(slice(None), *q)] = read(image, *u, support=1 / s if antialias and s < 1 else 1)
        response = convolve(level, weight, bias, *call)
        for p in np.ndindex(*aligned.shape[3:]) if response is not None else ():
            v = [
                (s * (t * i + c - (length - 1) / 2) + (h - 1) / 2 - c) / t
                for i, t, c, length, h in zip(p, stride, r, sizes, small, strict=True)
            ]
            if not any(map(beyond, v, response.shape[1:])):
                aligned[(index, n, slice(None), *p)] = read(response, *v)
    return aligned


def gap(aligned):
    """How far the winning level leads the next one, at each output."""
    ordered = np.sort(aligned, axis=0)
    return ordered[-1] - ordered[-2] if len(aligned) > 1 else np.full(aligned.shape[1:], np.inf)


def pixel(number, length, border):
    """The pixel that stands for one of this number, which may lie outside."""
    if border == "reflect" and length > 1:
        while not 0 <= number < length:
            number = -number if number < 0 else 2 * (length - 1) - number
    return min(max(number, 0), length - 1)


def nearest(place):
    """Half away from zero; a hair below half counts as half."""
    return int(math.copysign(math.floor(abs(place) + 0.5 + EDGE), place))


def read_plane(image, y, x, interpolation, border):
    """Value of (C, H, W) at a real position: (C,), or None outside where the border is zeros."""
    height, width = image.shape[1:]
    if border == "zeros" and (beyond(y, height) or beyond(x, width)):
        return None
    if interpolation == "nearest":
        return image[:, pixel(nearest(y), height, border), pixel(nearest(x), width, border)]
    top, left = math.floor(y), math.floor(x)
    value = np.zeros(len(image))
    for i, j in itertools.product((0, 1), repeat=2):
        weight = (1 - abs(y - top - i)) * (1 - abs(x - left - j))
        value += weight * image[:, pixel(top + i, height, border), pixel(left + j, width, border)]
    return value


def transform(image, matrix, interpolation, border):
    """One level (C, h, w), which may be empty."""
    size = np.array(image.shape[1:])
    small = [math.floor(reach + EDGE) for reach in np.abs(matrix) @ size]
    back, level = np.linalg.inv(matrix), np.zeros((len(image), *small))
    for q in np.ndindex(*small):
        u = back @ (q - (np.array(small) - 1) / 2) + (size - 1) / 2
        value = read_plane(image, *u, interpolation, border)
        level[(slice(None), *q)] = 0 if value is None else value
    return level


def ti_conv2d(images, weight, bias, stride, padding, dilation, groups, matrices, interpolation, border):
    """Aligned responses of every transform, −inf where it takes no part: (T, N, M, H0, W0)."""
    aligned, r = unaligned(images, weight, padding, stride, dilation, len(matrices))
    r, c, t = np.array(r), (np.array(images.shape[2:]) - 1) / 2, np.array(stride)
    for (index, matrix), (n, image) in itertools.product(enumerate(matrices), enumerate(images)):
        level = transform(image, matrix, interpolation, border)
        response = convolve(level, weight, bias, stride, padding, dilation, groups)
        e = (np.array(level.shape[1:]) - 1) / 2
        for p in np.ndindex(*aligned.shape[3:]) if response is not None else ():
            v = (np.array(matrix) @ (t * p + r - c) + e - r) / t
            value = read_plane(response, *v, interpolation, border)
            if value is not None:
                aligned[(index, n, slice(None), *p)] = value
    return aligned
