"""What a run learns from and is tested on: digits, scenes, icons, or a user's images with or without masks.

A source has images to train, to validate and to test on, and the test images at any scale. Images are in [0, 1]. Digits
and scenes are made from the digits as published and the settings alone, icons are drawn. A user's images
were found by `load_folder`. Sets that fit into memory lie on the device; others are decoded batch by batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..data import (
    BACKGROUND,
    Digits,
    Fixed,
    ImageData,
    ScaleDistribution,
    ScaledSet,
    Scenes,
    Split,
    hold_out,
    load_digits,
    make_folds,
    make_scaled,
    make_scenes,
    make_set,
    make_split,
    parse_scales,
    scalar_mean,
)
from ..data.icons import CANVAS, EMBEDDED_ICONS, EMOJI, SIZES, IconSet, load_icons
from ..data.loading import ImageSet
from ..data.rescale import IGNORE, rescale, rescale_masks
from ..data.sets import shift, smooth
from ..models import Images
from ..models.networks import Size
from .settings import Data, DigitData, FolderData, IconData, SceneData, read, task_of

Batch = tuple[Tensor, Tensor]
DIGIT_NAMES = tuple("0123456789")


class Examples(Protocol):
    """Images with their labels (N,), or masks (N, H, W).

    Attributes:
        sizes: (height, width) of every image.
        masked: whether there is a label for each pixel.
        tensors: all of them on the device, if they fit; integers stand for 255 times their values.
    """

    @property
    def sizes(self) -> Sequence[Size]: ...
    @property
    def masked(self) -> bool: ...
    @property
    def tensors(self) -> Batch | None: ...
    def __len__(self) -> int: ...
    def batches(self, order: Iterable[Sequence[int]], workers: int = 0) -> Iterator[Batch]:
        """Images in [0, 1] and labels, on the device; each batch is of one size."""


def pixels(images: Tensor) -> Tensor:
    """Images in [0, 1], from bytes if they are such."""
    return images if images.is_floating_point() else images.float() / 255


@dataclass(frozen=True)
class InMemory:
    """Examples that lie on the device."""

    images: Tensor
    labels: Tensor

    @property
    def tensors(self) -> Batch | None:
        return self.images, self.labels

    @property
    def sizes(self) -> Sequence[Size]:
        return [(self.images.shape[2], self.images.shape[3])] * len(self.images)

    @property
    def masked(self) -> bool:
        return self.labels.dim() > 1

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: Iterable[Sequence[int]], workers: int = 0) -> Iterator[Batch]:
        for indices in order:
            chosen = torch.as_tensor(indices, device=self.images.device)
            yield pixels(self.images.index_select(0, chosen)), self.labels.index_select(0, chosen).long()


@dataclass(frozen=True)
class FromFiles:
    """Examples in files, which are kept on the device where they are few enough."""

    files: ImageSet
    device: torch.device

    @property
    def sizes(self) -> Sequence[Size]:
        return self.files.sizes

    @property
    def masked(self) -> bool:
        return self.files.masked

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def tensors(self) -> Batch | None:
        kept = self.files.kept
        return None if kept is None else (kept[0].to(self.device), kept[1].to(self.device))

    def batches(self, order: Iterable[Sequence[int]], workers: int = 0) -> Iterator[Batch]:
        if self.tensors is not None:
            yield from InMemory(*self.tensors).batches(order)
            return
        for images, labels in self.files.batches(order, workers):
            images, labels = (part.to(self.device, non_blocking=True) for part in (images, labels))
            yield pixels(images), labels.long()


@dataclass(frozen=True)
class Rescaled:
    """Examples rescaled about their centre, as a camera sees them from another distance.

    The canvas keeps its size; smaller images repeat their edge, where a mask has no label.
    """

    examples: Examples
    scale: float
    tensors: Batch | None = None

    @property
    def sizes(self) -> Sequence[Size]:
        return self.examples.sizes

    @property
    def masked(self) -> bool:
        return self.examples.masked

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, order: Iterable[Sequence[int]], workers: int = 0) -> Iterator[Batch]:
        for images, labels in self.examples.batches(order, workers):
            moved = rescale(images, self.scale, antialias=True, border="edge")
            yield moved, rescale_masks(labels, self.scale) if labels.dim() > 1 else labels


@dataclass(frozen=True)
class Source:
    """The images of one run, on its device.

    Attributes:
        images: what a network for them must take and give.
        classes: names.
        mean, std: of each channel over the training images, by which a network normalises; the mean may be an image.
        train, val, test: examples; `val` may be empty.
        uncounted: the label of pixels that are not counted in a test.
        at_scale: takes a scale, and how many of the test images and of which size, None for all and for their own: the
            test images with their content at this scale.
        interpolation: of training images that are rescaled.
    """

    images: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...] | Tensor
    std: tuple[float, ...]
    train: Examples
    val: Examples
    test: Examples
    uncounted: int | None
    at_scale: Callable[[float, int | None, int | None], Examples]
    interpolation: str = "bilinear"


def images_of(data: Data) -> tuple[Images, tuple[str, ...]]:
    """What a network for such data must take and give, and the names of the classes."""
    if isinstance(data, FolderData):
        return Images(data.size, data.channels, len(data.classes), data.task), data.classes
    if isinstance(data, IconData):
        names = EMOJI if data.dataset == "emoji" else tuple(EMBEDDED_ICONS)
        return Images((CANVAS, CANVAS), 1, len(names)), names
    classes = (*DIGIT_NAMES, "background") if isinstance(data, SceneData) else DIGIT_NAMES
    return Images((data.size, data.size), 1, len(classes), task_of(data)), classes


class Sources:
    """Opens the sources of runs; each set of digits is made once and shared by all runs that use it.

    Args:
        device: where images go.
        data_dir: directory of the digits, if they are not the embedded ones.
        folder: the user's images, for runs on those.
    """

    def __init__(
        self, device: torch.device | str, data_dir: Path | None = None, folder: ImageData | None = None
    ) -> None:
        self.device, self.data_dir, self.folder = torch.device(device), data_dir, folder
        self._digits: dict[tuple[str, str], Digits] = {}
        self._sets: dict[DigitData, ScaledSet] = {}
        self._icons: dict[str, IconSet] = {}

    def open(self, data: Data, fold: int) -> Source:
        """The source of a run.

        Raises:
            ValueError: there are too few digits, or the folder holds other images than those of the settings.
        """
        if isinstance(data, FolderData):
            return self._folder(data)
        if isinstance(data, IconData):
            return self._of_icons(data, fold)
        return self._of_digits(data, fold)

    def _folder(self, data: FolderData) -> Source:
        if self.folder is None or folder_data(self.folder) != data:
            raise ValueError(
                f"`data` must hold the images of the settings, got {self.folder and self.folder.folder.root}"
            )
        parts = (self.folder.train, self.folder.val, self.folder.test)
        train, val, test = (FromFiles(part, self.device) for part in parts)
        (mean, std), (images, classes) = self.folder.moments, images_of(data)

        def at_scale(scale: float, count: int | None, size: int | None) -> Examples:
            return test if scale == 1 else Rescaled(test, scale)

        uncounted = IGNORE if self.folder.folder.masked else None
        return Source(images, classes, mean, std, train, val, test, uncounted, at_scale)

    def _of_icons(self, data: IconData, fold: int) -> Source:
        if data.dataset not in self._icons:
            self._icons[data.dataset] = load_icons(data.dataset, self.data_dir)
        icons, own = self._icons[data.dataset], range(data.sizes[0], data.sizes[1] + 1)
        images, labels = icons.of_sizes(0, own)
        if data.train > len(images):
            raise ValueError(f"`data.train` must be at most the {len(images)} images of these sizes, got {data.train}")
        chosen = np.random.default_rng(fold).permutation(len(images))[: data.train]
        test = icons.of_sizes(2, [size for size in SIZES if size not in own])

        def in_memory(images: Tensor, labels: Tensor) -> InMemory:
            return InMemory(images.to(self.device), labels.to(self.device))

        def at_scale(scale: float, count: int | None, size: int | None) -> InMemory:
            images, labels = icons.of_sizes(2, [round(scale * CANVAS)])
            return in_memory(images[:count], labels[:count])

        kind, classes = images_of(data)
        return Source(
            images=kind,
            classes=classes,
            mean=(scalar_mean(pixels(images[chosen])),),
            std=(1.0,),
            train=in_memory(images[chosen], labels[chosen]),
            val=in_memory(*icons.of_sizes(1, own)),
            test=in_memory(*test),
            uncounted=None,
            at_scale=at_scale,
        )

    def _of_digits(self, data: DigitData, fold: int) -> Source:
        digits = self._load(data)
        split = divide(digits.labels, data, fold)
        train, test = (self._images(data, part, test=part is split.test) for part in (split.train, split.test))
        val = self._images(data, split.val, test=True) if data.val else InMemory(test.images[:0], test.labels[:0])
        originals, labels = (part[split.test].to(self.device) for part in (digits.images, digits.labels))
        images, classes = images_of(data)
        return Source(
            images=images,
            classes=classes,
            mean=train.images.mean(0).cpu() if data.mean == "image" else (scalar_mean(train.images),),
            std=(1.0,),
            train=train,
            val=val,
            test=test,
            uncounted=BACKGROUND if isinstance(data, SceneData) else None,
            at_scale=partial(_digits_at_scale, originals, labels, data),
            interpolation=data.interpolation,
        )

    def _images(self, data: DigitData, part: Tensor, *, test: bool) -> InMemory:
        """Images made of some of the digits, and their labels."""
        if isinstance(data, SceneData):
            digits = self._load(data)
            images, labels = digits.images[part].to(self.device), digits.labels[part].to(self.device)
            scenes = compose(images, labels, parse_scales(data.scales), data, test=test)
            return InMemory(scenes.images, scenes.labels)
        made, part = self._scaled(data), part.to(self.device)
        return InMemory(made.images[part], made.labels[part])

    def _load(self, data: DigitData) -> Digits:
        key = (data.dataset, data.part)
        if key not in self._digits:
            self._digits[key] = load_digits(data.dataset, data.part or None, data_dir=self.data_dir)
        return self._digits[key]

    def _scaled(self, data: DigitData) -> ScaledSet:
        named = ("dataset", "part", "scales", "interpolation", "smoothed", "shifted", "size", "seed", "truncate")
        key = DigitData(**{name: getattr(data, name) for name in named})  # the rest does not change the set
        if key not in self._sets:
            digits = self._load(data)
            made = make_set(
                digits,
                parse_scales(data.scales),
                data.size,
                seed=data.seed,
                interpolation=data.interpolation,
                truncate=data.truncate,
            )
            images, labels, factors = (part.to(self.device) for part in (made.images, made.labels, made.scales))
            images = _with_appearance(images, factors, data, digits.images.shape[2])
            self._sets[key] = replace(made, images=images, labels=labels, scales=factors)
        return self._sets[key]


def folder_data(found: ImageData) -> FolderData:
    """The settings of a user's images."""
    return read(FolderData, {"source": "folder", **found.config()}, "the folder")


