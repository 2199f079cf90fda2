"""BatchNorm of a module that meets levels of several sizes in training: scale 1 has the statistics for all of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

Moments = tuple[Tensor, Tensor]  # mean and variance


def training_norms(module: nn.Module) -> list[_BatchNorm]:
    """Those that normalise by the batch, and keep running statistics for evaluation."""
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    return [norm for norm in norms if norm.training and norm.running_mean is not None]


ARGUMENTS = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")  # of F.batch_norm


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments by name, if evaluation will be by running statistics; else none."""
    given = {**dict(zip(ARGUMENTS, args, strict=False)), **(kwargs or {})}
    return given if given["training"] and given["running_mean"] is not None else {}


class Recorded(TorchFunctionMode):
    """Records the mean and variance of each batch that a BatchNorm in training normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics: list[Moments] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and (given := _in_training(args, kwargs)):
            x = given["x"].float() if given["x"].dtype in (torch.float16, torch.bfloat16) else given["x"]
            axes = [0, *range(2, x.ndim)]
            self.statistics.append((x.mean(axes), x.var(axes, unbiased=False)))
        return func(*args, **(kwargs or {}))


class Applied(TorchFunctionMode):
    """Normalises by recorded statistics, in the order of the calls, where a BatchNorm in training would by its batch.

    The gradient goes through the statistics, as in BatchNorm. Without it training stalls: what moves the statistics of
    scale 1 moves the other levels, too. Running statistics stay as they are.
    """

    def __init__(self, statistics: Sequence[Moments]) -> None:
        super().__init__()
        self.statistics = list(statistics)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and (given := _in_training(args, kwargs)):
            return _normalise(given["x"], *self.statistics.pop(0), given["weight"], given["bias"], given["eps"])
        return func(*args, **(kwargs or {}))


def _normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """What BatchNorm answers to a batch of this mean and variance."""
    scale = torch.rsqrt(variance + eps)
    shift = -mean * scale
    if weight is not None:
        scale, shift = scale * weight, shift * weight
    if bias is not None:
        shift = shift + bias
    shape = (-1, *(1,) * (x.ndim - 2))
    return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)
