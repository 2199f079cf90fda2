"""Scenes: several digits at different scales in one image, among pieces of digits and noise, with a label per pixel.

The digits of one scene differ in scale, so no single rescaling of the image brings all of them to a familiar size. This
is where *local* scale invariance is needed. A scene is a pure function of the digits, the parameters and the seed.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .rescale import cut_off, make_scaled
from .scales import ScaleDistribution, raw_stream, unit_stream

BACKGROUND = 10  # the label of a pixel that belongs to no digit
INK = 0.3  # a pixel at least this bright belongs to its digit
WINDOW = 12  # side of the piece that is cut from a digit, in pixels of the digit
GAP = 2  # pixels that stay free between two bounding boxes
TRIES = 24  # places that are tried for a digit before it is left out
CHUNK = 64  # scenes at a time: bounds the memory, and does not change the result
LAYOUT, NOISE = 3, 4  # purposes of the random streams; the scales and the folds have others


@dataclass(frozen=True)
class Scenes:
    """Images of several digits each, K of them at most."""

    images: Tensor  # (N, 1, S, S) float32 in [0, 1]
    labels: Tensor  # (N, S, S) int64: 0 … 9 on the pixels of a digit, else `BACKGROUND`
    digits: Tensor  # (N, K) int64, which digit it is; −1 where no free place was found for it
    scales: Tensor  # (N, K) float64, the factors of the digits
    boxes: Tensor  # (N, K, 4) int64, the bounding box of each digit: top, left, bottom, right, the last two exclusive

    def __len__(self) -> int:
        return len(self.images)


def make_scenes(
    images: Tensor,
    labels: Tensor,
    scales: ScaleDistribution,
    count: int,
    size: int = 96,
    *,
    digits: int = 5,
    pieces: int = 6,
    noise: float = 0.1,
    seed: int = 0,
) -> Scenes:
    """Lay digits into scenes, each at a scale of its own, without overlap.

    Shapes: images (M, H, W), labels (M,) → `count` scenes of size × size.

    A scene draws its digits and their places at random. A digit is left out if none of the places drawn for it is free;
    the first is always shown. Then come the pieces: windows cut from digits, placed in the same way, but labelled as
    background. Noise is added to all pixels, and the result is clamped to [0, 1]. Digits are scaled by `make_scaled`
    and moved by whole pixels. The first scenes of a longer set are the same scenes.

    Args:
        images: the digits to draw from, 0 … 255, on any device; the scenes stay there.
        labels: of the digits, 0 … 9.
        scales: distribution of the factors, for digits and pieces alike.
        count: of the scenes.
        size: side of a scene.
        digits: most digits in a scene.
        pieces: most pieces in a scene.
        noise: standard deviation.
        seed: of everything that is drawn.

    Raises:
        ValueError: an argument is out of its range, or a digit would not fit into a scene at all.

    Example:
        >>> from scaleconv.data import Uniform, embedded_digits
        >>> found = embedded_digits()
        >>> scenes = make_scenes(found.images, found.labels, Uniform(0.4, 2.2), 3)
        >>> scenes.images.shape, scenes.labels.shape, scenes.digits[0]
        (torch.Size([3, 1, 96, 96]), torch.Size([3, 96, 96]), tensor([8949, 1179, 1220, 7977, 3490]))
    """
    _check(images, labels, count=count, size=size, digits=digits, pieces=pieces, noise=noise)
    things, device = digits + pieces, images.device
    factors = torch.from_numpy(scales.draw(count * things, seed)).view(count, things)
    numbers = unit_stream(count * things * (3 + 2 * TRIES), seed, LAYOUT)
    drawn = torch.from_numpy(numbers).view(count, things, 3 + 2 * TRIES)
    chosen = (drawn[:, :, 0] * len(images)).long()  # (N, K)
    parts = []
    for start in range(0, count, CHUNK):
        part = slice(start, min(start + CHUNK, count))
        originals = images[chosen[part].flatten().to(device)]  # (n·K, H, W)
        corners = drawn[part, :, 1:3].flatten(0, 1).to(device)
        is_piece = (torch.arange(things, device=device) >= digits).repeat(part.stop - part.start)
        originals = torch.where(is_piece.view(-1, 1, 1), _cut_window(originals, corners), originals)
        patches = _scaled(originals, factors[part].flatten().to(device), size).unflatten(0, (-1, things))
        boxes = _bounding_boxes(patches)  # (n, K, 4)
        places, placed = _place(boxes, drawn[part, :, 3:].to(device), size)
        names = labels.to(device)[chosen[part].to(device)].where(~is_piece.view(-1, things), BACKGROUND)
        parts.append((*_paste(patches, boxes, places, placed, names, size), places[:, :digits], placed[:, :digits]))
    pixels, labelled, places, placed = (torch.cat(found) for found in zip(*parts, strict=True))
    if noise:
        pixels = (pixels + noise * _noise(count, size, seed).to(device)).clamp(0, 1)
    shown = chosen[:, :digits].to(device).where(placed, -1)
    return Scenes(pixels.unsqueeze(1), labelled, shown, factors[:, :digits].to(device), places)


def _scaled(images: Tensor, factors: Tensor, size: int) -> Tensor:
    """Images scaled about the centre of a patch just large enough: (n, P, P).

    The side of a patch is odd where that of a scene is: the sub-pixel phase of a digit does not depend on the patch.
    """
    needed = math.ceil(float(factors.max()) * (max(images.shape[1:]) + 1))
    patch = size - 2 * max(0, (size - needed) // 2)
    beyond = cut_off(images, factors, patch)
    if beyond.any():
        least, scale = patch + math.ceil(2 * float(beyond.max())), float(factors[beyond.argmax()])
        raise ValueError(
            f"`size` (={size}) must hold each digit whole, got one that needs {least}×{least} pixels at scale "
            f"{scale:g}: use a larger scene, or smaller scales"
        )
    return make_scaled(images, factors, patch, truncate="allow")[:, 0]


def _cut_window(images: Tensor, corners: Tensor) -> Tensor:
    """What is left of each image in a window, whose corner is drawn in [0, 1)."""
    inside = []
    for axis in (1, 2):
        length = images.shape[axis]
        start = (corners[:, axis - 1] * max(1, length - WINDOW + 1)).long().unsqueeze(1)
        place = torch.arange(length, device=images.device)
        inside.append((place >= start) & (place < start + WINDOW))
    return images * (inside[0].unsqueeze(2) & inside[1].unsqueeze(1))


def _bounding_boxes(patches: Tensor) -> Tensor:
    """The box around what is not 0: (n, K, 4); of no extent where all is 0."""
    found = patches > 0
    ends = []
    for axis in (3, 2):
        occupied = found.any(axis).int()  # (n, K, P)
        first = occupied.argmax(2)
        last = occupied.shape[2] - occupied.flip(2).argmax(2)
        ends.append((first, torch.where(occupied.any(2), last, first)))
    return torch.stack([ends[0][0], ends[1][0], ends[0][1], ends[1][1]], 2)


def _place(boxes: Tensor, drawn: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where each box goes, (n, K, 4), and whether it found a place, (n, K): the first place tried that is free."""
    extent = boxes[:, :, 2:] - boxes[:, :, :2]  # (n, K, 2)
    places = torch.zeros_like(boxes)
    placed = torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for k in range(boxes.shape[1]):
        count = (size + 1 - extent[:, k]).unsqueeze(1)  # of the places along each axis, (n, 1, 2)
        corner = (drawn[:, k].unflatten(1, (TRIES, 2)) * count).long()  # (n, T, 2)
        start, end = corner.unsqueeze(2), (corner + extent[:, k].unsqueeze(1)).unsqueeze(2)  # (n, T, 1, 2)
        earlier = places[:, None, :k]  # (n, 1, k, 4)
        meets = ((start < earlier[..., 2:] + GAP) & (end > earlier[..., :2] - GAP)).all(3)
        free = ~(meets & placed[:, None, :k]).any(2)  # (n, T)
        choice = free.int().argmax(1)
        placed[:, k] = free.any(1) & (extent[:, k] > 0).all(1)
        top_left = corner[torch.arange(len(corner), device=corner.device), choice]  # (n, 2)
        box = torch.cat([top_left, top_left + extent[:, k]], 1)
        places[:, k] = box.where(placed[:, k].unsqueeze(1), 0)
    return places, placed


