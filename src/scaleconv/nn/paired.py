"""Run a plain and a converted network on the same batches, and look at every layer of both side by side."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.torch_private import BatchNorm
from .layers import SIConv2d
from .observe import Call, answer, run, watching


@dataclass(frozen=True)
class Seen:
    """A call of a layer in the converted network, and that of the plain layer in the same place."""

    layer: nn.Module
    plain_input: Any  # of BatchNorm; else None
    plain_output: Tensor
    input: Tensor
    output: Tensor

    @property
    def dims(self) -> list[int]:
        """All dimensions of the output but the channels; a convolution may be given images one by one."""
        channels = self.output.ndim - 3 if isinstance(self.layer, SIConv2d) else 1
        return [dim for dim in range(self.output.ndim) if dim != channels]


@dataclass(frozen=True)
class Pair:
    """The plain and the converted network, and how to run them."""

    plain: nn.Module
    network: nn.Module
    call: Call | None
    called: set[str] = field(default_factory=set)  # the layers met so far

    def compared(self) -> dict[str, Any]:
        """The layers that are compared with the plain ones."""
        modules = self.network.named_modules()
        return {name: module for name, module in modules if isinstance(module, SIConv2d | BatchNorm)}

    def check(self) -> None:
        """To be called in evaluation mode: in training, a spectral norm changes when its weight is looked at."""
        plain: dict[str, Any] = dict(self.plain.named_modules(remove_duplicate=False))
        for name, layer in self.compared().items():
            if name not in plain:
                raise ValueError(f"`reference` must have the layers of `model`, but has no {name!r}")
            kind = nn.Conv2d if isinstance(layer, SIConv2d) else BatchNorm
            sizes = [getattr(each.weight, "shape", None) for each in (layer, plain[name]) if isinstance(each, kind)]
            if len(sizes) < 2 or sizes[0] != sizes[1]:
                raise ValueError(f"`reference` must have the layers of `model`, but {name!r} is {plain[name]}")
            if kind is nn.Conv2d and layer.weight.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"`model` must be float32 or float64, got {layer.weight.dtype} in {name!r}")

    def run(self, batch: Any, visit: Callable[[str, Seen], Tensor | None]) -> tuple[Any, Any]:
        """The answers of both. Every call of a layer is handed to `visit`, which may return another output.

        The hooks are there for this run only: what is checkpointed runs again in the backward pass.
        """
        plain_calls: dict[str, list[tuple[Any, Tensor]]] = {name: [] for name in self.compared()}

        def remember(name: str, layer: nn.Module, given: Any, output: Tensor) -> None:
            kept = given.clone() if isinstance(layer, BatchNorm) else None
            plain_calls[name].append((kept, output.clone()))  # what follows may work in place

        def compare(name: str, layer: nn.Module, given: Any, output: Tensor) -> Tensor | None:
            kept, expected = plain_calls[name].pop(0) if plain_calls[name] else (None, None)
            if expected is None or expected.shape != output.shape:
                raise ValueError(_refusal(name, output, expected))
            self.called.add(name)
            return visit(name, Seen(layer, kept, expected, given, output))

        if isinstance(batch, Tensor):
            batch = batch.to(next(self.network.parameters()).device)
        answers = []
        for network, hook in ((self.plain, remember), (self.network, compare)):
            wanted = torch.is_grad_enabled() and network is self.network
            layers = {name: network.get_submodule(name) for name in plain_calls}
            with watching(layers, hook), torch.set_grad_enabled(wanted):
                answers.append(run(network, batch) if self.call is None else answer(network, batch, self.call))
        for name, left in plain_calls.items():
            if left:
                raise ValueError(_refusal(name, None, left[0][1]))
        return answers[0], answers[1]


def _refusal(name: str, output: Tensor | None, plain: Tensor | None) -> str:
    found, expected = ("no output" if each is None else f"shape {tuple(each.shape)}" for each in (output, plain))
    return (
        f"`model` must call its layers as the plain network does, but {name!r} gives {found} where that one gives "
        f"{expected}: leave it out by the `exclude` of `convert`"
    )
