"""`ti_conv2d`, `si_conv1d` and `si_conv3d` written out as nested loops, in float64, from the equations alone.

Shares no code with the package. Slow, and meant to be read beside the docstring of `ti_conv2d`.
"""

import itertools
import math

import numpy as np

from helpers.reference import convolve

EDGE = 1e-6


def beyond(place, length):
    return place < -0.5 - EDGE or place > length - 0.5 + EDGE


def pixel(number, length, border):
    """The pixel that stands for one of this number, which may lie outside."""
    if border == "reflect" and length > 1:
        while not 0 <= number < length:
            number = -number if number < 0 else 2 * (length - 1) - number
    return min(max(number, 0), length - 1)


def nearest(place):
    """Half away from zero; a hair below half counts as half."""
    return int(math.copysign(math.floor(abs(place) + 0.5 + EDGE), place))


def read(image, y, x, interpolation, border):
    """The value of (C, H, W) at a real place: (C,), or None outside where the border is zeros."""
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
    """One level, or None if nothing of it is left."""
    (yy, yx), (xy, xx) = matrix
    height, width = image.shape[1:]
    high = math.floor(abs(yy) * height + abs(yx) * width + EDGE)
    wide = math.floor(abs(xy) * height + abs(xx) * width + EDGE)
    if high < 1 or wide < 1:
        return None
    back = np.linalg.inv(np.array(matrix))
    level = np.zeros((len(image), high, wide))
    for i in range(high):
        for j in range(wide):
            y, x = back @ np.array([i - (high - 1) / 2, j - (wide - 1) / 2])
            value = read(image, y + (height - 1) / 2, x + (width - 1) / 2, interpolation, border)
            level[:, i, j] = 0 if value is None else value
    return level


def ti_conv2d(images, weight, bias, stride, padding, dilation, groups, matrices, interpolation, border):
    """Aligned responses of every transform, −inf where it takes no part: (T, N, M, H0, W0)."""
    size, kernel = images.shape[2:], weight.shape[2:]
    out = [
        (n + sum(p) - d * (k - 1) - 1) // t + 1
        for n, p, d, k, t in zip(size, padding, dilation, kernel, stride, strict=True)
    ]
    aligned = np.full((len(matrices), len(images), len(weight), *out), -np.inf)
    r = np.array([d * (k - 1) / 2 - p[0] for d, k, p in zip(dilation, kernel, padding, strict=True)])
    c, t = (np.array(size) - 1) / 2, np.array(stride)
    for index, matrix in enumerate(matrices):
        for n, image in enumerate(images):
            level = transform(image, matrix, interpolation, border)
            response = None if level is None else convolve(level, weight, bias, stride, padding, dilation, groups)
            if response is None:
                continue
            e = (np.array(level.shape[1:]) - 1) / 2
            for i in range(out[0]):
                for j in range(out[1]):
                    v = (np.array(matrix) @ (t * np.array([i, j]) + r - c) + e - r) / t
                    value = read(response, *v, interpolation, border)
                    if value is not None:
                        aligned[index, n, :, i, j] = value
    return aligned


def read_at(array, places):
    """The value of (C, …) at a real place on any number of axes, linear along each, edges clamped: (C,)."""
    places = [min(max(u, 0.0), n - 1.0) for u, n in zip(places, array.shape[1:], strict=True)]
    first = [math.floor(u) for u in places]
    value = np.zeros(len(array))
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight = math.prod(1 - abs(u - a - b) for u, a, b in zip(places, first, corner, strict=True))
        if weight > 0:
            value += weight * array[(slice(None), *(a + b for a, b in zip(first, corner, strict=True)))]
    return value


def si_conv(images, weight, bias, stride, padding, dilation, groups, scales):
    """Aligned responses over any number of axes, −inf where a scale takes no part: (S, N, M, …); padding one a side."""
    sizes, kernel, axes = images.shape[2:], weight.shape[2:], range(images.ndim - 2)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]

    def count(length, axis):
        return (length + 2 * padding[axis] - reach[axis] - 1) // stride[axis] + 1

    out = [count(sizes[axis], axis) for axis in axes]
    aligned = np.full((len(scales), len(images), len(weight), *out), -np.inf)
    maps, channels = weight.shape[:2]
    for (index, s), (n, image) in itertools.product(enumerate(scales), enumerate(images)):
        small = [length if s == 1 else math.floor(s * length + EDGE) for length in sizes]
        responses = [count(length, axis) for axis, length in enumerate(small)]
        if min(small) < 1 or min(responses) < 1:
            continue
        level = np.zeros((len(image), *small))
        for q in np.ndindex(*small):
            level[(slice(None), *q)] = read_at(
                image, [(q[a] - (small[a] - 1) / 2) / s + (sizes[a] - 1) / 2 for a in axes]
            )
        padded = np.pad(level, [(0, 0), *((p, p) for p in padding)])
        response = np.zeros((maps, *responses))
        for p in np.ndindex(*responses):
            taps = np.ix_(*(stride[a] * p[a] + dilation[a] * np.arange(kernel[a]) for a in axes))
            for m in range(maps):
                first = m // (maps // groups) * channels
                response[(m, *p)] = bias[m] + np.vdot(padded[first : first + channels][:, *taps], weight[m])
        for p in np.ndindex(*out):
            r = [reach[a] / 2 - padding[a] for a in axes]
            v = [
                (s * (stride[a] * p[a] + r[a] - (sizes[a] - 1) / 2) + (small[a] - 1) / 2 - r[a]) / stride[a]
                for a in axes
            ]
            if not any(beyond(v[a], responses[a]) for a in axes):
                aligned[(index, n, slice(None), *p)] = read_at(response, v)
    return aligned
