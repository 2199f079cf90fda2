"""Networks by name, for images of any kind: plain, converted to scale-invariant layers, or wrapped in a pyramid.

`NETWORKS` has the networks of the paper, those it is compared with, and those for images of your own. A new one is a
function in it. `Classifier` subtracts the mean of the training images itself, so that every network takes pixels.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaleInvariant, SIConv2d, convert
from ..nn.convert import count_of_share, why_no_gain
from .cnn import MAPS, STIR_MAPS, CroppedSIConv2d, DeepScaleCNN, GlobalMaxCNN, ScaleCNN
from .controls import add_branches, dilate
from .convnet import PAPER, ConvNet, MultiStageConvNet, Shape, TiledConv2d
from .direct import DirectSIConv2d
from .pyramid import HierarchicalConvNet, MultiColumnConvNet
from .resnet import make_resnet18
from .staged import BLOCKS, Block, make_staged
from .unet import FullyConvolutional, UNet

Size = tuple[int, int]
CLASSIFICATION, SEGMENTATION = "classification", "segmentation"
TASKS = (CLASSIFICATION, SEGMENTATION)
DEFAULTS = {CLASSIFICATION: "resnet18", SEGMENTATION: "unet"}  # for images of your own
FACTORY_CHANNELS = 3  # that a network of someone else expects
SMALL = 64  # pixels of a side up to which ResNet-18 gets the small first layer
UNET_MAPS = (16, 32)  # at full and at half size
RULES = {"align": "exact", "border": "absent", "normalise": "none"}  # of `SIConv2d`
STAGES, STAGE_BLOCKS = (48, 96, 192), (1, 1, 1)  # maps and blocks of the networks of three stages


@dataclass(frozen=True)
class Images:
    """What a network is made for: (height, width) of the images, None for any, their channels, classes and task."""

    size: Size | None
    channels: int = 1
    classes: int = 10
    task: str = CLASSIFICATION


Options = Mapping[str, Any]  # the settings of a network by name: maps, kernel, hidden, scales, …


@dataclass(frozen=True)
class Network:
    """How a network is made, for which task, and of how many stages `maps` gives the width."""

    make: Callable[[Images, Options], nn.Module]
    task: str = CLASSIFICATION
    stages: int = 2


def _side(images: Images) -> int:
    """Of the images, which must be square."""
    if images.size is None or images.size[0] != images.size[1]:
        got = "images of their own sizes" if images.size is None else f"{images.size[0]}×{images.size[1]}"
        raise ValueError(f"`model` must have square images of one size (--resize), got {got}")
    return images.size[0]


def _with_shape(network: Callable[..., nn.Module], *named: str) -> Callable[[Images, Options], nn.Module]:
    """A function that makes a network of a `Shape`, with those of the options that are named."""

    def make(images: Images, options: Options) -> nn.Module:
        dense = images.task == SEGMENTATION
        first, second = options["maps"] or (UNET_MAPS if dense else PAPER.maps)
        side = 0 if dense else _side(images)  # networks for dense prediction take any size
        shape = Shape((first, second), options["kernel"], side, options["hidden"], images.classes, images.channels)
        return network(shape=shape, **{name: options[name] for name in named})

    return make


def _cnn(images: Images, options: Options, conv: Any = nn.Conv2d) -> nn.Module:
    side = _side(images) * options["upsample"]
    maps, dropout = options["maps"] or MAPS, options["dropout"]
    return ScaleCNN(conv, side, maps, dropout=dropout, classes=images.classes, channels=images.channels)


def _cropped(images: Images, options: Options) -> nn.Module:
    return _cnn(images, options, partial(CroppedSIConv2d, scales=options["cropped_scales"]))


def _deep_cnn(images: Images, options: Options) -> nn.Module:
    maps, dropout = options["maps"] or MAPS, options["dropout"]
    return DeepScaleCNN(maps, dropout=dropout, classes=images.classes, channels=images.channels)


def _stir_cnn(images: Images, options: Options) -> nn.Module:
    return GlobalMaxCNN(options["maps"] or STIR_MAPS, classes=images.classes, channels=images.channels)


def _resnet18(images: Images, _: Options) -> nn.Module:
    small = images.size is not None and max(images.size) <= SMALL
    return make_resnet18(images.channels, images.classes, small=small)


def _staged(block: Block, *, aspp: bool = False) -> Network:
    """A network of three stages of such blocks."""

    def make(images: Images, options: Options) -> nn.Module:
        maps, blocks = options["maps"] or STAGES, options["blocks"] or STAGE_BLOCKS
        return make_staged(block, maps, blocks, channels=images.channels, classes=images.classes, aspp=aspp)

    return Network(make, stages=3)


NETWORKS: dict[str, Network] = {
    "convnet": Network(_with_shape(ConvNet, "pooling")),
    "hierarchical": Network(_with_shape(HierarchicalConvNet, "scales", "laplacian")),
    "tiled": Network(_with_shape(partial(ConvNet, TiledConv2d), "pooling")),
    "multi_stage": Network(_with_shape(MultiStageConvNet)),
    "multi_column": Network(_with_shape(MultiColumnConvNet, "scales", "independent")),
    "cnn": Network(_cnn, stages=3),
    "cropped_cnn": Network(_cropped, stages=3),
    "deep_cnn": Network(_deep_cnn, stages=3),
    "stir_cnn": Network(_stir_cnn),
    "fcn": Network(_with_shape(FullyConvolutional), SEGMENTATION),
    "resnet18": Network(_resnet18, stages=0),
    "unet": Network(_with_shape(UNet), SEGMENTATION),
    **{name: _staged(block) for name, block in BLOCKS.items()},
    "resnet_aspp": _staged(BLOCKS["resnet"], aspp=True),
}

STAGED = (*BLOCKS, "resnet_aspp")


def channels_of(name: str) -> int | None:
    """Channels of the images that a network must be given; None for any number."""
    return FACTORY_CHANNELS if ":" in name else None


def check_network(name: str, task: str, maps: Sequence[int] = (), blocks: Sequence[int] = ()) -> None:
    """Refuse a network that is made for another task, or widths and blocks that are not those of its stages."""
    if ":" in name:
        return
    if NETWORKS[name].task != task:
        fitting = " or ".join(each for each, network in NETWORKS.items() if network.task == task)
        raise ValueError(f"`model` must be {fitting} or package.module:factory for {task}, got {name}")
    if maps and len(maps) != (stages := NETWORKS[name].stages):
        raise ValueError(f"`maps` must be {stages} numbers for {name}, got {list(maps)}")
    if blocks and (name not in STAGED or len(blocks) != len(STAGE_BLOCKS)):
        raise ValueError(f"`blocks` must be {len(STAGE_BLOCKS)} numbers, for {', '.join(STAGED)}, got {list(blocks)}")


def make_network(images: Images, *, name: str, variant: str, **options: Any) -> nn.Module:
    """The network with new weights.

    Args:
        images: what it is made for.
        name: in `NETWORKS`, or `package.module:factory`, which is called with `num_classes=`. The module may
            be in the current directory.
        variant: `plain`, `converted`, `pyramid`, or one of `CONTROLS`.
        options: the other settings of a network, as `scaleconv.experiments.NetworkSettings` has them.

    Raises:
        ValueError: the network does not take such images or is for another task, or there is no such network.
    """
    check_network(name, images.task, options["maps"], options["blocks"])
    if ":" in name:
        with _modules_from_here():
            network = _from_factory(name, images.classes)
    else:
        try:
            network = NETWORKS[name].make(images, options)
        except ValueError as error:
            raise ValueError(f"`model` {name} does not take these images: {error}") from None
    if variant == "converted" or (variant == "pyramid" and (options["layers"] or options["last"])):
        network = _converted(network, name, images, options)
    if variant == "pyramid":
        network = _pyramid(network, images, options)
    elif variant in CONTROLS:
        layers, share = _chosen(network, name, options["layers"]), options["last"] or 1.0
        CONTROLS[variant](layers[-count_of_share(share, len(layers)) :])
    upsample = options["upsample"]
    return network if upsample == 1 else nn.Sequential(nn.Upsample(scale_factor=upsample), network)


def _converted(network: nn.Module, name: str, images: Images, options: Options) -> nn.Module:
    _chosen(network, name, options["layers"])
    scales, second = options["scales"], options["second_scales"]
    by_name = {"stages.conv2": second, "*": scales} if second else scales
    choice: dict[str, Any] = {"include": options["layers"] or "*"}
    if options["last"]:  # counted by the size of the maps, as `convert` does with an image
        choice |= {"last": options["last"], "images": torch.zeros(1, images.channels, *(images.size or (SMALL, SMALL)))}
    network = convert(network, **choice, scales=by_name, antialias=options["antialias"])
    rules = {name: options[name] for name in RULES}
    return network if rules == RULES else _with_rules(network, rules)


def _with_rules(network: nn.Module, rules: Mapping[str, Any]) -> nn.Module:
    """The converted network with layers that align or normalise their levels, or treat borders, by other rules."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, SIConv2d):
            named = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "scales")
            shape: dict[str, Any] = {key: getattr(layer, key) for key in named}
            with torch.random.fork_rng(devices=[]):
                other = DirectSIConv2d(**shape, bias=layer.bias is not None, **rules)
            other.load_state_dict(layer.state_dict())
            network.set_submodule(name, other)
    return network


