"""All that the result of a run depends on: one type each for the data, the network, the training and the measure.

A file holds them as tables of TOML or JSON. `read` makes them, and refuses an unknown key, a wrong type or a value out
of its range with a message that names the key, the rule and the value. Rules that join two keys are in the types.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from ..data import parse_scales
from ..data.augment import check_augmentations
from ..data.icons import SIZES
from ..models import CROPPED_SCALES, NETWORKS
from ..models.networks import TASKS
from ..models.rbm import ENLARGING_SCALES
from ..ops.call import DEFAULT_SCALES, check_scales

T = TypeVar("T")

SETTLED_EPOCHS = 10
LARGEST_CANVAS = 512  # 10,000 digits of this size take 10 GB
LARGEST_SEED = 2**63 - 1
LONGEST_REASON = 300  # characters

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_SEED)]
Number = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Part = Annotated[float, Meta(gt=0, le=1)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of settings."""


class DigitData(Section, frozen=True, tag_field="source", tag="digits"):
    """Scaled digits, and which of them train and test in a fold.

    Attributes:
        dataset: the digits as published; `embedded` are the 10,000 in the package.
        part: `train`, `test` or `all` of them; empty for the training digits, or the only ones there are.
        scales: distribution of the digits' scales, as `parse_scales` reads it.
        interpolation: of the scaled digits.
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
        seen: how many digits earlier trials may have seen: all those that fold 0 takes as long as this is 0. Every fold
            then tests on all other digits, which must be `test`, and trains and validates on some of these.
        mean: what is subtracted: `number`, the mean of all training pixels, or `image`, the mean at each pixel, with
            which images of other sizes cannot be tested.
        held_out: test on this many of the training digits instead of the test digits, and train on the rest. For
            choosing settings. 0 for none.
    """

    dataset: str = "mnist"
    part: Literal["", "train", "test", "all"] = ""
    scales: str = "uniform:0.3,1"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    smoothed: bool = False
    shifted: bool = False
    size: Annotated[int, Meta(ge=1, le=LARGEST_CANVAS)] = 28
    seed: Seed = 0
    train: Count = 10_000
    test: Whole = 0
    val: Whole = 0
    stratified: bool = False
    sets: Annotated[int, Meta(ge=2)] = 6
    fold_seed: Annotated[int, Meta(le=LARGEST_SEED)] = 0
    truncate: Literal["error", "allow"] = "error"
    tested: Whole = 0
    held_out: Whole = 0
    seen: Whole = 0
    mean: Literal["number", "image"] = "number"

    def __post_init__(self) -> None:
        parse_scales(self.scales)
        if self.held_out >= self.train:
            raise ValueError(f"`held_out` (={self.held_out}) must leave some of the digits to train on (={self.train})")
        if self.test and self.fold_seed < 0:
            raise ValueError(f"`fold_seed` must be at least 0 with `test` (={self.test}), got {self.fold_seed}")
        if (self.val or self.stratified or self.seen) and not self.test:
            given = f"`val` (={self.val}), `stratified` (={self.stratified}) or `seen` (={self.seen})"
            raise ValueError(f"`test` must be above 0 with {given}")
        if self.seen and self.train + self.val >= self.seen:
            raise ValueError(
                f"`seen` (={self.seen}) must be above `train` and `val`, of which it holds {self.train + self.val}"
            )


class SceneData(DigitData, frozen=True, tag_field="source", tag="scenes"):
    """Scenes made of digits, as many scenes as digits, with a label for each pixel.

    Attributes:
        scene: most digits in a scene.
        pieces: most pieces of digits in a scene, as clutter.
        noise: standard deviation of what is added to the pixels.
    """

    scene: Count = 5
    pieces: Whole = 0
    noise: Number = 0.0


