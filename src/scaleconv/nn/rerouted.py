"""Subclasses of a convolution that only prepare the input or the weight keep their forward, with another one in it.

timm's `Conv2dSame` pads the input, its `StdConv2d` standardises the weight; then both call `conv2d` once and return
its result. Such a class is known by what it does, not by its name: its forward is tried on a small image. The class
made from it runs the same forward while `conv2d` is rerouted to `si_conv2d`; so it is for signals and volumes.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..ops.conv import si_conv1d, si_conv2d, si_conv3d
from .layers import SIConv1d, SIConv2d, SIConv3d

Convolution = Callable[..., Tensor]
Plain = nn.Conv1d | nn.Conv2d | nn.Conv3d
ScaleInvariantLayer = SIConv1d | SIConv2d | SIConv3d
SCALE_INVARIANT: dict[type[Plain], type[ScaleInvariantLayer]] = {
    nn.Conv1d: SIConv1d,
    nn.Conv2d: SIConv2d,
    nn.Conv3d: SIConv3d,
}
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
USUAL = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}  # of the arguments that may be left out

for name in ("si_conv1d", "si_conv2d", "si_conv3d"):
    torch.fx.wrap(name)  # a symbolic trace keeps the call whole


def arguments_of(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The arguments of a call of `conv2d` in their order, those that were left out too.

    Example:
        >>> arguments_of("input", "weight", padding=1)
        ('input', 'weight', None, 1, 1, 1, 1)
    """
    names = ("input", "weight", *USUAL)
    given = {**USUAL, **dict(zip(names, args, strict=False)), **kwargs}
    return tuple(given[name] for name in names)


class Reroute(TorchFunctionMode):
    """While it is entered, another function is called in place of PyTorch's convolution over so many axes."""

    def __init__(self, convolution: Convolution, axes: int = 2) -> None:
        super().__init__()
        self.convolution, self.plain = convolution, CONVOLUTIONS[axes - 1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self.convolution if func is self.plain else func
        return call(*args, **(kwargs or {}))


class _Rerouted:
    """Comes before the class whose forward is kept."""

    plain_type: type[Plain]
    scales: tuple[float, ...]
    antialias: bool
    axes: int

    def forward(self, *args: Any, return_winner: bool = False, **kwargs: Any) -> Tensor | tuple[Tensor, Tensor]:
        winners: list[Tensor] = []
        evaluate = (si_conv1d, si_conv2d, si_conv3d)[self.axes - 1]

        def convolution(*args: Any, **kwargs: Any) -> Tensor:
            kwargs |= {"scales": self.scales, "antialias": self.antialias, "return_winner": return_winner}
            output: Tensor = evaluate(*args, **kwargs)
            if return_winner:
                output, winner = output
                winners.append(winner)
            return output

        with Reroute(convolution, self.axes):
            output: Tensor = self.plain_type.forward(self, *args, **kwargs)  # type: ignore[arg-type]
        return (output, winners[0]) if return_winner else output

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (self.plain_type,), self.__getstate__()  # which a parametrized layer refuses


_classes: dict[type[Plain], type[ScaleInvariantLayer]] = {}


def rerouted_class(plain_type: type[Plain]) -> type[ScaleInvariantLayer]:
    """The scale-invariant layer whose forward prepares input and weight as `plain_type` does.

    Whatever that forward calls of PyTorch's own class comes after it, ends in `conv2d`, and so is rerouted.

    Example:
        >>> class Doubled(nn.Conv2d):
        ...     def forward(self, input):
        ...         return nn.functional.conv2d(2 * input, self.weight, self.bias)
        >>> [kind.__name__ for kind in rerouted_class(Doubled).__mro__[:5]]
        ['SIDoubled', '_Rerouted', 'Doubled', 'PlainConv2d', 'SIConv2d']
    """
    if plain_type not in _classes:
        base = base_of(plain_type)
        own = {"forward": base.forward, "_conv_forward": base._conv_forward}
        plain = type(f"Plain{base.__name__}", (base,), own)
        attributes = {"plain_type": plain_type, "__module__": plain_type.__module__}
        kept = () if plain_type is base else (plain_type,)
        bases = (_Rerouted, *kept, plain, SCALE_INVARIANT[base])
        _classes[plain_type] = type(f"SI{plain_type.__name__}", bases, attributes)
    return _classes[plain_type]


def base_of(kind: type[Plain]) -> type[Plain]:
    """Which of PyTorch's convolutions a class is."""
    return next(base for base in SCALE_INVARIANT if issubclass(kind, base))


def _blank(plain_type: type[Plain]) -> ScaleInvariantLayer:
    """A layer to be filled with the attributes of a pickled one."""
    kind = rerouted_class(plain_type)
    return kind.__new__(kind)


def why_not_rerouted(layer: Plain) -> str | None:
    """Why a subclass is more than one convolution of a prepared input and weight; None if it is not.

    Its forward is called on a copy of the layer, in evaluation mode, with an image large enough for the kernel.
    """
    results: list[Tensor] = []
    axes = len(layer.kernel_size)

    def convolution(*args: Any, **kwargs: Any) -> Tensor:
        results.append(CONVOLUTIONS[axes - 1](*args, **kwargs))
        return results[-1]

    name = type(layer).__name__
    try:
        tried = copy.deepcopy(layer).eval()
        steps = zip(tried.stride, tried.dilation, tried.kernel_size, strict=True)
        sides = [2 * stride + dilation * kernel for stride, dilation, kernel in steps]
        image = torch.ones(1, tried.in_channels, *sides, dtype=tried.weight.dtype, device=tried.weight.device)
        with torch.no_grad(), Reroute(convolution, axes):
            output = type(tried).forward(tried, image)  # type: ignore[arg-type]
    except Exception as error:
        return f"{name} could not be tried ({type(error).__name__}: {error})"
    if len(results) != 1:
        return f"{name} calls conv{axes}d {len(results)} times"
    if output is not results[0]:
        return f"{name} changes what conv{axes}d returns"
    return None
