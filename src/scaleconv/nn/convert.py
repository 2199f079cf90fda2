"""Swap the convolutions of a network for scale-invariant ones, and back. Parameters are kept, not copied.

A layer is swapped by giving it another class, as `torch.nn.utils.parametrize` does. So everything it holds stays: its
parameters, hooks, mode, and whoever refers to it. What it is given on top, its scales, is taken away again by `revert`.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar, overload

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from ..ops.checks import as_integer, check_flag
from ..ops.signature import DEFAULT_SCALES, check_scales
from .layers import SIConv2d, TIConv2d
from .rerouted import rerouted_class, why_not_rerouted

Network = TypeVar("Network", bound=nn.Module)
Patterns = str | Sequence[str]
Where = Callable[[str, nn.Conv2d], bool]
Scales = Iterable[float] | Mapping[str, Iterable[float]]


def is_spatial(name: str, conv: nn.Conv2d) -> bool:
    """Whether a kernel is larger than 1×1, which sees no pattern; or was chosen before, as it is scale-invariant."""
    return max(conv.kernel_size) > 1 or isinstance(conv, SIConv2d)


@overload
def convert(
    model: nn.Conv2d,
    *,
    include: Patterns = ...,
    exclude: Patterns = ...,
    first: int | None = ...,
    scales: Scales = ...,
    antialias: bool = ...,
    where: Where = ...,
    inplace: bool = ...,
) -> SIConv2d: ...
@overload
def convert(
    model: Network,
    *,
    include: Patterns = ...,
    exclude: Patterns = ...,
    first: int | None = ...,
    scales: Scales = ...,
    antialias: bool = ...,
    where: Where = ...,
    inplace: bool = ...,
) -> Network: ...
def convert(
    model: nn.Module,
    *,
    include: Patterns = "*",
    exclude: Patterns = (),
    first: int | None = None,
    scales: Scales = DEFAULT_SCALES,
    antialias: bool = False,
    where: Where = is_spatial,
    inplace: bool = False,
) -> nn.Module:
    """Return the network with `SIConv2d` in place of `Conv2d`, weights and all else unchanged.

    By default every convolution whose kernel is larger than 1×1 is swapped. A layer that is scale-invariant already
    gets the scales given here. Weight normalisation, spectral normalisation and pruning are kept, and so is what a
    subclass of `Conv2d` does to its input or its weight before the convolution, such as timm's `Conv2dSame` and
    `StdConv2d`. A layer that computes something else, or whose size is not known yet, is left alone with a warning;
    `skipped` gives the reason for every layer.

    A trained network does not survive this by itself: see `calibrate`.

    Args:
        model: a network, or a single `Conv2d`.
        include, exclude: names of layers, or patterns of names with `*`, `?` and `[…]`; `*` matches dots, too.
        first: how many of the chosen layers to swap, counted in the order of `named_modules`; None for all.
        scales: of the new layers; or {pattern: scales}, where the first pattern that matches a name counts, and a layer
            that none matches stays as it is.
        antialias: of the new layers.
        where: takes the name and the layer, and says whether to swap it.
        inplace: change the network itself instead of a copy. The parameters are then the same objects, so that an
            optimiser that holds them goes on working.

    Returns:
        The network; for a single `Conv2d`, the layer as `SIConv2d`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: the scales break a rule, a pattern matches no convolution, or no layer was chosen.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3))
        >>> [type(layer).__name__ for layer in convert(network)]
        ['SIConv2d', 'ReLU', 'Conv2d', 'SIConv2d']
        >>> convert(network, scales={"0": (1, 2), "*": (0.5, 1, 2)})[3].scales
        (0.5, 1.0, 2.0)
    """
    check_module(model)
    included, excluded = _patterns("include", include), _patterns("exclude", exclude)
    by_pattern = _scales_by_pattern(scales)
    check_flag("antialias", antialias)
    check_flag("inplace", inplace)
    if not callable(where):
        raise TypeError(f"`where` must be a function of a name and a layer, got {type(where).__name__}")
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    for argument, patterns in (("include", included), ("exclude", excluded), ("scales", list(by_pattern))):
        for pattern in patterns:
            if names and not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"`{argument}` must match the name of a Conv2d, got {pattern!r}")

    network = model if inplace else copy_network(model)
    chosen: dict[str, tuple[nn.Conv2d, tuple[float, ...]]] = {}
    unfit: dict[str, str] = {}
    for name, layer in network.named_modules():
        wanted = next((found for pattern, found in by_pattern.items() if fnmatchcase(name, pattern)), None)
        if (
            isinstance(layer, nn.Conv2d)
            and wanted is not None
            and any(fnmatchcase(name, pattern) for pattern in included)
            and not any(fnmatchcase(name, pattern) for pattern in excluded)
            and where(name, layer)
        ):
            reason = why_unfit(layer)
            if reason:
                unfit[name] = reason
            else:
                chosen[name] = (layer, wanted)
    listed = "; ".join(f"{name}: {reason}" for name, reason in unfit.items())
    if not chosen:
        raise ValueError(
            f"`model` (={type(model).__name__}) must hold a Conv2d that `include`, `exclude`, `scales`, `where` choose"
            + (f" and that can be swapped ({listed})" if unfit else "")
        )
    for layer, wanted in list(chosen.values())[: _check_first(first, len(chosen))]:
        _swap(layer, wanted, antialias)
    if unfit:
        warnings.warn(f"left alone by `convert`: {listed}", stacklevel=2)
    return network


@overload
def revert(model: SIConv2d, *, inplace: bool = ...) -> nn.Conv2d: ...
@overload
def revert(model: Network, *, inplace: bool = ...) -> Network: ...
def revert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Return the network with every layer in place of which `convert` put a scale-invariant one: its inverse.

    Args:
        model: a network, or a single `SIConv2d`.
        inplace: change the network itself instead of a copy.

    Raises:
        TypeError: `model` is not a Module.

    Example:
        >>> revert(convert(nn.Sequential(nn.Conv2d(3, 8, 3))))
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
        )
    """
    check_module(model)
    network = model if check_flag("inplace", inplace) else copy_network(model)
    for layer in network.modules():
        if isinstance(layer, SIConv2d) and (_base(layer) is SIConv2d or hasattr(layer, "plain_type")):
            for name in _attributes():
                vars(layer).pop(name, None)
            _become(layer, plain_class(layer))
    return network


