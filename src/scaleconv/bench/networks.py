"""Whole networks in training: an epoch of the paper's networks, a step of ResNet-18 plain and converted.

The images are random and of the right shape; what is learned does not matter. The paper's networks are trained by the
code and the recipe of the experiments, on a GPU several runs at once as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from ..experiments.capture import captured
from ..experiments.config import DataConfig, NetworkConfig, TrainingConfig
from ..experiments.together import Together
from ..experiments.training import Trainer
from ..models import make_model
from ..nn import convert
from .resnet import CLASSES, make_resnet18
from .settings import DTYPES, LAYOUTS, Settings
from .timing import Memory, Tick, Timing, peak_memory, repeated, time_in_turns

MODELS = ("convnet", "si_convnet", "hierarchical")
TOGETHER = 6  # the folds of the paper's Table 1
CPU_BATCHES = 8  # of an epoch's 78, which would take minutes
RESNET_IMAGES = (32, 224)  # batch and side
CPU_RESNET_IMAGES = (2, 64)


@dataclass(frozen=True)
class EpochRow:
    """Seconds of one epoch of a network of the paper.

    Attributes:
        model: its name in `scaleconv.models.TITLES`.
        runs: how many were trained together.
        seconds: of one epoch of all of them, the median over the repeats.
        seconds_min, seconds_max: the least and the most.
        seconds_per_run: that, divided by `runs`.
        batches, batches_timed: in an epoch, and how many of them were timed.
    """

    model: str
    runs: int
    seconds: float
    seconds_min: float
    seconds_max: float
    seconds_per_run: float
    batches: int
    batches_timed: int

    @property
    def partial(self) -> bool:
        return self.batches_timed < self.batches


@dataclass(frozen=True)
class StepRow:
    """One training step of ResNet-18; bfloat16 is autocast, as networks are trained."""

    network: str
    dtype: str
    layout: str
    batch: int
    size: int
    step: Timing
    memory: Memory | None


def measure_epochs(settings: Settings, tick: Tick) -> list[EpochRow]:
    """Train the networks of the paper's Table 1 for as many epochs as there are repeats, in turns."""
    batches = DataConfig().train // TrainingConfig().batch
    timed = batches if settings.on_gpu else min(CPU_BATCHES, batches)
    with _fast_products(settings.on_gpu):
        groups = {
            (model, runs): _together(model, settings, runs, timed)
            for runs in ((1, TOGETHER) if settings.on_gpu else (1,))
            for model in MODELS
        }
        works = {key: repeated(_epoch(group)) for key, group in groups.items()}
        times = time_in_turns(works, settings.device, settings.repeats, lambda: tick("the paper's networks"), warm_up=1)
    rows = []
    for (model, runs), timing in times.items():
        whole = batches / timed / 1000
        seconds, least, most = (value * whole for value in (timing.median_ms, timing.min_ms, timing.max_ms))
        rows.append(EpochRow(model, runs, seconds, least, most, seconds / runs, batches, timed))
    return rows


def _epoch(group: Together) -> Callable[[], None]:
    return lambda: group.epoch(1)


def _together(model: str, settings: Settings, runs: int, batches: int) -> Together:
    size, recipe = DataConfig().size, TrainingConfig()
    trainers = []
    for run in range(runs):
        torch.manual_seed(run)
        network = make_model(model, NetworkConfig().shape(size), settings.scales).to(settings.device)
        images = torch.randn(batches * recipe.batch, 1, size, size, device=settings.device)
        labels = torch.randint(10, (len(images),), device=settings.device)
        trainers.append(Trainer(network, images, labels, recipe, seed=0, fold=run))
    return Together(trainers)


@contextmanager
def _fast_products(wanted: bool) -> Iterator[None]:
    """TF32 in all products, as the experiments have it on a GPU."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_steps(settings: Settings, tick: Tick) -> list[StepRow]:
    """Train ResNet-18, plain and converted, in turns."""
    batch, size = RESNET_IMAGES if settings.on_gpu else CPU_RESNET_IMAGES
    rows = []
    for dtype in settings.dtypes:
        for layout in settings.layouts:
            makers = {"plain": make_resnet18, "converted": lambda: convert(make_resnet18(), scales=settings.scales)}
            memory: dict[str, Memory | None] = {}
            for name, make in makers.items():
                memory[name] = _peak(_Step(make(), batch, size, dtype, layout, settings.device))
            steps = {name: _Step(make(), batch, size, dtype, layout, settings.device) for name, make in makers.items()}
            works = {name: repeated(captured(step) if settings.graph else step) for name, step in steps.items()}
            times = time_in_turns(works, settings.device, settings.repeats, lambda: tick("ResNet-18"))
            rows += [StepRow(name, dtype, layout, batch, size, times[name], memory[name]) for name in makers]
    return rows


class _Step:
    """One training step, to be called again and again."""

    def __init__(self, network: nn.Module, batch: int, size: int, dtype: str, layout: str, device: str) -> None:
        self.network = network.to(device, memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
        random = torch.Generator(device).manual_seed(0)
        images = torch.randn(batch, 3, size, size, generator=random, device=device)
        self.images = images.to(memory_format=LAYOUTS[layout])
        self.labels = torch.randint(CLASSES, (batch,), generator=random, device=device)
        self.optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        self.dtype, self.device = DTYPES[dtype], device

    def __call__(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        kind, mixed = torch.device(self.device).type, self.dtype != torch.float32
        with torch.autocast(kind, self.dtype if mixed else torch.bfloat16, enabled=mixed):
            logits = self.network(self.images)
        F.cross_entropy(logits.float(), self.labels).backward()
        self.optimiser.step()


def _peak(step: _Step) -> Memory | None:
    """Memory of a step, once the momenta and all that is made on the first calls are there."""
    if torch.device(step.device).type == "cuda":
        for _ in range(2):
            step()
    return peak_memory(step, step.device)
