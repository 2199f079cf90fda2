"""Look into a network while it runs: what it is given, what it answers, and which scale wins in each layer.

A network may take and return more than a tensor. Every tool that runs one takes `call`, a function of the model and a
batch that returns the tensor to look at; here is what that means without one, and what the messages say.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .layers import SIConv1d, SIConv2d, SIConv3d

Call = Callable[[Any, Any], Any]  # of the model and a batch; returns the tensor to look at
Path = tuple[Any, ...]  # keys, one inside the other

CONTAINERS = (Mapping, tuple, list)
NAMED = 8  # of what is inside an answer, in a message
ROUNDINGS, MOST_ROUNDING = 64, 0.01  # see `winner_of`


def check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")


def find_layers(model: nn.Module) -> dict[str, SIConv2d]:
    """The scale-invariant layers by name.

    Raises:
        TypeError: `model` is not a Module.
        ValueError: there is none.
    """
    check_module(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, SIConv2d)}
    if not layers:
        other = next((each for each in model.modules() if isinstance(each, SIConv1d | SIConv3d)), None)
        remedy = "convert it first" if other is None else f"it holds {type(other).__name__}, and this is for images"
        raise ValueError(f"`model` (={type(model).__name__}) must hold an SIConv2d: {remedy}")
    return layers


def check_images(images: Any, name: str = "images") -> Tensor:
    """Images (N, C, H, W), N at least 1; or say what is wrong with them."""
    if not isinstance(images, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(images).__name__}")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"`{name}` must be (N, C, H, W), N at least 1, got shape {tuple(images.shape)}")
    if not images.is_floating_point():
        raise TypeError(f"`{name}` must be of a floating-point type, got {images.dtype}")
    return images


def check_call(call: Any) -> None:
    if call is not None and not callable(call):
        raise TypeError(f"`call` must be a function of the model and a batch, got {type(call).__name__}")


def images_of(batch: Any, name: str = "images") -> Tensor:
    """The images of a batch: the batch itself, or the first tensor like images in a tuple, a list or a mapping.

    Raises:
        TypeError: there are none.
        ValueError: they are of another shape than (N, C, H, W), N at least 1.

    Example:
        >>> images_of({"labels": torch.arange(2), "pixel_values": torch.rand(2, 3, 8, 8)}).shape
        torch.Size([2, 3, 8, 8])
    """
    path = find_path(batch, _is_image_batch)
    if path is None and isinstance(batch, CONTAINERS):
        raise TypeError(f"`{name}` must hold a floating-point tensor (N, C, H, W), got {describe(batch)}")
    return check_images(_follow(batch, path or ()), name)


def with_images(batch: Any, images: Tensor) -> Any:
    """The batch with other images in the place of its own; what holds them is of the same kind as before.

    Example:
        >>> with_images((torch.rand(2, 1, 8, 8), "labels"), torch.zeros(2, 1, 1, 1))
        (tensor([[[[0.]]],
        <BLANKLINE>
        <BLANKLINE>
                [[[0.]]]]), 'labels')
    """
    images_of(batch)  # or it says what is wrong
    return _replaced(batch, find_path(batch, _is_image_batch) or (), images)


def batches_of(images: Any, size: int | None = None, name: str = "images") -> Iterator[Any]:
    """The batches of a `DataLoader` or another iterable, whatever they hold; a mapping is one batch.

    A tensor is split into batches of `size` images, or is one batch.

    Raises:
        TypeError: neither a tensor nor an iterable.
        ValueError: there are no images.
    """
    if isinstance(images, Tensor):
        yield from check_images(images, name).split(size or len(images))
    elif isinstance(images, Mapping):
        images_of(images, name)
        yield images
    elif isinstance(images, str) or not isinstance(images, Iterable):
        raise TypeError(f"`{name}` must be images (N, C, H, W) or an iterable of batches, got {type(images).__name__}")
    else:
        empty = True
        for batch in images:
            empty = False
            yield batch
        if empty:
            raise ValueError(f"`{name}` must hold images, got none")


def run(model: nn.Module, batch: Any, call: Call | None = None, name: str = "images") -> Any:
    """Run the network on a batch, by `call` if there is one; what comes back may be anything."""
    return model(images_of(batch, name)) if call is None else call(model, batch)


def answer(model: nn.Module, batch: Any, call: Call | None = None, name: str = "images") -> Tensor:
    """The tensor that the network returns for a batch.

    Raises:
        TypeError: it answers something else, or `call` does.
    """
    output = run(model, batch, call, name)
    if isinstance(output, Tensor):
        return output
    if call is not None:
        raise TypeError(f"`call` must return a tensor, got {describe(output)}")
    raise TypeError(
        f"`model` must return a tensor, got {describe(output)}: give `call`, such as {remedy(output, batch)}"
    )


def describe(output: Any) -> str:
    """What holds the answer of a network: its type and the names of what is inside.

    Example:
        >>> describe({"out": torch.rand(1), "aux": torch.rand(1)})
        "dict with 'out', 'aux'"
    """
    kind = type(output).__name__
    if isinstance(output, tuple | list):
        return f"{kind} of {len(output)}"
    names = list(output) if isinstance(output, Mapping) else list(getattr(output, "__dict__", ()))
    if names:
        listed = ", ".join(map(repr, names[:NAMED])) + (", …" if len(names) > NAMED else "")
        return f"{kind} with {listed}"
    return f"{kind} without anything" if isinstance(output, Mapping) else kind


def remedy(output: Any, batch: Any = None) -> str:
    """A `call` that takes the first tensor of such an answer, where the network takes the images of such a batch.

    Example:
        >>> remedy({"out": torch.rand(1)}, (torch.rand(1, 3, 8, 8), torch.tensor([7])))
        "lambda model, batch: model(batch[0])['out']"
    """
    images = _as_code(find_path(batch, _is_image_batch) or ())
    place = find_path(output, _is_tensor)
    if place is not None:
        return f"lambda model, batch: model(batch{images}){_as_code(place)}"
    parts = getattr(output, "__dict__", {})
    place = find_path(parts, _is_tensor)
    taken = "…" if place is None else f".{place[0]}{_as_code(place[1:])}"
    return f"lambda model, batch: model(batch{images}){taken}"


def find_path(value: Any, wanted: Callable[[Any], bool]) -> Path | None:
    """The keys that lead to the first wanted part of a value, through mappings, tuples and lists; None without one.

    Example:
        >>> find_path({"a": [0, 1.5], "b": (2.5,)}, lambda part: isinstance(part, float))
        ('a', 1)
    """
    if wanted(value):
        return ()
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, CONTAINERS) else ()
    for key, part in parts:
        path = find_path(part, wanted)
        if path is not None:
            return (key, *path)
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_image_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point()


def _follow(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _as_code(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _replaced(value: Any, path: Path, part: Any) -> Any:
    """The value with another part at the end of the path; nothing is changed in place."""
    if not path:
        return part
    key, inner = path[0], _replaced(value[path[0]], path[1:], part)
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        changed[key] = inner
        return changed
    parts = [*value[:key], inner, *value[key + 1 :]]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # a namedtuple, or not


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients; every module goes back to its own mode afterwards."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def hooked(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """Remove these hooks afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watching(layers: Mapping[str, nn.Module], seen: Callable[[str, Any, Any, Any], Any]) -> Iterator[None]:
    """Call `seen` with name, layer, input and output of every call of these layers.

    What it returns takes the place of the output, unless it is None.
    """

    def hook(name: str) -> Callable[..., Any]:
        # The input may be given by place or by name.
        return lambda layer, args, kwargs, output: seen(name, layer, [*args, *kwargs.values()][0], output)

    with hooked([layer.register_forward_hook(hook(name), with_kwargs=True) for name, layer in layers.items()]):
        yield


