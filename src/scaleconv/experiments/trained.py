"""A trained network, loaded again from the file of its weights. A file cannot run code."""

import os
from pathlib import Path

import msgspec
from torch import nn

from ..models import Classifier, make_network
from .checkpoint import load_checkpoint, make_fitting
from .settings import Settings, brief, read
from .sources import images_of


def load(path: str | os.PathLike[str], model: nn.Module | str | None = None) -> Classifier:
    """Load a network that `scaleconv train`, `compare` or `reproduce` has trained, ready to classify.

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
    return load_run(Path(path), model)[0]


def load_run(path: Path, model: nn.Module | str | None = None) -> tuple[Classifier, Settings]:
    """As `load`, and the settings of the run."""
    found = load_checkpoint(path)
    config = found.run.get("config")
    if not (isinstance(config, dict) and "network" in config and {"mean", "std"} <= found.tensors.keys()):
        raise ValueError(f"`path` must be weights of a network that scaleconv has trained, got {path}")
    settings = read(Settings, config, str(path))
    name = settings.network.name
    if model is None and ":" in name:
        raise ValueError(
            f"`model` must be given for the weights of a network of your own ({brief(name)} in {path}): "
            "the Module, or the name package.module:factory"
        )
    if isinstance(model, str) and model != name:
        raise ValueError(f"`model` must be {brief(name)} for {path}, got {model}")
    mean, std = (found.tensors[key].flatten().tolist() for key in ("mean", "std"))
    images, classes = images_of(settings.data)

    def make() -> Classifier:
        named = msgspec.structs.asdict(settings.network)
        network = model if isinstance(model, nn.Module) else make_network(images, **named)
        return Classifier(network, mean, std, classes)

    return make_fitting(path, found.tensors, make, planned=":" not in name).eval(), settings
