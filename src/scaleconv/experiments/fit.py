"""Train one network on images of your own: `fit(model, data)`."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from torch import nn

from ..data.files import atomic_path
from ..data.loading import ImageData, load_folder
from ..environment import choose_device
from ..models import Classifier
from ..models.networks import channels_of
from ..ops.checks import check_count
from .display import ProgressDisplay
from .items import Experiment, Point
from .measures import TEST_SCALES
from .processes import agreed, is_first
from .records import Record
from .run import Options, Run, run_experiment
from .settings import Data, MeasureSettings, NetworkSettings, Settings, TrainingSettings, checked
from .sources import folder_data, images_of
from .trained import load


@dataclass(frozen=True)
class Fitted:
    """A trained network.

    Attributes:
        network: takes images in [0, 1]; in evaluation mode.
        record: accuracy at every scale (`series`), cost, settings, environment and history.
        weights: their file, for `scaleconv.experiments.load`; None where no folder was given, and in all processes of
            torchrun but the first.
    """

    network: Classifier
    record: Record
    weights: Path | None


def fit(
    model: NetworkSettings | nn.Module,
    data: ImageData | str | os.PathLike[str],
    settings: TrainingSettings | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    workers: int = 0,
    tensorboard: bool = False,
    quiet: bool = False,
) -> Fitted:
    """Train a network on a folder of images and test it at every scale.

    Args:
        model: by name, or a Module that takes (N, C, H, W) of mean 0 to one number for each class, or with masks for
            each class and pixel. A Module is trained itself, from the weights it has.
        data: of `load_folder`, or a folder whose images are all of one size, with a folder for each class.
        settings: how to train; the defaults if None.
        folder: for the weights, the log and the checkpoint; the record goes into the file `<folder>.jsonl`. A run that
            is finished there is not repeated, one that was interrupted goes on. None keeps nothing.
        seed: of weights, order and augmentation.
        device: `cpu`, `cuda`, …; `auto` takes a GPU if there is one.
        workers: processes that decode images where they are too many to be kept in memory. Changes the time only.
        tensorboard: whether to log for TensorBoard too, in `folder`/tensorboard.
        quiet: without a progress bar; there is none without a terminal either.

    Raises:
        ValueError: an argument breaks its rule, the loss became infinite, or the folder holds the same run with other
            settings or images.
        OSError: an image, the record or the checkpoint cannot be read or written.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the checkpoint was written.

    Example:
        >>> from scaleconv.data import load_folder
        >>> fitted = fit(NetworkSettings(variant="converted"), load_folder("photos", resize=64))  # doctest: +SKIP
        >>> fitted.record.series["accuracy by scale"].y  # doctest: +SKIP
    """
    check_count("workers", workers, least=0)
    check_count("seed", seed, least=0)
    settings = checked(settings or TrainingSettings())
    images = data if isinstance(data, ImageData) else load_folder(data)
    if isinstance(model, nn.Module):
        kind, module = type(model), model
        method, network = "own", NetworkSettings(name=f"{kind.__module__}:{kind.__qualname__}")
    else:
        method, network, module = model.variant, checked(model), None
        check_channels(folder_data(images), network)
    if "scale" in settings.augment:
        method = f"{method}-scale"
    point = Point(own_settings(folder_data(images), network, settings))
    run = Run(method, point, 0, seed, module)
    item = own_item("fit", [method], [seed], point)
    kept = Path(folder) if folder is not None and is_first() else None
    options = Options(choose_device(device), None, images, workers, tensorboard)
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProgressDisplay(Console(stderr=True, quiet=quiet or not is_first())) as display,
    ):
        place = kept or Path(scratch) / "fit"
        (record,) = run_experiment(item, place, options, watcher=display, runs=[run])
        weights = run.weights(place)
        content = agreed(options.device, weights.read_bytes)
        if not is_first():
            with atomic_path(weights) as part:
                part.write_bytes(content)
        trained = load(weights, network.name if module is None else module)
    return Fitted(trained, record, weights if kept else None)


def own_settings(data: Data, network: NetworkSettings, training: TrainingSettings) -> Settings:
    """The settings of runs on a user's images: they are tested at every scale."""
    measure = MeasureSettings(kind="accuracy", scales=TEST_SCALES)
    return Settings(data=data, network=network, training=training, measure=measure)


def check_channels(data: Data, network: NetworkSettings) -> None:
    """Refuse images of another number of channels than a network takes that is made by its name."""
    if (channels := channels_of(network.name)) not in (None, images_of(data)[0].channels):
        raise ValueError(f"`data` must have {channels} channels for {network.name}, got {images_of(data)[0].channels}")


def own_item(name: str, methods: list[str], seeds: list[int], point: Point) -> Experiment:
    """An item of methods on a user's images."""
    return Experiment(
        item=name,
        preset="",
        title=f"Accuracy on {name}",
        models=tuple(methods),
        baseline="plain",
        folds=(0,),
        seeds=tuple(seeds),
        points=(point,),
    )
