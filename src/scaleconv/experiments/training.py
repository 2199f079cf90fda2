"""A network in training on batches of images: its settings, a step, and the state that a checkpoint holds.

What a step does depends on its images, the seed and the number of the step: no state of a random generator goes from
one step to the next. It takes the gradient of the mean loss over its whole batch, which several processes may share.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.augment import augment, check_augmentations
from ..data.rescale import IGNORE
from ..data.scales import unit_stream
from ..ops.checks import check_choice, check_count, check_number
from .checkpoint import check_shapes
from .classifier import Classifier
from .config import LARGEST_SEED, check_finite
from .distributed import ALONE, Processes
from .optimiser import KEPT, make_optimiser, mean_moves, move_average

OPTIMIZERS = {"adamw": 1e-3, "sgd": 0.05}  # with their learning rates


@dataclass(frozen=True)
class FitSettings:
    """How a network is trained.

    Attributes:
        epochs: passes over the training images.
        batch: images in a step.
        optimizer: `adamw` or `sgd` (with momentum 0.9).
        lr: the largest learning rate; None takes 0.001 for AdamW and 0.05 for SGD. It rises linearly over `warmup` of
            all steps and falls to 0 along a cosine.
        weight_decay: of weights, not of biases and norms.
        warmup: share of the steps.
        smoothing: of the labels.
        average: decay of the running mean of the weights that is tested and kept in the end; 0 for none. In the first
            steps k it is at most (1 + k) / (10 + k), so that short runs are not held back by their beginning.
        augment: some of `scale`, `flip`, `crop`.
        amp: bfloat16 where autocast allows it.
        seed: of weights, order and augmentation.
    """

    epochs: int = 20
    batch: int = 64
    optimizer: str = "adamw"
    lr: float | None = None
    weight_decay: float = 0.02
    warmup: float = 0.05
    smoothing: float = 0.1
    average: float = 0.0
    augment: tuple[str, ...] = ()
    amp: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"`seed` must be at most {LARGEST_SEED}, got {self.seed}")
        check_choice("optimizer", self.optimizer, tuple(OPTIMIZERS))
        check_finite(self, "lr", "weight_decay", "warmup", "smoothing", "average")
        if self.lr is not None and not check_number("lr", self.lr) > 0:
            raise ValueError(f"`lr` must be above 0, got {self.lr}")
        check_number("weight_decay", self.weight_decay)
        for name in ("warmup", "smoothing", "average"):
            check_number(name, getattr(self, name), below=1)
        check_augmentations(self.augment)

    @property
    def rate(self) -> float:
        """The largest learning rate."""
        return OPTIMIZERS[self.optimizer] if self.lr is None else self.lr

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, of so many.

        Example:
            >>> settings = FitSettings(lr=1.0, warmup=0.2)
            >>> [round(settings.rate_at(step, 10), 2) for step in (0, 1, 2, 6, 9)]
            [0.5, 1.0, 1.0, 0.5, 0.04]
        """
        rising = math.ceil(self.warmup * steps)
        if step < rising:
            return self.rate * (step + 1) / rising
        return self.rate * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lr": self.rate, "augment": sorted(self.augment)}


