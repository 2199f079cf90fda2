"""The restricted Boltzmann machine and its scale-invariant form, trained by contrastive divergence.

Both follow Sohn and Lee, "Learning invariant representations with local transformations" (2012). Images v and hidden
units h, where a unit j is on at one scale s or off, have the energy

    E(v, h) = − Σ_{j,s} (w_jᵀ T_s v + b_{j,s}) h_{j,s} − cᵀ v

T_s rescales an image; the plain RBM has the scale 1 alone. Parameters and images may carry a leading dimension `*`:
R independent machines, evaluated and trained in one batch of matrix products. A training step never waits for the
device.

Letters: R machines, N images, V visible units (pixels), J hidden units, S scales.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.call import check_scales
from ..ops.geometry import is_inside
from ..ops.resampling import linear_map

# No scale below 1: the digits of MNIST-Scale are shrunk, and enlarging undoes that.
ENLARGING_SCALES: tuple[float, ...] = tuple(2 ** (k / 3) for k in range(6))
RARE = 0.01  # visible biases start as if every pixel were on at least this often, and off at least this often
CHUNK = 1000  # images at a time in `transform`: bounds the memory


@dataclass(frozen=True)
class Recipe:
    """How an RBM is trained. The values are checked where settings are read."""

    epochs: int = 100  # passes over the images
    batch: int = 100  # images in a step; the last, partial batch of an epoch is left out
    learning_rate: float = 0.05  # constant for half of the epochs, then falling linearly to 0
    momentum: float = 0.9  # of the gradient, below 1
    weight_decay: float = 1e-4  # of the weights; biases have none
    sparsity_target: float = 0.05  # how often a hidden unit should be on, at any scale
    sparsity_cost: float = 1.0  # how hard the hidden biases are pulled towards that, in units of `learning_rate`
    steps: int = 1  # Gibbs steps of the negative phase, the k of CD-k
    persistent: bool = False  # continue the chains of the previous step instead of starting at the data
    initial_std: float = 0.01  # of the Gaussian weights at the start

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1."""
        return self.learning_rate * min(1.0, 2 * (1 - (epoch - 1) / self.epochs))


@dataclass(frozen=True)
class Progress:
    """One epoch of training."""

    epoch: int  # counted from 1
    reconstruction: Tensor  # (*) mean squared difference of the last batch and its reconstruction
    seconds: float  # that the epoch took


