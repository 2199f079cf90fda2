"""All that a result depends on: frozen dataclasses that check their values, one for each section of the settings."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..data import parse_scales
from ..data.datasets import PARTS
from ..data.digits import ALL
from ..data.scaled import INTERPOLATIONS, TRUNCATIONS
from ..metrics import NEURONS
from ..models import CROPPED_SCALES, LATER, UNSCALED, UNSUPERVISED, Recipe, Shape, make_later_model, make_model
from ..models import TITLES as NETWORKS
from ..models.alignment import ALIGNMENTS, BORDERS
from ..models.rbm import ENLARGING_SCALES
from ..models.unsupervised import PENALTIES
from ..nn.scale_invariant import NORMS, SIZES
from ..ops.checks import as_number, check_choice, check_count
from ..ops.levels import POOLS
from ..ops.signature import DEFAULT_SCALES, check_scales
from .parsing import brief

# All methods in the order of the paper's table: RBMs, networks, then the control on pixels, which the paper lacks.
RBMS = {name: UNSUPERVISED[name] for name in ("rbm", "si_rbm")}
TITLES = {**RBMS, **NETWORKS, **LATER, "pixels": UNSUPERVISED["pixels"]}
TRAINING_CHOICES = {
    "optimizer": ("sgd", "adam", "adamw"),
    "keep": ("last", "best", "average"),
    "rescale_law": ("log", "uniform"),
    "precision": ("float32", "bfloat16"),
}
SETTLED_EPOCHS = 10
LARGEST_CANVAS = 512  # 10,000 digits of this size take 10 GB
LARGEST_SEED = 2**63 - 1

# What can be measured on a trained network, by name; `measures.py` registers its functions here.
MEASURES: dict[str, Callable[..., Any]] = {}

# The sections that the result of a model depends on.
NETWORK_SECTIONS = ("data", "network", "training", "measure")
FEATURE_SECTIONS = {
    "rbm": ("data", "rbm", "softmax"),
    "si_rbm": ("data", "si_rbm", "softmax"),
    "pixels": ("data", "softmax"),
}


def sections(model: str) -> tuple[str, ...]:
    """The sections of `Settings` that the result of a model depends on."""
    return FEATURE_SECTIONS.get(model, NETWORK_SECTIONS)


@dataclass(frozen=True)
class DataConfig:
    """The digits, and which of them train and test in a fold.

    Attributes:
        dataset: `mnist`, `fashion` or `embedded`.
        part: `train`, `test` or `all` of its digits; empty for the training digits, or the only ones there are.
        scales: distribution of the digits' scales, as `parse_scales` reads it.
        interpolation: `bilinear` or `bicubic`, of the scaled digits.
        smoothed: whether digits are smoothed in proportion to their scale and contrasted, as in MNIST Large Scale.
        shifted: whether a digit lies anywhere on the canvas, and not in its middle.
        size: side of the canvas.
        seed: of the scales.
        train: digits to train on.
        test: digits to test on. Each fold draws its own, then its training digits among the rest. 0 divides all digits
            into sets of `train`: fold k trains on set k and tests on the other sets.
        val: digits that are neither trained nor tested on, to choose the network that counts; only with `test`.
        stratified: whether training, validation and test digits have the shares of the classes that all have; only with
            `test`.
        sets: how many sets.
        fold_seed: of the order in which digits are drawn; below 0, sets are filled in the order of the file.
        truncate: `error` refuses to cut off foreground at the edge of the canvas, `allow` cuts it.
        tested: how many of the test digits are tested on, the first ones; 0 for all.
        held_out: test on this many of the training digits instead of the test digits, and train on the rest. For
            choosing settings. 0 for none.
        scene: most digits in an image. 0 for one digit in its middle and one label; else as many scenes as digits are
            made of them, with a label per pixel.
        pieces: most pieces of digits in a scene, as clutter.
        noise: standard deviation of what is added to the pixels of a scene.
    """

    dataset: str = "mnist"
    part: str = ""
    scales: str = "uniform:0.3,1"
    interpolation: str = "bilinear"
    smoothed: bool = False
    shifted: bool = False
    size: int = 28
    seed: int = 0
    train: int = 10_000
    test: int = 0
    val: int = 0
    stratified: bool = False
    sets: int = 6
    fold_seed: int = 0
    truncate: str = "error"
    tested: int = 0
    held_out: int = 0
    scene: int = 0
    pieces: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        parse_scales(self.scales)
        check_least(self, 1, "size", "train")
        counts = ("test", "val", "tested", "held_out", "scene", "pieces", "noise", "seed")
        check_least(self, 0, *counts, *(("fold_seed",) if self.test else ()))
        check_finite(self, "noise")
        check_most(self, LARGEST_CANVAS, "size")
        check_most(self, LARGEST_SEED, "seed", "fold_seed")
        if self.held_out >= self.train:
            raise ValueError(f"`held_out` (={self.held_out}) must leave some of the digits to train on (={self.train})")
        check_least(self, 2, "sets")
        if (self.val or self.stratified) and not self.test:
            raise ValueError(f"`test` must be above 0 with `val` (={self.val}) or `stratified` (={self.stratified})")
        check_choice("truncate", self.truncate, TRUNCATIONS)
        check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        if self.part:
            check_choice("part", self.part, (*PARTS, ALL))


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and scales of the networks.

    Attributes:
        maps: feature maps of the stages: two, or three for the networks of the later literature.
        kernel: side of the first kernel.
        hidden: units of the fully connected layer.
        scales: of every network that has any, but for cropped layers.
        cropped_scales: of cropped layers.
        second_scales: of the second layer of the SI-ConvNet; `scales` if empty.
        antialias: whether scale-invariant layers smooth an image before they shrink it.
        align, border: rules of the layers of the SI-ConvNet, as `AlignedSIConv2d` has them; the defaults are those of
            `SIConv2d`.
        upsample, dropout, pool, norm, levels: of the networks of the later literature, as `make_later_model` has them.
    """

    maps: tuple[int, ...] = (36, 64)
    kernel: int = 7
    hidden: int = 150
    scales: tuple[float, ...] = DEFAULT_SCALES
    cropped_scales: tuple[float, ...] = CROPPED_SCALES
    second_scales: tuple[float, ...] = ()
    antialias: bool = False
    align: str = "exact"
    border: str = "absent"
    upsample: int = 1
    dropout: float = 0.7
    pool: str = "max"
    norm: str = "joint"
    levels: str = "input"

    def __post_init__(self) -> None:
        check_scales(self.scales)
        check_scales(self.cropped_scales, "cropped_scales")
        choices = {"align": ALIGNMENTS, "border": BORDERS, "pool": POOLS, "norm": NORMS, "levels": SIZES}
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)
        if self.antialias and (self.align, self.border) != ("exact", "absent"):
            raise ValueError(f"`antialias` must be off with `align` (={self.align}) and `border` (={self.border})")
        if self.second_scales:
            check_scales(self.second_scales, "second_scales")
        if len(self.maps) not in (2, 3) or min(self.maps) < 1:
            raise ValueError(f"`maps` must be two or three positive numbers, got {list(self.maps)}")
        check_least(self, 1, "kernel", "hidden", "upsample")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must lie between 0 and 1, below 1, got {self.dropout}")

    def check_stages(self, model: str) -> None:
        """Refuse a number of maps that is not that of the network's stages."""
        if (stages := 3 if model in LATER else 2) != len(self.maps):
            raise ValueError(f"`maps` must be {stages} numbers for {model}, got {list(self.maps)}")

    def shape(self, size: int) -> Shape:
        """Of the paper's networks, for images of a size."""
        return Shape((self.maps[0], self.maps[1]), self.kernel, size, self.hidden)

    def make(self, model: str, size: int) -> nn.Module:
        """Make the network of this name for images of a size."""
        self.check_stages(model)
        if model in LATER:
            return make_later_model(
                model,
                size,
                (self.maps[0], self.maps[1], self.maps[2]),
                self.scales,
                cropped_scales=self.cropped_scales,
                upsample=self.upsample,
                dropout=self.dropout,
                antialias=self.antialias,
                pool=self.pool,
                norm=self.norm,
                levels=self.levels,
            )
        return make_model(
            model,
            self.shape(size),
            self.scales,
            second_scales=self.second_scales,
            antialias=self.antialias,
            align=self.align,
            border=self.border,
        )


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe of training, the same for all networks of a comparison.

    Attributes:
        epochs: at most.
        settled: the training loss of a network that has learned its digits. Training ends after `SETTLED_EPOCHS` epochs
            in a row whose mean loss is not above it. 0 never ends it early.
        steps: in an epoch, whatever the number of digits. 0 makes an epoch one pass over the training digits.
        batch: digits in a step; the last, partial batch of a pass is left out.
        optimizer: `sgd`, `adam` or `adamw`.
        learning_rate: at the start.
        drops: epochs after which the rate is a tenth of what it was.
        cosine: whether it falls to 0 along a cosine instead.
        momentum: of the gradient, for `sgd`.
        weight_decay: of the weights; biases and norms have none.
        bias_rate: learning rate of biases and norms, in units of `learning_rate`.
        smoothing: of the labels.
        keep: which network counts: the `last` one, the `best` on the validation digits, or the running `average` of the
            weights.
        average: decay of that average; in the first steps k it is at most (1 + k) / (10 + k).
        augment: whether every network sees every digit rescaled by another factor in each step; else the ConvNet with
            augmentation alone does.
        rescale: the least and the largest of these factors.
        rescale_law: `log` halves a digit as often as it doubles it, `uniform` draws evenly between the two.
        precision: `float32`, or `bfloat16` for mixed precision.
        evaluate_every: epochs between two tests; the last epoch is always tested.
        checkpoint_every: epochs between two checkpoints; more if these take less than five seconds.
    """

    epochs: int = 700
    settled: float = 0.0
    steps: int = 0
    batch: int = 128
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    drops: tuple[int, ...] = ()
    cosine: bool = False
    momentum: float = 0.9
    weight_decay: float = 1e-4
    bias_rate: float = 2.0
    smoothing: float = 0.0
    keep: str = "last"
    average: float = 0.999
    augment: bool = False
    rescale: tuple[float, ...] = (0.5, 2.0)
    rescale_law: str = "log"
    precision: str = "float32"
    evaluate_every: int = 10
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        check_least(self, 1, "epochs", "batch", "evaluate_every", "checkpoint_every")
        check_least(self, 0, "settled", "steps", "learning_rate", "momentum", "weight_decay", "bias_rate")
        check_finite(self, "settled", "learning_rate", "momentum", "weight_decay", "bias_rate")
        if len(self.rescale) != 2 or not 0 < self.rescale[0] <= self.rescale[1] < math.inf:
            raise ValueError(
                f"`rescale` must be two finite factors above 0, the smaller first, got {list(self.rescale)}"
            )
        if min(self.drops, default=1) < 1:
            raise ValueError(f"`drops` must be epochs, from 1 on, got {list(self.drops)}")
        for name, known in TRAINING_CHOICES.items():
            check_choice(name, getattr(self, name), known)
        for name in ("smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must lie between 0 and 1, below 1, got {getattr(self, name)}")
        if self.cosine and (self.drops or self.settled):
            raise ValueError(
                f"`cosine` must be off with `drops` (={list(self.drops)}) or `settled` (={self.settled:g}), got True"
            )

    @property
    def varies(self) -> bool:
        """Whether the learning rate changes."""
        return self.cosine or bool(self.drops)

    def rate_at(self, step: int, per_epoch: int) -> float:
        """The learning rate of a step, counted from 0, in units of that of the first.

        Example:
            >>> recipe = TrainingConfig(epochs=4, drops=(2, 3))
            >>> [round(recipe.rate_at(step, 10), 2) for step in (0, 19, 20, 30, 39)]
            [1.0, 1.0, 0.1, 0.01, 0.01]
        """
        if self.cosine:
            return (1 + math.cos(math.pi * step / (self.epochs * per_epoch))) / 2
        return 0.1 ** sum(step >= epoch * per_epoch for epoch in self.drops)

    def rescale_factors(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Factors by which digits are rescaled, from numbers between 0 and 1."""
        least, most = self.rescale
        return least * (most / least) ** draws if self.rescale_law == "log" else least + (most - least) * draws

    def ended(self, losses: Sequence[float]) -> bool:
        """Whether training is over after epochs with these mean losses."""
        latest = losses[-SETTLED_EPOCHS:]
        settled = self.settled > 0 and len(latest) == SETTLED_EPOCHS and max(latest) <= self.settled
        return settled or len(losses) >= self.epochs


