"""The outputs of chosen layers of a network, by name and in batches."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..nn.observe import watching


@torch.no_grad()
def activations(model: nn.Module, images: Tensor, layers: Sequence[str], batch: int = 1000) -> dict[str, Tensor]:
    """The outputs of layers for all images; of a layer that is called several times, those of its last call.

    Shapes: images (N, …) → for each layer (N, …), the shape of its output.

    Raises:
        ValueError: the model has no module of that name.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> activations(model, torch.rand(5, 2), ["1"])["1"].shape
        torch.Size([5, 3])
    """
    modules = dict(model.named_modules())
    if unknown := [name for name in layers if name not in modules]:
        known = ", ".join(name for name in modules if name)
        raise ValueError(f"`layers` must name modules of the model ({known}), got {unknown[0]!r}")
    kept: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {name: [] for name in layers}
    chosen = {name: modules[name] for name in layers}
    with watching(chosen, lambda name, _, __, output: kept.update({name: output})):
        for some in images.split(batch):
            model(some)
            for name in layers:
                parts[name].append(kept[name])
    return {name: torch.cat(outputs) for name, outputs in parts.items()}
