"""The four steps around a convolution on a CPU: sample, compete, and their transposes, spread and collect.

`triton.steps` has the same for a GPU. All tensors are (N, H, W, C). A step of a canvas is one sparse matrix for both
axes and all of its levels. Images of few channels, and large ones, are resampled one axis after the other, unless the
map mixes the axes. The matrices are kept in a cache, up to a number of bytes.
"""

import ctypes
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from math import prod
from threading import Lock

import torch
from torch import Tensor

from .checks import check_count
from .plan import MOST_PATCHES, Canvas, PlaneStrip, Strip
from .resampling import AxisMap, SparseMap, axis_entries, sparse_map

MANY_CHANNELS = 4  # from which it is faster to take both axes at once


def sample(pixels: Tensor, canvas: Canvas) -> Tensor:
    """Put the rescaled images on the canvas: (N, H, W, C) → `canvas.shape`."""
    if _takes_axes(canvas, pixels):
        return resample(pixels, *canvas.strips[0].sample).contiguous()
    return _matrix(canvas, "sample", pixels)(pixels).view(canvas.shape(len(pixels), pixels.shape[3]))


def collect(sampled: Tensor, canvas: Canvas, total: Tensor, *, start: bool) -> None:
    """Add the transpose of `sample` to the gradient of the images, of which at the `start` there is none."""
    if start:
        total.zero_()
    strip = canvas.strips[0]
    if isinstance(strip, Strip) and _takes_axes(canvas, sampled):
        total[:, strip.inputs] += resample(sampled, *strip.collect)
    else:
        total += _matrix(canvas, "collect", sampled)(sampled).view(total.shape)


def compete(response: Tensor, canvas: Canvas, output: Tensor, winner: Tensor) -> None:
    """Align the responses (N, h', w', M); where one is stronger than the output so far, it becomes the output.

    Before scale 1 there is no output.
    """
    aligned, covered = response, None
    if _takes_axes(canvas, response):
        aligned = resample(response, *canvas.strips[0].align)
    elif not canvas.is_aligned:
        matrix = _matrix(canvas, "align", response)
        aligned, covered = matrix(response), matrix.read
    best, won = (_on_grid(each, canvas) for each in (output, winner))
    for strip, part in _by_strips(aligned, canvas):
        _compete(part, strip, best[:, *strip.outputs], won[:, *strip.outputs], covered)


def _compete(aligned: Tensor, strip: Strip | PlaneStrip, best: Tensor, winner: Tensor, covered: Tensor | None) -> None:
    if strip.code == 0:
        best.copy_(aligned)
        winner.zero_()
        return
    wins = aligned >= best if strip.wins_ties else aligned > best
    if covered is not None:
        wins &= covered
        aligned = aligned.where(covered, -torch.inf)
    torch.maximum(winner, wins.view(torch.uint8) * strip.code, out=winner)  # codes only grow
    torch.maximum(best, aligned, out=best)  # keeps a NaN from either side


def _on_grid(outputs: Tensor, canvas: Canvas) -> Tensor:
    """Pixels of the output, in one long row if the maps of the canvas mix the axes."""
    images, height, width, channels = outputs.shape
    return outputs.view(images, *canvas.grid((height, width)), channels)


def _by_strips(aligned: Tensor, canvas: Canvas) -> Iterator[tuple[Strip | PlaneStrip, Tensor]]:
    """What the outputs of each strip read, as images."""
    first = 0
    for strip in canvas.strips:
        if len(canvas.strips) == 1:
            yield strip, aligned.reshape(len(aligned), *strip.output_size, aligned.shape[3])
        else:
            outputs = prod(strip.output_size)
            yield strip, aligned[:, first : first + outputs, 0].unflatten(1, strip.output_size)
            first += outputs


def spread(grad: Tensor, winner: Tensor, canvas: Canvas) -> Tensor:
    """The transpose of `compete`: the gradient (N, H0, W0, M) of each response, from the outputs that it won."""
    grad, winner = (_on_grid(each, canvas) for each in (grad, winner))
    shares = [mask_by_winner(grad[:, *strip.outputs], winner[:, *strip.outputs], strip.code) for strip in canvas.strips]
    share = shares[0] if len(shares) == 1 else torch.cat([each.flatten(1, 2) for each in shares], 1)
    if _takes_axes(canvas, share):
        rows, columns = (axis.transposed for axis in canvas.strips[0].align)
        return resample(share, rows, columns).contiguous()
    if not canvas.is_aligned:
        share = _matrix(canvas, "spread", share)(share)
    return share.contiguous().view(len(grad), *canvas.response, share.shape[-1])


def mask_by_winner(grad: Tensor, winner: Tensor, code: int) -> Tensor:
    """The gradient where this level won, 0 elsewhere.

    The derivative of `hardtanh` does just that, in one pass: it passes what stands beside a number inside the bounds.
    """
    share: Tensor = torch.ops.aten.hardtanh_backward(grad, winner, code - 1, code + 1)
    return share