class Training:
    """A network in training: what a step changes, and what a checkpoint holds.

    Args:
        network: is moved to the device.
        settings: how to train.
        steps: of the whole run.
        device: where.
        processes: that train together.
    """

    def __init__(
        self, network: Classifier, settings: FitSettings, *, steps: int, device: str, processes: Processes = ALONE
    ) -> None:
        self.network = network.to(device).train()
        if torch.device(device).type == "cuda":  # where most convolutions are faster in this layout
            self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.steps, self.device, self.processes = settings, steps, device, processes
        self.optimiser = make_optimiser(
            settings.optimizer, network.parameters(), settings.rate, weight_decay=settings.weight_decay
        )
        self.average = copy.deepcopy(network).requires_grad_(False) if settings.average else None
        self.position = 0  # steps done
        self.loss = torch.zeros((), device=device)  # summed over the images of this epoch
        self.seconds = 0.0  # of this epoch

    @property
    def tested(self) -> Classifier:
        """The network that counts: the running mean, if there is one."""
        return self.network if self.average is None else self.average

    def step(self, images: Tensor, labels: Tensor, epoch: int, batch: list[int]) -> None:
        """Learn from a batch.

        Args:
            images: (N, C, H, W) uint8, the share of this process.
            labels: of the images (N,), or of their pixels (N, H, W).
            epoch: which one, from 1.
            batch: indices in the training set of the images of all processes; they decide how an image looks.
        """
        settings, processes = self.settings, self.processes
        seed = settings.seed * 1_000_003 + self.position + processes.rank * 1_000_000_007
        torch.manual_seed(seed % 2**63)  # what the network itself draws
        pixels = images.to(self.device, non_blocking=True).float() / 255
        labels = labels.to(self.device, non_blocking=True)
        if settings.augment:
            draws = [torch.from_numpy(unit_stream(4, settings.seed, 3, epoch, i)) for i in processes.share(batch)]
            pixels, labels = augment(pixels, labels, torch.stack(draws).to(pixels), settings.augment)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate_at(self.position, self.steps)
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=settings.amp):
            logits = self.network(pixels)
        loss = image_losses(logits.float(), labels.long(), settings.smoothing).sum() / processes.taken(batch)
        loss.backward()
        loss = processes.add_gradients(self.network, loss.detach())
        self.optimiser.step()
        if self.average is not None:
            move_average(self.average, self.network, mean_moves(settings.average, self.position))
        self.position += 1
        self.loss += loss * len(batch)

    def state(self) -> dict[str, Tensor]:
        """Everything a step depends on, by name."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for index, values in self.optimiser.state_dict()["state"].items():
            tensors |= {
                f"optimiser.{index}.{name}": value for name, value in values.items() if isinstance(value, Tensor)
            }
        tensors["position"] = torch.tensor(self.position)
        tensors["loss"] = self.loss
        tensors["seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        return cloned(tensors)

    def _wanted(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a state must hold, its optimiser for every parameter that has been trained when it was saved."""
        wanted = {name: tensor for name, tensor in self.state().items() if not name.startswith("optimiser.")}
        parameters = [each for group in self.optimiser.param_groups for each in group["params"]]
        for index, parameter in enumerate(parameters):
            kept = {f"optimiser.{index}.{name}": parameter.new_empty(()) if name == "step" else parameter
                    for name in KEPT[self.settings.optimizer].values()}  # fmt: skip
            wanted |= kept if kept.keys() & found.keys() else {}
        return wanted

    def load_state(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a state that was read from a file."""
        check_shapes(path, tensors, self._wanted(tensors))
        if not 0 <= tensors["position"] <= self.steps:
            raise ValueError(f"{path} must be at one of {self.steps} steps, got {int(tensors['position'])}")
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "average": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part in parts:
                parts[part][rest] = tensor
        self.network.load_state_dict(parts["network"])
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimiser"].items():
            index, _, rest = name.partition(".")
            state.setdefault(int(index), {})[rest] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.position = int(tensors["position"])
        self.loss.copy_(tensors["loss"])
        self.seconds = float(tensors["seconds"])


def image_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy of each image; where pixels have labels, the mean over those that have one.

    Shapes: logits (N, K) and labels (N,), or (N, K, H, W) and (N, H, W) → (N,).

    Raises:
        ValueError: the network does not answer with a number for each class, and pixel.
    """
    if logits.shape[:1] + logits.shape[2:] != labels.shape:
        wanted = ", ".join(map(str, ("N", "classes", *labels.shape[1:])))
        raise ValueError(f"`model` must return numbers of shape ({wanted}), got {tuple(logits.shape)}")
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE, label_smoothing=smoothing)
    labelled = (labels != IGNORE).flatten(1).sum(1)
    return losses.flatten(1).sum(1) / labelled.clamp(min=1)


def cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, since a file holds no two tensors that share their numbers."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
