"""The layer written out as nested loops over pixels, in float64, from the equations alone.

Shares no code with the package. Slow, and meant to be read beside the docstring of `si_conv2d`.
"""

import math

import numpy as np


def read(image, y, x):
    """Bilinear value of (C, H, W) at a real position, edge pixels clamped: (C,)."""
    height, width = image.shape[1:]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    a, b = y - top, x - left
    upper = (1 - b) * image[:, top, left] + b * image[:, top, right]
    lower = (1 - b) * image[:, bottom, left] + b * image[:, bottom, right]
    return (1 - a) * upper + a * lower


def average(image, y, x, s):
    """Value of (C, H, W) at a real position under a triangle that reaches 1/s pixels, edge pixels clamped: (C,)."""
    height, width = image.shape[1:]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    down, across = (np.maximum(0, 1 - s * abs(u - np.arange(n))) for u, n in ((y, height), (x, width)))
    return image @ across @ down / (down.sum() * across.sum())


def rescale(image, s, antialias):
    sizes = [n if s == 1 else math.floor(s * n + 1e-6) for n in image.shape[1:]]
    level = np.zeros((image.shape[0], *sizes))
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            u = [(q - (h - 1) / 2) / s + (n - 1) / 2 for q, h, n in zip((i, j), sizes, image.shape[1:], strict=True)]
            level[:, i, j] = average(image, *u, s) if antialias and s < 1 else read(image, *u)
    return level


def convolve(level, weight, bias, stride, padding, dilation, groups):
    """Response (M, h', w') of one level, None if the kernel does not fit; padding ((top, bottom), (left, right))."""
    if min(level.shape) < 1:
        return None
    padded = np.pad(level, ((0, 0), *padding))
    kernel = weight.shape[2:]
    sizes = [
        (n - d * (k - 1) - 1) // t + 1 for n, d, k, t in zip(padded.shape[1:], dilation, kernel, stride, strict=True)
    ]
    if min(sizes) < 1:
        return None
    maps, channels = weight.shape[:2]
    response = np.zeros((maps, *sizes))
    taps = [d * np.arange(k) for d, k in zip(dilation, kernel, strict=True)]
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            seen = padded[:, stride[0] * i + taps[0][:, None], stride[1] * j + taps[1]]  # (C, K, K)
            for m in range(maps):
                first = m // (maps // groups) * channels
                response[m, i, j] = bias[m] + np.vdot(seen[first : first + channels], weight[m])
    return response


def si_conv2d(images, weight, bias, stride, padding, dilation, groups, scales, antialias=False):
    """Aligned responses of every scale, −inf where it takes no part: (S, N, M, H0, W0)."""
    size, kernel = images.shape[2:], weight.shape[2:]
    out = [
        (n + sum(p) - d * (k - 1) - 1) // t + 1
        for n, p, d, k, t in zip(size, padding, dilation, kernel, stride, strict=True)
    ]
    aligned = np.full((len(scales), len(images), len(weight), *out), -np.inf)
    r = [d * (k - 1) / 2 - p[0] for d, k, p in zip(dilation, kernel, padding, strict=True)]
    for index, s in enumerate(scales):
        for n, image in enumerate(images):
            level = rescale(image, s, antialias)
            response = convolve(level, weight, bias, stride, padding, dilation, groups)
            if response is None:
                continue
            for i in range(out[0]):
                for j in range(out[1]):
                    v = [
                        (s * (t * p + c - (length - 1) / 2) + (h - 1) / 2 - c) / t
                        for p, t, c, length, h in zip((i, j), stride, r, size, level.shape[1:], strict=True)
                    ]
                    if all(-0.5 - 1e-6 <= x <= h - 0.5 + 1e-6 for x, h in zip(v, response.shape[1:], strict=True)):
                        aligned[index, n, :, i, j] = read(response, *v)
    return aligned


def gap(aligned):
    """How far the winning scale leads the next one, at each output."""
    ordered = np.sort(aligned, axis=0)
    return ordered[-1] - ordered[-2] if len(aligned) > 1 else np.full(aligned.shape[1:], np.inf)
