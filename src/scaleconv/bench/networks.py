"""Whole networks: an epoch of the paper's networks; training and inference of larger ones, plain and converted.

The images are random; what is learned does not matter. The paper's networks are trained by the code and the recipe of
the experiments, on a GPU also several runs at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..experiments.config import DataConfig, NetworkConfig, TrainingConfig
from ..experiments.sgd import Trainer, TrainerGroup, captured
from ..models import make_model
from ..nn import convert
from .layers import one_line
from .network_shapes import CLASSES, NETWORKS
from .settings import DTYPES, LAYOUTS, Settings
from .timing import Memory, Tick, Timing, Workload, peak_memory, repeated, time_interleaved

MODELS = ("convnet", "si_convnet", "hierarchical")
TOGETHER = 6  # the folds of the paper's Table 1
CPU_BATCHES = 8  # of an epoch's 78, which would take minutes
TRAINING, INFERENCE = "training", "inference"
VARIANTS = ("plain", "converted")


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
    """A training step, or the inference of a batch, of one network.

    Attributes:
        network: its name in `NETWORKS`.
        variant: `plain`, or `converted` to scale-invariant layers.
        task: `training` or `inference`.
        dtype: bfloat16 is autocast, as networks are usually trained.
        layout, batch, size: of the images.
        eager: the step called as usual.
        graph: replays of a training step's CUDA graph; None on a CPU.
        memory: None on a CPU.
        error: why nothing was measured; None if all went well.
    """

    network: str
    variant: str
    task: str
    dtype: str
    layout: str
    batch: int
    size: int
    eager: Timing | None = None
    graph: Timing | None = None
    memory: Memory | None = None
    error: str | None = None


def measure_epochs(settings: Settings, tick: Tick) -> list[EpochRow]:
    """Train the networks of the paper's Table 1 for as many epochs as there are repeats, interleaved."""
    batches = DataConfig().train // TrainingConfig().batch
    timed = batches if settings.on_gpu else min(CPU_BATCHES, batches)
    with _fast_products(settings.on_gpu):
        groups = {
            (model, runs): _together(model, settings, runs, timed)
            for runs in ((1, TOGETHER) if settings.on_gpu else (1,))
            for model in MODELS
        }
        workloads = {key: repeated(_epoch(group)) for key, group in groups.items()}
        times = time_interleaved(
            workloads, settings.device, settings.repeats, lambda: tick("the paper's networks"), warm_up=1
        )
    rows = []
    for (model, runs), timing in times.items():
        whole = batches / timed / 1000
        seconds, least, most = (value * whole for value in (timing.median_ms, timing.min_ms, timing.max_ms))
        rows.append(EpochRow(model, runs, seconds, least, most, seconds / runs, batches, timed))
    return rows


def _epoch(group: TrainerGroup) -> Callable[[], None]:
    return lambda: group.epoch(1)


def _together(model: str, settings: Settings, runs: int, batches: int) -> TrainerGroup:
    size, recipe = DataConfig().size, TrainingConfig()
    trainers = []
    for run in range(runs):
        torch.manual_seed(run)
        network = make_model(model, NetworkConfig().shape(size), settings.scales).to(settings.device)
        images = torch.randn(batches * recipe.batch, 1, size, size, device=settings.device)
        labels = torch.randint(10, (len(images),), device=settings.device)
        trainers.append(Trainer(network, images, labels, recipe, seed=0, fold=run))
    return TrainerGroup(trainers)


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


def step_tasks(settings: Settings) -> list[tuple[str, int]]:
    """(task, batch) of everything measured of a network."""
    training, inference = (32, (1,)) if settings.on_gpu else (2, (1, 8))
    return [(TRAINING, settings.batch or training), *((INFERENCE, batch) for batch in inference)]


def measure_steps(settings: Settings, tick: Tick) -> list[StepRow]:
    """Measure training and inference of every network, plain and converted interleaved."""
    rows: list[StepRow] = []
    for network in NETWORKS:
        for dtype in settings.dtypes:
            for layout in settings.layouts:
                for task, batch in step_tasks(settings):
                    rows += _measure_step(settings, network, task, dtype, layout, batch, tick)
    return rows


def _measure_step(
    settings: Settings, network: str, task: str, dtype: str, layout: str, batch: int, tick: Tick
) -> list[StepRow]:
    """One setting: the memory of each variant while it is alone, then the times of both."""

    def make(variant: str) -> Step:
        model: nn.Module = NETWORKS[network]()
        model = model if variant == "plain" else convert(model, scales=settings.scales)
        return Step(model, task, batch, settings.image_size, dtype, layout, settings.device)

    memory: dict[str, Memory | None] = {}
    workloads: dict[tuple[str, str], Workload] = {}
    errors: dict[str, str] = {}
    for variant in VARIANTS:
        try:
            memory[variant] = _peak(make(variant))
        except RuntimeError as error:
            errors[variant] = one_line(error)
    for variant in VARIANTS:
        if variant not in errors:
            try:
                made = {"eager": repeated(make(variant))}
                if settings.on_gpu and task == TRAINING:
                    made["graph"] = repeated(captured(make(variant)))
                workloads |= {(variant, field): workload for field, workload in made.items()}
            except RuntimeError as error:
                errors[variant] = one_line(error)
    times = time_interleaved(workloads, settings.device, settings.repeats, lambda: tick(f"{network}, {task}"))
    setting = (task, dtype, layout, batch, settings.image_size)
    rows = []
    for variant in VARIANTS:
        eager, graph = (times.get((variant, field)) for field in ("eager", "graph"))
        rows.append(StepRow(network, variant, *setting, eager, graph, memory.get(variant), errors.get(variant)))
    return rows


class Step:
    """A training step, or the inference of a batch, to be called again and again."""

    def __init__(
        self, network: nn.Module, task: str, batch: int, size: int, dtype: str, layout: str, device: str
    ) -> None:
        self.network = network.to(device, memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
        self.network.train(task == TRAINING)
        random = torch.Generator(device).manual_seed(0)
        images = torch.randn(batch, 3, size, size, generator=random, device=device)
        self.images = images.to(memory_format=LAYOUTS[layout])
        self.labels = torch.randint(CLASSES, (batch,), generator=random, device=device)
        self.optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        self.dtype, self.device = DTYPES[dtype], device

    def __call__(self) -> None:
        if not self.network.training:
            with torch.no_grad():
                self.logits()
            return
        self.optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(self.logits().float(), self.labels).backward()
        self.optimiser.step()

    def logits(self) -> Tensor:
        mixed = self.dtype != torch.float32
        with torch.autocast(self.images.device.type, self.dtype if mixed else torch.bfloat16, enabled=mixed):
            output: Tensor = self.network(self.images)
        return output


def _peak(step: Step) -> Memory | None:
    """Memory of a step, after those that plan, compile and make the momenta."""
    for _ in range(2 if step.images.is_cuda else 1):
        step()
    return peak_memory(step, step.device)
