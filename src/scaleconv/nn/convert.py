"""Swap the convolutions of a network for scale-invariant ones, and back. Parameters are kept, not copied."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..ops.signature import DEFAULT_SCALES, check_scales
from .layers import SIConv2d

Choice = Callable[[str, nn.Conv2d], bool]


def convert(
    model: nn.Module,
    *,
    scales: Iterable[float] = DEFAULT_SCALES,
    antialias: bool = False,
    where: Choice = lambda name, conv: max(conv.kernel_size) > 1,
    inplace: bool = False,
) -> nn.Module:
    """Return the network with `SIConv2d` in place of `Conv2d`, weights and all else unchanged.

    By default every convolution whose kernel is larger than 1×1 is swapped; a 1×1 kernel sees no pattern. Subclasses of
    `Conv2d` are left alone, since what they compute is their own, and so are layers that are `SIConv2d` already.

    Args:
        model: a network, or a single `Conv2d`.
        scales, antialias: of the new layers.
        where: takes the name and the layer, and says whether to swap it.
        inplace: change the network itself instead of a copy. The parameters are then the same objects, so that an
            optimiser that holds them goes on working.

    Returns:
        The network; for a single `Conv2d`, the layer that replaces it.

    Raises:
        TypeError: `model` is not a Module.
        ValueError: the scales break a rule, or no layer was chosen.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1))
        >>> [type(layer).__name__ for layer in convert(network)]
        ['SIConv2d', 'ReLU', 'Conv2d']
    """
    checked = check_scales(scales)

    def chosen(name: str, layer: nn.Module) -> bool:
        return type(layer) is nn.Conv2d and where(name, layer)

    network, count = _replace(model, chosen, SIConv2d, {"scales": checked, "antialias": antialias}, inplace)
    if not count:
        raise ValueError(f"`model` (={type(model).__name__}) must hold a Conv2d that `where` chooses")
    return network


def revert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Return the network with `Conv2d` in place of every `SIConv2d`: the inverse of `convert`.

    Args:
        model: a network, or a single `SIConv2d`.
        inplace: change the network itself instead of a copy.

    Example:
        >>> revert(convert(nn.Sequential(nn.Conv2d(3, 8, 3))))
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
        )
    """
    return _replace(model, lambda _, layer: type(layer) is SIConv2d, nn.Conv2d, {}, inplace)[0]


def _replace(
    model: nn.Module,
    chosen: Callable[[str, nn.Module], bool],
    kind: type[nn.Conv2d],
    attributes: dict[str, Any],
    inplace: bool,
) -> tuple[nn.Module, int]:
    """The network with every chosen layer turned into `kind`, and how many there were; one used twice stays one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    root = nn.ModuleDict({"model": model if inplace else copy.deepcopy(model)})
    turned: dict[nn.Module, nn.Module] = {}
    for path, parent in list(root.named_modules()):
        for key, child in list(parent.named_children()):
            name = f"{path}.{key}".lstrip(".").partition(".")[2]  # as the model itself calls it
            if child not in turned and chosen(name, child):
                turned[child] = _turned(child, kind, attributes)
    for _, parent in list(root.named_modules()):
        for key, child in parent._modules.items():
            if child in turned:
                setattr(parent, key, turned[child])
    return root["model"], len(turned)


def _turned(layer: nn.Module, kind: type[nn.Conv2d], attributes: dict[str, Any]) -> nn.Conv2d:
    """The same layer (parameters, hooks, mode) as another kind of convolution."""
    new = kind.__new__(kind)
    new.__dict__ = {name: value for name, value in vars(layer).items() if name not in ("scales", "antialias")}
    new.__dict__.update(attributes)
    return new
