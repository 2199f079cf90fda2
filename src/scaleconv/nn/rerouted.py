"""Subclasses of `Conv2d` that only prepare the input or the weight keep their forward, with another convolution in it.

timm's `Conv2dSame` pads the input, its `StdConv2d` standardises the weight; then both call `conv2d` once and return
its result. Such a class is known by what it does, not by its name: its forward is tried on a small image. The class
made from it runs the same forward while `conv2d` is rerouted to `si_conv2d`.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..ops.si_conv import si_conv2d
from .layers import SIConv2d

Convolution = Callable[..., Tensor]

torch.fx.wrap("si_conv2d")  # a symbolic trace keeps the call whole


class Reroute(TorchFunctionMode):
    """While it is entered, another function is called in place of `torch.nn.functional.conv2d`."""

    def __init__(self, convolution: Convolution) -> None:
        super().__init__()
        self.convolution = convolution

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self.convolution if func is nn.functional.conv2d else func
        return call(*args, **(kwargs or {}))


class _Rerouted:
    """Comes before the class whose forward is kept."""

    plain_type: type[nn.Conv2d]
    scales: tuple[float, ...]
    antialias: bool

    def forward(self, *args: Any, return_winner: bool = False, **kwargs: Any) -> Tensor | tuple[Tensor, Tensor]:
        winners: list[Tensor] = []

        def convolution(*args: Any, **kwargs: Any) -> Tensor:
            kwargs |= {"scales": self.scales, "antialias": self.antialias, "return_winner": return_winner}
            output: Tensor = si_conv2d(*args, **kwargs)
            if return_winner:
                output, winner = output
                winners.append(winner)
            return output

        with Reroute(convolution):
            output: Tensor = self.plain_type.forward(self, *args, **kwargs)  # type: ignore[arg-type]
        return (output, winners[0]) if return_winner else output

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (self.plain_type,), self.__getstate__()  # which a parametrized layer refuses


class _Plain(nn.Conv2d):
    """Comes after it: whatever the kept forward calls of `Conv2d` ends in `conv2d`, and so is rerouted."""

    forward = nn.Conv2d.forward
    _conv_forward = nn.Conv2d._conv_forward


_classes: dict[type[nn.Conv2d], type[SIConv2d]] = {}


def rerouted_class(plain_type: type[nn.Conv2d]) -> type[SIConv2d]:
    """The scale-invariant layer whose forward prepares input and weight as `plain_type` does.

    Example:
        >>> class Doubled(nn.Conv2d):
        ...     def forward(self, input):
        ...         return nn.functional.conv2d(2 * input, self.weight, self.bias)
        >>> [kind.__name__ for kind in rerouted_class(Doubled).__mro__[:5]]
        ['SIDoubled', '_Rerouted', 'Doubled', '_Plain', 'SIConv2d']
    """
    if plain_type not in _classes:
        attributes = {"plain_type": plain_type, "__module__": plain_type.__module__}
        _classes[plain_type] = type(f"SI{plain_type.__name__}", (_Rerouted, plain_type, _Plain, SIConv2d), attributes)
    return _classes[plain_type]


def _blank(plain_type: type[nn.Conv2d]) -> SIConv2d:
    """A layer to be filled with the attributes of a pickled one."""
    kind = rerouted_class(plain_type)
    return kind.__new__(kind)


def why_not_rerouted(layer: nn.Conv2d) -> str | None:
    """Why a subclass of `Conv2d` is more than one convolution of a prepared input and weight; None if it is not.

    Its forward is called on a copy of the layer, in evaluation mode, with an image large enough for the kernel.
    """
    results: list[Tensor] = []

    def convolution(*args: Any, **kwargs: Any) -> Tensor:
        results.append(nn.functional.conv2d(*args, **kwargs))
        return results[-1]

    name = type(layer).__name__
    try:
        tried = copy.deepcopy(layer).eval()
        sides = [2 * stride + dilation * kernel for stride, dilation, kernel in zip(*_steps(tried), strict=True)]
        image = torch.ones(1, tried.in_channels, *sides, dtype=tried.weight.dtype, device=tried.weight.device)
        with torch.no_grad(), Reroute(convolution):
            output = type(tried).forward(tried, image)
    except Exception as error:
        return f"{name} could not be tried ({type(error).__name__}: {error})"
    if len(results) != 1:
        return f"{name} calls conv2d {len(results)} times"
    if output is not results[0]:
        return f"{name} changes what conv2d returns"
    return None


def _steps(layer: nn.Conv2d) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return layer.stride, layer.dilation, layer.kernel_size
