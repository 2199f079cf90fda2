"""Whole networks: an epoch of the paper's networks; training and inference of larger ones, plain and converted.

The images are random; what is learned does not matter. The paper's networks are trained by the code and the recipe of
the experiments, on a GPU also several runs at once. The larger ones have the shape of well-known networks and random
weights: ResNet-18 (He et al., 2016) has dense 3×3 convolutions; the other one has the depthwise convolutions of
MobileNetV2 (Sandler et al., 2018; 3×3, strides 1 and 2) and of ConvNeXt (Liu et al., 2022; 7×7).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..experiments.config import DataConfig, NetworkConfig, TrainingConfig
from ..experiments.sgd import Trainer, TrainerGroup
from ..metrics.timing import Memory, Timing, Workload, captured, compare, repeated, time_interleaved
from ..models import make_model
from ..models.resnet import CLASSES, make_head, make_resnet18
from ..nn import convert
from .settings import DTYPES, LAYOUTS, Settings, Tick

MODELS = ("convnet", "si_convnet", "hierarchical")
RUNS_AT_ONCE = 6  # the folds of the paper's Table 1
CPU_BATCHES = 8  # of an epoch's 78, which would take minutes
TRAINING, INFERENCE = "training", "inference"
VARIANTS = ("plain", "converted")
EXPANSION = 4  # of the channels inside a depthwise block


@dataclass(frozen=True)
class EpochRow:
    """Seconds of one epoch of a network of the paper.

    Attributes:
        model: its name in `scaleconv.models.TITLES`.
        runs: how many were trained at once.
        seconds: of one epoch of all of them, the median over the repeats.
        seconds_min, seconds_max: minimum and maximum over the repeats.
        seconds_per_run: `seconds` divided by `runs`.
        batches: in an epoch.
        batches_timed: how many of them were timed.
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
            (model, runs): _trainers(model, settings, runs, timed)
            for runs in ((1, RUNS_AT_ONCE) if settings.on_gpu else (1,))
            for model in MODELS
        }
        workloads = {key: repeated(partial(group.epoch, 1)) for key, group in groups.items()}
        times = time_interleaved(
            workloads, settings.device, settings.repeats, lambda: tick("the paper's networks"), warm_up=1
        )
    rows = []
    for (model, runs), timing in times.items():
        whole = batches / timed / 1000
        seconds, least, most = (value * whole for value in (timing.median_ms, timing.min_ms, timing.max_ms))
        rows.append(EpochRow(model, runs, seconds, least, most, seconds / runs, batches, timed))
    return rows


def _trainers(model: str, settings: Settings, runs: int, batches: int) -> TrainerGroup:
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
    """One setting: both variants of the network."""

    def make(variant: str) -> Step:
        model: nn.Module = NETWORKS[network]()
        model = model if variant == "plain" else convert(model, scales=settings.scales)
        return Step(model, task, batch, settings.image_size, dtype, layout, settings.device)

    def workloads(made: Callable[[], Step]) -> Mapping[str, Workload]:
        eager = {"eager": repeated(made())}
        return eager | {"graph": repeated(captured(made()))} if settings.on_gpu and task == TRAINING else eager

    candidates = {variant: partial(make, variant) for variant in VARIANTS}
    progress = f"{network}, {task}"
    measured = compare(candidates, workloads, settings.device, settings.repeats, lambda: tick(progress))
    setting = (task, dtype, layout, batch, settings.image_size)
    return [StepRow(network, variant, *setting, **found.fields()) for variant, found in measured.items()]


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


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1×1 to more channels, depthwise 3×3, 1×1 to fewer; a shortcut where the shape stays."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        inner = EXPANSION * in_channels
        self.body = nn.Sequential(
            *(nn.Conv2d(in_channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False),
            *(nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )
        self.shortcut = stride == 1 and in_channels == channels

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.body(input)
        return input + output if self.shortcut else output


class LargeKernelBlock(nn.Module):
    """ConvNeXt's block, with BatchNorm: depthwise 7×7, then 1×1 to more channels and back, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = EXPANSION * channels
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.BatchNorm2d(channels)),
            *(nn.Conv2d(channels, inner, 1), nn.GELU(), nn.Conv2d(inner, channels, 1)),
        )

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.body(input)
        return input + output


def _resnet18() -> nn.Sequential:
    """ResNet-18, always with the same weights."""
    torch.manual_seed(0)
    return make_resnet18()


def make_depthwise_network() -> nn.Sequential:
    """Inverted residuals with depthwise 3×3 and, at an eighth of the image's size, three blocks of depthwise 7×7.

    Always with the same weights.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
        *(InvertedResidual(32, 24, 2), InvertedResidual(24, 24, 1)),
        *(InvertedResidual(24, 96, 2), LargeKernelBlock(96), LargeKernelBlock(96), LargeKernelBlock(96)),
        *(InvertedResidual(96, 160, 2), InvertedResidual(160, 160, 1)),
        *(InvertedResidual(160, 192, 2), InvertedResidual(192, 192, 1)),
        *make_head(192, CLASSES),
    )


NETWORKS = {"resnet18": _resnet18, "depthwise": make_depthwise_network}
