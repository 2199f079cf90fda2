"""Networks that classify images of a folder, or their pixels: plain, converted or wrapped; and how one is loaded again.

A `Classifier` takes images in [0, 1] and subtracts the mean of its training images itself, so that a network that is
loaded from its file needs nothing else.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.decoding import Size
from ..data.loading import TASKS
from ..models.convnet import ConvNet, Shape
from ..models.resnet import make_resnet18
from ..models.unet import UNet
from ..nn import ScaleInvariant, convert
from ..nn.convert import why_no_gain
from ..ops.checks import check_choice, check_count
from ..ops.signature import DEFAULT_SCALES, check_scales
from .checkpoint import load_checkpoint, make_fitting
from .parsing import brief, build

MODELS = {"convnet": "classification", "resnet18": "classification", "unet": "segmentation"}  # with their tasks
DEFAULT_MODELS = {"classification": "resnet18", "segmentation": "unet"}
VARIANTS = ("plain", "converted", "pyramid")
SMALL = 64  # pixels of a side up to which ResNet-18 gets the small first layer
UNET_MAPS = (16, 32)  # at full and at half size
FACTORY_CHANNELS = 3  # that a network of someone else expects


@dataclass(frozen=True)
class NetworkSpec:
    """A network, by name.

    Attributes:
        name: `convnet` or `resnet18` for images, `unet` for pixels, or `package.module:factory`, which is called with
            `num_classes=`, for either.
        variant: `plain`; `converted`, with scale-invariant convolutions; or `pyramid`, the plain network at every
            scale of the image, its outputs pooled (`ScaleInvariant`), for pixels at every position.
        scales: of `converted` and `pyramid`.
        layers: patterns such as `stages.*`; `converted` swaps the layers whose names match one of them. Empty: all
            whose kernel is larger than 1×1.

    Example:
        >>> network = NetworkSpec("convnet", "converted").make(channels=3, size=(32, 32), classes=5)
        >>> network(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """

    name: str = "resnet18"
    variant: str = "plain"
    scales: tuple[float, ...] = DEFAULT_SCALES
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in MODELS and ":" not in self.name:
            raise ValueError(f"`model` must be {', '.join(MODELS)} or package.module:factory, got {self.name!r}")
        check_choice("variant", self.variant, VARIANTS)
        check_scales(self.scales)

    @property
    def channels(self) -> int | None:
        """Of the images it must be given; None for any number."""
        return FACTORY_CHANNELS if ":" in self.name else None

    def make(self, channels: int, size: Size | None, classes: int, task: str = TASKS[0]) -> nn.Module:
        """The network with new weights, for images of so many channels and this (height, width), None for any.

        Raises:
            ValueError: the network does not take such images or is for another task, or there is no such network.
        """
        self.check_task(task)
        network = self._plain(channels, size, classes)
        if self.variant == "converted":
            self._check_layers(network)
            return convert(network, scales=self.scales, include=self.layers or "*")
        if self.variant == "pyramid" and task == "segmentation":  # there is an output for every pixel
            return ScaleInvariant(network, scales=self.scales, stride=1, offset=0)
        if self.variant == "pyramid":
            return ScaleInvariant(network, scales=self.scales, size="input")
        return network

    def check_task(self, task: str) -> None:
        """Refuse a network that is made for another task."""
        if MODELS.get(self.name, task) != task:
            fitting = " or ".join(name for name, own in MODELS.items() if own == task)
            raise ValueError(f"`model` must be {fitting} or package.module:factory for {task}, got {self.name}")

    def _check_layers(self, network: nn.Module) -> None:
        """Refuse patterns that choose no layer, by the name that they have here."""
        known = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
        for pattern in self.layers:
            chosen = [name for name in known if fnmatchcase(name, pattern)]
            if not any(name == pattern or not why_no_gain(name, known[name], {}) for name in chosen):
                rule, names = "that can gain by it " if chosen else "", brief(", ".join(known))
                raise ValueError(f"`layers` must match convolutions {rule}of {self.name} ({names}), got {pattern!r}")

    def _plain(self, channels: int, size: Size | None, classes: int) -> nn.Module:
        if self.name == "convnet":
            if size is None or size[0] != size[1]:
                got = "images of their own sizes" if size is None else f"{size[0]}×{size[1]}"
                raise ValueError(f"`model` convnet must have square images of one size (--resize), got {got}")
            try:
                return ConvNet(shape=Shape(size=size[0], classes=classes, channels=channels))
            except ValueError as error:
                raise ValueError(
                    f"`model` convnet must have larger images (--resize), got {size[0]}×{size[1]}: {error}"
                ) from None
        if self.name == "resnet18":
            return make_resnet18(channels, classes, small=size is not None and max(size) <= SMALL)
        if self.name == "unet":
            return UNet(shape=Shape(maps=UNET_MAPS, classes=classes), channels=channels)
        factory = _factory(self.name)
        try:
            network = factory(num_classes=classes)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise ValueError(f"`model` {self.name} must take num_classes={classes}, got {got}") from error
        if not isinstance(network, nn.Module):
            raise ValueError(f"`model` {self.name} must return a torch.nn.Module, got {type(network).__name__}")
        return network


def _factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"`model` must be package.module:factory that can be imported, got {name} ({error})") from None
    return found


class Classifier(nn.Module):
    """A network that takes images as they are: (N, C, H, W) in [0, 1] to one number for each class, or class and pixel.

    Args:
        network: takes images whose mean is 0; may return a mapping with `out`, as torchvision's for segmentation do.
        mean, std: of each channel over the training images.
        classes: names.
    """

    def __init__(
        self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], classes: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        answer = self.network((images - self.mean) / self.std)
        logits: Tensor = answer["out"] if isinstance(answer, Mapping) else answer
        return logits


def make_classifier(
    model: NetworkSpec | nn.Module, data: dict[str, Any], moments: tuple[tuple[float, ...], tuple[float, ...]]
) -> Classifier:
    """A network for a folder, of whose `ImageData.config()` it takes channels, size, classes and task."""
    classes = tuple(data["classes"])
    if isinstance(model, NetworkSpec):
        size = tuple(data["size"]) if data["size"] else None
        model = model.make(data["channels"], size, len(classes), data.get("task", TASKS[0]))
    mean, std = moments
    return Classifier(model, mean, std, classes)


def network_config(model: NetworkSpec | nn.Module) -> dict[str, Any]:
    """What a record says of the network."""
    if isinstance(model, NetworkSpec):
        return {**asdict(model), "scales": list(model.scales), "layers": list(model.layers)}
    return {"name": type(model).__name__}


@dataclass(frozen=True)
class _Seen:
    """What a network depends on of the images it was made for, from its file."""

    classes: tuple[str, ...]
    channels: int
    size: tuple[int, ...] | None
    task: str = TASKS[0]

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        if not self.classes:
            raise ValueError(f"`classes` must be at least one name, got {list(self.classes)}")
        check_count("channels", self.channels)
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"`size` must be two numbers of at least 1, or none, got {list(self.size)}")


SEEN = tuple(field.name for field in fields(_Seen))


def load(path: str | os.PathLike[str], model: nn.Module | str | None = None) -> Classifier:
    """Load a network that `fit` or `scaleconv train` has trained, ready to classify.

    A file cannot run code: it is read as numbers and text, and a factory that it names is called only if you name it.

    Args:
        path: its file of weights.
        model: the network, if it was given to `fit` as a Module and not by name; its weights are replaced. Or
            `package.module:factory`, if that has made it.

    Returns:
        The classifier, in evaluation mode: takes (N, C, H, W) in [0, 1]; `classes` are the names of its outputs.

    Raises:
        OSError, ValueError: the file cannot be read, or does not fit the network.
    """
    file = Path(path)
    found = load_checkpoint(file)
    described, data = found.run.get("network"), found.run.get("data")
    if not (
        isinstance(described, dict)
        and isinstance(data, dict)
        and {"classes", "channels", "size", "fit"} <= data.keys()
        and {"mean", "std"} <= found.tensors.keys()  # an unfinished run has them by other names
    ):
        raise ValueError(f"`path` must be weights that scaleconv train --data has written, got {file}")
    name = described.get("name")
    if model is None and ("variant" not in described or ":" in str(name)):
        raise ValueError(
            f"`model` must be given for the weights of a network of your own ({brief(name)} in {file}): "
            "the Module, or the name package.module:factory"
        )
    if isinstance(model, str) and model != name:
        raise ValueError(f"`model` must be {brief(name)} for {file}, got {model}")
    moments = [tuple(found.tensors[key].flatten().tolist()) if key in found.tensors else () for key in ("mean", "std")]

    def make() -> Classifier:
        seen = build(_Seen, {key: value for key, value in data.items() if key in SEEN}, "its data")
        spec = model if isinstance(model, nn.Module) else build(NetworkSpec, described, "its network")
        return make_classifier(spec, asdict(seen), (moments[0], moments[1]))

    return make_fitting(file, found.tensors, make, planned=not isinstance(model, str)).eval()
