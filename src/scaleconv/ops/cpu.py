"""The four steps around a convolution on a CPU: sample, compete, and their transposes, spread and collect.

`triton.steps` has the same for a GPU, where levels may share a canvas; here each has its own. All tensors are
(N, H, W, C). Images of many channels are resampled in both axes at once by sparse matrices; those of few channels, and
those cut into bands, one axis after the other. A map that mixes the axes always has a matrix for both. The matrices
are kept in a cache, up to a number of bytes.
"""

import ctypes
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

import torch
from torch import Tensor

from .checks import check_count
from .plan import Canvas, PlaneStrip
from .resampling import MOST_IMAGES, AxisMap, SparseMap, axis_matrix, sparse_map

MANY_CHANNELS = 16  # from which it is faster to take both axes at once


def sample(pixels: Tensor, canvas: Canvas) -> Tensor:
    """Put the rescaled images on the canvas: (N, H, W, C) → `canvas.shape`."""
    (strip,) = canvas.strips
    if isinstance(strip, PlaneStrip):
        return _plane_matrix(strip, "sample", canvas.size, pixels.dtype)(pixels)
    return _resample(pixels, *strip.sample, canvas, patch=canvas.taps or (1, 1)).contiguous()


def collect(sampled: Tensor, canvas: Canvas, total: Tensor, *, start: bool) -> None:
    """Add the transpose of `sample` to the gradient of the images, of which at the `start` there is none."""
    (strip,) = canvas.strips
    if start:
        total.zero_()
    if isinstance(strip, PlaneStrip):
        total += _plane_matrix(strip, "collect", strip.level.image, sampled.dtype)(sampled)
    else:
        total[:, strip.inputs] += _resample(sampled, *strip.collect, canvas, patches=canvas.taps is not None)


def compete(response: Tensor, canvas: Canvas, output: Tensor, winner: Tensor, bias: Tensor | None) -> None:
    """Align the responses (N, h', w', M); where one is stronger than the output so far, it becomes the output.

    Before scale 1 there is no output. The `bias` is (N, M), by any strides.
    """
    (strip,) = canvas.strips
    covered, region = None, (slice(None), *strip.outputs)
    if isinstance(strip, PlaneStrip):
        found = _plane_matrix(strip, "compete", strip.level.output, response.dtype)
        aligned, covered, region = found(response), found.read, (slice(None),) * 3
    else:
        aligned = _resample(response, *strip.align, canvas)
    if bias is not None:
        aligned = aligned + bias[:, None, None, :]
    best, won = output[region], winner[region]
    if strip.code == 0:
        best.copy_(aligned)
        won.zero_()
        return
    wins = aligned >= best if strip.wins_ties else aligned > best
    if covered is not None:
        wins &= covered
        aligned = aligned.where(covered, -torch.inf)
    torch.maximum(won, wins.view(torch.uint8) * strip.code, out=won)  # codes only grow
    torch.maximum(best, aligned, out=best)  # keeps a NaN from either side


def spread(grad: Tensor, winner: Tensor, canvas: Canvas) -> Tensor:
    """The transpose of `compete`: the gradient (N, H0, W0, M) of each response, from the outputs that it won."""
    (strip,) = canvas.strips
    if isinstance(strip, PlaneStrip):
        share = mask_by_winner(grad, winner, strip.code)
        return _plane_matrix(strip, "spread", canvas.response, grad.dtype)(share)
    region = (slice(None), *strip.outputs)
    rows, columns = (axis.transposed for axis in strip.align)
    return _resample(mask_by_winner(grad[region], winner[region], strip.code), rows, columns, canvas).contiguous()


def mask_by_winner(grad: Tensor, winner: Tensor, code: int) -> Tensor:
    """The gradient where this level won, 0 elsewhere.

    The derivative of `hardtanh` does just that, in one pass: it passes what stands beside a number inside the bounds.
    """
    share: Tensor = torch.ops.aten.hardtanh_backward(grad, winner, code - 1, code + 1)
    return share


def to_compare(winner: Tensor, grad: Tensor) -> Tensor:
    """The winner as `mask_by_winner` and `spread` take it: on a CPU, of the type of the gradient."""
    return winner.to(grad.dtype)


def _resample(
    pixels: Tensor,
    rows: AxisMap,
    columns: AxisMap,
    canvas: Canvas,
    *,
    patch: tuple[int, int] = (1, 1),
    patches: bool = False,
) -> Tensor:
    """Resample by the maps, in the faster of two ways; patches, to be made or to be read, by a sparse matrix."""
    if not patches and patch == (1, 1):
        if rows.is_identity and columns.is_identity:
            return pixels
        if canvas.band or pixels.shape[3] < MANY_CHANNELS:
            return resample(pixels, rows, columns)

    def make() -> SparseMap:
        return sparse_map(rows, columns, pixels.dtype, canvas.offsets(1) if patches else None, patch)

    return SPARSE_MAPS.find((rows, columns, pixels.dtype), make)(pixels.contiguous())


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
    matrix = SPARSE_MAPS.find((axis, images, dtype), lambda: axis_matrix(axis, images, dtype))
    return matrix(pixels).view(images, len(axis), *shape)


def _plane_matrix(strip: PlaneStrip, step: str, size: tuple[int, int], dtype: torch.dtype) -> SparseMap:
    """The matrix of one step, which gives images of this size."""

    def make() -> SparseMap:
        plane = (strip.sample if step in ("sample", "collect") else strip.align)[1]
        return axis_matrix(plane, MOST_IMAGES, dtype, size, transpose=step in ("collect", "spread"))

    return SPARSE_MAPS.find((strip.level, step, dtype), make)


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
