"""One network in training, or several at once: a step, an epoch, and the state that a checkpoint holds.

The order of a pass over the images depends on (seed, fold, pass) alone, and what is drawn for an epoch on (seed, fold,
epoch): a resumed run continues as if it had never stopped. Images that fit into memory lie on the device, and a step
takes them from there at a cursor, so an epoch needs nothing of the host but a new order. Others are decoded on the way.

One small network leaves most of a GPU idle. So there the steps of several networks are captured in one CUDA graph, each
network on its own stream, and the graph is replayed until the epoch is over. On a CPU networks take turns. Either way,
each ends where it would have ended alone, but for what dropout draws on a GPU: networks that train at once share one
stream of random numbers there.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.augment import augment
from ..data.order import Order
from ..data.rescale import IGNORE
from ..models import Classifier
from ..timing import captured
from .checkpoint import check_shapes
from .processes import join_norms
from .settings import TrainingSettings
from .sources import Source, pixels

UNROLL = 6  # most steps of a network in one graph: more take longer to capture, and gain nothing
AUGMENT, DROPOUT = 1, 2  # purposes of random streams; that of the order is `data.order`
DRAWS = 4  # numbers that are drawn to augment an image
ADAM = ("exp_avg", "exp_avg_sq", "step")
OPTIMISER_STATE = {"sgd": ("momentum_buffer",), "adam": ADAM, "adamw": ADAM}  # PyTorch's names, for each parameter


class Trainer:
    """One network in training.

    Args:
        network: is moved to the device of `fabric`.
        source: its images.
        settings: the recipe.
        fabric: device, precision and processes, of `make_fabric`.
        seed, fold: of the order of the images, and of all that is drawn.
        workers: processes that decode images which do not fit into memory.
    """

    def __init__(
        self,
        network: Classifier,
        source: Source,
        settings: TrainingSettings,
        fabric: Any,
        *,
        seed: int,
        fold: int,
        workers: int = 0,
    ) -> None:
        self.device: torch.device = fabric.device
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the faster layout
        if fabric.world_size > 1:
            join_norms(network, self.device)
        self.network, self.source = network.to(self.device).train(), source
        self.settings, self.fabric = settings, fabric
        self.seed, self.fold, self.workers = seed, fold, workers
        self.order = Order(source.train.sizes, settings.batch, seed, fold)
        self.steps = settings.steps or self.order.per_pass  # of an epoch
        self.in_memory = source.train.tensors
        optimiser = make_optimiser(settings, network, self.device)
        self.rates = [copy.deepcopy(group["lr"]) for group in optimiser.param_groups]  # at their largest
        self.kept = copy.deepcopy(network).eval().requires_grad_(False) if settings.keep != "last" else None
        self.optimiser, self.model = optimiser, fabric.setup_module(network)
        self.batches: list[NDArray[np.int64]] = []  # of this epoch
        self.draws = np.empty(0)
        self.cursor = torch.zeros(1, dtype=torch.long, device=self.device)
        self.loss = torch.zeros((), device=self.device)  # summed over the steps of this epoch
        self.seconds = torch.zeros((), dtype=torch.float64)  # that its steps took, when its state was last saved
        self.schedule = torch.ones(self.steps, 2, device=self.device)  # of the rate, and of the running mean
        if self.in_memory is not None:
            shape = (self.steps, len(self._share(range(min(settings.batch, len(source.train))))))
            self.chosen = torch.zeros(shape, dtype=torch.long, device=self.device)
            self.drawn = torch.zeros(*shape, DRAWS, dtype=torch.float64, device=self.device)

    @property
    def tested(self) -> Classifier:
        """The network that counts, as `keep` says."""
        return self.network if self.kept is None else self.kept

    def begin_epoch(self, epoch: int) -> None:
        """Draw all that an epoch, counted from 1, takes; the host then has nothing to do with its steps in memory."""
        first = (epoch - 1) * self.steps
        self.batches = self.order.of_steps(first, self.steps)
        steps, average = range(first, first + self.steps), self.settings.average
        plan = [(self.settings.rate_at(step, self.steps), mean_moves(average, step)) for step in steps]
        self.schedule.copy_(torch.tensor(plan))
        if self.settings.augment:
            longest = max(map(len, self.batches))
            self.draws = np.random.default_rng([self.seed, self.fold, epoch, AUGMENT]).uniform(
                size=(self.steps, longest, DRAWS)
            )
        if self.in_memory is not None:
            order = torch.from_numpy(np.stack([self._share(batch) for batch in self.batches]))
            self.chosen.copy_(order.pin_memory() if self.chosen.is_cuda else order, non_blocking=True)
            if self.settings.augment:
                shares = np.stack([self._share(draws) for draws in self.draws])
                self.drawn.copy_(torch.from_numpy(shares))
        self.cursor.zero_()
        self.loss.zero_()

    def seed_dropout(self, epoch: int) -> None:
        """Let what the network itself draws depend on (seed, fold, epoch) alone, and on the process."""
        stream = [self.seed, self.fold, epoch, DROPOUT, *([self.fabric.global_rank] if self.fabric.global_rank else [])]
        torch.manual_seed(int(np.random.default_rng(stream).integers(2**63)))

    def _share(self, batch: Any) -> Any:
        """What this process takes of a batch; all of it, where there are fewer images than processes."""
        rank, size = self.fabric.global_rank, self.fabric.world_size
        return batch[rank::size] if len(batch) >= size else batch

    def run_epoch(self, done: int = 0) -> Iterator[int]:
        """Take the steps of the epoch that has begun, and give the number of those done after each."""
        if self.in_memory is not None:
            for step in range(done, self.steps):
                self.step()
                yield step + 1
            return
        order = [self._share(batch).tolist() for batch in self.batches[done:]]
        loaded = self.source.train.batches(order, self.workers)
        for step, (images, labels) in enumerate(loaded, start=done):
            draws = None
            if self.settings.augment:
                own = self._share(self.draws[step, : len(self.batches[step])])
                draws = torch.from_numpy(np.ascontiguousarray(own)).to(self.device)
            self.learn(images, labels, draws, len(self.batches[step]))
            yield step + 1

    def step(self) -> None:
        """Learn from the next batch of images that lie in memory; nothing of it waits for the host."""
        assert self.in_memory is not None
        chosen = self.chosen.index_select(0, self.cursor).squeeze(0)
        images, labels = (part.index_select(0, chosen) for part in self.in_memory)
        drawn = self.drawn.index_select(0, self.cursor).squeeze(0) if self.settings.augment else None
        self.learn(pixels(images), labels.long(), drawn, min(self.settings.batch, len(self.source.train)))

    def learn(self, images: Tensor, labels: Tensor, draws: Tensor | None, batch: int) -> None:
        """Learn from images (N, C, H, W), this process's share of a batch."""
        settings = self.settings
        rate, moves = self.schedule.index_select(0, self.cursor).squeeze(0)
        for group, largest in zip(self.optimiser.param_groups, self.rates, strict=True):
            if isinstance(largest, Tensor):
                group["lr"].copy_(largest * rate)
        self.optimiser.zero_grad(set_to_none=True)
        if draws is not None:
            images, labels = augment(
                images,
                labels,
                draws,
                settings.augment,
                rescale=settings.rescale,
                law=settings.rescale_law,
                interpolation=self.source.interpolation,
            )
        loss = mean_loss(self.model(images).float(), labels, settings.smoothing)
        if self.fabric.world_size > 1:  # gradients are averaged over processes, whose shares may differ by one
            loss = loss * (len(labels) * self.fabric.world_size / max(batch, self.fabric.world_size))
        self.fabric.backward(loss)
        self.optimiser.step()
        if self.kept is not None and settings.keep == "average":
            move_average(self.kept, self.network, moves)
        self.loss += loss.detach()
        self.cursor += 1

    def epoch_loss(self) -> float:
        """The mean training loss over the epoch; waits for the device."""
        loss = self.fabric.all_reduce(self.loss) if self.fabric.world_size > 1 else self.loss
        return float(loss) / self.steps

    def keep_best(self, errors: Sequence[float]) -> None:
        """Keep the network of this epoch if its validation error, the last one given, is below all before."""
        if self.kept is not None and self.settings.keep == "best" and errors[-1] < min(errors[:-1], default=np.inf):
            move_average(self.kept, self.network, 1.0)

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name, where it lies."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        if self.kept is not None:
            tensors |= {f"kept.{name}": tensor for name, tensor in self.kept.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            held = self.optimiser.state.get(parameter, {})
            for kind in OPTIMISER_STATE[self.settings.optimizer]:
                if kind in held:
                    tensors[f"{kind}.{name}"] = held[kind]
        random = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()
        return tensors | {"cursor": self.cursor, "loss": self.loss, "seconds": self.seconds, "random": random}

    @torch.no_grad()
    def load_state(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Go back to a state; what it does not hold of the optimiser is zero, as before the first step.

        Raises:
            ValueError: it is of another network, or of another optimiser.
        """
        kinds = OPTIMISER_STATE[self.settings.optimizer]
        counts = self.device if self.device.type == "cuda" else "cpu"  # where Adam counts its steps
        for parameter in self.network.parameters():
            for kind in kinds:
                zero = torch.zeros((), device=counts) if kind == "step" else torch.zeros_like(parameter)
                self.optimiser.state[parameter].setdefault(kind, zero)
        own = self.state()
        random, saved = own.pop("random"), {name: tensor for name, tensor in state.items() if name != "random"}
        wanted = {name: own[name] for name in own if name in saved or name.partition(".")[0] not in kinds}
        check_shapes(path, saved, wanted)
        for name, tensor in own.items():
            if name in saved:
                tensor.copy_(saved[name])
            else:
                tensor.zero_()
        if "random" in state and state["random"].shape == random.shape:  # of the same kind of device
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(state["random"].cpu(), self.device)
            else:
                torch.set_rng_state(state["random"])


class TrainerGroup:
    """Trains networks with equally many steps at once; each ends where it would have ended alone."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, first = list(trainers), trainers[0]
        self.steps = first.steps
        if any(trainer.steps != self.steps for trainer in self.trainers):
            raise ValueError(f"`trainers` must have equally many steps, got {[each.steps for each in self.trainers]}")
        self.unrolled = max(n for n in range(1, UNROLL + 1) if self.steps % n == 0)
        capturable = first.device.type == "cuda" and first.in_memory is not None and first.fabric.world_size == 1
        self.replay = self._capture() if capturable else None

    def run_epoch(self, number: int, done: int = 0) -> Iterator[int]:
        """Train every network for one epoch, counted from 1, and give the number of steps done so far.

        With `done` steps behind it, the epoch goes on as the states of the trainers say. On a GPU a step may not be
        finished when its number is given.
        """
        if done == 0:
            for trainer in self.trainers:
                trainer.begin_epoch(number)
        if self.replay is not None:
            if done == 0:
                self.trainers[0].seed_dropout(number)
            whole = -(-done // self.unrolled) * self.unrolled  # a run on a CPU may have stopped in between
            for step in range(done, whole):
                for trainer in self.trainers:
                    trainer.step()
                yield step + 1
            for step in range(whole, self.steps, self.unrolled):
                self.replay()
                yield step + self.unrolled
            return
        for trainer in self.trainers:
            if done == 0:
                trainer.seed_dropout(number)
            for step in trainer.run_epoch(done):
                if len(self.trainers) == 1:
                    yield step
        if len(self.trainers) > 1:
            yield self.steps

    def _capture(self) -> Callable[[], object]:
        states = [{name: tensor.clone() for name, tensor in trainer.state().items()} for trainer in self.trainers]
        streams = [torch.cuda.Stream() for _ in self.trainers]

        def rewind() -> None:
            for trainer, state in zip(self.trainers, states, strict=True):
                trainer.begin_epoch(1)
                trainer.load_state(Path("capture"), state)
                trainer.cursor.zero_()

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


def make_optimiser(settings: TrainingSettings, network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser of a recipe; what has one dimension, biases and norms, does not decay."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = []
    for flat, decay, factor in ((False, settings.weight_decay, 1.0), (True, 0.0, settings.bias_rate)):
        chosen = [parameter for parameter in trained if (parameter.dim() < 2) == flat]
        rate = settings.learning_rate * factor
        own = torch.tensor(rate, device=device) if settings.varies else rate  # a CUDA graph reads a tensor at each step
        groups.append({"params": chosen, "weight_decay": decay, "lr": own})
    on_gpu = device.type == "cuda"
    fused = True if on_gpu else None  # else PyTorch chooses
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, fused=fused)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, fused=fused, capturable=on_gpu)


def mean_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy, the mean over images; of an image whose pixels have labels, the mean over those that have one.

    Shapes: logits (N, K) and labels (N,), or (N, K, H, W) and (N, H, W). Of several predictions for each image, logits
    (V, N, K) and labels (N,), it is the sum over them: each learns as if alone.

    Raises:
        ValueError: the network does not give a number for each class, and pixel.
    """
    if logits.dim() == 3 and labels.dim() == 1 and logits.shape[1] == len(labels):
        each = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), label_smoothing=smoothing)
        return len(logits) * each
    if logits.shape[:1] + logits.shape[2:] != labels.shape:
        wanted = ", ".join(map(str, ("N", "classes", *labels.shape[1:])))
        raise ValueError(f"`model` must return numbers of shape ({wanted}), got {tuple(logits.shape)}")
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE, label_smoothing=smoothing)
    labelled = (labels != IGNORE).flatten(1).sum(1)
    return (losses.flatten(1).sum(1) / labelled.clamp(min=1)).mean()


def mean_moves(decay: float, step: int) -> float:
    """How far a running mean moves to the weights in a step, counted from 0: early on further than 1 − decay."""
    return 1 - min(decay, (2 + step) / (11 + step))


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, share: Tensor | float) -> None:
    """Move a running mean this share of the way to a network; what is no floating-point number is copied.

    By hand, because `swa_utils.AveragedModel` counts on the host, which a CUDA graph leaves out.
    """
    for mean, value in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, share.to(mean.dtype) if isinstance(share, Tensor) else share)
        else:
            mean.copy_(value)