class IconData(Section, frozen=True, tag_field="source", tag="icons"):
    """The icons of STIR, trained on at some sizes and tested on at all others; see `scaleconv.data.icons`.

    Attributes:
        dataset: `emoji`, of the npm package; `embedded` are four shapes.
        sizes: the first and the last in pixels of those that train and, in a set of their own, validate.
        train: how many of the images of these sizes train, in an order that each fold draws.
    """

    dataset: Literal["emoji", "embedded"] = "emoji"
    sizes: tuple[Annotated[int, Meta(ge=SIZES[-1])], Annotated[int, Meta(le=SIZES[0])]] = (17, 32)
    train: Count = 576

    def __post_init__(self) -> None:
        if not 0 <= self.sizes[1] - self.sizes[0] < len(SIZES) - 1:
            raise ValueError(f"`sizes` must be the smaller first, and leave one to test on, got {list(self.sizes)}")


class FolderData(Section, frozen=True, tag_field="source", tag="folder"):
    """Images of a user's files, as `load_folder` finds them: all that a result depends on, and no path.

    Attributes:
        fingerprint: of names, bytes, labels and parts of all images.
        train, val, test: how many images.
        classes: names.
        channels: 1 or 3.
        size: (height, width) of all images; None where each keeps its own.
        fit: how an image of another size is brought to it.
        task: `segmentation` where images have masks.
    """

    fingerprint: str
    train: Whole
    val: Whole
    test: Whole
    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    channels: Count
    size: tuple[Count, Count] | None
    fit: Literal["crop", "letterbox"] = "crop"
    task: Literal["classification", "segmentation"] = "classification"


Data = DigitData | SceneData | IconData | FolderData


def task_of(data: Data) -> str:
    """`segmentation` where every pixel has a label, else `classification`."""
    return data.task if isinstance(data, FolderData) else TASKS[isinstance(data, SceneData)]


class NetworkSettings(Section, frozen=True):
    """A network.

    Attributes:
        name: one of `scaleconv.models.NETWORKS`, or `package.module:factory`, which is called with `num_classes=`.
        variant: `plain`; `converted`, with scale-invariant convolutions; `pyramid`, the plain network at every scale of
            the image, its outputs pooled (`ScaleInvariant`), and converted as well where `layers` or `last` is given;
            and two controls of `converted`: `dilated`, with filters of twice the extent, and `branches`, with the
            larger response of both.
        scales: of `converted`, of `pyramid`, and of networks that have a pyramid of their own.
        layers: patterns such as `stages.*`: `converted` and its controls change the layers whose names match one.
            Empty: all over 1×1.
        last: the share of those layers that is changed, from the end of the network; 0 for all of them. `converted`
            counts them from the largest map to the smallest, so that the last ones of a U-Net are at its bottom.
        second_scales: of the second layer of a converted ConvNet; `scales` if empty.
        antialias: whether layers and pyramids average pixels where they shrink an image.
        align, border, normalise: rules of converted layers, as `DirectSIConv2d` has them; the defaults are those of
            `SIConv2d`.
        pool, norm, levels: of a pyramid, as `ScaleInvariant` has them; `levels` is its `size`.
        maps: feature maps of the stages of the small networks, two or three; empty for their own.
        blocks: of each stage, for networks of three stages; empty for one each.
        kernel: side of their first kernel.
        hidden: units of their fully connected layer.
        pooling: of the stages of a ConvNet, plain or tiled, as `ConvNet` has it.
        laplacian: whether a hierarchical network has a Laplacian pyramid.
        independent: whether the columns of a multi-column network learn each from a loss of its own.
        upsample: repeat every pixel so often along each axis first.
        dropout: share of the units before the last layer that is left out in training.
        cropped_scales: of cropped layers.
    """

    name: str = "resnet18"
    variant: Literal["plain", "converted", "pyramid", "dilated", "branches"] = "plain"
    scales: tuple[float, ...] = DEFAULT_SCALES
    layers: tuple[str, ...] = ()
    last: Share = 0.0
    second_scales: tuple[float, ...] = ()
    antialias: bool = False
    align: Literal["exact", "up", "down"] = "exact"
    border: Literal["absent", "zeros", "clamp"] = "absent"
    normalise: Literal["none", "map", "level"] = "none"
    pool: Literal["max", "mean", "logsumexp"] = "max"
    norm: Literal["joint", "level"] = "joint"
    levels: Literal["own", "input"] = "input"
    maps: tuple[Count, ...] = ()
    blocks: tuple[Count, ...] = ()
    kernel: Count = 7
    hidden: Count = 150
    pooling: Literal["max", "root"] = "max"
    laplacian: bool = False
    independent: bool = False
    upsample: Count = 1
    dropout: Share = 0.7
    cropped_scales: tuple[float, ...] = CROPPED_SCALES

    def __post_init__(self) -> None:
        if self.name not in NETWORKS and ":" not in self.name:
            raise ValueError(f"`model` must be {', '.join(NETWORKS)} or package.module:factory, got {self.name!r}")
        check_scales(self.scales)
        check_scales(self.cropped_scales, "cropped_scales")
        if self.second_scales:
            check_scales(self.second_scales, "second_scales")
        if self.antialias and (self.align, self.border, self.normalise) != ("exact", "absent", "none"):
            raise ValueError(
                f"`antialias` must be off with `align` (={self.align}), `border` (={self.border}) and `normalise` "
                f"(={self.normalise})"
            )