def winner_of(layer: SIConv2d, input: Tensor) -> Tensor:
    """The index in the layer's scales of the level that each of its outputs came from, a uint8 tensor.

    Ties go to scale 1. The layer itself gives them to the scale listed first, and where an image is constant, rounding
    decides among levels of equal response: neither says anything about the image. So scale 1 has won wherever no
    other level exceeds it by more than rounding, which is 64 times the precision of the type, and at most 1 %, of the
    layer's largest response to the image. Without the other scales, the output there would be the same.

    Example:
        >>> layer = SIConv2d(1, 4, 3, scales=(0.5, 1, 2))
        >>> winner_of(layer, torch.full((2, 1, 9, 9), 0.3)).unique()
        tensor([1], dtype=torch.uint8)
    """
    forward = type(layer).forward  # without the hooks of a call
    output, winner = forward(layer, input, return_winner=True)
    unscaled_layer = object.__new__(type(layer))  # the layer itself may serve other threads meanwhile
    vars(unscaled_layer).update(vars(layer), scales=(1.0,))
    unscaled = forward(unscaled_layer, input)
    largest = unscaled.abs().amax((-3, -2, -1), keepdim=True)
    rounding = min(ROUNDINGS * torch.finfo(output.dtype).eps, MOST_ROUNDING) * largest
    return torch.where(output - unscaled <= rounding, layer.scales.index(1.0), winner)
