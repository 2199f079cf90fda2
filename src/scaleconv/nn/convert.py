"""Swap the convolutions of a network for scale-invariant ones, and back. Parameters are kept, not copied.

A layer is swapped by giving it another class, as `torch.nn.utils.parametrize` does. So everything it holds stays: its
parameters, hooks, mode, and all references to it. What it is given on top, its scales, is taken away again by `revert`.
"""

import copy
import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypedDict, TypeVar, Unpack, overload

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from ..ops.call import check_scales
from ..ops.checks import as_integer, check_flag
from ..ops.torch_private import ConvNd, tree_leaves
from .folding import allow_folding, refuse_folding
from .layers import SIConv1d, SIConv2d, SIConv3d, TIConv2d
from .observe import CONTAINERS, Call, batches_of, check_module, evaluating, run, watching
from .rerouted import SCALE_INVARIANT, Plain, ScaleInvariantLayer, base_of, rerouted_class, why_not_rerouted

Network = TypeVar("Network", bound=nn.Module)
Patterns = str | Sequence[str]
Where = Callable[[str, Any], bool]
Scales = Iterable[float] | Mapping[str, Iterable[float]]
Conversion = Mapping[str, Mapping[str, Any]]
SizesOfMaps = Mapping[str, tuple[int, ...]]

# What `convert` does unless it is told otherwise. Deviation: the paper converts every layer, at the six DEFAULT_SCALES.
# On photographs that loses accuracy, and converting late layers alone gains.
LATE = 0.3  # the share of the layers that is swapped, from the end
LATE_SCALES: tuple[float, ...] = (0.5, 2**-0.5, 1.0)


class Options(TypedDict, total=False):
    """The keywords of `convert`, for its static types."""

    include: Patterns | None
    exclude: Patterns
    first: int | None
    last: float | None
    scales: Scales
    antialias: bool | None
    where: Where | None
    like: Conversion | nn.Module | None
    images: Any
    call: Call | None
    inplace: bool


