"""Stochastic gradient descent by the paper's recipe (appendix C) or a later one, on one network or on several at once.

A `Trainer` owns a network, its optimiser and the training digits, all on one device. A step takes its digits from a
buffer of indices at a cursor, both on the device too, so an epoch needs nothing of the host but a new order. The order
of a pass over the digits depends on (seed, fold, pass) alone: a resumed run continues as if it had never stopped.

A `TrainerGroup` trains several networks at once. One small network leaves most of a GPU idle, so there the steps of all
networks are captured in one CUDA graph, each network on its own stream, and the graph is replayed until the epoch is
over. On the CPU the networks take turns. Either way, each ends where it would have ended alone, but for what dropout
draws on a GPU: there networks that train at once share one stream of random numbers.
"""

import copy
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import BACKGROUND
from ..nn.observe import evaluating
from ..timing import captured
from .config import TrainingConfig
from .optimiser import KEPT, make_optimiser, mean_moves, move_average

UNROLL = 6  # most steps of a network in one graph: more take longer to capture, and gain nothing


class Trainer:
    """One network in training.

    Args:
        network: on the device of the digits.
        images: (N, 1, H, W), the training digits, mean subtracted.
        labels: (N,), or (N, H, W) where every pixel has one.
        recipe: the settings.
        seed, fold: of the order of the digits.
        augment: rescale every digit in every step by a factor of its own, between those of `recipe.rescale`.
        interpolation: `bilinear` or `bicubic`, of the rescaled digits.
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
        interpolation: str = "bilinear",
    ) -> None:
        if len(images) < recipe.batch:
            raise ValueError(f"`batch` (={recipe.batch}) must not exceed the {len(images)} training digits")
        if images.is_cuda:  # where pooling and most convolutions are faster in this layout
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.images, self.labels = network.train(), images, labels
        self.recipe, self.seed, self.fold, self.augment = recipe, seed, fold, augment
        self.interpolation = interpolation
        self.per_pass = len(images) // recipe.batch
        self.batches = recipe.steps or self.per_pass  # of an epoch
        self.optimiser = make_optimiser(
            recipe.optimizer,
            network.parameters(),
            recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            bias_rate=recipe.bias_rate,
            captured=images.is_cuda,
            varies=recipe.varies,
        )
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in self.rates]  # at their largest
        self.kept = copy.deepcopy(network).eval().requires_grad_(False) if recipe.keep != "last" else None
        self.order = torch.zeros(self.batches, recipe.batch, dtype=torch.long, device=images.device)
        self.factors = torch.ones(self.batches, recipe.batch, dtype=images.dtype, device=images.device)
        self.schedule = torch.ones(self.batches, 2, device=images.device)  # of the rate, and of the running mean
        self.cursor = torch.zeros(1, dtype=torch.long, device=images.device)
        self.loss = torch.zeros((), device=images.device)

    @property
    def tested(self) -> nn.Module:
        """The network that counts, as `recipe.keep` says."""
        return self.network if self.kept is None else self.kept

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
            self.factors.copy_(torch.from_numpy(self.recipe.rescale_factors(draws)))
        steps = range(first, first + self.batches)
        plan = [(self.recipe.rate_at(step, self.batches), mean_moves(self.recipe.average, step)) for step in steps]
        self.schedule.copy_(torch.tensor(plan))
        self.cursor.zero_()
        self.loss.zero_()

    def seed_dropout(self, epoch: int) -> None:
        """Let what the network itself draws depend on (seed, fold, epoch) alone."""
        torch.manual_seed(int(np.random.default_rng([self.seed, self.fold, epoch, 2]).integers(2**63)))

    def _order_of_pass(self, number: int) -> Tensor:
        """The batches of a pass over the digits, counted from 1: (batches, digits in a batch)."""
        shuffled = np.random.default_rng([self.seed, self.fold, number]).permutation(len(self.images))
        return torch.from_numpy(shuffled[: self.per_pass * self.recipe.batch]).view(self.per_pass, self.recipe.batch)

    def step(self) -> None:
        """Learn from the next batch."""
        chosen = self.order.index_select(0, self.cursor).squeeze(0)
        rate, mean_moves = self.schedule.index_select(0, self.cursor).squeeze(0)
        for group, largest in zip(self.optimiser.param_groups, self.rates, strict=True):
            if isinstance(largest, Tensor):
                group["lr"].copy_(largest * rate)
        self.optimiser.zero_grad(set_to_none=True)
        mixed = self.recipe.precision == "bfloat16"
        images = self.images.index_select(0, chosen)
        if self.augment:
            images = rescale(images, self.factors.index_select(0, self.cursor).squeeze(0), self.interpolation)
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=mixed):
            logits = self.network(images)
        labels = self.labels.index_select(0, chosen)
        loss = F.cross_entropy(logits.float() if mixed else logits, labels, label_smoothing=self.recipe.smoothing)
        loss.backward()
        self.optimiser.step()
        if self.kept is not None and self.recipe.keep == "average":
            move_average(self.kept, self.network, mean_moves)
        self.loss += loss.detach()
        self.cursor += 1

    def mean_loss(self) -> float:
        """The training loss over the epoch; waits for the device."""
        return self.loss.item() / self.batches

    def keep_best(self, errors: Sequence[float]) -> None:
        """Keep the network of this epoch if its validation error, the last one given, is below all before."""
        if self.kept is not None and self.recipe.keep == "best" and errors[-1] < min(errors[:-1], default=np.inf):
            move_average(self.kept, self.network, 1.0)

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name, where it lies: weights, what the optimiser keeps, and so on."""
        tensors = {f"weight.{name}": parameter.detach() for name, parameter in self.network.named_parameters()}
        tensors |= {f"buffer.{name}": buffer for name, buffer in self.network.named_buffers()}
        if self.kept is not None:
            tensors |= {f"kept.{name}": tensor for name, tensor in self.kept.state_dict().items()}
        for ours, theirs in KEPT[self.recipe.optimizer].items():
            for name, parameter in self.network.named_parameters():
                if theirs in (held := self.optimiser.state[parameter]):
                    tensors[f"{ours}.{name}"] = held[theirs]
        return tensors

    def expected(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the shapes that a state must have; `found` says for which parameters there is an optimiser's."""
        kinds = KEPT[self.recipe.optimizer]
        tensors = {name: tensor for name, tensor in self.state().items() if name.partition(".")[0] not in kinds}
        for kind in kinds:
            for name, parameter in self.network.named_parameters():
                if f"{kind}.{name}" in found:
                    tensors[f"{kind}.{name}"] = parameter.new_empty(()) if kind == "step" else parameter
        return tensors

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a state; what it does not hold of the optimiser is zero, as before the first step."""
        for name, tensor in [*self.network.named_parameters(), *self.network.named_buffers()]:
            kind = "weight" if isinstance(tensor, nn.Parameter) else "buffer"
            tensor.copy_(state[f"{kind}.{name}"])
        if self.kept is not None:
            for name, tensor in self.kept.state_dict().items():
                tensor.copy_(state[f"kept.{name}"])
        for ours, theirs in KEPT[self.recipe.optimizer].items():
            for name, parameter in self.network.named_parameters():
                zero = torch.zeros((), device=parameter.device) if ours == "step" else torch.zeros_like(parameter)
                held = self.optimiser.state[parameter].setdefault(theirs, zero)
                found = state.get(f"{ours}.{name}")
                held.zero_() if found is None else held.copy_(found)


def rescale(images: Tensor, factors: Tensor, interpolation: str = "bilinear") -> Tensor:
    """Rescale each image about its centre by its own factor, on the same canvas; its edge is repeated.

    Shapes: images (N, 1, H, W), factors (N,) → (N, 1, H, W).
    """
    inverse = (1 / factors).view(-1, 1, 1) * torch.eye(2, 3, dtype=images.dtype, device=images.device)
    grid = F.affine_grid(inverse, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, interpolation, padding_mode="border", align_corners=False)


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
            self.trainers[0].seed_dropout(number)
            for _ in range(self.batches // self.unrolled):
                self.replay()
            return
        for trainer in self.trainers:
            trainer.seed_dropout(number)
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


def error_rate(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """How much the network gets wrong, in percent: of the digits, or of their pixels where every pixel has a label.

    The background of a scene is not counted. A CPU takes images in batches that stay in its cache.
    """
    batch = max(1, (5000 if images.is_cuda else 100) * 28 * 28 // images[0].numel())
    wrong = counted = torch.zeros((), dtype=torch.long, device=images.device)
    with evaluating(network):
        for some, truth in zip(images.split(batch), labels.split(batch), strict=True):
            digits = truth != BACKGROUND
            wrong = wrong + ((network(some).argmax(1) != truth) & digits).sum()
            counted = counted + digits.sum()
    return 100 * int(wrong) / int(counted)