def _paste(
    patches: Tensor, boxes: Tensor, places: Tensor, placed: Tensor, names: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """The pixels (n, S, S) of the scenes and their labels."""
    count, things, side, _ = patches.shape
    pixels = torch.zeros(count, size, size, device=patches.device)
    labels = torch.full((count, size, size), BACKGROUND, device=patches.device)
    shifts = places[:, :, :2] - boxes[:, :, :2]  # (n, K, 2)
    for k in range(things):
        moved = patches[:, k] * placed[:, k].view(-1, 1, 1)
        for axis in (1, 2):
            source = torch.arange(size, device=patches.device) - shifts[:, k, axis - 1 : axis]  # (n, S)
            outside = (source < 0) | (source >= side)
            index = source.clamp(0, side - 1).unsqueeze(3 - axis)
            shape = [count, size, moved.shape[2]] if axis == 1 else [count, size, size]
            moved = moved.gather(axis, index.expand(shape)).masked_fill(outside.unsqueeze(3 - axis), 0)
        pixels = pixels.maximum(moved)
        labels = torch.where(moved >= INK, names[:, k].view(-1, 1, 1), labels)
    return pixels, labels


def _noise(count: int, size: int, seed: int) -> Tensor:
    """Noise of standard deviation 1, a stream for each scene: (N, S, S) float32.

    Each number is the sum of the four 16-bit parts of a raw one, which is close to normal and the same everywhere.
    """
    made = torch.empty(count, size, size)
    for index in range(count):
        raw = raw_stream(size * size, seed, NOISE, index).view(np.uint16).reshape(size, size, 4)
        centred = raw.sum(-1, dtype=np.float64) / 2**16 - 2
        made[index] = torch.from_numpy(centred * math.sqrt(3))
    return made


def _check(images: Tensor, labels: Tensor, *, noise: float, **counts: int) -> None:
    if not len(images) == len(labels) > 0:
        raise ValueError(f"`labels` must be one for each of the images, at least one, got {len(labels)}")
    for name, least in (("count", 1), ("size", 1), ("digits", 1), ("pieces", 0)):
        if counts[name] < least:
            raise ValueError(f"`{name}` must be at least {least}, got {counts[name]}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"`noise` must be a standard deviation of at least 0, got {noise}")
