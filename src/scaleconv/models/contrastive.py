"""Contrastive divergence: how an RBM of either kind learns.

A step draws its random numbers on the device and never waits for it; the loop waits once an epoch. Chains that start at
the data follow Hinton's practical guide (2010): hidden states are drawn, visible ones stay probabilities, and so do the
last hidden ones. Persistent chains draw the visible states too, or they would not sample the model.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.checks import check_count, check_flag, check_number
from .boltzmann import Boltzmann, draw_hidden, draw_visible


@dataclass(frozen=True)
class Recipe:
    """How an RBM is trained.

    Attributes:
        epochs: passes over the images.
        batch: images in a step; the last, partial batch of an epoch is left out.
        learning_rate: constant for half of the epochs, then falling linearly to 0.
        momentum: of the gradient, below 1.
        weight_decay: of the weights; biases have none.
        sparsity_target: how often a hidden unit should be on, at any scale.
        sparsity_cost: how hard the hidden biases are pulled towards that, in units of `learning_rate`.
        steps: Gibbs steps of the negative phase, the k of CD-k.
        persistent: continue the chains of the previous step instead of starting at the data.
        initial_std: of the Gaussian weights at the start.
    """

    epochs: int = 100
    batch: int = 100
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    sparsity_target: float = 0.05
    sparsity_cost: float = 1.0
    steps: int = 1
    persistent: bool = False
    initial_std: float = 0.01

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "steps"):
            check_count(name, getattr(self, name))
        for name in ("learning_rate", "weight_decay", "sparsity_cost", "initial_std"):
            check_number(name, getattr(self, name))
        check_number("momentum", self.momentum, below=1)
        if not 0 < check_number("sparsity_target", self.sparsity_target) < 1:
            raise ValueError(f"`sparsity_target` must lie between 0 and 1, got {self.sparsity_target}")
        check_flag("persistent", self.persistent)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1."""
        return self.learning_rate * min(1.0, 2 * (1 - (epoch - 1) / self.epochs))


@dataclass(frozen=True)
class Progress:
    """One epoch, for each of the machines in training; measured on the last batch of the epoch.

    Attributes:
        epoch: counted from 1.
        reconstruction: (*) mean squared difference of the images and their reconstructions.
        activity: (*) mean probability of a hidden unit to be on.
        seconds: that the epoch took.
    """

    epoch: int
    reconstruction: Tensor
    activity: Tensor
    seconds: float


class ContrastiveDivergence:
    """A machine in training.

    Args:
        machine: changed in place.
        images: (*, N, V), in [0, 1], on the device of the machine.
        recipe: the settings.
        generator: of the batches and the chains, on the same device.
    """

    def __init__(self, machine: Boltzmann, images: Tensor, recipe: Recipe, generator: torch.Generator) -> None:
        if images.shape[-2] < recipe.batch:
            raise ValueError(f"`batch` (={recipe.batch}) must not exceed the {images.shape[-2]} images")
        self.machine, self.images, self.recipe, self.generator = machine, images, recipe, generator
        self.velocities = [torch.zeros_like(parameter) for parameter in machine.parameters()]
        self.chains = images[..., : recipe.batch, :] if recipe.persistent else None

    def epoch(self, number: int) -> Progress:
        """Learn from every image once."""
        start = time.perf_counter()
        batches = self.images.shape[-2] // self.recipe.batch
        order = torch.randperm(self.images.shape[-2], generator=self.generator, device=self.images.device)
        rate = self.recipe.rate(number)
        for chosen in order[: batches * self.recipe.batch].view(batches, -1).unbind():
            images = self.images.index_select(-2, chosen)
            self.step(images, rate)
        hidden = self.machine.hidden(self.machine.transform.spread(images))
        reconstruction = (images - self.machine.visible(hidden)).square().mean((-1, -2)).cpu()
        activity = hidden.sum(-2).mean((-1, -2)).cpu()
        if not reconstruction.isfinite().all():
            raise ValueError(
                f"training diverged in epoch {number}: lower `learning_rate` (={self.recipe.learning_rate})"
            )
        return Progress(number, reconstruction, activity, time.perf_counter() - start)

    def step(self, images: Tensor, rate: float) -> None:
        """Learn from one batch (*, B, V)."""
        for parameter, velocity, gradient in zip(
            self.machine.parameters(), self.velocities, self.gradient(images), strict=True
        ):
            torch.add(gradient, velocity, alpha=self.recipe.momentum, out=velocity)
            parameter.add_(velocity, alpha=rate)

    def gradient(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The direction in which weight, hidden_bias and visible_bias learn from a batch, before momentum."""
        machine, recipe = self.machine, self.recipe
        levels = machine.transform.spread(images)  # (*, B, S, D)
        hidden = machine.hidden(levels)  # (*, B, S, J)
        positive = machine.statistics(images, levels, hidden)
        negative = machine.statistics(*self._chain(hidden))
        weight, hidden_bias, visible_bias = (p - n for p, n in zip(positive, negative, strict=True))
        weight.sub_(machine.weight, alpha=recipe.weight_decay)
        activity = positive[1].sum(-2, keepdim=True)  # (*, 1, J)
        hidden_bias.add_(recipe.sparsity_target - activity, alpha=recipe.sparsity_cost)
        return weight, hidden_bias, visible_bias

    def _chain(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The end of the chains: visible units, their levels, and the probabilities of the hidden units."""
        machine = self.machine
        if self.chains is not None:
            hidden = machine.hidden(machine.transform.spread(self.chains))
        for _ in range(self.recipe.steps):
            visible = machine.visible(draw_hidden(hidden, self.generator))
            if self.chains is not None:
                self.chains = visible = draw_visible(visible, self.generator)
            levels = machine.transform.spread(visible)
            hidden = machine.hidden(levels)
        return visible, levels, hidden
