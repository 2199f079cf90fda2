"""The paper's operator with a whole module in place of the filter: rescale, apply the shared module, align, pool.

The Module owns the inner module. `grid` finds where its outputs lie, `level_norms` lets its BatchNorms normalise all
levels alike; resampling and pooling are `scaleconv.ops.levels`.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..ops.call import DEFAULT_SCALES, check_scales
from ..ops.checks import as_number, check_choice, check_count, check_flag
from ..ops.conv import refuse_jit_trace
from ..ops.custom_op import is_channels_last
from ..ops.geometry import SLACK, competing_order
from ..ops.levels import POOLS, Aligned, align, level_size, pool_levels, rescale
from ..ops.torch_private import (
    TreeSpec,
    keystr,
    mark_constant,
    tree_flatten,
    tree_flatten_with_path,
    tree_structure,
    tree_unflatten,
)
from .grid import Grid, Pair, find_grids
from .layers import LevelsState, scales_as_text
from .level_norms import Level, Pass, StatisticsError, call_at, training_norms
from .observe import describe

NORMS = ("joint", "level")
SIZES = ("own", "input")
LEAF = tree_structure(0)  # of one tensor that nothing holds
REMEDY = "give a module whose forward returns what is to be pooled"


class ScaleInvariant(LevelsState):
    """A module that meets its input at many scales, with one set of weights: globally or locally scale-invariant.

    The input is rescaled by every s of `scales`, the same module f is applied to each level, the responses are aligned
    and pooled over scale:

        z_s = T_s⁻¹ f(T_s x),   output = pool over s of z_s

    A classifier becomes invariant to the scale of the image. A fully convolutional network becomes so at every
    position, as `SIConv2d` does; `ScaleInvariant(Conv2d(…))` computes what `SIConv2d(…)` computes, more slowly.

    Shapes:
        input (N, C, H, W) → what the module makes of it: vectors (N, D), maps (N, D, H', W'), or a dictionary, a tuple
        or whatever else holds such tensors, as the maps of a detection backbone at several strides. Each is pooled for
        itself; what is no tensor is that of scale 1.

    Convention:
        - A level is T_s x of `si_conv2d`: floor(s·H + 1e-6) samples about the same centre. With `size="input"` it has
          the size of the input instead, as a head of fixed size needs: an enlarged level loses its margin, a shrunk one
          repeats its edge. With `size=(h, w)` it has that size, whatever the input has: each level is a window of h×w
          pixels about the centre, and a network for small images sees the whole of a large one at some level.
        - Vectors are pooled as they are. A map is aligned first: with t the module's total stride and o the pixel at
          which its first output is centred, output p reads the level's map at
          v = (s·(t·p + o − (H−1)/2) + (h−1)/2 − o)/t, linear, edges clamped.
        - A level covers p if −½ ≤ v ≤ h' − ½ on both axes, h' being the length of its map. Where it does not, it takes
          no part, whatever the pool; nor does a level of less than 2·o + 1 pixels, to which the module has no response.
        - A tie goes to the scale listed first. One level is the module itself, bit for bit; of a given size, the module
          on the window of scale 1.

    The grid (t, o) of every map is found at the first call, from the sizes of what the module makes of tensors
    without data, and kept in `stride` and `offset`. That needs a module that takes any size and pads alike on both
    sides.

    BatchNorm in training sees the levels of a batch together with `norm="joint"`, if they have one size. Where they
    differ in size it normalises all by the statistics of those as large as the input, scale 1 among them, so that it is
    one function at all levels, as in evaluation. With `norm="level"` it sees each level for itself.

    Args:
        module: takes (N, C, H, W), and returns tensors. Its weights are shared by all levels.
        scales: the factors; distinct, positive, at most 1000, 1 among them.
        pool: 'max'; 'logsumexp', log Σ exp z_s; or 'mean'. Where fewer levels cover, the weights of these add up to the
            same as elsewhere.
        keep: which levels take part: 'all', or those with scales in a range (low, high) that contains 1. It may be set
            at any time, as when a trained network meets images in which everything is large; a bound is met to within a
            thousandth, so that 0.63 is 2^(−2/3). Winners remain places in `scales`.
        size: of the levels: 'own'; that of the 'input'; or, for a module that returns vectors, a number of pixels or a
            pair (height, width). Levels of one size go through the module in one call, but with `norm="level"` in
            training.
        stride, offset: t and o of a module that returns maps: a number, or a pair (height, width); of one that returns
            several maps, a pair for each, in their order, unless all have the same. For a chain of convolutions t is
            the product of the strides, and o the sum of (d(K−1)/2 − P) times the strides before.
        norm: 'joint' or 'level'.
        antialias: average pixels when a level shrinks the input. The paper does not.

    Raises:
        TypeError: an argument of the wrong type, or a module that returns no tensors, or integers.
        ValueError: an argument that breaks its rule, a module whose grid cannot be found from sizes, or one that
            returns tensors of another shape.

    Example:
        >>> classifier = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> scores, winner = ScaleInvariant(classifier)(torch.rand(4, 1, 28, 28), return_winner=True)
        >>> scores.shape, winner.dtype
        (torch.Size([4, 8]), torch.uint8)
        >>> features = ScaleInvariant(nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3)))
        >>> features(torch.rand(4, 1, 28, 28)).shape, features.stride, features.offset
        (torch.Size([4, 8, 10, 10]), (2.0, 2.0), (4.0, 4.0))
    """

    def __init__(
        self,
        module: nn.Module,
        scales: Iterable[float] = DEFAULT_SCALES,
        *,
        pool: Literal["max", "logsumexp", "mean"] = "max",
        keep: Literal["all"] | tuple[float, float] = "all",
        size: Literal["own", "input"] | int | tuple[int, int] = "own",
        stride: float | Sequence[Any] | None = None,
        offset: float | Sequence[Any] | None = None,
        norm: Literal["joint", "level"] = "joint",
        antialias: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"`module` must be a torch.nn.Module, got {type(module).__name__}")
        check_choice("pool", pool, POOLS)
        check_choice("norm", norm, NORMS)
        if (stride is None) != (offset is None):
            raise ValueError(f"`stride` and `offset` must be given together, got {stride!r} and {offset!r}")
        self.module = module
        self.scales = check_scales(scales)
        self.pool, self.keep, self.size, self.norm = pool, keep, _level_size(size), norm
        self.antialias = check_flag("antialias", antialias)
        self.stride, self.offset = _pairs("stride", stride), _pairs("offset", offset)
        if self.stride is not None and min(number for pair in _each(self.stride) for number in pair) <= 0:
            raise ValueError(f"`stride` must be above 0, got {stride!r}")
        _levels_taking_part(self.scales, keep)

    def forward(self, x: Tensor, return_winner: bool = False) -> Any:
        """Apply the module to the input at every scale, and pool.

        Args:
            x: images (N, C, H, W), of a floating-point type.
            return_winner: also return, for each output, the index in `scales` of the level that responded most.

        Returns:
            What the module returns, its tensors pooled; or (output, winner) with uint8 tensors of their shapes in the
            winner.
        """
        refuse_jit_trace()
        check_flag("return_winner", return_winner)
        _check_images(x)
        order = _levels_taking_part(self.scales, self.keep)
        if len(order) == 1:
            output, structure = self._respond(x, [0], [1.0], [self._size_at(x.shape[2:], 1.0)], None)[0]
            winner = [
                torch.full_like(each, order[0], dtype=torch.uint8) if isinstance(each, Tensor) else each
                for each in output
            ]
        else:
            output, winner, structure = self._pooled(x, order)
        if return_winner:
            return tree_unflatten(output, structure), tree_unflatten(winner, structure)
        return tree_unflatten(output, structure)

    def _pooled(self, x: Tensor, order: Sequence[int]) -> tuple[list[Any], list[Any], TreeSpec]:
        """Every tensor of the responses to all levels that take part, pooled; their winners; and what holds them."""
        scales, image_size = [self.scales[place] for place in order], x.shape[2:]
        sizes = [self._size_at(image_size, scale) for scale in scales]
        same, *further = self._of_one_size(sizes)
        norms = training_norms(self.module) if further and self.norm == "joint" else []
        whole = Pass(norms) if norms else None
        responses = self._respond(x, same, scales, sizes, Level(whole, first=True) if whole else None)
        first, structure = responses[0]  # to scale 1
        maps = [place for place, leaf in enumerate(first) if isinstance(leaf, Tensor) and leaf.ndim == 4]
        grids = dict(zip(maps, self._grids(index(x.shape[1]), len(maps)), strict=True)) if maps else {}
        for places in further:
            if _fits(sizes[places[0]], grids.values()):
                responses |= self._respond(x, places, scales, sizes, Level(whole, first=False) if whole else None)
        if whole:
            whole.end()
        output, winner = list(first), list(first)  # what is no tensor is that of scale 1
        for place, leaf in enumerate(first):
            if isinstance(leaf, Tensor):
                aligned = [Aligned(order[0], leaf, torch.ones((), dtype=torch.bool, device=leaf.device))]
                for level in sorted(responses)[1:]:
                    other, found = responses[level]
                    _check_alike(first, structure, other, found, place)
                    values, covered = other[place], aligned[0].covered
                    if place in grids:
                        at = (scales[level], leaf.shape[2:], image_size, sizes[level], *grids[place])
                        values, covered = align(values, *at)
                    aligned.append(Aligned(order[level], values, covered))
                output[place], winner[place] = pool_levels(aligned, self.pool, len(order))
        return output, winner, structure

    def _of_one_size(self, sizes: Sequence[Sequence[int]]) -> list[list[int]]:
        """The places of levels that go through the module in one call, those of the size of scale 1 first.

        A BatchNorm that is to see each level for itself needs a call for each. So do sizes that are symbols of a
        compiler: to compare them would fix them.
        """
        symbolic = any(map(_is_symbolic, sizes))
        groups: dict[Any, list[int]] = {}
        for place, size in enumerate(sizes):
            alone = (self.norm == "level" and self.module.training) or (self.size == "own" and symbolic)
            key = place if alone else tuple(size) if self.size == "own" else "all"
            groups.setdefault(key, []).append(place)
        return list(groups.values())

    def _respond(
        self,
        x: Tensor,
        places: Sequence[int],
        scales: Sequence[float],
        sizes: Sequence[Sequence[int]],
        level: Level | None,
    ) -> dict[int, tuple[list[Any], TreeSpec]]:
        """What the module makes of levels of one size, by their places: all that it holds, and what holds it.

        The BatchNorms of the module are told the `level`.
        """
        levels = [self._level(x, scales[place], sizes[place]) for place in places]
        leaves, structure = self._answer(torch.cat(levels) if len(levels) > 1 else levels[0], x.shape[2:], level)
        if len(levels) == 1:
            return {places[0]: (leaves, structure)}
        parts = [
            leaf.unflatten(0, (len(levels), x.shape[0])).unbind() if isinstance(leaf, Tensor) else [leaf] * len(levels)
            for leaf in leaves
        ]
        return {place: ([part[number] for part in parts], structure) for number, place in enumerate(places)}

    def _size_at(self, image_size: Sequence[int], scale: float) -> Sequence[int]:
        """(height, width) of a level."""
        if isinstance(self.size, tuple):
            return self.size
        return level_size(image_size, scale) if self.size == "own" else image_size

    def _level(self, x: Tensor, scale: float, size: Sequence[int]) -> Tensor:
        """The input at one scale, laid out in memory as the input is; at scale 1 itself, if it has the size."""
        image_size = x.shape[2:]
        if scale == 1 and (isinstance(self.size, str) or (not _is_symbolic(image_size) and image_size == self.size)):
            return x
        layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
        return rescale(x, scale, size, self.antialias).contiguous(memory_format=layout)

    def _answer(self, x: Tensor, image_size: Sequence[int], level: Level | None) -> tuple[list[Any], TreeSpec]:
        """All that the module makes of levels of one size, and what holds it."""
        try:
            answer = self.module(x) if level is None else call_at(level, self.module, x)
        except StatisticsError:
            raise
        except Exception as error:
            if torch.compiler.is_compiling() or tuple(x.shape[2:]) == tuple(image_size):
                raise  # the module's own business
            raise ValueError(
                f"`module` must take levels of other sizes than the image ({image_size[0]}×{image_size[1]} pixels), "
                f"but not that of {x.shape[2]}×{x.shape[3]} ({type(error).__name__}: {error}): "
                "with `size='input'` all levels have the size of the image"
            ) from error
        leaves, structure = ([answer], LEAF) if isinstance(answer, Tensor) else tree_flatten(answer)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(f"`module` must return tensors, got {describe(answer)}: {REMEDY}")
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            if not leaf.is_floating_point():
                at = _place_of(structure, place)
                raise TypeError(f"`module` must return floating-point types, got {leaf.dtype}{at}: {REMEDY}")
            if leaf.ndim not in (2, 4) or leaf.shape[0] != x.shape[0]:
                raise ValueError(
                    f"`module` must return (N, D) or (N, D, H, W) with N (={x.shape[0]}), got shape "
                    f"{tuple(leaf.shape)}{_place_of(structure, place)}: {REMEDY}"
                )
            if leaf.ndim == 4 and isinstance(self.size, tuple):
                raise ValueError(f"`module` must return (N, D) with a `size` (={self.size}), got {tuple(leaf.shape)}")
        return leaves, structure

    @mark_constant  # a compiler looks the grid up when it traces
    def _grids(self, channels: int, maps: int) -> Sequence[Grid]:
        """Stride and offset of each map, found at the first call."""
        if self.stride is None or self.offset is None:
            found = find_grids(self.module, channels)
            every = [tuple(pairs) for pairs in zip(*found, strict=True)]
            self.stride, self.offset = every if maps > 1 else (every[0][0], every[1][0])
        strides, offsets = _each(self.stride), _each(self.offset)
        if len(strides) not in (1, maps) or len(strides) != len(offsets):
            raise ValueError(
                f"`stride` and `offset` must be given once, or for each map of the module (={maps}), "
                f"got {len(strides)} and {len(offsets)}"
            )
        return list(zip(strides, offsets, strict=True)) * (maps // len(strides))

    def extra_repr(self) -> str:
        grid = "" if self.stride is None else f", stride={self.stride}, offset={self.offset}"
        antialias = ", antialias=True" if self.antialias else ""
        return (
            f"scales={scales_as_text(self.scales)}, pool={self.pool!r}, keep={self.keep!r}, size={self.size!r}{grid}, "
            f"norm={self.norm!r}{antialias}"
        )


def _level_size(size: Any) -> str | tuple[int, int]:
    """'own', 'input', or (height, width)."""
    if isinstance(size, str):
        check_choice("size", size, SIZES)
        return size
    numbers = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(numbers) != 2:
        raise ValueError(f"`size` must be 'own', 'input', a number or a pair of numbers, got {len(numbers)} of them")
    return check_count("size", numbers[0]), check_count("size", numbers[1])


def _is_symbolic(size: Sequence[int]) -> bool:
    """Whether lengths are symbols of a compiler, or may be: to compare them would fix them."""
    return torch.compiler.is_compiling() or any(type(length) is not int for length in size)


def _fits(size: Sequence[int], grids: Iterable[Grid]) -> bool:
    """Whether a level has at least a pixel, and those that every map needs for its first number."""
    offsets = [(0.0, 0.0), *(offset for _, offset in grids)]
    return all(size[axis] >= 2 * offset[axis] + 1 - SLACK for offset in offsets for axis in (0, 1))


def _check_alike(first: list[Any], structure: TreeSpec, other: list[Any], found: TreeSpec, place: int) -> None:
    """The response to a level has the tensors of that to scale 1, each of as many channels."""
    if found != structure or not isinstance(other[place], Tensor):
        raise ValueError(f"`module` must return the same for all levels, got {structure} and {found}: {REMEDY}")
    if other[place].shape[1] != first[place].shape[1]:
        raise ValueError(
            f"`module` must return one D for levels of all sizes, unless `size` is 'input' or given, "
            f"got {first[place].shape[1]} and {other[place].shape[1]}{_place_of(structure, place)}"
        )


def _place_of(structure: TreeSpec, place: int) -> str:
    """Where the answer of a module holds a leaf."""
    if structure.num_leaves == 1 and structure.is_leaf():
        return ""
    paths, _ = tree_flatten_with_path(tree_unflatten(list(range(structure.num_leaves)), structure))
    return f" in {keystr(paths[place][0])}"


def _levels_taking_part(scales: tuple[float, ...], keep: str | Sequence[float]) -> list[int]:
    """Places in `scales` of the levels that take part, in the order in which they compete."""
    order = list(competing_order(scales.index(1.0), len(scales)))
    if isinstance(keep, str) and keep == "all":
        return order
    rule = "`keep` must be 'all' or a range (low, high)"
    if isinstance(keep, str) or not isinstance(keep, Sequence) or len(keep) != 2:
        raise TypeError(f"{rule}, got {keep!r}")
    low, high = (as_number(bound, f"{rule}, got {bound!r}") for bound in keep)
    if not low <= 1 <= high:
        raise ValueError(f"{rule} that contains 1, the scale that covers every position, got {keep!r}")
    return [place for place in order if low * 0.999 <= scales[place] <= high * 1.001]


def _check_images(x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"`x` must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"`x` must be of a floating-point type, got {x.dtype}")
    if x.ndim != 4:
        raise ValueError(
            f"`x` must be (N, C, H, W), got shape {tuple(x.shape)}: for signals and volumes `convert` has layers, "
            "SIConv1d and SIConv3d"
        )


def _pairs(name: str, value: Any) -> Pair | tuple[Pair, ...] | None:
    """A pair of numbers for a number or a pair; a pair for each map if there are several."""
    if value is None:
        return None
    rule = f"`{name}` must be a number, a pair of numbers, or a pair for each map"
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if numbers and all(isinstance(number, Sequence) and not isinstance(number, str) for number in numbers):
        return tuple(_pair(name, number, rule) for number in numbers)
    return _pair(name, numbers, rule)


def _pair(name: str, numbers: Sequence[Any], rule: str) -> Pair:
    if len(numbers) not in (1, 2):
        raise ValueError(f"{rule}, got {len(numbers)} of them")
    first, last = (as_number(number, f"{rule}, got {number!r}") for number in (numbers[0], numbers[-1]))
    if not (isfinite(first) and isfinite(last)):
        raise ValueError(f"{rule}, got {numbers!r}")
    return first, last


def _each(pairs: Any) -> tuple[Pair, ...]:
    """The pairs of all maps; one if all share it."""
    return pairs if isinstance(pairs[0], tuple) else (pairs,)