@overload
def convert(model: nn.Conv1d, **options: Unpack[Options]) -> SIConv1d: ...
@overload
def convert(model: nn.Conv2d, **options: Unpack[Options]) -> SIConv2d: ...
@overload
def convert(model: nn.Conv3d, **options: Unpack[Options]) -> SIConv3d: ...
@overload
def convert(model: Network, **options: Unpack[Options]) -> Network: ...
def convert(
    model: nn.Module,
    *,
    include: Patterns | None = None,
    exclude: Patterns = (),
    first: int | None = None,
    last: float | None = None,
    scales: Scales = LATE_SCALES,
    antialias: bool | None = None,
    where: Where | None = None,
    like: Conversion | nn.Module | None = None,
    images: Any = None,
    call: Call | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Return the network with `SIConv2d` in place of its late `Conv2d`, weights and all else unchanged.

    `Conv1d` and `Conv3d` become `SIConv1d` and `SIConv3d`. By default the last 30 % of the convolutions that can gain
    are swapped, at `LATE_SCALES`: whole size, 0.71 and half. On photographs that gains accuracy at little cost, and
    swapping every layer loses it. The paper's network is `convert(network, include="*", scales=DEFAULT_SCALES)`.

    What cannot gain are layers that see one pixel, patch embeddings, whose patches do not overlap, and, if `images` are
    given to find out, layers whose kernel exceeds their map. They are left alone, unless their very name is in
    `include` or `scales`. A layer that is scale-invariant already gets the scales given here. Where a network has such
    layers and nothing says which to choose, they are the ones that are chosen.

    Layers count in the order of `named_modules`; with `images`, from the largest map to the smallest, and in that order
    among maps of one size. So with `images` the last layers of a U-Net are those at its bottom, where maps are
    smallest, although the last of its modules see the largest maps again.

    Weight normalisation, spectral normalisation and pruning are kept, and so is what a subclass of `Conv2d` does to its
    input or its weight before the convolution, such as timm's `Conv2dSame` and `StdConv2d`. A layer that computes
    something else, or whose size is not known yet, is left alone with a warning; `skipped` gives the reason for every
    layer. A maximum cannot be folded into other layers: the methods of a network that would do so, such as
    `reparameterize` of RepVGG and `merge` of LoRA, refuse from now on.

    A trained network does not survive this by itself: see `calibrate`.

    Args:
        model: a network, or a single convolution.
        include, exclude: names of layers, or patterns of names with `*`, `?` and `[…]`; `*` matches dots, too, and
            alone means every layer that can gain. Without `include`, `first`, `last`, `where` and scales by name, the
            last 30 % of the layers that `exclude` leaves are swapped.
        first: how many of the chosen layers to swap, counted as above; None for all.
        last: how many to swap from the other end; or which share of them, below 1. A share is rounded to the nearest
            number of layers, half a layer up, and is one layer at least: a quarter of 7 is 2, half of 7 is 4.
        scales: of the new layers; or {pattern: scales}, where the first pattern that matches a name counts, and a layer
            that none matches stays as it is.
        antialias: of the new layers; None keeps that of layers which are scale-invariant already, False for others.
        where: takes the name and the layer, and says whether to swap it, instead of the rule above.
        like: a converted network, or what `conversion` returned of one: its layers are swapped as there, and no others.
        images: a batch like those that the network will see, or a `DataLoader` or another iterable of batches, of which
            the first is taken. It is run once, to know how large the maps are. Layers that it does not reach count
            first. A tuple, a list or a mapping is one batch.
        call: how to run it on the `images`: a function of the model and a batch.
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
        ['Conv2d', 'ReLU', 'Conv2d', 'SIConv2d']
        >>> [type(layer).__name__ for layer in convert(network, include="*")]
        ['SIConv2d', 'ReLU', 'Conv2d', 'SIConv2d']
        >>> convert(network, scales={"0": (1, 2), "*": (0.5, 1, 2)})[3].scales
        (0.5, 1.0, 2.0)
    """
    check_module(model)
    included, excluded = _patterns("include", "*" if include is None else include), _patterns("exclude", exclude)
    by_pattern = _scales_by_pattern(scales)
    if antialias is not None:
        check_flag("antialias", antialias)
    check_flag("inplace", inplace)
    if where is not None and not callable(where):
        raise TypeError(f"`where` must be a function of a name and a layer, got {type(where).__name__}")
    names = [name for name, layer in model.named_modules() if isinstance(layer, Plain)]
    network = model if inplace else copy_network(model)
    if like is not None:
        choice = (include, tuple(exclude), first, last, scales, antialias, where)
        if choice != (None, (), None, None, LATE_SCALES, None, None):
            raise ValueError("`like` says which layers have which scales: give it without other choices")
        return _convert_like(network, conversion(like) if isinstance(like, nn.Module) else like)
    if not names:
        raise ValueError(f"`model` (={type(model).__name__}) must hold a convolution: Conv1d, Conv2d or Conv3d")
    for argument, patterns in (("include", included), ("exclude", excluded), ("scales", list(by_pattern))):
        for pattern in patterns:
            if not any(_matches(name, pattern, names) for name in names):
                near = _meant(pattern, names) or _near(pattern, names)
                raise ValueError(f"`{argument}` must match the name of a convolution, got {pattern!r}{near}")

    kinds = Plain
    if include is None and first is None and last is None and where is None and not isinstance(scales, Mapping):
        if any(isinstance(layer, ScaleInvariantLayer) for layer in network.modules()):
            kinds = ScaleInvariantLayer
        else:
            last = LATE
    sizes = _sizes_of_maps(network, images, call)
    asked = {*included, *by_pattern}
    chosen: dict[str, tuple[Plain, tuple[float, ...]]] = {}
    unfit: dict[str, str] = {}
    for name, layer in network.named_modules():
        wanted = next((found for pattern, found in by_pattern.items() if _matches(name, pattern, names)), None)
        if (
            isinstance(layer, kinds)
            and wanted is not None
            and any(_matches(name, pattern, names) for pattern in included)
            and not any(_matches(name, pattern, names) for pattern in excluded)
            and (where(name, layer) if where else name in asked or not why_no_gain(name, layer, sizes))
        ):
            reason = why_unfit(layer)
            if reason:
                unfit[name] = reason
            else:
                chosen[name] = (layer, wanted)
    listed = "; ".join(f"{name}: {reason}" for name, reason in unfit.items())
    if not chosen:
        raise ValueError(
            f"`model` (={type(model).__name__}) must hold a convolution that `include`, `exclude`, `scales`, `where` "
            "choose" + (f" and that can be swapped ({listed})" if unfit else "") + _left_alone(network, sizes)
        )
    in_order = _from_largest_map(list(chosen), sizes)
    for name in in_order[_window(first, last, len(chosen))]:
        _swap(*chosen[name], antialias)
    refuse_folding(network)
    if unfit:
        warnings.warn(f"left alone by `convert`: {listed}", stacklevel=2)
    return network


def conversion(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Which layers of a network are scale-invariant, and how: what `convert` needs to do it again.

    Plain numbers and words, as JSON has them. `scaleconv.save` and `scaleconv.load` keep them beside a checkpoint.

    Raises:
        TypeError: `model` is not a Module.

    Example:
        >>> network = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), scales=(1, 2))
        >>> conversion(network)
        {'0': {'scales': [1.0, 2.0], 'antialias': False}}
        >>> convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), like=conversion(network))[0].scales
        (1.0, 2.0)
    """
    check_module(model)
    return {
        name: {"scales": list(layer.scales), "antialias": layer.antialias}
        for name, layer in model.named_modules()
        if isinstance(layer, ScaleInvariantLayer)
    }


def _convert_like(network: nn.Module, layers: Conversion) -> nn.Module:
    if not isinstance(layers, Mapping):
        raise TypeError(f"`like` must be a network or what `conversion` returns, got {type(layers).__name__}")
    found = dict(network.named_modules())
    chosen = []
    for name, settings in layers.items():
        layer = found.get(name)
        if layer is None or not isinstance(layer, Plain):
            names = [each for each, module in found.items() if isinstance(module, Plain)]
            raise ValueError(f"`like` must name convolutions of the network, got {name!r}{_near(name, names)}")
        if reason := why_unfit(layer):
            raise ValueError(f"`like` must name layers that can be swapped, got {name!r}: {reason}")
        if not isinstance(settings, Mapping) or "scales" not in settings:
            raise ValueError(f"`like` must give the `scales` of each layer, got {settings!r} for {name!r}")
        antialias = check_flag("antialias", settings.get("antialias", False))
        chosen.append((layer, check_scales(settings["scales"]), antialias))
    revert(network, inplace=True)  # what is converted otherwise
    for layer, scales, antialias in chosen:
        _swap(layer, scales, antialias)
    refuse_folding(network)
    return network


def _meant(pattern: str, names: Sequence[str]) -> str:
    """What somebody may have meant by the name of a module, or by a part of a name, as the end of a message."""
    for meant in (f"{pattern}.*", f"{pattern}*", f"*.{pattern}", f"*.{pattern}.*"):
        if any(fnmatchcase(name, meant) for name in names):
            return f"; did you mean {meant!r}?"
    return ""


def _near(name: str, names: Sequence[str]) -> str:
    """Some names to choose from, similar ones if there are any, as the end of a message."""
    if not names:
        return ": it has none"
    some = difflib.get_close_matches(name, names) or names[:3]
    return f"; it has {', '.join(map(repr, some))}{' and others' if len(names) > len(some) else ''}"


def _left_alone(network: nn.Module, sizes: SizesOfMaps) -> str:
    """Why the layers that could be swapped are left alone, for a message."""
    reasons = {
        name: why_no_gain(name, layer, sizes) for name, layer in network.named_modules() if isinstance(layer, Plain)
    }
    some = [f"{name or 'model'}: {reason}" for name, reason in reasons.items() if reason][:3]
    return f"; left alone unless named in `include`: {'; '.join(some)}" if some else ""


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
        if isinstance(layer, ScaleInvariantLayer) and (
            _base(layer) in SCALE_INVARIANT.values() or hasattr(layer, "plain_type")
        ):
            for name in ("scales", "antialias"):
                vars(layer).pop(name, None)
            _become(layer, getattr(layer, "plain_type", base_of(type(layer))))
    allow_folding(network)
    return network


def skipped(model: nn.Module, images: Any = None, *, call: Call | None = None) -> dict[str, str]:
    """The convolutions of a network that are not scale-invariant, by name, and why they are not.

    Args:
        model: a network.
        images, call: as for `convert`, to know how large the maps are.

    Raises:
        TypeError: `model` is not a Module.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ConvTranspose2d(8, 8, 2))
        >>> skipped(convert(network))
        {'1': '1×1 kernel', '2': 'ConvTranspose2d is a transposed convolution'}
    """
    check_module(model)
    sizes = _sizes_of_maps(model, images, call)
    reasons = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Plain) and not isinstance(layer, ScaleInvariantLayer):
            reasons[name] = why_unfit(layer) or why_no_gain(name, layer, sizes) or "not chosen"
        elif isinstance(layer, ConvNd) and not isinstance(layer, Plain):
            reasons[name] = f"{type(layer).__name__} is a transposed convolution"
    return reasons