class TrainingSettings(Section, frozen=True):
    """The recipe of training; the defaults are for images of your own.

    Attributes:
        epochs: at most.
        settled: the training loss of a network that has learned its images. Training ends after `SETTLED_EPOCHS` epochs
            in a row whose mean loss is not above it. 0 never ends it early.
        steps: in an epoch, whatever the number of images. 0 makes an epoch one pass over the training images.
        batch: images in a step; the last, partial batch of a pass is left out.
        optimizer: `sgd`, `adam` or `adamw`.
        learning_rate: the largest.
        warmup: share of all steps in which the rate rises to that.
        cosine: whether it then falls to 0 along a cosine.
        drops: epochs after which the rate is a tenth of what it was.
        momentum: of the gradient, for `sgd`.
        weight_decay: of the weights; biases and norms have none.
        bias_rate: learning rate of biases and norms, in units of `learning_rate`.
        smoothing: of the labels.
        keep: which network counts: the `last` one, the `best` on the validation images, or the running `average` of the
            weights.
        average: decay of that average; in the first steps k it is at most (1 + k) / (10 + k).
        augment: some of `scale`, `flip`, `crop`: how a training image changes in each step.
        rescale: the least and the largest factor of `scale`.
        rescale_law: `log` halves an image as often as it doubles it, `uniform` draws evenly between the two.
        precision: `float32`, or `bfloat16` for mixed precision.
        evaluate_every: epochs between two tests; the last epoch is always tested. 0 tests that one alone.
    """

    epochs: Count = 20
    settled: Number = 0.0
    steps: Whole = 0
    batch: Count = 64
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    learning_rate: Number = 1e-3
    warmup: Share = 0.05
    cosine: bool = True
    drops: tuple[Count, ...] = ()
    momentum: Share = 0.9
    weight_decay: Number = 0.02
    bias_rate: Number = 1.0
    smoothing: Share = 0.1
    keep: Literal["last", "best", "average"] = "last"
    average: Share = 0.999
    augment: tuple[str, ...] = ()
    rescale: tuple[Factor, Factor] = (0.5, 2.0)
    rescale_law: Literal["log", "uniform"] = "log"
    precision: Literal["float32", "bfloat16"] = "float32"
    evaluate_every: Whole = 0

    def __post_init__(self) -> None:
        check_augmentations(self.augment)
        if self.rescale[0] > self.rescale[1]:
            raise ValueError(f"`rescale` must be two factors, the smaller first, got {list(self.rescale)}")
        if self.cosine and (self.drops or self.settled):
            raise ValueError(
                f"`cosine` must be off with `drops` (={list(self.drops)}) or `settled` (={self.settled:g}), got True"
            )

    @property
    def varies(self) -> bool:
        """Whether the learning rate changes."""
        return self.cosine or bool(self.drops) or self.warmup > 0

    def rate_at(self, step: int, per_epoch: int) -> float:
        """The learning rate of a step, counted from 0, in units of the largest.

        Example:
            >>> recipe = TrainingSettings(epochs=4, warmup=0, cosine=False, drops=(2, 3))
            >>> [round(recipe.rate_at(step, 10), 2) for step in (0, 19, 20, 30, 39)]
            [1.0, 1.0, 0.1, 0.01, 0.01]
            >>> recipe = TrainingSettings(epochs=1, warmup=0.2)
            >>> [round(recipe.rate_at(step, 10), 2) for step in (0, 1, 2, 6, 9)]
            [0.5, 1.0, 1.0, 0.5, 0.04]
        """
        steps = self.epochs * per_epoch
        rising = math.ceil(self.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        if self.cosine:
            return (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2
        return 0.1 ** sum(step >= epoch * per_epoch for epoch in self.drops)

    def ended(self, losses: Sequence[float]) -> bool:
        """Whether training is over after epochs with these mean losses."""
        return has_settled(losses, self.settled) or len(losses) >= self.epochs


def has_settled(losses: Sequence[float], settled: float) -> bool:
    """Whether the losses of the last epochs are at most so large; no loss has settled at 0."""
    latest = losses[-SETTLED_EPOCHS:]
    return settled > 0 and len(latest) == SETTLED_EPOCHS and max(latest) <= settled


class MeasureSettings(Section, frozen=True):
    """What is measured on a trained network besides its test error.

    Attributes:
        kind: a name in `measures.MEASURES`; empty for nothing.
        scales: factors by which images are rescaled for it.
        layers: names of the modules whose output is measured.
        digits: how many of the test images it is measured on; 0 for all.
        size: for errors at test scales, the side of the images; 0 for that of the training images.
        neuron: for invariance, what counts as a neuron of a map: `position` for every number in it, `centre` for those
            at its centre, `channel` for the maximum of each channel.
        digits_at: the one scale of the digits that are rescaled for invariance; 0 for each digit's own.
        firing: for invariance, the share of the images that a neuron fires to.
        top: for invariance, the share of a layer's neurons that is averaged, the most invariant first.
    """

    kind: str = ""
    scales: tuple[Factor, ...] = ()
    layers: tuple[str, ...] = ()
    digits: Whole = 0
    size: Whole = 0
    neuron: Literal["position", "centre", "channel"] = "position"
    digits_at: Number = 0.0
    firing: Part = 0.01
    top: Part = 0.2

    def __post_init__(self) -> None:
        if self.kind and not self.scales:
            raise ValueError(f"`scales` must hold at least one factor for {self.kind}, got none")
        if self.size and self.kind != "test_scales":
            raise ValueError(f"`size` must be 0 unless `kind` (={self.kind}) is test_scales, got {self.size}")


class RBMSettings(Section, frozen=True):
    """The recipe of an RBM, as `scaleconv.models.Recipe` has it, and `hidden`, the number of its units."""

    hidden: Count = 1000
    epochs: Count = 100
    batch: Count = 100
    learning_rate: Number = 0.05
    momentum: Share = 0.9
    weight_decay: Number = 1e-4
    sparsity_target: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    sparsity_cost: Number = 1.0
    steps: Count = 1
    persistent: bool = False
    initial_std: Number = 0.01


class SIRBMSettings(RBMSettings, frozen=True):
    """The same for the scale-invariant RBM, and the `scales` of its transforms."""

    scales: tuple[float, ...] = ENLARGING_SCALES

    def __post_init__(self) -> None:
        check_scales(self.scales)


class SoftmaxSettings(Section, frozen=True):
    """The classifier on the features of an RBM.

    Attributes:
        penalties: of its squared weights, to choose from.
        held_out: the part of the training digits on which the penalty is chosen.
    """

    penalties: Annotated[tuple[Number, ...], Meta(min_length=1)] = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.2


class Settings(Section, frozen=True):
    """All that the result of a run depends on, besides its method, fold and seed. A method uses some sections."""

    data: Data = msgspec.field(default_factory=DigitData)
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    measure: MeasureSettings = MeasureSettings()
    rbm: RBMSettings = RBMSettings()
    si_rbm: SIRBMSettings = SIRBMSettings()
    softmax: SoftmaxSettings = SoftmaxSettings()


SECTIONS = Settings.__struct_fields__


def read(kind: type[T], table: Any, where: str) -> T:
    """Make settings, or any other type of ours, of what a file holds.

    Args:
        kind: the type.
        table: plain values.
        where: the file, for messages.

    Raises:
        ValueError: an unknown or missing key, a wrong type, or a value out of its range.

    Example:
        >>> read(TrainingSettings, {"epochs": 0}, "my.toml")
        Traceback (most recent call last):
            ...
        ValueError: `epochs` must be `int` >= 1, got 0, in my.toml
    """
    _refuse_infinite(table, "", where)
    try:
        return msgspec.convert(table, kind, strict=True)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{_reason(kind, table, str(error))}, in {where}") from None


def checked(settings: T) -> T:
    """The same settings, if all values are in their ranges: a constructor called from Python checks none.

    Raises:
        ValueError: one is not.
    """
    return read(type(settings), msgspec.to_builtins(settings), type(settings).__name__)


def _refuse_infinite(value: Any, key: str, where: str) -> None:
    """Refuse infinity and NaN, which a record cannot hold, and integers that no float can be."""
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError(f"`{key}` must be finite, got {brief(value)}, in {where}")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_infinite(item, f"{key}.{brief(name)}" if key else brief(name), where)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_infinite(item, key, where)


def _reason(kind: Any, table: Any, message: str) -> str:
    """What msgspec says, with the value that it leaves out, and the choices or keys there are."""
    said, _, path = message.partition(" - at `$")
    key, value, place = "", table, kind
    for name in re.findall(r"\[[^]]*\]|[^.[`]+", path):  # keys, [index], and [...] for any key of a table
        place = _type_of(place, name, value)
        if not name.startswith("[") and isinstance(value, Mapping):
            key, value = f"{key}.{name}" if key else name, value.get(name)
        elif name != "[...]" and isinstance(value, list | tuple):
            value = value[int(name[1:-1])]
    if said.startswith("Object contains unknown field"):
        known = ", ".join(getattr(_struct(place, value), "__struct_fields__", ()))
        return f"{brief(said.rpartition(' ')[2])} is unknown: it must be one of {known}"
    if said.startswith("Object missing required field"):
        return f"{brief(said.rpartition(' ')[2])} is missing" + (f" in `{key}`" if key else "")
    if said.startswith("Invalid "):  # a choice, or the tag of a union of types
        said = f"Expected one of {', '.join(map(str, get_args(place)))}"
    if said.startswith("Expected "):
        rule = said.removeprefix("Expected ").partition(", got ")[0]
        return f"{f'`{brief(key)}`' if key else 'it'} must be {rule}, got {brief(repr(value))}"
    return brief(said)


def _type_of(kind: Any, name: str, value: Any) -> Any:
    """The type of a key of a type, or of the entries of a list; of the tag of a union, its choices."""
    struct = _struct(kind, value)
    tagged = [each.__struct_config__ for each in get_args(kind) if getattr(each, "__struct_config__", None)]
    if any(config.tag_field == name for config in tagged):
        return Literal[tuple(config.tag for config in tagged)]
    if isinstance(struct, type) and issubclass(struct, Struct):
        hints = {field.name: field.type for field in msgspec.structs.fields(struct)}
        return hints.get(name)
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    return inner[-1] if inner else kind


def _struct(kind: Any, value: Any) -> Any:
    """Of a union of types that a tag tells apart, the one that is meant."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    for each in get_args(kind):
        config = getattr(each, "__struct_config__", None)
        if config and isinstance(value, Mapping) and config.tag == value.get(config.tag_field):
            return each
    return kind


def brief(reason: object) -> str:
    """Why a file is refused, as one line of bounded length: a damaged file may hold anything, and messages quote it.

    Example:
        >>> brief("`a\\nb` is unknown: " + 1000 * "x")[:20]
        '`a b` is unknown: xx'
    """
    line = " ".join(str(reason)[: 2 * LONGEST_REASON].split())
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + "…"