def _digits_at_scale(
    originals: Tensor, labels: Tensor, data: DigitData, scale: float, count: int | None, size: int | None
) -> InMemory:
    """Test images with all digits at one scale instead of their own; what leaves the canvas is cut off.

    Digits are scaled as in MNIST-Scale: without averaging, on an empty canvas. Scenes are composed anew, since fewer
    large digits fit into one.
    """
    data = msgspec.structs.replace(data, size=size or data.size)
    if isinstance(data, SceneData):
        scenes = compose(originals, labels, Fixed(scale), data, test=True, count=count)
        return InMemory(scenes.images, scenes.labels)
    made = make_scaled(originals[:count], scale, data.size, data.interpolation, truncate="allow")
    return InMemory(_with_appearance(made, scale, data, originals.shape[2]), labels[:count])


def _with_appearance(images: Tensor, scales: Tensor | float, data: DigitData, side: int) -> Tensor:
    """Scaled digits, made from images of a side, as the settings want them to look."""
    images = shift(images, scales, side, data.seed) if data.shifted else images
    return smooth(images, scales) if data.smoothed else images


def compose(
    images: Tensor,
    labels: Tensor,
    scales: ScaleDistribution,
    data: SceneData,
    *,
    test: bool,
    count: int | None = None,
) -> Scenes:
    """As many scenes as there are digits, or the first of them; for training and test they are laid out differently."""
    return make_scenes(
        images,
        labels,
        scales,
        min(count or len(images), len(images)),
        data.size,
        digits=data.scene,
        pieces=data.pieces,
        noise=data.noise,
        seed=2 * data.seed + test,
    )