@dataclass(frozen=True)
class MeasureConfig:
    """What is measured on a trained network besides its test error.

    Attributes:
        kind: a name in `MEASURES`; empty for nothing.
        scales: factors by which digits are rescaled for it.
        layers: names of the modules whose output is measured.
        digits: how many of the test digits it is measured on; 0 for all.
        size: for errors at test scales, the side of the images; 0 for that of the training images.
        neuron: for invariance, what counts as a neuron of a map: `position` for every number in it, `centre` for those
            at its centre, `channel` for the maximum of each channel.
        digits_at: the one scale of the digits that are rescaled for invariance; 0 for each digit's own.
        firing: for invariance, the share of the images that a neuron fires to.
        top: for invariance, the share of a layer's neurons that is averaged, the most invariant first.
    """

    kind: str = ""
    scales: tuple[float, ...] = ()
    layers: tuple[str, ...] = ()
    digits: int = 0
    size: int = 0
    neuron: str = "position"
    digits_at: float = 0.0
    firing: float = 0.01
    top: float = 0.2

    def __post_init__(self) -> None:
        if self.kind:
            check_choice("kind", self.kind, tuple(MEASURES))
        check_least(self, 0, "digits", "size", "digits_at")
        if self.size and self.kind != "test_scales":
            raise ValueError(f"`size` must be 0 unless `kind` (={self.kind}) is test_scales, got {self.size}")
        check_finite(self, "digits_at")
        check_choice("neuron", self.neuron, tuple(NEURONS))
        for name in ("firing", "top"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must lie above 0 and not above 1, got {getattr(self, name)}")
        if self.kind and not (self.scales and all(0 < scale < math.inf for scale in self.scales)):
            raise ValueError(f"`scales` must hold positive, finite factors for {self.kind}, got {list(self.scales)}")


@dataclass(frozen=True)
class RBMConfig(Recipe):
    """The recipe of an RBM, and `hidden`, the number of its units."""

    hidden: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("hidden", self.hidden)


@dataclass(frozen=True)
class SIRBMConfig(RBMConfig):
    """The same for the scale-invariant RBM, and the `scales` of its transforms."""

    scales: tuple[float, ...] = ENLARGING_SCALES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self.scales)


