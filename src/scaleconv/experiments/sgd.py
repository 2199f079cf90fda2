"""Stochastic gradient descent by the paper's recipe (appendix C), on one network or on several at once.

A `Trainer` owns a network, its optimiser and the training digits, all on one device. A step takes its digits from a
buffer of indices at a cursor, both on the device too, so an epoch needs nothing of the host but a new order. The order
of a pass over the digits depends on (seed, fold, pass) alone: a resumed run continues as if it had never stopped.

A `TrainerGroup` trains several networks at once. One small network leaves most of a GPU idle, so there the steps of all
networks are captured in one CUDA graph, each network on its own stream, and the graph is replayed until the epoch is
over. On the CPU the networks take turns. Either way, each ends where it would have ended alone.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import BACKGROUND
from ..metrics.timing import captured
from .config import TrainingConfig

UNROLL = 6  # most steps of a network in one graph: more take longer to capture, and gain nothing


def choose_device(device: str) -> str:
    """The name of a device this machine has; `auto` takes a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"`device` must be one this machine has, got {device!r} ({reason})") from None
    return device


class Trainer:
    """One network in training.

    Args:
        network: on the device of the digits.
        images: (N, 1, H, W), the training digits, mean subtracted.
        labels: (N,), or (N, H, W) where every pixel has one.
        recipe: the settings.
        seed, fold: of the order of the digits.
        augment: rescale every digit in every step by a factor of its own, between those of `recipe.rescale`.
    """

    def __init__(
        self,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        recipe: TrainingConfig,
        *,
        seed: int,
        fold: int,
        augment: bool = False,
    ) -> None:
        if len(images) < recipe.batch:
            raise ValueError(f"`batch` (={recipe.batch}) must not exceed the {len(images)} training digits")
        if images.is_cuda:  # where pooling and most convolutions are faster in this layout
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.images, self.labels = network, images, labels
        self.recipe, self.seed, self.fold, self.augment = recipe, seed, fold, augment
        self.per_pass = len(images) // recipe.batch
        self.batches = recipe.steps or self.per_pass  # of an epoch
        self.optimiser = make_optimiser(dict(network.named_parameters()), recipe, fused=images.is_cuda)
        self.order = torch.zeros(self.batches, recipe.batch, dtype=torch.long, device=images.device)
        self.factors = torch.ones(self.batches, recipe.batch, dtype=images.dtype, device=images.device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=images.device)
        self.loss = torch.zeros((), device=images.device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch, counted from 1: the next batches of as many passes as it touches."""
        first = (epoch - 1) * self.batches
        passes = range(first // self.per_pass, -(-(first + self.batches) // self.per_pass))
        batches = torch.cat([self._order_of_pass(number + 1) for number in passes])
        start = first - passes[0] * self.per_pass
        order = batches[start : start + self.batches].contiguous()
        self.order.copy_(order.pin_memory() if self.order.is_cuda else order, non_blocking=True)
        if self.augment:
            draws = np.random.default_rng([self.seed, self.fold, epoch, 1]).uniform(size=self.factors.shape)
            least, most = self.recipe.rescale
            self.factors.copy_(torch.from_numpy(least * (most / least) ** draws))  # as often halved as doubled
        self.cursor.zero_()
        self.loss.zero_()

    def _order_of_pass(self, number: int) -> Tensor:
        """The batches of a pass over the digits, counted from 1: (batches, digits in a batch)."""
        shuffled = np.random.default_rng([self.seed, self.fold, number]).permutation(len(self.images))
        return torch.from_numpy(shuffled[: self.per_pass * self.recipe.batch]).view(self.per_pass, self.recipe.batch)

    def step(self) -> None:
        """Learn from the next batch."""
        chosen = self.order.index_select(0, self.cursor).squeeze(0)
        self.optimiser.zero_grad(set_to_none=True)
        mixed = self.recipe.precision == "bfloat16"
        images = self.images.index_select(0, chosen)
        if self.augment:
            images = rescale(images, self.factors.index_select(0, self.cursor).squeeze(0))
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=mixed):
            logits = self.network(images)
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


def rescale(images: Tensor, factors: Tensor) -> Tensor:
    """Rescale each image about its centre by its own factor, bilinear, on the same canvas; its edge is repeated.

    Shapes: images (N, 1, H, W), factors (N,) → (N, 1, H, W).
    """
    inverse = (1 / factors).view(-1, 1, 1) * torch.eye(2, 3, dtype=images.dtype, device=images.device)
    grid = F.affine_grid(inverse, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


class TrainerGroup:
    """Trains networks with equally many batches at once; each ends where it would have ended alone."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.batches = self.trainers[0].batches
        if any(trainer.batches != self.batches for trainer in self.trainers):
            raise ValueError(f"`trainers` must have equally many batches, got {[t.batches for t in self.trainers]}")
        self.unrolled = max(n for n in range(1, UNROLL + 1) if self.batches % n == 0)
        self.replay = self._capture() if self.trainers[0].images.is_cuda else None

    def epoch(self, number: int) -> None:
        """Train every network for one epoch, counted from 1; returns before a GPU has finished it."""
        for trainer in self.trainers:
            trainer.begin_epoch(number)
        if self.replay is not None:
            for _ in range(self.batches // self.unrolled):
                self.replay()
            return
        for trainer in self.trainers:
            for _ in range(self.batches):
                trainer.step()

    def _capture(self) -> Callable[[], object]:
        states = [{name: tensor.clone() for name, tensor in trainer.state().items()} for trainer in self.trainers]
        streams = [torch.cuda.Stream() for _ in self.trainers]

        def rewind() -> None:
            for trainer, state in zip(self.trainers, states, strict=True):
                trainer.load_state(state)
                trainer.begin_epoch(1)

        def step_all() -> None:
            here = torch.cuda.current_stream()
            for trainer, stream in zip(self.trainers, streams, strict=True):
                stream.wait_stream(here)
                with torch.cuda.stream(stream):
                    for _ in range(self.unrolled):
                        trainer.step()
            for stream in streams:
                here.wait_stream(stream)

        return captured(step_all, rewind)


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
def error_rate(network: nn.Module, images: Tensor, labels: Tensor, batch: int | None = None) -> float:
    """How much the network gets wrong, in percent: of the digits, or of their pixels where every pixel has a label.

    The background of a scene is not counted. A CPU takes images in batches that stay in its cache.
    """
    batch = batch or max(1, (5000 if images.is_cuda else 100) * 28 * 28 // images[0].numel())
    wrong = counted = torch.zeros((), dtype=torch.long, device=images.device)
    for some, truth in zip(images.split(batch), labels.split(batch), strict=True):
        digits = truth != BACKGROUND
        wrong = wrong + ((network(some).argmax(1) != truth) & digits).sum()
        counted = counted + digits.sum()
    return 100 * int(wrong) / int(counted)