def skipped(model: nn.Module) -> dict[str, str]:
    """The convolutions of a network that are not scale-invariant, by name, and why they are not.

    Raises:
        TypeError: `model` is not a Module.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ConvTranspose2d(8, 8, 2))
        >>> skipped(convert(network))
        {'1': '1×1 kernel', '2': 'ConvTranspose2d is no Conv2d'}
    """
    check_module(model)
    reasons = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d) and not isinstance(layer, SIConv2d):
            reasons[name] = why_unfit(layer) or ("not chosen" if is_spatial(name, layer) else "1×1 kernel")
        elif isinstance(layer, _ConvNd) and not isinstance(layer, nn.Conv2d):
            reasons[name] = f"{type(layer).__name__} is no Conv2d"
    return reasons


def why_unfit(layer: nn.Conv2d) -> str | None:
    """Why a layer cannot be scale-invariant, or None if it can."""
    if isinstance(layer, SIConv2d):
        return None
    if isinstance(layer, TIConv2d):
        return f"{type(layer).__name__} has transforms of its own"
    if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
        return f"{type(layer).__name__} does not know its size yet: call the network once before"
    return None if _base(layer) is nn.Conv2d else why_not_rerouted(layer)


def plain_class(layer: SIConv2d) -> type[nn.Conv2d]:
    """What the layer was before `convert`, parametrizations apart."""
    kind: type[nn.Conv2d] = getattr(layer, "plain_type", nn.Conv2d)
    return kind


def _swap(layer: nn.Conv2d, scales: tuple[float, ...], antialias: bool) -> None:
    """Make the layer scale-invariant, or change its scales."""
    if not isinstance(layer, SIConv2d):
        base = _base(layer)
        _become(layer, SIConv2d if base is nn.Conv2d else rerouted_class(base))
    vars(layer).update(_attributes(scales=scales, antialias=antialias))


def _attributes(**arguments: Any) -> dict[str, Any]:
    """What an `SIConv2d` holds and a `Conv2d` does not."""
    layer, plain = SIConv2d(1, 1, 1, device="meta", **arguments), nn.Conv2d(1, 1, 1, device="meta")
    return {name: value for name, value in vars(layer).items() if name not in vars(plain)}


def _base(layer: nn.Conv2d) -> type[nn.Conv2d]:
    """The class of the layer; of one with parametrizations, that which it had before them."""
    kind: type[nn.Conv2d] = type(layer).__bases__[0] if is_parametrized(layer) else type(layer)
    return kind


def _become(layer: nn.Conv2d, base: type[nn.Conv2d]) -> None:
    """Give the layer that class; if it has parametrizations, one like its own over that class.

    Such a layer has a class to itself, which holds its parametrized tensors as properties.
    """
    if is_parametrized(layer):
        base = type(f"Parametrized{base.__name__}", (base,), dict(vars(type(layer))))
    layer.__class__ = base


def copy_network(model: Network) -> Network:
    """A deep copy. A weight that a hook computes anew in every call cannot be copied, and is detached in the copy."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")


def _check_first(first: int | None, chosen: int) -> int:
    if first is None:
        return chosen
    count = as_integer(first, f"`first` must be an integer or None, got {first!r}")
    if not 1 <= count <= chosen:
        raise ValueError(f"`first` must be from 1 to the number of chosen layers (={chosen}), got {first}")
    return count


def _patterns(name: str, patterns: Patterns) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, Sequence) or not all(isinstance(pattern, str) for pattern in listed):
        raise TypeError(f"`{name}` must be a pattern of names or a sequence of them, got {patterns!r}")
    return list(listed)


def _scales_by_pattern(scales: Scales) -> dict[str, tuple[float, ...]]:
    if not isinstance(scales, Mapping):
        return {"*": check_scales(scales)}
    _patterns("scales", list(scales))
    return {pattern: check_scales(each) for pattern, each in scales.items()}