def to_compare(winner: Tensor, grad: Tensor) -> Tensor:
    """The winner as `mask_by_winner` and `spread` take it: on a CPU, of the type of the gradient."""
    return winner.to(grad.dtype)


def _takes_axes(canvas: Canvas, pixels: Tensor) -> bool:
    """Whether one axis is resampled after the other: faster for few channels, and less to keep for large canvases."""
    whole = canvas.taps or isinstance(canvas.strips[0], PlaneStrip)
    large = canvas.band or prod(canvas.size) > MOST_PATCHES
    return not whole and (large or pixels.shape[3] < MANY_CHANNELS)


def _matrix(canvas: Canvas, step: str, pixels: Tensor) -> SparseMap:
    """The matrix of one step on both axes, of all strips."""
    maps = [strip.level if isinstance(strip, PlaneStrip) else (strip.sample, strip.align) for strip in canvas.strips]

    def make() -> SparseMap:
        entries, results, read = canvas.sampling() if step in ("sample", "collect") else canvas.alignment()
        if step in ("collect", "spread"):
            entries, results, read = (entries[1], entries[0], entries[2]), read, results
        return sparse_map(entries, results, prod(read), pixels.dtype)

    return SPARSE_MAPS.find((step, pixels.dtype, canvas.taps, *maps), make)


def resample(pixels: Tensor, rows: AxisMap, columns: AxisMap) -> Tensor:
    """Resample images (N, H, W, C), one axis after the other: (N, h, w, C)."""
    lines = _resample_rows(pixels, rows).transpose(1, 2)
    return _resample_rows(lines, columns).transpose(1, 2)


def _resample_rows(pixels: Tensor, axis: AxisMap) -> Tensor:
    """(N, H, W, C) → (N, h, W, C)."""
    if axis.is_identity:
        return pixels
    images, dtype, shape = len(pixels), pixels.dtype, pixels.shape[2:]
    if images == 0:
        return pixels.new_zeros((0, len(axis), *shape))
    make = partial(sparse_map, axis_entries(axis), (len(axis), 1), axis.length, dtype, most=images)
    matrix = SPARSE_MAPS.find((axis, images, dtype), make)
    return matrix(pixels).view(images, len(axis), *shape)


ROUNDS = 3  # times that a cache has forgotten as much as it holds, after which it is too small
SLICE = 2**26  # bytes that are forgotten between two returns of memory to the system


class MatrixCache:
    """Keeps matrices up to a number of bytes, for all threads, and forgets the least recently used.

    A matrix larger than the bound is not kept.
    """

    def __init__(self, nbytes: int) -> None:
        self.max_nbytes, self.nbytes = nbytes, 0
        self._entries: OrderedDict[Hashable, SparseMap] = OrderedDict()
        self._lock = Lock()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable, make: Callable[[], SparseMap]) -> SparseMap:
        """The matrix of this key, made if it is not there; it warns once if the bound is too small."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        with torch.inference_mode(False), torch.no_grad():
            made = make()
        with self._lock:
            if made.nbytes > self.max_nbytes or key in self._entries:  # another thread may have been faster
                return made
            self._entries[key] = made
            self.nbytes += made.nbytes
            before = self._forgotten
            self._forgotten += self._shrink()
            now = self._forgotten
        if before // SLICE < now // SLICE:
            return_memory()
        if before <= ROUNDS * self.max_nbytes < now:
            warnings.warn(
                f"scaleconv keeps {self.max_nbytes / 2**20:.0f} MiB of resampling matrices, and these layers need "
                "more: each call makes them anew. scaleconv.resize_cache(nbytes) sets another bound.",
                stacklevel=2,
            )
        return made

    def resize(self, nbytes: int) -> None:
        """Set another bound."""
        nbytes = check_count("nbytes", nbytes, least=0)
        with self._lock:
            self.max_nbytes = nbytes
            self._shrink()
            self._forgotten = 0
        return_memory()

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = self._forgotten = 0

    def _shrink(self) -> int:
        """Forget what exceeds the bound: how many bytes."""
        before = self.nbytes
        while self.nbytes > self.max_nbytes:
            self.nbytes -= self._entries.popitem(last=False)[1].nbytes
        return before - self.nbytes


def return_memory() -> None:
    """Give what is free back to the system, where the C library can.

    glibc keeps it, in pieces between what is in use. Matrices of ever new sizes fit into few of them: over a thousand
    sizes the process grew by as much as the cache may hold.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # macOS, musl and Windows have no such function
        return


SPARSE_MAPS = MatrixCache(nbytes=256 * 2**20)


def resize_cache(nbytes: int) -> None:
    """Set how many bytes of resampling matrices a CPU keeps for the layers' sizes; 256 MiB unless set.

    The matrices of the sizes not used for longest are forgotten, and made anew when needed. A GPU needs none.

    Example:
        >>> resize_cache(256 * 2**20)
    """
    SPARSE_MAPS.resize(nbytes)
