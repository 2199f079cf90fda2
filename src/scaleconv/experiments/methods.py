"""The methods that are compared, by name: a network, its variant, and whether its training images are rescaled.

`reproduce` compares those of the paper and of the later literature, `compare` the variants of one network. A method
changes the settings of its runs; everything else is the same for all methods of a comparison.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from ..models import UNSUPERVISED
from ..nn.convert import LATE, LATE_SCALES
from .settings import NetworkSettings, Settings, TrainingSettings, read


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        title: as tables have it.
        network: its name in `scaleconv.models.NETWORKS`; empty for the one that the settings name.
        variant: `plain`, `converted` or `pyramid`.
        rescaled: whether it is trained on rescaled images, whatever the settings say.
        late: whether only the late layers are converted, at the scales that `convert` gives them by default.
    """

    title: str
    network: str = ""
    variant: str = "plain"
    rescaled: bool = False
    late: bool = False


# In the order of the paper's table: RBMs, networks, those of the later literature, the control on pixels.
METHODS = {
    "rbm": Method(UNSUPERVISED["rbm"]),
    "si_rbm": Method(UNSUPERVISED["si_rbm"]),
    "convnet": Method("ConvNet", "convnet"),
    "hierarchical": Method("Hierarchical ConvNet", "hierarchical"),
    "si_convnet": Method("SI-ConvNet", "convnet", "converted"),
    "ensemble": Method("Input-pyramid ensemble", "convnet", "pyramid"),
    "tiled": Method("Tiled ConvNet", "tiled"),
    "multi_stage": Method("Multi-stage ConvNet", "multi_stage"),
    "multi_column": Method("Multi-column ConvNet", "multi_column"),
    "augmented": Method("ConvNet, scale augmentation", "convnet", rescaled=True),
    "fcn": Method("FCN", "fcn"),
    "si_fcn": Method("SI-FCN", "fcn", "converted"),
    "unet": Method("U-Net", "unet"),
    "si_unet": Method("SI-U-Net", "unet", "converted"),
    "cnn": Method("CNN", "cnn"),
    "cropped_cnn": Method("CNN, cropped layers", "cropped_cnn"),
    "si_cnn": Method("SI-CNN", "cnn", "converted"),
    "pyramid_cnn": Method("ScaleInvariant(CNN)", "cnn", "pyramid"),
    "deep_cnn": Method("Deep CNN", "deep_cnn"),
    "pyramid_deep_cnn": Method("ScaleInvariant(deep CNN)", "deep_cnn", "pyramid"),
    "stir_cnn": Method("STIR CNN", "stir_cnn"),
    "si_stir_cnn": Method("SI-STIR CNN", "stir_cnn", "converted"),
    "pyramid_stir_cnn": Method("ScaleInvariant(STIR CNN)", "stir_cnn", "pyramid"),
    "pixels": Method(UNSUPERVISED["pixels"]),
    # Of any network, on images of your own.
    "plain": Method("plain"),
    "plain-scale": Method("plain + scale augmentation", rescaled=True),
    "late": Method("late", variant="converted", late=True),
    "late-scale": Method("late + scale augmentation", variant="converted", rescaled=True, late=True),
    "converted": Method("converted", variant="converted"),
    "converted-scale": Method("converted + scale augmentation", variant="converted", rescaled=True),
    "pyramid": Method("pyramid", variant="pyramid"),
    "pyramid-scale": Method("pyramid + scale augmentation", variant="pyramid", rescaled=True),
    "own": Method("own"),  # a Module that is given to `fit`
    "own-scale": Method("own + scale augmentation", rescaled=True),
}
TITLES = {name: method.title for name, method in METHODS.items()}
OWN = tuple(name for name, method in METHODS.items() if not method.network and name not in UNSUPERVISED)
PAPERS = tuple(name for name in METHODS if name not in OWN)
COMPARED = ("plain", "plain-scale", "late", "late-scale", "pyramid")

# The sections that the result of a method depends on.
NETWORK_SECTIONS = ("data", "network", "training", "measure")
FEATURE_SECTIONS = {
    "rbm": ("data", "rbm", "softmax"),
    "si_rbm": ("data", "si_rbm", "softmax"),
    "pixels": ("data", "softmax"),
}
UNSCALED = ("cnn", "cropped_cnn", "deep_cnn", "stir_cnn")  # plain networks that `scales` does not change


def settings_of(name: str, settings: Settings) -> Settings:
    """The settings of a method's runs. Those of networks on images of your own are complete as they are."""
    if name not in METHODS or not METHODS[name].network:
        return settings
    network, training = apply_method(name, settings.network, settings.training)
    return replace(settings, network=network, training=training)


def apply_method(
    name: str, network: NetworkSettings, training: TrainingSettings, late_scales: tuple[float, ...] = LATE_SCALES
) -> tuple[NetworkSettings, TrainingSettings]:
    """What a method changes in the settings that all methods share."""
    method = METHODS[name]
    if method.rescaled and "scale" not in training.augment:
        training = replace(training, augment=(*training.augment, "scale"))
    network = replace(network, name=method.network or network.name, variant=method.variant)
    return replace(network, last=LATE, scales=late_scales) if method.late else network, training


def config_of(name: str, settings: Settings) -> dict[str, Any]:
    """The sections that a method uses, as its record holds them: plain values, with lists in place of tuples."""
    sections = FEATURE_SECTIONS.get(name, NETWORK_SECTIONS)
    table = msgspec.json.encode({section: getattr(settings, section) for section in sections})
    values: dict[str, Any] = msgspec.json.decode(table)
    return values


def of_result(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What a result depends on: not how often a run is tested, nor scales that its network does not have.

    Settings that there were not yet when it was made have their defaults.
    """
    found = config_of(name, read(Settings, config, "`config`"))
    if name in UNSCALED:
        found["network"].pop("scales", None)
    found.get("training", {}).pop("evaluate_every", None)
    return found


def of_weights(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What trained weights depend on: not what is measured on them."""
    return {section: values for section, values in of_result(name, config).items() if section != "measure"}


def epochs_of(name: str, settings: Settings) -> int:
    """Entries in the history of a run, at most; the softmax on pixels is trained in one go."""
    if name == "pixels":
        return 1
    return {"rbm": settings.rbm, "si_rbm": settings.si_rbm}.get(name, settings.training).epochs