def divide(labels: Tensor, data: DigitData, fold: int) -> Split:
    """Which digits train and test in a fold.

    With `test` digits named, each fold is a draw of its own: for one fold the test digits are the same whatever the
    number of training digits, and a smaller training set is part of a larger one.

    Raises:
        ValueError: there are too few digits.
    """
    needed = data.train + data.val + data.test if data.test else data.train * data.sets
    if needed > len(labels):
        rule = f"`test` (={data.test})" if data.test else f"each of `sets` (={data.sets})"
        raise ValueError(
            f"`data.train` (={data.train}) with {rule} must not need more than the {len(labels)} digits of "
            f"{data.dataset}, got {needed}"
        )
    if data.seen:
        split = _divide_unseen(labels, data, fold)
    elif data.test:
        seed, stratified = data.fold_seed + fold, data.stratified
        split = make_split(labels, data.train, data.test, val=data.val, seed=seed, stratified=stratified)
    else:
        order = data.fold_seed if data.fold_seed >= 0 else None
        split = make_folds(labels, data.train, count=data.sets, seed=order)[fold]
    split = replace(split, test=split.test[: data.tested or None])
    return hold_out(split, data.held_out, labels) if data.held_out else split


def _divide_unseen(labels: Tensor, data: DigitData, fold: int) -> Split:
    """Test on the digits that fold 0 does not take, the same in every fold; train on some of those that it takes."""
    if data.seen + data.test != len(labels):
        raise ValueError(
            f"`data.seen` (={data.seen}) and `data.test` (={data.test}) must be the {len(labels)} digits of "
            f"{data.dataset} together"
        )
    half = data.seen // 2
    of_first = make_split(labels, half, data.seen - half, seed=data.fold_seed, stratified=data.stratified)
    taken = torch.cat([of_first.train, of_first.test]).sort().values
    others = torch.ones(len(labels), dtype=torch.bool)
    others[taken] = False
    seed, left = data.fold_seed + fold, data.seen - data.train - data.val
    own = make_split(labels[taken], data.train, left, val=data.val, seed=seed, stratified=data.stratified)
    return Split(taken[own.train], others.nonzero()[:, 0], taken[own.val])
