"""Training one network by the paper's recipe (appendix C), on any device.

A `Trainer` owns a network, its optimiser and the training digits, all on one device. A step takes its digits from a
buffer of indices at a cursor, both on the device too, so that an epoch needs nothing of the host but a new order. The
order of an epoch depends on (seed, fold, epoch) alone, which is why a resumed run goes on as if it had never stopped.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TrainingConfig


class Trainer:
    """One network in training.

    Args:
        network: on the device of the digits.
        images: (N, 1, H, W), the training digits, mean subtracted.
        labels: (N,)
        recipe: the settings.
        seed, fold: of the order of the digits.
    """

    def __init__(
        self, network: nn.Module, images: Tensor, labels: Tensor, recipe: TrainingConfig, *, seed: int, fold: int
    ) -> None:
        if len(images) < recipe.batch:
            raise ValueError(f"`batch` (={recipe.batch}) must not exceed the {len(images)} training digits")
        self.network, self.images, self.labels = network, images, labels
        self.recipe, self.seed, self.fold = recipe, seed, fold
        self.batches = len(images) // recipe.batch
        self.optimiser = make_optimiser(dict(network.named_parameters()), recipe, fused=images.is_cuda)
        self.order = torch.zeros(self.batches, recipe.batch, dtype=torch.long, device=images.device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=images.device)
        self.loss = torch.zeros((), device=images.device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch, counted from 1."""
        shuffled = np.random.default_rng([self.seed, self.fold, epoch]).permutation(len(self.images))
        order = torch.from_numpy(shuffled[: self.order.numel()]).view_as(self.order)
        self.order.copy_(order.pin_memory() if self.order.is_cuda else order, non_blocking=True)
        self.cursor.zero_()
        self.loss.zero_()

    def step(self) -> None:
        """Learn from the next batch."""
        chosen = self.order.index_select(0, self.cursor).squeeze(0)
        self.optimiser.zero_grad(set_to_none=True)
        mixed = self.recipe.precision == "bfloat16"
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=mixed):
            logits = self.network(self.images.index_select(0, chosen))
        loss = F.cross_entropy(logits.float() if mixed else logits, self.labels.index_select(0, chosen))
        loss.backward()
        self.optimiser.step()
        self.loss += loss.detach()
        self.cursor += 1

    def mean_loss(self) -> float:
        """The training loss over the epoch; waits for the device."""
        return self.loss.item() / self.batches

    def state(self) -> dict[str, Tensor]:
        """Weights and momenta, by name, where they lie."""
        tensors = dict(self.network.named_parameters())
        momenta = {
            f"momentum.{name}": self.optimiser.state[parameter]["momentum_buffer"]
            for name, parameter in tensors.items()
            if "momentum_buffer" in self.optimiser.state[parameter]
        }
        return {**{f"weight.{name}": parameter.detach() for name, parameter in tensors.items()}, **momenta}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go back to a state; momenta it does not hold are zero, as before the first step."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(state[f"weight.{name}"])
                held = self.optimiser.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                momentum = state.get(f"momentum.{name}")
                held.zero_() if momentum is None else held.copy_(momentum)


def make_optimiser(parameters: Mapping[str, Tensor], recipe: TrainingConfig, *, fused: bool = False) -> torch.optim.SGD:
    """Stochastic gradient descent; biases learn at their own rate and do not decay."""
    weights = [parameter for name, parameter in parameters.items() if not name.endswith("bias")]
    biases = [parameter for name, parameter in parameters.items() if name.endswith("bias")]
    groups = [
        {"params": weights, "weight_decay": recipe.weight_decay},
        {"params": biases, "weight_decay": 0.0, "lr": recipe.learning_rate * recipe.bias_rate},
    ]
    return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, fused=fused)


@torch.no_grad()
def count_errors(network: nn.Module, images: Tensor, labels: Tensor, batch: int | None = None) -> int:
    """How many digits the network gets wrong; a CPU takes them in batches that stay in its cache."""
    batch = batch or (5000 if images.is_cuda else 100)
    wrong = torch.zeros((), dtype=torch.long, device=images.device)
    for some, truth in zip(images.split(batch), labels.split(batch), strict=True):
        wrong += (network(some).argmax(1) != truth).sum()
    return int(wrong)
