"""Look into a network while it runs: which scale wins in each layer, in evaluation mode, on checked images."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .convert import check_module
from .layers import SIConv2d


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