@dataclass(frozen=True)
class SoftmaxConfig:
    """The classifier.

    Attributes:
        penalties: of its squared weights, to choose from.
        held_out: the part of the training digits on which the penalty is chosen.
    """

    penalties: tuple[float, ...] = PENALTIES
    held_out: float = 0.2

    def __post_init__(self) -> None:
        if not self.penalties or not all(0 <= penalty < math.inf for penalty in self.penalties):
            raise ValueError(
                f"`penalties` must hold at least one, all finite and none below 0, got {list(self.penalties)}"
            )
        if not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` must lie between 0 and 1, got {self.held_out}")


@dataclass(frozen=True)
class Settings:
    """All that the result of a run depends on, besides its model, fold and seed. A model uses some of the sections."""

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    rbm: RBMConfig = field(default_factory=RBMConfig)
    si_rbm: SIRBMConfig = field(default_factory=SIRBMConfig)
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)

    def as_dict(self, model: str) -> dict[str, Any]:
        """The sections a model uses, as plain values: what goes into its record."""
        used = {name: asdict(getattr(self, name)) for name in sections(model)}
        values: dict[str, Any] = json.loads(json.dumps(used))
        return values

    def of_result(self, model: str) -> dict[str, Any]:
        """What the result depends on: not how often a run is tested and saved, nor scales that the network lacks."""
        values = self.as_dict(model)
        if model in UNSCALED:
            del values["network"]["scales"]
        for name in ("evaluate_every", "checkpoint_every"):
            values.get("training", {}).pop(name, None)
        return values

    def of_weights(self, model: str) -> dict[str, Any]:
        """What the trained weights depend on: not what is measured on them."""
        return {name: values for name, values in self.of_result(model).items() if name != "measure"}

    def epochs(self, model: str) -> int:
        """Entries in the history of a run; the softmax on pixels is trained in one go."""
        if model == "pixels":
            return 1
        return {"rbm": self.rbm, "si_rbm": self.si_rbm}.get(model, self.training).epochs


def check_least(config: Any, least: float, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise ValueError(f"`{name}` must be at least {least}, got {getattr(config, name)}")


def check_most(config: Any, most: float, *names: str) -> None:
    for name in names:
        if getattr(config, name) > most:
            raise ValueError(f"`{name}` must be at most {most}, got {getattr(config, name)}")


def check_finite(config: Any, *names: str) -> None:
    """Refuse what a record cannot hold: infinity, NaN, and an integer that is too large for a float."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, Real) and not isinstance(value, bool)  # what is none is refused elsewhere
        if number and not math.isfinite(as_number(value, name)):
            raise ValueError(f"`{name}` must be finite, got {brief(value)}")
