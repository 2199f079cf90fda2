"""The restricted Boltzmann machine, in the manner of scikit-learn, on tensors.

`fit` learns from images, `transform` gives the features of images, and the rest says what was learned. The
scale-invariant RBM is the same class with other transforms. Input is checked here, once per call, never in a step.

All methods also take several data sets of one size at once, (R, N, V) in place of (N, V), and then learn R machines in
one batch of matrix products. Each learns what it would have learned alone.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.checks import check_count
from .boltzmann import Boltzmann, Identity, Rescaling, draw_hidden, draw_visible
from .contrastive import ContrastiveDivergence, Progress, Recipe
from .images import check_images, check_parameter

RARE = 0.01  # visible biases start as if every pixel were on at least this often, and off at least this often
CHUNK = 1000  # images at a time where nothing is learned: bounds the memory


class RBM:
    """Restricted Boltzmann machine with binary hidden units and visible units in [0, 1].

    Args:
        hidden: number of hidden units.
        recipe: how it is trained.
        seed: of the weights, the batches and the chains.

    Attributes:
        weight: (*, J, D), one filter per hidden unit.
        hidden_bias: (*, S, J), with S = 1 for the RBM.
        visible_bias: (*, V)
        history: what `fit` measured in each epoch.

    Example:
        >>> images = torch.rand(100, 12, generator=torch.Generator().manual_seed(0))
        >>> RBM(5, Recipe(epochs=2, batch=10)).fit(images).transform(images).shape
        torch.Size([100, 5])
    """

    def __init__(self, hidden: int, recipe: Recipe | None = None, *, seed: int = 0) -> None:
        self.hidden = check_count("hidden", hidden)
        self.recipe = Recipe() if recipe is None else recipe
        if not isinstance(self.recipe, Recipe):
            raise TypeError(f"`recipe` must be a Recipe, got {recipe!r}")
        self.seed = check_count("seed", seed, least=0)
        self.history: list[Progress] = []
        self._machine: Boltzmann | None = None

    def fit(self, images: Tensor, watch: Callable[[Progress], None] | None = None) -> Self:
        """Learn from images (*, N, V) with values in [0, 1]; `watch` is told of every epoch.

        Images are flat: (N, 28, 28) would be N data sets of 28 images. When learning fails, what was learned before
        stays.
        """
        images = check_images("images", images).detach()
        transform = self._make_transform(images)
        generator = torch.Generator(images.device).manual_seed(self.seed)
        runs, target = images.shape[:-2], self.recipe.sparsity_target
        weight = images.new_empty(self.hidden, transform.filter_pixels).normal_(generator=generator)
        # Units start as often on as the sparsity target asks, and at every scale equally often.
        hidden_bias = images.new_full(
            (*runs, transform.count, self.hidden), math.log(target / (1 - target) / transform.count)
        )
        machine = Boltzmann(
            transform,
            (weight * self.recipe.initial_std).repeat(*runs, 1, 1),
            hidden_bias,
            images.mean(-2).clamp(RARE, 1 - RARE).logit(),
        )
        training = ContrastiveDivergence(machine, images, self.recipe, generator)
        history = []
        for epoch in range(1, self.recipe.epochs + 1):
            with products_like_convolutions(images.device):
                history.append(training.epoch(epoch))
            if watch:
                watch(history[-1])
        self._machine, self.history = machine, history
        return self

    def load(self, weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor) -> Self:
        """Take these parameters in place of learned ones; shapes as in the attributes."""
        for name, tensor, least in (
            ("weight", weight, 2),
            ("hidden_bias", hidden_bias, 2),
            ("visible_bias", visible_bias, 1),
        ):
            check_parameter(name, tensor, least)
            if tensor.dtype != weight.dtype or tensor.device != weight.device:
                got = f"{tensor.dtype} on {tensor.device}"
                raise ValueError(f"`{name}` must be {weight.dtype} on {weight.device}, as `weight` is, got {got}")
        runs = weight.shape[:-2]
        transform = self._make_transform(visible_bias.unsqueeze(-2), "visible_bias")
        shapes = {
            "weight": (weight, (*runs, self.hidden, transform.filter_pixels)),
            "hidden_bias": (hidden_bias, (*runs, transform.count, self.hidden)),
            "visible_bias": (visible_bias, (*runs, transform.visible)),
        }
        for name, (tensor, shape) in shapes.items():
            if tensor.shape != shape:
                raise ValueError(f"`{name}` must be of shape {shape}, got {tuple(tensor.shape)}")
        self._machine = Boltzmann(transform, weight, hidden_bias, visible_bias)
        return self

    def state(self) -> dict[str, Tensor]:
        """The parameters by name, as `load` takes them."""
        return {name: getattr(self.machine, name) for name in ("weight", "hidden_bias", "visible_bias")}

    @property
    def machine(self) -> Boltzmann:
        """What was learned, with the conditionals; its methods check nothing."""
        if self._machine is None:
            raise RuntimeError(f"this {type(self).__name__} has not learned anything: call `fit` or `load` first")
        return self._machine

    @property
    def weight(self) -> Tensor:
        return self.machine.weight

    @property
    def hidden_bias(self) -> Tensor:
        return self.machine.hidden_bias

    @property
    def visible_bias(self) -> Tensor:
        return self.machine.visible_bias

    def run(self, index: int) -> Self:
        """One of the machines that were learned together, alone."""
        if self.machine.weight.dim() < 3:
            raise ValueError("`run` must be asked of machines that were learned together, got a single one")
        alone = copy.copy(self)
        alone._machine = Boltzmann(self.machine.transform, *(tensor[index] for tensor in self.machine.parameters()))
        alone.history = [
            Progress(entry.epoch, entry.reconstruction[index], entry.activity[index], entry.seconds)
            for entry in self.history
        ]
        return alone

    def transform(self, images: Tensor) -> Tensor:
        """The features Σ_s p(h_{j,s} = 1 | v), pooled over scale: (*, N, V) → (*, N, J)."""
        machine = self.machine
        parts = self._check_width("images", images).split(CHUNK, -2)
        return torch.cat([machine.hidden(machine.transform.spread(part)).sum(-2) for part in parts], -2)

    def free_energy(self, images: Tensor) -> Tensor:
        """F(v) = − log Σ_h exp(−E(v, h)): (*, N, V) → (*, N)."""
        parts = self._check_width("images", images).split(CHUNK, -2)
        return torch.cat([self.machine.free_energy(part) for part in parts], -1)

    def reconstruct(self, images: Tensor) -> Tensor:
        """p(v | h) at the expected hidden units of each image: (*, N, V) → (*, N, V)."""
        machine = self.machine
        parts = self._check_width("images", images).split(CHUNK, -2)
        return torch.cat([machine.visible(machine.hidden(machine.transform.spread(part))) for part in parts], -2)

    def sample(self, count: int, steps: int = 1000, *, start: Tensor | None = None, seed: int = 0) -> Tensor:
        """Images drawn by Gibbs sampling, as probabilities: (*, count, V).

        Args:
            count: of the images.
            steps: of each chain.
            start: images (*, count, V) at which the chains start; by default noise.
            seed: of the chains.
        """
        machine = self.machine
        count, steps = check_count("count", count), check_count("steps", steps)
        shape = (*machine.visible_bias.shape[:-1], count, machine.transform.visible)
        generator = torch.Generator(machine.weight.device).manual_seed(seed)
        if start is None:
            start = draw_visible(torch.full(shape, 0.5).to(machine.weight), generator)
        elif self._check_width("start", start).shape != shape:
            raise ValueError(f"`start` must be of shape {shape}, got {tuple(start.shape)}")
        images, probabilities = start, start
        for _ in range(steps):
            hidden = machine.hidden(machine.transform.spread(images))
            probabilities = machine.visible(draw_hidden(hidden, generator))
            images = draw_visible(probabilities, generator)
        return probabilities

    def pseudo_likelihood(self, images: Tensor, *, pixels: Tensor | None = None, seed: int = 0) -> Tensor:
        """An estimate of Σ_i log p(v_i | all other pixels) from one pixel of each image: (*, N, V) → (*, N).

        With a = F(v_i = 0) − F(v_i = 1), the log-odds of pixel i, it is V · (v_i·log σ(a) + (1 − v_i)·log σ(−a)); for
        v_i between 0 and 1 that is the expectation over a pixel that is on with probability v_i.

        Args:
            images: values in [0, 1].
            pixels: (N,) which pixel of each image; by default drawn.
            seed: of the pixels.
        """
        images = self._check_width("images", images)
        count, width = images.shape[-2:]
        if pixels is None:
            generator = torch.Generator(images.device).manual_seed(seed)
            pixels = torch.randint(width, (count,), generator=generator, device=images.device)
        elif not _are_indices(pixels, count, width):
            raise ValueError(f"`pixels` must be {count} indices below {width}, got {pixels}")
        chosen = F.one_hot(pixels.long(), width).to(images)  # (N, V)
        rest = images * (1 - chosen)
        odds = self.free_energy(rest) - self.free_energy(rest + chosen)
        value = (images * chosen).sum(-1)
        return width * (value * odds - F.softplus(odds))

    def _make_transform(self, images: Tensor, name: str = "images") -> Identity | Rescaling:
        return Identity(images.shape[-1])

    def _check_width(self, name: str, images: Tensor) -> Tensor:
        """Images that fit what was learned."""
        images, learned = check_images(name, images), self.machine.visible_bias
        if images.shape[-1] != learned.shape[-1] or images.shape[:-2] != learned.shape[:-1]:
            expected = ", ".join(str(n) for n in (*learned.shape[:-1], "N", learned.shape[-1]))
            raise ValueError(f"`{name}` must be of shape ({expected}), as learned, got {tuple(images.shape)}")
        if images.dtype != learned.dtype or images.device != learned.device:
            got = f"{images.dtype} on {images.device}"
            raise ValueError(f"`{name}` must be {learned.dtype} on {learned.device}, as learned, got {got}")
        return images


def _are_indices(pixels: object, count: int, width: int) -> bool:
    if not isinstance(pixels, Tensor) or pixels.shape != (count,):
        return False
    whole = not pixels.is_floating_point() and pixels.dtype != torch.bool
    return whole and bool(((pixels >= 0) & (pixels < width)).all())


@contextmanager
def products_like_convolutions(device: torch.device) -> Iterator[None]:
    """Use TF32 for float32 products on a GPU where torch's convolutions do.

    Units are drawn at random, so the lost bits do not matter to learning. What is learned is applied in full precision.
    """
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32 and before == "highest":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if torch.get_float32_matmul_precision() != before:
            torch.set_float32_matmul_precision(before)