def why_unfit(layer: Plain) -> str | None:
    """Why a layer cannot be scale-invariant, or None if it can."""
    if isinstance(layer, ScaleInvariantLayer):
        return None
    if isinstance(layer, TIConv2d):
        return f"{type(layer).__name__} has transforms of its own"
    if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
        return f"{type(layer).__name__} does not know its size yet: call the network once before"
    return why_not_rerouted(layer) if _prepares(layer) else None


def why_no_gain(name: str, layer: Plain, sizes: SizesOfMaps) -> str | None:
    """Why a layer is left alone unless it is asked for; None if it is not, or is scale-invariant already."""
    if isinstance(layer, ScaleInvariantLayer):
        return None
    if max(layer.kernel_size) == 1:
        return f"{_by(layer.kernel_size)} kernel" if len(layer.kernel_size) > 1 else "kernel of length 1"
    if any(part.startswith("lora_") for part in name.split(".")):
        return "adapter of another layer"
    if all(stride >= kernel for stride, kernel in zip(layer.stride, layer.kernel_size, strict=True)):
        return f"patches of {_by(layer.kernel_size)} do not overlap"
    extent = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if name in sizes and any(far > length for far, length in zip(extent, sizes[name], strict=True)):
        return f"kernel of {_by(extent)} exceeds the map of {_by(sizes[name])}"
    return None


