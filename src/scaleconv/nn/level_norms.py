"""BatchNorm of a module that meets levels of several sizes in training: scale 1 has the statistics for all of them.

A level is a tensor that knows its pass of the pyramid, and so is everything that is computed from it. A BatchNorm that
sees it finds there what scale 1 had in this very layer: in the forward pass, and in the backward pass if activation
checkpointing computes the layer once more. The module itself is not touched.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions

from ..ops.torch_private import BatchNorm, DisableTorchFunctionSubclass, tree_iter, tree_map_only

Moments = tuple[Tensor, Tensor]  # mean and variance
ARGUMENTS = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")  # of F.batch_norm
INSTEAD = 'use norm="level", or size="input"'


class StatisticsError(ValueError):
    """A BatchNorm lacks the statistics of scale 1, or has several; its message says what to do."""


def training_norms(module: nn.Module) -> list[BatchNorm]:
    """Those that normalise by the batch, and keep running statistics for evaluation.

    Raises:
        ValueError: one of them shares its statistics with other processes, where they cannot be looked up.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
    norms = [norm for norm in norms if norm.training and norm.running_mean is not None]
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms) and _several_processes():
        raise ValueError(f"`module` must not hold a SyncBatchNorm in training at levels of several sizes: {INSTEAD}")
    return norms


def _several_processes() -> bool:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ready and torch.distributed.get_world_size() > 1


class Pass:
    """What scale 1 has in each BatchNorm, in one pass of the pyramid.

    The gradient goes through these statistics, as in BatchNorm. Without it training stalls: what moves the statistics
    of scale 1 moves the other levels, too. Running statistics are those of scale 1 alone.
    """

    def __init__(self, norms: Sequence[BatchNorm]) -> None:
        self.norms = norms
        self.statistics: list[list[Moments]] = [[] for _ in norms]  # of each layer, in the order of its calls
        self.counts = [norm.num_batches_tracked.clone() for norm in norms]  # type: ignore[union-attr]
        self.differentiated = torch.is_grad_enabled()
        self.ended = False

    def end(self) -> None:
        """All levels were seen, and count as one batch; what is called from now on is computed once more."""
        self.ended = True
        for norm, count, statistics in zip(self.norms, self.counts, self.statistics, strict=True):
            norm.num_batches_tracked.copy_(count + len(statistics))  # type: ignore[union-attr]

    def find(self, given: dict[str, Any]) -> int | None:
        """The place of the layer that normalises in training, by its running mean; None for any other."""
        if given.get("training") and given["running_mean"] is not None:
            for place, norm in enumerate(self.norms):
                if norm.running_mean is given["running_mean"]:
                    return place
        return None

    def name(self, place: int) -> str:
        return f"{type(self.norms[place]).__name__} of {self.norms[place].num_features} channels"


class Level:
    """One call of the module within a pass: the `first`, with scale 1 in it, has the statistics for all others."""

    def __init__(self, whole: Pass, first: bool) -> None:
        self.whole, self.first = whole, first
        self.calls = [0] * len(whole.norms)

    def end(self) -> None:
        for place, (calls, statistics) in enumerate(zip(self.calls, self.whole.statistics, strict=True)):
            if 0 < calls != len(statistics) > 1:
                raise StatisticsError(
                    f"`module` must call its {self.whole.name(place)} as often at every level, or once at most, "
                    f"got {len(statistics)} calls at scale 1 and {calls} at another: {INSTEAD}"
                )

    def batch_norm(self, *args: Any, **kwargs: Any) -> Tensor:
        """In place of `torch.nn.functional.batch_norm`."""
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        place = self.whole.find(given)
        if place is None:
            return F.batch_norm(*args, **kwargs)
        statistics = self.whole.statistics[place]
        if self.first:
            return F.batch_norm(self._own(given.pop("x"), statistics, place), **given)
        number = self._number(place)
        if number >= len(statistics):
            raise StatisticsError(
                f"`module` must call its {self.whole.name(place)} at scale 1, whose statistics are for all levels, "
                f"as often as at another: {INSTEAD}"
            )
        return _normalise(given["x"], *statistics[number], given["weight"], given["bias"], given["eps"])

    def _own(self, x: Tensor, statistics: list[Moments], place: int) -> Tensor:
        """Keep the statistics of scale 1; or, computed once more, give them the gradients that they got meanwhile."""
        moments = _moments(x)  # in any case: checkpointing wants the same operations again
        if not self.whole.ended:
            if self.whole.differentiated and not torch.is_grad_enabled():
                # Reentrant checkpointing: the other levels are differentiated in passes of their own, and before.
                moments = (moments[0].requires_grad_(), moments[1].requires_grad_())
            statistics.append(moments)
        elif (kept := statistics[self._number(place)])[0].is_leaf:
            return _Receive.apply(x, *moments, *kept)  # type: ignore[no-any-return]
        return x

    def _number(self, place: int) -> int:
        """Which call of the layer this is."""
        if not self.whole.ended:
            self.calls[place] += 1
            return self.calls[place] - 1
        if len(self.whole.statistics[place]) > 1:
            raise StatisticsError(
                f"`module` must call its {self.whole.name(place)} once where activation checkpointing computes it "
                f"again, got {len(self.whole.statistics[place])} calls: {INSTEAD}"
            )
        return 0


def call_at(level: Level, module: nn.Module, x: Tensor) -> Any:
    """Call the module, whose BatchNorms are told the level."""
    if torch.compiler.is_compiling():
        with LevelMode(level):
            answer = module(x)
    else:
        answer = _plain(module(_of_level(x, level)))
    level.end()
    return answer


class LevelTensor(torch.Tensor):
    """A tensor of a level. Whatever is computed from it is one, too."""

    level: Level

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        level = next(each.level for each in tree_iter((args, kwargs)) if isinstance(each, cls))
        with DisableTorchFunctionSubclass():
            result = (level.batch_norm if func is F.batch_norm else func)(*args, **kwargs)
            return result if func in get_default_nowrap_functions() else _of_level(result, level)


def _of_level(value: Any, level: Level) -> Any:
    """The value with all its tensors, but parameters and what is one already, as tensors of the level."""

    def made(tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor:
            return tensor
        known = tensor.as_subclass(LevelTensor)
        known.level = level
        return known

    return tree_map_only(Tensor, made, value)


def _plain(value: Any) -> Any:
    """The value with plain tensors again."""
    with DisableTorchFunctionSubclass():
        return tree_map_only(LevelTensor, lambda tensor: tensor.as_subclass(Tensor), value)


class LevelMode(TorchFunctionMode):
    """The same for a compiler, which cannot follow such tensors, nor needs to: it sees the whole pass."""

    def __init__(self, level: Level) -> None:
        super().__init__()
        self.level = level

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self.level.batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))


class _Receive(torch.autograd.Function):
    """The first tensor, while the moments get the gradients that were gathered for them elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, kept_mean: Tensor, kept_variance: Tensor
    ) -> Tensor:
        ctx.kept = (kept_mean, kept_variance)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gathered = [kept.grad for kept in ctx.kept]
        for kept in ctx.kept:
            kept.grad = None
        return grad, *gathered, None, None


def _moments(x: Tensor) -> Moments:
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    axes = [0, *range(2, x.ndim)]
    return x.mean(axes), x.var(axes, unbiased=False)


def _normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """What BatchNorm makes of a batch of this mean and variance."""
    scale = torch.rsqrt(variance + eps)
    shift = -mean * scale
    if weight is not None:
        scale, shift = scale * weight, shift * weight
    if bias is not None:
        shift = shift + bias
    shape = (-1, *(1,) * (x.ndim - 2))
    return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)
