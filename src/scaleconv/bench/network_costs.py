"""Whole networks: a training step and the inference of a batch, called as usual and, on a GPU, as CUDA graphs.

The images and weights are random; what is learned does not matter. ResNet-18 (He et al., 2016) has dense 3×3
convolutions. `depthwise` has the depthwise convolutions of MobileNetV2 (Sandler et al., 2018; 3×3, strides 1 and 2) and
of ConvNeXt (Liu et al., 2022; 7×7). Both are measured plain and converted. `paper` are the networks of the paper's
Table 1 on digits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models import ConvNet, HierarchicalConvNet
from ..models.resnet import CLASSES, make_head, make_resnet18
from ..models.staged import EXPANSION, Residual, inverted
from ..nn import convert
from ..timing import Memory, Timing, Workload, captured, compare, repeated
from .shapes import DTYPES, LAYOUTS, Settings, Tick

TRAINING, INFERENCE = "training", "inference"
PAPER, DIGIT, DIGITS = "paper", 28, 128  # the side of a digit, and the batch of the paper's recipe
VARIANTS = {  # the first is what the others are compared with
    "resnet18": ("plain", "converted"),
    "depthwise": ("plain", "converted"),
    PAPER: ("convnet", "si_convnet", "hierarchical"),
}


@dataclass(frozen=True)
class StepRow:
    """A training step, or the inference of a batch, of one network.

    Attributes:
        network, variant: as in `VARIANTS`.
        task: `training` or `inference`.
        dtype: bfloat16 is autocast, as networks are usually trained.
        layout, batch, size: of the images.
        eager: the step called as usual.
        graph: replays of its CUDA graph; None on a CPU.
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


class Step:
    """A training step, or the inference of a batch, to be called again and again."""

    def __init__(self, network: nn.Module, task: str, images: Tensor, dtype: str, layout: str) -> None:
        self.network = network.to(images.device, memory_format=LAYOUTS[layout]).train(task == TRAINING)  # type: ignore[call-overload]
        self.images = images.to(memory_format=LAYOUTS[layout])
        self.labels = torch.arange(len(images), device=images.device) % 10
        self.optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        self.dtype = DTYPES[dtype]

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


def step_tasks(settings: Settings, network: str) -> list[tuple[str, int]]:
    """(task, batch) of everything measured of a network."""
    own = DIGITS if network == PAPER else 32 if settings.on_gpu else 2
    return [(TRAINING, settings.batch or own), *((INFERENCE, batch) for batch in ((1,) if settings.on_gpu else (1, 8)))]


def measure_steps(settings: Settings, tick: Tick) -> list[StepRow]:
    """Measure training and inference of every network, its variants interleaved."""
    rows: list[StepRow] = []
    for network, dtype, layout in product(VARIANTS, settings.dtypes, settings.layouts):
        size = DIGIT if network == PAPER else settings.image_size
        for task, batch in step_tasks(settings, network):
            shape = (batch, 1 if network == PAPER else 3, size, size)
            kind = (task, shape, dtype, layout)
            candidates = {each: partial(_make_step, settings, network, each, *kind) for each in VARIANTS[network]}
            timed = partial(_workloads, on_gpu=settings.on_gpu)
            found = compare(candidates, timed, settings.device, settings.repeats, partial(tick, f"{network}, {task}"))
            setting = (task, dtype, layout, batch, size)
            rows += [StepRow(network, variant, *setting, **measured) for variant, measured in found.items()]
    return rows


def _make_step(
    settings: Settings, network: str, variant: str, task: str, shape: tuple[int, ...], dtype: str, layout: str
) -> Step:
    random = torch.Generator(settings.device).manual_seed(0)
    images = torch.randn(shape, generator=random, device=settings.device)
    return Step(make_network(network, variant, settings.scales), task, images, dtype, layout)


def _workloads(make: Callable[[], Step], *, on_gpu: bool) -> dict[str, Workload]:
    return {"eager": repeated(make())} | ({"graph": repeated(captured(make()))} if on_gpu else {})


def make_network(network: str, variant: str, scales: tuple[float, ...]) -> nn.Module:
    """One of `VARIANTS`, always with the same weights."""
    torch.manual_seed(0)
    if network == PAPER:
        if variant == "hierarchical":
            return HierarchicalConvNet(scales=scales)
        return ConvNet() if variant == "convnet" else convert(ConvNet(), include="*", scales=scales)
    plain = make_resnet18() if network == "resnet18" else make_depthwise_network()
    return plain if variant == "plain" else convert(plain, include="*", scales=scales)


def make_large_kernel(channels: int) -> nn.Module:
    """ConvNeXt's block, with BatchNorm: depthwise 7×7, then 1×1 to more channels and back, and a shortcut."""
    inner = EXPANSION * channels
    body = nn.Sequential(
        *(nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.BatchNorm2d(channels)),
        *(nn.Conv2d(channels, inner, 1), nn.GELU(), nn.Conv2d(inner, channels, 1)),
    )
    return Residual(body, channels, channels, 1)


def make_depthwise_network() -> nn.Sequential:
    """Inverted residuals with depthwise 3×3 and, at an eighth of the image's size, three blocks of depthwise 7×7."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
        *(inverted(32, 24, 2), inverted(24, 24, 1)),
        *(inverted(24, 96, 2), make_large_kernel(96), make_large_kernel(96), make_large_kernel(96)),
        *(inverted(96, 160, 2), inverted(160, 160, 1)),
        *(inverted(160, 192, 2), inverted(192, 192, 1)),
        *make_head(192, CLASSES),
    )
