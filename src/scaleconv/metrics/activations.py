"""The outputs of chosen layers of a network, by name and in batches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

Features = dict[str, Tensor]


@contextmanager
def recording(model: nn.Module, layers: Sequence[str]) -> Iterator[Features]:
    """Keep the latest output of each of the named modules while the context lasts.

    Raises:
        ValueError: the model has no module of that name.
    """
    modules = dict(model.named_modules())
    kept: Features = {}
    for name in layers:
        if name not in modules:
            known = ", ".join(part for part in modules if part)
            raise ValueError(f"`layers` must name modules of the model ({known}), got {name!r}")

    def keep(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept[name] = output.detach()

    handles = [modules[name].register_forward_hook(partial(keep, name)) for name in layers]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def activations(model: nn.Module, images: Tensor, layers: Sequence[str], batch: int = 1000) -> Features:
    """The outputs of layers for all images.

    Shapes: images (N, …) → for each layer (N, …), the shape of its output.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> activations(model, torch.rand(5, 2), ["1"])["1"].shape
        torch.Size([5, 3])
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in layers}
    with recording(model, layers) as kept:
        for some in images.split(batch):
            model(some)
            for name in layers:
                parts[name].append(kept[name])
    return {name: torch.cat(outputs) for name, outputs in parts.items()}
