"""A call as canvases: which levels are evaluated in what form, where they lie, what is read from where.

A level is sampled, convolved, aligned and competes. It takes one of three exact forms:

- dense: the level is rescaled and convolved as a whole, and its responses are aligned, as in the paper;
- strided: where the scale is a whole number, every output samples the responses at the same sub-pixel phase, so the
  level is moved by that phase while it is rescaled and a strided convolution gives the outputs;
- im2col: the interpolated patches under the kernel at every output are gathered, and the convolution is a matrix
  product, at a cost that does not depend on the scale.

What is sampled lies on a canvas with the zeros of the padding around it. Levels of a small layer share a canvas, one
below the other, so that one convolution serves them all; on a CPU, their patches do, at the responses of a level where
those are fewer than the outputs. A level of a large image is cut into bands of output rows,
each with a canvas of its own, which bounds the memory. Both are strips: some outputs of one level, somewhere on a
canvas.

A map that mixes the axes, such as a rotation, is dense. Its image is one long row, its level is another, and the map
between them that of a single axis. So the kernels of a GPU need to know of no other kind; a CPU has one sparse matrix
for each step of such a level.

A plan is made of plain numbers and sparse matrices on the host; CPU and GPU execute the same one.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .call import Call
from .geometry import BILINEAR, Axis, AxisLevel, Level, Pair, PlaneLevel, Reading, count_responses, support_of
from .resampling import (
    AxisMap,
    Entries,
    axis_entries,
    linear_map,
    plane_alignment,
    plane_entries,
    plane_sampling,
)

Form = Literal["dense", "strided", "im2col"]


@dataclass(frozen=True)
class Budget:
    """How canvases are laid out, in elements of a tensor.

    Attributes:
        shared: levels share a canvas if all images together take at most so many; on a CPU, if their patches, of one
            image and channel, do.
        band: a canvas and its responses may take so many, of one image or of all that lie together; else it is cut.
    """

    shared: int
    band: int


@dataclass(frozen=True, eq=False)
class Strip:
    """Some output rows of one level.

    Attributes:
        code: the level's value in the winner map; a tie goes to it if `wins_ties`.
        outputs: the output rows and columns that it covers.
        sample: maps (rows, columns) from the input to its part of the canvas, zeros of the padding included.
        align: maps (rows, columns) from its responses to `outputs`.
        top: its first row on the canvas.
        response_top: the first of its responses.
    """

    code: int
    wins_ties: bool
    outputs: tuple[slice, slice]
    sample: tuple[AxisMap, AxisMap]
    align: tuple[AxisMap, AxisMap]
    top: int
    response_top: int

    @property
    def output_size(self) -> Pair:
        return self.outputs[0].stop - self.outputs[0].start, self.outputs[1].stop - self.outputs[1].start

    @cached_property
    def inputs(self) -> slice:
        """The rows of the input that are sampled."""
        used = self.sample[0].index[self.sample[0].weight != 0]
        return slice(int(used.min()), int(used.max()) + 1) if len(used) else slice(0, 1)

    @cached_property
    def collect(self) -> tuple[AxisMap, AxisMap]:
        """The transposes of `sample`, for those rows alone."""
        return self.sample[0].transposed.rows(self.inputs), self.sample[1].transposed


@dataclass(frozen=True, eq=False)
class PlaneStrip:
    """All outputs of a level whose map mixes the axes; it has what a `Strip` has, for images that are one long row.

    The maps are large. They are made when a step first needs them, and only its sparse matrix or table is cached.
    """

    level: PlaneLevel
    top: int = 0
    response_top: int = 0

    @property
    def inputs(self) -> slice:
        return slice(0, 1)

    @property
    def code(self) -> int:
        return self.level.code

    @property
    def wins_ties(self) -> bool:
        return self.level.wins_ties

    @property
    def outputs(self) -> tuple[slice, slice]:
        return slice(0, 1), slice(0, math.prod(self.level.output))

    @property
    def output_size(self) -> Pair:
        return 1, math.prod(self.level.output)

    @property
    def sample(self) -> tuple[AxisMap, AxisMap]:
        return linear_map((0.0,), 1).compact(), plane_sampling(self.level)

    @property
    def align(self) -> tuple[AxisMap, AxisMap]:
        return linear_map((0.0,), 1).compact(), plane_alignment(self.level)


@dataclass(frozen=True, eq=False)
class Canvas:
    """Strips one below the other, sampled, convolved and aligned at once.

    Attributes:
        form: of the levels; what follows from it is below.
        size: rows and columns that are sampled.
        response: rows and columns of responses.
        stride, dilation: of the convolution, which needs no padding.
        taps: the kernel's size if the taps of a patch are channels, and the convolution a matrix product; else None.
        planar: whether every tap has a plane of its own then, as in the layout CHWN.
        band: whether it holds a band of a level that was cut.
        made: what a GPU has made of it.
    """

    form: Form
    strips: tuple[Strip, ...] | tuple[PlaneStrip]
    size: Pair
    response: Pair
    stride: Pair
    dilation: Pair
    taps: Pair | None
    planar: bool
    band: bool
    made: dict[Hashable, Any] = field(default_factory=dict)

    def elements(self, call: Call) -> int:
        """Elements of one image on the canvas and of its responses."""
        sampled, responses = self.size[0] * self.size[1], self.response[0] * self.response[1]
        return sampled * call.in_channels + responses * call.out_channels

    def shape(self, images: int, channels: int) -> tuple[int, int, int, int]:
        """The shape of the sampled canvas."""
        if self.taps is None:
            return images, *self.size, channels
        taps = self.taps[0] * self.taps[1]
        if self.planar:
            return images, taps * self.response[0], self.response[1], channels
        return images, *self.response, taps * channels

    def grid(self, size: Pair) -> Pair:
        """An image of this size as the maps see it: one long row if they mix the axes."""
        return (1, size[0] * size[1]) if isinstance(self.strips[0], PlaneStrip) else size

    @cached_property
    def is_aligned(self) -> bool:
        """Whether the responses are those of the outputs, in their order."""
        strips = self.strips
        return all(not isinstance(s, PlaneStrip) and all(axis.is_identity for axis in s.align) for s in strips)

    def sampling(self) -> tuple[Entries, Pair, Pair]:
        """What `sample` does for all strips as one sparse matrix, and the sizes of the canvas and of the image."""
        parts = []
        for strip in self.strips:
            if isinstance(strip, PlaneStrip):
                return axis_entries(strip.sample[1]), self.size, strip.level.image
            rows, columns = strip.sample
            place = None
            if self.taps:
                high, wide = self.taps
                row, column = (torch.arange(len(axis), device="cpu") for axis in strip.sample)
                outputs = strip.response_top + row // high * (len(columns) // wide)
                place = (outputs * high + row % high) * wide, column // wide * high * wide + column % wide
            parts.append(plane_entries(rows, columns, place))
        return _joined(parts), self.size, (rows.length, columns.length)

    def alignment(self) -> tuple[Entries, Pair, Pair]:
        """The same for `align`, and the sizes of the outputs, in a row if of several strips, and responses."""
        parts, outputs = [], 0
        for strip in self.strips:
            if isinstance(strip, PlaneStrip):
                return axis_entries(strip.align[1]), strip.output_size, self.response
            row, column, weight = plane_entries(*strip.align)
            parts.append((row + outputs, column + strip.response_top, weight))
            outputs += math.prod(strip.output_size)
        alone = len(self.strips) == 1
        return _joined(parts), strip.output_size if alone else (outputs, 1), self.response

    def offsets(self, channels: int) -> tuple[Tensor, Tensor]:
        """What each row and each column add to the place of a pixel in memory, in elements."""
        size = self.grid(self.size)
        rows, columns = (torch.arange(length, device="cpu") for length in size)
        if self.taps is None:
            return rows * size[1] * channels, columns * channels
        (high, wide), (down, across) = self.taps, self.response
        position, tap = (1, down * across) if self.planar else (high * wide, 1)
        output, of_kernel = (columns % across, columns // across) if self.planar else (columns // wide, columns % wide)
        row = rows // high * across * position + rows % high * wide * tap
        return row * channels, (output * position + of_kernel * tap) * channels


def _joined(parts: Sequence[Entries]) -> Entries:
    row, column, weight = (torch.cat(each) for each in zip(*parts, strict=True))
    return row, column, weight


@dataclass(frozen=True, eq=False)
class Plan:
    """A call.

    Attributes:
        call: what was planned.
        identity: the code of scale 1 if the input itself is convolved for it; None if it lies on a canvas.
        canvases: in the order in which the levels compete.
        gpu: whether the kernels of a GPU execute it.
        planar: whether images and outputs are laid out as CHWN, with the images innermost; else as NHWC.
    """

    call: Call
    identity: int | None
    canvases: tuple[Canvas, ...]
    gpu: bool
    planar: bool


FEW_CHANNELS = 16
PATCHES = 4.0  # pixels of patches, for one of a dense canvas, up to which im2col is the faster on a CPU
# A CPU takes a single matrix product for the patches of all levels if an image of many channels has at most FEW_PATCHES
# pixels of them; or MORE_PATCHES, and all images together FEW_ELEMENTS numbers, where fewer channels count as many.
FEW_PATCHES, MORE_PATCHES, FEW_ELEMENTS = 2**11, 2**14, 2**20
MOST_PATCHES = 2**17  # pixels of a canvas beyond which a CPU would have to keep too much of where they are read
# On a GPU a small layer takes as long as the host needs to launch it. Up to so many elements of all levels, those that
# are not strided are dense and share one canvas, and with fewer still all do. Levels as wide as this part of the widest
# share one in any case.
SHARED, TINY, AS_WIDE = 2**24, 2**22, 0.7


def choose_form(call: Call, level: Level, gpu: bool) -> Form:
    """The fastest form of a level; docs/performance.md has the times that this rule rests on.

    A GPU takes im2col where cuDNN would leave most of it idle: for few channels and for groups. A CPU takes it for
    many channels where a level is enlarged so far that its patches are not many more than its pixels.
    """
    few = call.in_channels // call.groups < FEW_CHANNELS or call.groups > 1
    if gpu:
        gathered = few and not call.depthwise
    else:
        axes = ((call.height, level.height), (call.width, level.width))
        patches = math.prod(axis.kernel * len(on.targets) for axis, on in axes)
        pixels = level.height.size * level.width.size
        gathered = not few and min(level.scales) > 1 and patches <= min(PATCHES * pixels, MOST_PATCHES)
    if gathered:
        return "im2col"
    return "strided" if level.regular else "dense"


@lru_cache(maxsize=1024)
def make_plan(call: Call, images: int, gpu: bool, form: Form | None = None, budget: Budget | None = None) -> Plan:
    """Plan a call, once.

    Args:
        call: the call.
        images: in the batch; a CPU has at most two plans for all numbers.
        gpu: whether a GPU is to execute it.
        form: of every level, instead of the fastest; levels that cannot have it are dense.
        budget: instead of the device's.
    """
    images = max(1, images)
    if budget is None:
        pixels = call.height.length * call.width.length * call.in_channels
        outputs = math.prod(call.output_size) * call.out_channels
        if gpu:
            budget = Budget(SHARED, max(2**25, images * (pixels + outputs)))
        else:
            budget = Budget(0 if form or call.groups > 1 else _few_patches(call, images), 2**22)
    with torch.inference_mode(False), torch.no_grad():
        share = not call.mixes_axes and _size(call, images, gpu) <= budget.shared
        return _make_plan(call, images if gpu else 1, gpu, form, share, budget.band)


def _few_patches(call: Call, images: int) -> int:
    """Pixels of the patches of all levels, of one image, up to which a CPU is faster with a single matrix product."""
    channels = max(call.in_channels, FEW_CHANNELS)
    cached = min(MORE_PATCHES, FEW_ELEMENTS // (images * channels))
    return max(cached, FEW_PATCHES) if call.in_channels == channels else cached


def _size(call: Call, images: int, gpu: bool) -> int:
    """Of all levels, as a `Budget` counts it."""
    if gpu:
        return images * sum(_elements(call, level) for level in call.levels)
    return sum(_patches(call, level) for level in _resampled(call))


def _resampled(call: Call) -> list[Level]:
    """The levels but scale 1, of which none mixes the axes."""
    return [level for level in call.levels[1:] if isinstance(level, Level)]


@lru_cache(maxsize=1024)
def _make_plan(call: Call, images: int, gpu: bool, form: Form | None, share: bool, band: int) -> Plan:
    levels = call.levels
    if share and not (gpu or form or call.groups > 1):
        return Plan(call, levels[0].code, _gathered(call, _resampled(call)), gpu, False)
    if gpu and call.mixes_axes:
        form = "dense"  # as levels that mix the axes have to be; all levels need one memory layout
    elif share and not form:
        form = "dense" if _size(call, images, gpu) <= TINY else "strided"
    forms = [_possible(call, level, form, gpu) for level in levels]
    planar = gpu and forms[0] == "im2col"  # and so all of them
    # The identity comes first. A library convolves the input for it, unless it has company or a kernel of ours.
    alone = not (share or planar or (gpu and call.depthwise))
    canvases = []
    for kind, group in groupby(list(zip(levels, forms, strict=True))[alone:], key=lambda pair: pair[1]):
        for some in _sharing([level for level, _ in group], gpu and kind == "dense", share):
            if isinstance(some, PlaneLevel):
                canvases.append(_plane_canvas(call, some))
            else:
                canvases += _canvases(call, some, kind, images if planar else 1, planar, band)
    return Plan(call, levels[0].code if alone else None, tuple(canvases), gpu, planar)


def _elements(call: Call, level: Level | PlaneLevel) -> int:
    """Elements of a dense level of one image, and of its responses."""
    return math.prod(level.size) * call.in_channels + math.prod(level.response) * call.out_channels


def _patches(call: Call, level: Level) -> int:
    """Pixels of the patches of a level, at its responses or at the outputs, of which there may be fewer."""
    axes = ((call.height, level.height), (call.width, level.width))
    return math.prod(axis.kernel * min(on.response_size, len(on.targets)) for axis, on in axes)


def _sharing(levels: Sequence[Level | PlaneLevel], allowed: bool, every: bool) -> list[list[Level] | PlaneLevel]:
    """Which of these levels share a canvas: none unless `allowed`; then `every` one, or neighbours about as wide."""
    groups: list[list[Level] | PlaneLevel] = []
    for level in levels:
        before = groups[-1] if groups else None
        if isinstance(level, PlaneLevel):
            groups.append(level)
        elif allowed and isinstance(before, list) and (every or _as_wide([*before, level])):
            before.append(level)
        else:
            groups.append([level])
    return groups


def _as_wide(levels: Sequence[Level]) -> bool:
    widths = [level.width.size for level in levels]
    return min(widths) >= AS_WIDE * max(widths)


def _possible(call: Call, level: Level | PlaneLevel, form: Form | None, gpu: bool) -> Form:
    """This form, or the fastest if it is None; dense where a level cannot have it."""
    if isinstance(level, PlaneLevel):
        return "dense"
    form = form or choose_form(call, level, gpu)
    cannot = (form == "strided" and not level.regular) or (form == "im2col" and gpu and call.depthwise)
    return "dense" if cannot else form


def _plane_canvas(call: Call, level: PlaneLevel) -> Canvas:
    axes = (call.height, call.width)
    size = (len(level.sampled[0]), len(level.sampled[1]))
    stride = [
        axis.stride if axis.stride_matters(count) else 1 for axis, count in zip(axes, level.response, strict=True)
    ]
    dilation = (axes[0].dilation, axes[1].dilation)
    return Canvas(
        "dense", (PlaneStrip(level),), size, level.response, (stride[0], stride[1]), dilation, None, False, False
    )


def _canvases(call: Call, levels: Sequence[Level], form: Form, images: int, planar: bool, band: int) -> list[Canvas]:
    """One canvas for all these levels; or several, of bands of a level, if that would exceed the budget."""
    rows = [len(level.height.targets) for level in levels]
    whole = _canvas(call, levels, form, planar, [slice(0, count) for count in rows])
    bands = -(-images * whole.elements(call) // band)
    if bands <= 1:
        return [whole]
    if len(levels) > 1:
        alone = [_canvases(call, [level], form, images, planar, band) for level in levels]
        return [canvas for some in alone for canvas in some]
    step = max(1, -(-rows[0] // bands))
    starts = [*range(0, rows[0], step), rows[0]]
    return [_canvas(call, levels, form, planar, [slice(first, last)]) for first, last in pairwise(starts)]


def _canvas(call: Call, levels: Sequence[Level], form: Form, planar: bool, bands: Sequence[slice]) -> Canvas:
    """Levels, of each the band of its covered output rows, one below the other."""
    height, width = call.height, call.width
    step = (1, 1) if form != "strided" else (levels[0].height.step, levels[0].width.step)
    kernel = (height.kernel, width.kernel)
    stride = (
        kernel
        if form == "im2col"
        else (height.stride * step[0] if height.kernel > 1 else 1, width.stride * step[1] if width.kernel > 1 else 1)
    )
    dilation = (1, 1) if form == "im2col" else (height.dilation, width.dilation)
    strips, top = [], 0
    for level, band in zip(levels, bands, strict=True):
        supports = [support_of(scale, call.antialias) for scale in level.scales]
        reading, across = call.reading, (0, len(level.width.targets))
        rows = axis_maps(height, level.height, form, supports[0], (band.start, band.stop), reading)
        columns = axis_maps(width, level.width, form, supports[1], across, reading)
        outputs = (_shifted(band, level.height.covered[0]), slice(*level.width.covered))
        sample, align = (rows[0], _by_tap(columns[0], width.kernel) if planar else columns[0]), (rows[1], columns[1])
        strips.append(Strip(level.code, level.wins_ties, outputs, sample, align, top, top // stride[0]))
        top += -(-len(sample[0]) // stride[0]) * stride[0]
    last = strips[-1]
    size = (last.top + len(last.sample[0]), max(len(strip.sample[1]) for strip in strips))
    response = [count_responses(*along) for along in zip(size, kernel, stride, dilation, strict=True)]
    taps = kernel if form == "im2col" and (planar or call.groups == 1) else None
    cut = any(band.stop - band.start < len(level.height.targets) for level, band in zip(levels, bands, strict=True))
    stride = (stride[0] if response[0] > 1 else 1, stride[1] if response[1] > 1 else 1)  # as in `Axis.stride_matters`
    return Canvas(form, tuple(strips), size, (response[0], response[1]), stride, dilation, taps, planar, cut)


def _gathered(call: Call, levels: Sequence[Level]) -> tuple[Canvas, ...]:
    """The patches of all these levels one below the other, so that the convolution is a single matrix product.

    They are those of the responses where a level has fewer of them than there are outputs.
    """
    if not levels:
        return ()
    axes, kernel = (call.height, call.width), (call.height.kernel, call.width.kernel)
    strips, top = [], 0
    for level in levels:
        maps = []
        for axis, on, scale in zip(axes, (level.height, level.width), level.scales, strict=True):
            form: Form = "dense" if on.response_size < len(on.targets) else "im2col"
            support = support_of(scale, call.antialias)
            sample, align = axis_maps(axis, on, form, support, (0, len(on.targets)), call.reading)
            if form == "dense" and axis.kernel > 1:
                first = axis.stride * torch.arange(align.length, device="cpu")
                tap = axis.dilation * torch.arange(axis.kernel, device="cpu")
                sample = sample.rows((first.unsqueeze(1) + tap).flatten())
            maps.append((sample, align))
        outputs = (slice(*level.height.covered), slice(*level.width.covered))
        sampled, aligned = zip(*maps, strict=True)
        strips.append(Strip(level.code, level.wins_ties, outputs, sampled, aligned, top * kernel[0], top))
        top += aligned[0].length * aligned[1].length
    size = (top * kernel[0], kernel[1])
    return (Canvas("im2col", tuple(strips), size, (top, 1), (1, 1), (1, 1), kernel, False, False),)


def _by_tap(axis: AxisMap, kernel: int) -> AxisMap:
    """Rows (p, k) in the order (k, p)."""
    return axis.rows(torch.arange(len(axis), device="cpu").view(-1, kernel).mT.flatten())


def _shifted(part: slice, offset: int) -> slice:
    return slice(part.start + offset, part.stop + offset)


@lru_cache(maxsize=64)
def axis_maps(
    axis: Axis, on: AxisLevel, form: Form, support: float, outputs: tuple[int, int], reading: Reading = BILINEAR
) -> tuple[AxisMap, AxisMap]:
    """What some covered outputs need along one axis: the map that samples the input, and the one that aligns.

    With A the sampling of the level, zeros of the padding included, and output p reading between responses b and b + 1
    at the fraction f: dense keeps the rows of A that the responses need; strided blends them, (1 − f)·A[j] +
    f·A[j + t]; im2col does the same for every tap k, (1 − f)·A[t·b + d·k] + f·A[t·(b + 1) + d·k]. A kernel of one tap
    needs only the rows that its responses lie at.
    """
    sampled = linear_map(on.sources, axis.length, support, reading)
    sampled = sampled.framed(axis.padding[0], axis.padding[1] + axis.stride)
    targets = on.targets[slice(*outputs)]
    aligned = linear_map(targets, on.response_size, reading=reading)
    stride, reach = axis.stride, axis.reach
    if form == "dense":
        used = aligned.index[aligned.weight != 0]
        first, last = int(used.min()), int(used.max())
        needed = slice(stride * first, stride * last + reach + 1, stride if axis.kernel == 1 else 1)
        return sampled.rows(needed), aligned.shifted(first, last - first + 1)
    before, fraction = aligned.index[:, 0], aligned.weight[:, 1:]  # (outputs), (outputs, 1)
    if form == "strided":
        last = stride * on.step * (len(targets) - 1) + reach
        rows = stride * before[0] + torch.arange(0, last + 1, stride * on.step if axis.kernel == 1 else 1, device="cpu")
        fraction = fraction[:1]
    else:
        rows = (stride * before[:, None] + axis.dilation * torch.arange(axis.kernel, device="cpu")).flatten()
        fraction = fraction.repeat_interleave(axis.kernel, 0)
    same = torch.arange(len(targets), device="cpu").unsqueeze(1)
    return sampled.blend(rows, rows + stride, fraction), AxisMap(same, torch.ones_like(same).double(), len(same))
