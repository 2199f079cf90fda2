"""Look into a network while it runs: what it is given, what it answers, and which scale wins in each layer.

A network may take and return more than a tensor. Every tool that runs one takes `call`, a function of the model and a
batch that returns the tensor to look at; here is what that means without one, and what the messages say.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from .layers import SIConv2d

Call = Callable[[Any, Any], Any]  # of the model and a batch; returns the tensor to look at


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
        raise ValueError(f"`model` (={type(model).__name__}) must hold an SIConv2d: convert it first")
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

    Example:
        >>> images_of({"labels": torch.arange(2), "pixel_values": torch.rand(2, 3, 8, 8)}).shape
        torch.Size([2, 3, 8, 8])
    """
    return check_images(batch if _is_image_batch(batch) else _first_images(batch), name)


def with_images(batch: Any, images: Tensor) -> Any:
    """The batch with other images in the place of its own."""
    if isinstance(batch, Tensor):
        return images
    leaves, structure = _flatten(batch)
    place = next(place for place, leaf in enumerate(leaves) if _is_image_batch(leaf))
    return tree_unflatten([*leaves[:place], images, *leaves[place + 1 :]], structure)


def batches_of(images: Any, size: int, name: str = "images") -> Iterator[Any]:
    """The batches of a `DataLoader` or another iterable, whatever they hold; a tensor is split into some of this size.

    Raises:
        TypeError: neither a tensor nor an iterable.
        ValueError: there are no images.
    """
    if isinstance(images, Tensor):
        yield from check_images(images, name).split(size)
        return
    if isinstance(images, str | Mapping) or not isinstance(images, Iterable):
        raise TypeError(f"`{name}` must be images (N, C, H, W) or an iterable of batches, got {type(images).__name__}")
    found = False
    for batch in images:
        yield batch
        found = True
    if not found:
        raise ValueError(f"`{name}` must hold images, got none")


def run(model: nn.Module, batch: Any, call: Call | None = None, name: str = "images") -> Any:
    """Run the network on a batch, by `call` if there is one; what comes back may be anything."""
    return model(images_of(batch, name)) if call is None else call(model, batch)


def answer(model: nn.Module, batch: Any, call: Call | None = None, name: str = "images") -> Tensor:
    """The tensor that the network answers to a batch.

    Raises:
        TypeError: it answers something else, or `call` does.
    """
    output = run(model, batch, call, name)
    if isinstance(output, Tensor):
        return output
    if call is not None:
        raise TypeError(f"`call` must return a tensor, got {describe(output)}")
    raise TypeError(f"`model` must return a tensor, got {describe(output)}: give `call`, such as {remedy(output)}")


def describe(output: Any) -> str:
    """What holds the answer of a network: its type and the names of what is inside.

    Example:
        >>> describe({"out": torch.rand(1), "aux": torch.rand(1)})
        "dict with 'out', 'aux'"
    """
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join(map(repr, output))}" if output else f"{kind} without anything"
    return f"{kind} of {len(output)}" if isinstance(output, tuple | list) else kind


def remedy(output: Any) -> str:
    """A `call` that takes the first tensor of such an answer.

    Example:
        >>> remedy({"out": torch.rand(1)})
        "lambda model, batch: model(batch)['out']"
    """
    place = "…"
    if isinstance(output, Mapping):
        place = next((f"[{key!r}]" for key, value in output.items() if isinstance(value, Tensor)), "[…]")
    elif isinstance(output, tuple | list):
        place = next((f"[{index}]" for index, value in enumerate(output) if isinstance(value, Tensor)), "[…]")
    return f"lambda model, batch: model(batch){place}"


def _is_image_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point()


def _first_images(batch: Any) -> Any:
    """The first leaf like images; the batch itself if there is none, so that the message names it."""
    return next((leaf for leaf in _flatten(batch)[0] if _is_image_batch(leaf)), batch)


def _flatten(batch: Any) -> tuple[list[Any], Any]:
    """Leaves and structure; a mapping of another kind, such as the `BatchFeature` of transformers, as a dictionary."""
    return tree_flatten(dict(batch) if isinstance(batch, Mapping) else batch)


def given_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer was called with, by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


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
def watching_winners(layers: dict[str, SIConv2d], seen: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `seen` with the name of a layer and its winners (N, M, H0, W0) whenever the layer is called."""

    def watch(name: str) -> Callable[..., None]:
        def hook(layer: SIConv2d, args: tuple[Tensor, ...], kwargs: dict[str, Any], _: Any) -> None:
            seen(name, winner_of(layer, given_to(args, kwargs)))

        return hook

    with hooked([layer.register_forward_hook(watch(name), with_kwargs=True) for name, layer in layers.items()]):
        yield


def winner_of(layer: SIConv2d, input: Tensor) -> Tensor:
    """The index in the layer's scales of the level that each of its outputs came from, a uint8 tensor.

    Example:
        >>> layer = SIConv2d(1, 4, 3, scales=(1, 2))
        >>> winner_of(layer, torch.rand(2, 1, 9, 9)).shape
        torch.Size([2, 4, 7, 7])
    """
    found: tuple[Tensor, Tensor] = type(layer).forward(layer, input, return_winner=True)  # without the hooks of a call
    return found[1]