def _pyramid(network: nn.Module, images: Images, options: Options) -> nn.Module:
    scales, antialias = options["scales"], options["antialias"]
    if images.task == SEGMENTATION:  # there is an output for every pixel
        return ScaleInvariant(network, scales=scales, stride=1, offset=0, antialias=antialias)
    size: Any = options["levels"]
    if size == "input" and images.size is not None:  # whatever size other images have
        size = (images.size[0] * options["upsample"], images.size[1] * options["upsample"])
    pool, norm = options["pool"], options["norm"]
    return ScaleInvariant(network, scales, pool=pool, norm=norm, size=size, antialias=antialias)


# What changes the layers of `layers` otherwise than `converted` does.
CONTROLS: dict[str, Callable[[Sequence[nn.Conv2d]], None]] = {"dilated": dilate, "branches": add_branches}


def _chosen(network: nn.Module, name: str, patterns: Sequence[str]) -> list[nn.Conv2d]:
    """The layers that patterns choose, all over 1×1 without patterns; a pattern that chooses none is refused."""
    known = {each: layer for each, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    found: dict[str, nn.Conv2d] = {}
    for pattern in patterns or ("*",):
        named = {each: layer for each, layer in known.items() if fnmatchcase(each, pattern)}
        able = {each: layer for each, layer in named.items() if each == pattern or not why_no_gain(each, layer, {})}
        if patterns and not able:
            rule, names = "that can gain by it " if named else "", ", ".join(known)[:300]
            raise ValueError(f"`layers` must match convolutions {rule}of {name} ({names}), got {pattern!r}")
        found |= able
    return list(found.values())


@contextmanager
def _modules_from_here() -> Iterator[None]:
    """Import modules from the current directory first, as `python -m` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        if "" in sys.path:  # what was imported may have taken it away
            sys.path.remove("")


def _from_factory(name: str, classes: int) -> nn.Module:
    module, _, attribute = name.partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"`model` must be package.module:factory that can be imported, got {name} ({error})") from None
    try:
        network = factory(num_classes=classes)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ValueError(f"`model` {name} must take num_classes={classes}, got {got}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"`model` {name} must return a torch.nn.Module, got {type(network).__name__}")
    return network


class Classifier(nn.Module):
    """A network that takes images as they are: (N, C, H, W) in [0, 1] to one number for each class, or class and pixel.

    Args:
        network: takes images whose mean is 0; may return a mapping with `out`, as torchvision's for segmentation do.
        mean: of each channel over the training images; or their mean image (C, H, W), for images of that size.
        std: of each channel.
        classes: names.
    """

    def __init__(
        self, network: nn.Module, mean: Sequence[float] | Tensor, std: Sequence[float], classes: Sequence[str]
    ) -> None:
        super().__init__()
        self.network, self.classes = network, tuple(classes)
        self.mean: Tensor
        self.std: Tensor
        means = mean if isinstance(mean, Tensor) else torch.tensor(mean).reshape(-1, 1, 1)
        self.register_buffer("mean", means.unsqueeze(0))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        output = self.network((images - self.mean) / self.std)
        logits: Tensor = output["out"] if isinstance(output, Mapping) else output
        return logits