class RBM:
    """Restricted Boltzmann machine with binary hidden units and visible units in [0, 1].

        p(h_j=1 | v) = σ(w_jᵀ v + b_j)
        p(v_i=1 | h) = σ(Σ_j w_{j,i} h_j + c_i)

    All methods take images (N, V), or R sets of images of one size, (R, N, V), which train R machines at once. Each
    machine learns what it would have learned alone.

    Args:
        hidden: number of hidden units.
        recipe: how it is trained.
        seed: of the weights, the batches and the chains.

    Attributes:
        weight: (*, J, V), one filter per hidden unit.
        hidden_bias: (*, S, J), with S = 1 for the RBM.
        visible_bias: (*, V)
        history: one `Progress` per epoch of `fit`.

    Example:
        >>> images = torch.rand(100, 12, generator=torch.Generator().manual_seed(0))
        >>> RBM(5, Recipe(epochs=2, batch=10)).fit(images).transform(images).shape
        torch.Size([100, 5])
    """

    def __init__(self, hidden: int, recipe: Recipe | None = None, *, seed: int = 0) -> None:
        self.hidden, self.recipe, self.seed = hidden, recipe or Recipe(), seed
        self.history: list[Progress] = []
        self.weight = self.hidden_bias = self.visible_bias = torch.empty(0)

    def fit(
        self,
        images: Tensor,
        watch: Callable[[Progress], None] | None = None,
        *,
        starts: Sequence[int] | None = None,
    ) -> Self:
        """Learn from images with values in [0, 1].

        Args:
            images: flat, (N, V) or (R, N, V); (N, 28, 28) would be N sets of 28 images.
            watch: called after every epoch.
            starts: of R sets of images, the seed of the filters of each machine; None starts all with the same ones.

        Raises:
            ValueError: there are fewer images than in a batch, or training diverges.
        """
        recipe, count = self.recipe, images.shape[-2]
        if recipe.batch > count:
            raise ValueError(f"`batch` (={recipe.batch}) must not exceed the {count} images")
        generator = torch.Generator(images.device).manual_seed(self.seed)
        self._initialise(images, generator, starts)
        velocities = [torch.zeros_like(parameter) for parameter in self.state().values()]
        chains = images[..., : recipe.batch, :] if recipe.persistent else None
        for epoch in range(1, recipe.epochs + 1):
            start = time.perf_counter()
            order = torch.randperm(count, generator=generator, device=images.device)
            for chosen in order[: count - count % recipe.batch].split(recipe.batch):
                batch = images.index_select(-2, chosen)
                gradients, chains = self._gradients(batch, chains, generator)
                for parameter, velocity, gradient in zip(self.state().values(), velocities, gradients, strict=True):
                    torch.add(gradient, velocity, alpha=recipe.momentum, out=velocity)
                    parameter.add_(velocity, alpha=recipe.rate(epoch))
            reconstruction = self._visible(self._hidden(self._levels(batch)))
            error = (batch - reconstruction).square().mean((-1, -2)).cpu()
            if not error.isfinite().all():
                raise ValueError(f"training diverged in epoch {epoch}: lower `learning_rate` (={recipe.learning_rate})")
            self.history.append(Progress(epoch, error, time.perf_counter() - start))
            if watch:
                watch(self.history[-1])
        return self

    def load(self, weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor) -> Self:
        """Take these parameters instead of learned ones; shapes as in the attributes."""
        self._prepare(weight)
        self.weight, self.hidden_bias, self.visible_bias = weight, hidden_bias, visible_bias
        return self

    def state(self) -> dict[str, Tensor]:
        """The parameters by name, as `load` takes them."""
        return {"weight": self.weight, "hidden_bias": self.hidden_bias, "visible_bias": self.visible_bias}

    def run(self, index: int) -> Self:
        """One of R machines that were trained together, alone."""
        alone = copy.copy(self)
        alone.weight, alone.hidden_bias, alone.visible_bias = (tensor[index] for tensor in self.state().values())
        alone.history = [Progress(entry.epoch, entry.reconstruction[index], entry.seconds) for entry in self.history]
        return alone

    def transform(self, images: Tensor) -> Tensor:
        """The features Σ_s p(h_{j,s} = 1 | v), pooled over scale: (*, N, V) → (*, N, J)."""
        return torch.cat([self._hidden(self._levels(chunk)).sum(-2) for chunk in images.split(CHUNK, -2)], -2)

    def sample(self, start: Tensor, steps: int) -> Tensor:
        """Draw images by Gibbs sampling, as probabilities, from chains of so many steps: (*, N, V) → (*, N, V)."""
        generator = torch.Generator(self.weight.device).manual_seed(0)
        images = probabilities = start
        for _ in range(steps):
            hidden = _draw_hidden(self._hidden(self._levels(images)), generator)
            probabilities = self._visible(hidden)
            images = _draw_visible(probabilities, generator)
        return probabilities

    def _initialise(self, images: Tensor, generator: torch.Generator, starts: Sequence[int] | None) -> None:
        """Small random filters, and biases as if no filter mattered."""
        runs, pixels, target = images.shape[:-2], images.shape[-1], self.recipe.sparsity_target
        scales = self._prepare(images)
        weight = images.new_empty(self.hidden, pixels).normal_(generator=generator).repeat(*runs, 1, 1)
        for index, start in enumerate(starts or ()):
            if start != self.seed:
                weight[index].normal_(generator=torch.Generator(images.device).manual_seed(start))
        self.weight = weight * self.recipe.initial_std
        # Units start as often on as the sparsity target asks, and at every scale equally often.
        self.hidden_bias = images.new_full((*runs, scales, self.hidden), math.log(target / (1 - target) / scales))
        self.visible_bias = images.mean(-2).clamp(RARE, 1 - RARE).logit()
        self.history = []

    def _gradients(
        self, images: Tensor, chains: Tensor | None, generator: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """The directions in which the parameters learn from a batch (*, B, V), and the persistent chains' new states.

        Chains that start at the data follow Hinton's practical guide (2010): hidden states are drawn, visible ones stay
        probabilities, and so do the last hidden ones. Persistent chains draw the visible states too, or they would not
        sample the model.
        """
        levels = self._levels(images)
        hidden = self._hidden(levels)
        positive = _statistics(images, levels, hidden)
        if chains is not None:
            hidden = self._hidden(self._levels(chains))
        for _ in range(self.recipe.steps):
            visible = self._visible(_draw_hidden(hidden, generator))
            if chains is not None:
                chains = visible = _draw_visible(visible, generator)
            levels = self._levels(visible)
            hidden = self._hidden(levels)
        negative = _statistics(visible, levels, hidden)
        weight, hidden_bias, visible_bias = (p - n for p, n in zip(positive, negative, strict=True))
        weight.sub_(self.weight, alpha=self.recipe.weight_decay)
        activity = positive[1].sum(-2, keepdim=True)  # (*, 1, J)
        hidden_bias.add_(self.recipe.sparsity_target - activity, alpha=self.recipe.sparsity_cost)
        return (weight, hidden_bias, visible_bias), chains

    def _hidden(self, levels: Tensor) -> Tensor:
        """p(h_{j,s} = 1 | v) from the levels T_s v: (*, N, S, V) → (*, N, S, J)."""
        inputs = (levels.flatten(-3, -2) @ self.weight.mT).unflatten(-2, levels.shape[-3:-1])
        inputs = inputs + self.hidden_bias.unsqueeze(-3)
        if inputs.shape[-2] == 1:  # the same numbers, faster
            return torch.sigmoid(inputs)
        return torch.softmax(F.pad(inputs, (0, 0, 0, 1)), -2)[..., :-1, :]  # the last, of energy 0, is "off"

    def _visible(self, hidden: Tensor) -> Tensor:
        """p(v_i = 1 | h): (*, N, S, J) → (*, N, V)."""
        patterns = (hidden.flatten(-3, -2) @ self.weight).unflatten(-2, hidden.shape[-3:-1])  # (*, N, S, V)
        return torch.sigmoid(self._gather(patterns) + self.visible_bias.unsqueeze(-2))

    def _levels(self, images: Tensor) -> Tensor:
        """T_s v for all scales: (*, N, V) → (*, N, S, V)."""
        return images.unsqueeze(-2)

    def _gather(self, patterns: Tensor) -> Tensor:
        """Σ_s T_sᵀ z_s, the transpose of `_levels`: (*, N, S, V) → (*, N, V)."""
        return patterns.squeeze(-2)

    def _prepare(self, like: Tensor) -> int:
        """Make the transforms for the type and device of a tensor; the number of scales."""
        return 1


class SIRBM(RBM):
    """Scale-invariant RBM: a hidden unit finds its filter at one of the scales, or not at all.

        p(h_{j,s}=1 | v) = exp(w_jᵀ T_s v + b_{j,s}) / (1 + Σ_{s'} exp(w_jᵀ T_{s'} v + b_{j,s'}))
        p(v_i=1 | h)     = σ( Σ_{j,s} (T_sᵀ w_j)_i h_{j,s} + c_i )

    Convention: T_s rescales the image about its centre on its own canvas. Pixel q of the canvas reads the image at
    u = (q − (H−1)/2)/s + (H−1)/2 on each axis, linear between neighbours, edge pixels clamped for half a pixel as in
    `si_conv2d`, and zero beyond. An enlarged image is cropped and a shrunk one is framed by zeros. Where the canvas and
    the level of the pyramid differ by an even number of pixels, T_s is exactly that level.

    Args:
        hidden: number of hidden units.
        size: of the images, (height, width).
        recipe: how it is trained.
        scales: 1 among them.
        seed: of the weights, the batches and the chains.
    """

    def __init__(
        self,
        hidden: int,
        size: tuple[int, int],
        recipe: Recipe | None = None,
        *,
        scales: Iterable[float] = ENLARGING_SCALES,
        seed: int = 0,
    ) -> None:
        super().__init__(hidden, recipe, seed=seed)
        self.size, self.scales = size, check_scales(scales)

    def _prepare(self, like: Tensor) -> int:
        self._rows, self._columns = (
            torch.stack([canvas_matrix(scale, length) for scale in self.scales]).to(like) for length in self.size
        )  # (S, H, H) and (S, W, W)
        return len(self.scales)

    def _levels(self, images: Tensor) -> Tensor:
        pixels = images.unflatten(-1, self.size)  # (*, N, H, W)
        lines = (pixels @ self._columns.flatten(0, 1).mT).unflatten(-1, self._columns.shape[:2])  # (*, N, H, S, W)
        return torch.einsum("shH,...Hsw->...shw", self._rows, lines).flatten(-2)

    def _gather(self, patterns: Tensor) -> Tensor:
        lines = torch.einsum("shH,...shw->...Hsw", self._rows, patterns.unflatten(-1, self.size))
        return (lines.flatten(-2) @ self._columns.flatten(0, 1)).flatten(-2)


def canvas_matrix(scale: float, length: int) -> Tensor:
    """T_s along one axis, in float64: (length, length)."""
    centre = (length - 1) / 2
    sources = (torch.arange(length, dtype=torch.float64) - centre) / scale + centre
    return linear_map(sources.tolist(), length).dense() * is_inside(sources, length).unsqueeze(1)


def _statistics(visible: Tensor, levels: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """−∂E/∂(weight, hidden_bias, visible_bias), averaged over the images."""
    share = hidden / visible.shape[-2]
    return share.flatten(-3, -2).mT @ levels.flatten(-3, -2), share.sum(-3), visible.mean(-2)


def _draw_hidden(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Switch on at most one scale of each unit: (*, N, S, J).

    All machines get the same random numbers, so each learns what it would have learned alone.
    """
    count, _, units = probabilities.shape[-3:]
    chance = torch.rand(count, 1, units, generator=generator, dtype=probabilities.dtype, device=probabilities.device)
    reached = (chance < probabilities.cumsum(-2)).to(probabilities.dtype)
    return reached - F.pad(reached[..., :-1, :], (0, 0, 1, 0))


def _draw_visible(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Binary images: (*, N, V); all machines get the same random numbers."""
    shape = probabilities.shape[-2:]
    chance = torch.rand(shape, generator=generator, dtype=probabilities.dtype, device=probabilities.device)
    return (chance < probabilities).to(probabilities.dtype)