def _sizes_of_maps(model: nn.Module, images: Any, call: Call | None) -> SizesOfMaps:
    """The largest map that each convolution is called with, for a batch of images; empty without one."""
    sizes: dict[str, tuple[int, ...]] = {}
    if images is None:
        return sizes
    if isinstance(images, Iterable) and not isinstance(images, (Tensor, str, *CONTAINERS)):
        images = next(batches_of(images))

    def measure(name: str, layer: Plain, given: Tensor, _: Any) -> None:
        seen = tuple(given.shape[-len(layer.kernel_size) :])
        sizes[name] = tuple(map(max, sizes.get(name, seen), seen))

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Plain)}
    with watching(layers, measure), evaluating(model):
        run(model, images, call)
    return sizes


def _from_largest_map(names: Sequence[str], sizes: SizesOfMaps) -> list[str]:
    """The layers by the size of their maps, those without one first; layers of one size stay in their order."""
    return sorted(names, key=lambda name: -math.prod(sizes[name]) if name in sizes else -math.inf)


def _swap(layer: Plain, scales: tuple[float, ...], antialias: bool | None) -> None:
    """Make the layer scale-invariant, or change its scales."""
    if not isinstance(layer, ScaleInvariantLayer):
        base = _base(layer)
        _become(layer, rerouted_class(base) if _prepares(layer) else SCALE_INVARIANT[base])
        vars(layer)["antialias"] = False
    vars(layer)["scales"] = scales
    if antialias is not None:
        vars(layer)["antialias"] = antialias


def _matches(name: str, pattern: str, names: Sequence[str]) -> bool:
    """Whether a pattern means a layer. One that is a name means that alone, whatever characters it holds."""
    return name == pattern if pattern in names else fnmatchcase(name, pattern)


def _by(sizes: Iterable[int]) -> str:
    return "×".join(map(str, sizes))


def _base(layer: Plain) -> type[Plain]:
    """The class of the layer; of one with parametrizations, that which it had before them."""
    kind: type[Plain] = type(layer).__bases__[0] if is_parametrized(layer) else type(layer)
    return kind


def _prepares(layer: Plain) -> bool:
    """Whether a layer may prepare input or weight: one of a subclass, or with a `_conv_forward` of its own.

    Such a method is how the maps of a trained generator are made to repeat along one axis alone.
    """
    return _base(layer) not in SCALE_INVARIANT or "_conv_forward" in vars(layer)


def _become(layer: Plain, base: type[Plain]) -> None:
    """Give the layer that class; if it has parametrizations, one like its own over that class.

    Such a layer has a class to itself, which holds its parametrized tensors as properties.
    """
    if is_parametrized(layer):
        base = type(f"Parametrized{base.__name__}", (base,), dict(vars(type(layer))))
    layer.__class__ = base


def copy_network(model: Network) -> Network:
    """A deep copy. A tensor that was computed, as a weight by a hook or kept activations, is detached in the copy."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in tree_leaves(vars(module)):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def _window(first: int | None, last: float | None, chosen: int) -> slice:
    """Which of so many layers `first` and `last` mean."""
    if first is not None and last is not None:
        raise ValueError(f"`first` (={first}) and `last` (={last}) must not both be given")
    if isinstance(last, float):
        if not 0 < last < 1:
            raise ValueError(f"`last` must be a number of layers, or a share between 0 and 1, got {last}")
        last = count_of_share(last, chosen)
    for name, value in (("first", first), ("last", last)):
        if value is None:
            continue
        count = as_integer(value, f"`{name}` must be an integer{', a share' * (name == 'last')} or None, got {value!r}")
        if not 1 <= count <= chosen:
            raise ValueError(f"`{name}` must be from 1 to the number of chosen layers (={chosen}), got {count}")
        return slice(0, count) if name == "first" else slice(chosen - count, chosen)
    return slice(None)


def count_of_share(share: float, layers: int) -> int:
    """How many layers a share of so many is: the nearest number, half a layer rounded up, and 1 at least.

    Example:
        >>> [count_of_share(0.3, layers) for layers in (1, 4, 5, 7, 10, 13, 17)]
        [1, 1, 2, 2, 3, 4, 5]
    """
    return max(1, math.floor(share * layers + 0.5 + 1e-9))  # as floats, 0.29 of 50 is a bit below 14.5


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
