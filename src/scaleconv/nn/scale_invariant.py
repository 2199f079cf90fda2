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

from ..ops.checks import as_number, check_choice, check_count, check_flag
from ..ops.custom_op import is_channels_last
from ..ops.dispatch import refuse_jit_trace
from ..ops.geometry import SLACK, competing_order
from ..ops.levels import POOLS, Answer, align, level_size, pool_levels, rescale
from ..ops.signature import DEFAULT_SCALES, check_scales
from .grid import Pair, find_grid
from .level_norms import Level, Pass, call_at, training_norms
from .levels_state import ScalesState, scales_as_text

NORMS = ("joint", "level")
SIZES = ("own", "input")


class ScaleInvariant(ScalesState):
    """A module that meets its input at many scales, with one set of weights: globally or locally scale-invariant.

    The input is rescaled by every s of `scales`, the same module f answers to each level, the answers are brought back
    and pooled over scale:

        z_s = T_s⁻¹ f(T_s x),   output = pool over s of z_s

    A classifier becomes invariant to the scale of the image. A fully convolutional network becomes so at every
    position, as `SIConv2d` does; `ScaleInvariant(Conv2d(…))` computes what `SIConv2d(…)` computes, more slowly.

    Shapes:
        input (N, C, H, W) → what the module makes of it: vectors (N, D) or maps (N, D, H', W').

    Convention:
        - A level is T_s x of `si_conv2d`: floor(s·H + 1e-6) samples about the same centre. With `size="input"` it has
          the size of the input instead, as a head of fixed size needs: an enlarged level loses its margin, a shrunk one
          repeats its edge. With `size=(h, w)` it has that size, whatever the input has: each level is a window of h×w
          pixels about the centre, and a network for small images sees the whole of a large one at some level.
        - Vectors are pooled as they are. A map is aligned first: with t the module's total stride and o the pixel at
          which its first output is centred, output p reads the level's map at
          v = (s·(t·p + o − (H−1)/2) + (h−1)/2 − o)/t, linear, edges clamped.
        - A level covers p if −½ ≤ v ≤ h' − ½ on both axes, h' being the length of its map. Where it does not, it takes
          no part, whatever the pool; nor does a level of less than 2·o + 1 pixels, which the module cannot answer to.
        - A tie goes to the scale listed first. One level is the module itself, bit for bit; of a given size, the module
          on the window of scale 1.

    The grid (t, o) of a map is found at the first call, from the sizes of what the module answers to tensors without
    data, and kept in `stride` and `offset`. That needs a module that takes any size and pads alike on both sides.

    BatchNorm in training sees the levels of a batch together with `norm="joint"`, if they have one size. Where they
    differ in size it normalises all by the statistics of those as large as the input, scale 1 among them, so that it is
    one function at all levels, as in evaluation. With `norm="level"` it sees each level for itself.

    Args:
        module: takes (N, C, H, W), and returns one tensor. Its weights are shared by all levels.
        scales: the factors; distinct, positive, at most 1000, 1 among them.
        pool: 'max'; 'logsumexp', log Σ exp z_s; or 'mean'. Where fewer levels cover, the weights of these add up to the
            same as elsewhere.
        keep: which levels take part: 'all', or those with scales in a range (low, high) that contains 1. It may be set
            at any time, as when a trained network meets images in which everything is large; a bound is met to within a
            thousandth, so that 0.63 is 2^(−2/3). Winners remain places in `scales`.
        size: of the levels: 'own'; that of the 'input'; or, for a module that returns vectors, a number of pixels or a
            pair (height, width). Levels of one size go through the module in one call, but with `norm="level"` in
            training.
        stride, offset: t and o of a module that returns maps: a number, or a pair (height, width). For a chain of
            convolutions t is the product of the strides, and o the sum of (d(K−1)/2 − P) times the strides before.
        norm: 'joint' or 'level'.
        antialias: average pixels when a level shrinks the input. The paper does not.

    Raises:
        TypeError: an argument of the wrong type, or a module that does not return one tensor.
        ValueError: an argument that breaks its rule, or a module whose grid cannot be found from sizes.

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
        stride: float | tuple[float, float] | None = None,
        offset: float | tuple[float, float] | None = None,
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
        self.stride, self.offset = _pair("stride", stride), _pair("offset", offset)
        if self.stride is not None and min(self.stride) <= 0:
            raise ValueError(f"`stride` must be above 0, got {stride!r}")
        _kept(self.scales, keep)

    def forward(self, x: Tensor, return_winner: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Answer to the input.

        Args:
            x: images (N, C, H, W), of a floating-point type.
            return_winner: also return, for each output, the index in `scales` of the level that answered most.

        Returns:
            The output, or (output, winner) with winner a uint8 tensor of the output's shape.
        """
        refuse_jit_trace()
        check_flag("return_winner", return_winner)
        _check_images(x)
        order = _kept(self.scales, self.keep)
        if len(order) == 1:
            output = self._answer(self._level(x, 1.0, self._size_at(x.shape[2:], 1.0)))
            winner = torch.full_like(output, order[0], dtype=torch.uint8)
        else:
            output, winner = pool_levels(self._answers(x, order), self.pool, len(order))
        return (output, winner) if return_winner else output

    def _answers(self, x: Tensor, order: Sequence[int]) -> list[Answer]:
        """The aligned answers to all levels that take part, that to scale 1 first."""
        scales, image_size = [self.scales[place] for place in order], x.shape[2:]
        sizes = [self._size_at(image_size, scale) for scale in scales]
        same, *others = self._of_one_size(sizes)
        norms = training_norms(self.module) if others and self.norm == "joint" else []
        whole = Pass(norms) if norms else None
        responses = self._respond(x, same, scales, sizes, Level(whole, first=True) if whole else None)
        first = responses[0]  # to scale 1
        everywhere = torch.ones((), dtype=torch.bool, device=first.device)
        grid = self._grid(index(x.shape[1])) if first.ndim == 4 else None
        for places in others:
            if _fits(sizes[places[0]], grid):
                responses |= self._respond(x, places, scales, sizes, Level(whole, first=False) if whole else None)
        if whole:
            whole.end()
        answers = [Answer(order[0], first, everywhere)]
        for place in sorted(responses)[1:]:
            response, covered = responses[place], everywhere
            if response.shape[1] != first.shape[1]:
                raise ValueError(
                    f"`module` must return one D for levels of all sizes, unless `size` is 'input' or given, "
                    f"got {first.shape[1]} and {response.shape[1]}"
                )
            if grid is not None:
                response, covered = align(response, scales[place], first.shape[2:], image_size, sizes[place], *grid)
            answers.append(Answer(order[place], response, covered))
        return answers

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
    ) -> dict[int, Tensor]:
        """What the module answers to levels of one size, by their places; its BatchNorms are told the `level`."""
        levels = [self._level(x, scales[place], sizes[place]) for place in places]
        if len(levels) == 1:
            return {places[0]: self._answer(levels[0], level)}
        answers = self._answer(torch.cat(levels), level).unflatten(0, (len(levels), x.shape[0]))
        return dict(zip(places, answers.unbind(), strict=True))

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

    def _answer(self, x: Tensor, level: Level | None = None) -> Tensor:
        answer = self.module(x) if level is None else call_at(level, self.module, x)
        if not isinstance(answer, Tensor):
            raise TypeError(f"`module` must return one tensor, got {type(answer).__name__}")
        if not answer.is_floating_point():
            raise TypeError(f"`module` must return a floating-point type, got {answer.dtype}")
        if answer.ndim not in (2, 4) or answer.shape[0] != x.shape[0]:
            raise ValueError(
                f"`module` must return (N, D) or (N, D, H, W) with N (={x.shape[0]}), got shape {tuple(answer.shape)}"
            )
        if answer.ndim == 4 and isinstance(self.size, tuple):
            raise ValueError(f"`module` must return (N, D) with a `size` (={self.size}), got {tuple(answer.shape)}")
        return answer

    def _grid(self, channels: int) -> tuple[Pair, Pair]:
        """Stride and offset of the maps, found at the first call."""
        if self.stride is None or self.offset is None:
            self.stride, self.offset = find_grid(self.module, channels)
        return self.stride, self.offset

    # A compiler is to look the grid up when it traces, as by `torch.compiler.assume_constant_result`, which would
    # import the compiler.
    _grid._dynamo_marked_constant = True  # type: ignore[attr-defined]

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


def _fits(size: Sequence[int], grid: tuple[Pair, Pair] | None) -> bool:
    """Whether a level has at least a pixel, and those that a map needs for its first number."""
    least = (1.0, 1.0) if grid is None else [max(1.0, 2 * offset + 1 - SLACK) for offset in grid[1]]
    return size[0] >= least[0] and size[1] >= least[1]


def _kept(scales: tuple[float, ...], keep: str | Sequence[float]) -> list[int]:
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
        raise ValueError(f"`x` must be (N, C, H, W), got shape {tuple(x.shape)}")


def _pair(name: str, value: float | Sequence[float] | None) -> Pair | None:
    if value is None:
        return None
    rule = f"`{name}` must be a number or a pair of numbers"
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(numbers) not in (1, 2):
        raise ValueError(f"{rule}, got {len(numbers)} of them")
    first, last = (as_number(number, f"{rule}, got {number!r}") for number in (numbers[0], numbers[-1]))
    if not (isfinite(first) and isfinite(last)):
        raise ValueError(f"{rule}, got {value!r}")
    return first, last
