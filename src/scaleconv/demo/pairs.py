"""The small networks behind the page: how they are trained, and how they are read.

Three pairs, plain and scale-invariant: for single digits (ConvNet and SI-ConvNet on 48×48, the network of Figure 5a
with a third of its maps), for scenes (FCN and SI-FCN), and for photographs (a ResNet, and the same with its late layers
converted). The first two are trained near scale 1, so that the slider of the page leaves what they know; the digits
that the page offers took no part in training. `scaleconv compare` trains the third, by examples/plans/demo.toml.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import embedded_digits
from ..experiments import Experiment, Record, Settings, load_experiment, plan_runs
from ..experiments.checkpoint import load_run
from ..experiments.display import run_on_terminal
from ..experiments.records import Series, read_records, records_file, run_file, run_name
from ..experiments.settings import DigitData, FolderData
from ..experiments.sources import divide
from ..models import Classifier
from .drawn_examples import draw_examples

SHIPPED = Path(str(resources.files(__package__))) / "trained"
SCALES = [2 ** (k / 2) for k in range(-2, 3)]  # of the invariant networks: 0.5 … 2
DIGITS: dict[str, Any] = {
    "folds": [0],
    "data.scales": "uniform:0.8,1.25",
    "data.size": 48,  # a digit at scale 2 has room
    "data.train": 9000,
    "data.test": 1000,
    "network.maps": [12, 24],
    "network.hidden": 64,
    "network.scales": SCALES,
    "training.batch": 16,
    "training.settled": 0.0,
    "training.epochs": 3,
    "measure.scales": [0.3, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0],
    "measure.digits": 500,
}
SCENES: dict[str, Any] = {
    "folds": [0],
    "data.size": 48,
    "data.train": 4000,
    "data.test": 300,
    "data.scene": 2,
    "data.pieces": 0,  # with pieces, small digits pass for pieces
    "network.scales": SCALES,
    "training.epochs": 4,
    "measure.scales": [0.4, 0.6, 0.8, 1.0, 1.3, 1.6],
    "measure.digits": 100,
}


@dataclass(frozen=True)
class Accuracy:
    """How often both networks of a pair were right on test images, as their records have it.

    Attributes:
        images: how many; of scenes, how many digits were in them.
        scales: to which they were brought.
        plain, invariant: percent right at each of the scales; of scenes, of the pixels of digits.
    """

    images: int
    scales: list[float]
    plain: list[float]
    invariant: list[float]


@dataclass(frozen=True)
class Pair:
    """A plain network and the scale-invariant one with the same number of weights.

    Attributes:
        plain, invariant: take images in [0, 1]; in evaluation mode.
        size: side of the images they were trained on.
        trained: scales of what was in them, in words.
        images, labels: what the page offers, with (N,) classes: test digits (N, 28, 28) uint8, which neither has seen,
            or drawings (N, 3, H, H) uint8 of what is in photographs.
        accuracy: on test images, of which `images` are a few or, of photographs, none.
    """

    plain: Classifier
    invariant: Classifier
    size: int
    trained: str
    images: Tensor
    labels: Tensor
    accuracy: Accuracy


def experiments() -> dict[str, Experiment]:
    """What is trained, by the folder it goes to."""
    return {
        "digits": load_experiment("fig5a", "quick", DIGITS),
        "scenes": load_experiment("scenes", "quick", SCENES).at_point("near"),
    }


def train_pairs(folder: Path, device: str = "cpu") -> list[Record]:
    """Train both pairs; what is finished is not trained again."""
    return [
        record
        for name, experiment in experiments().items()
        for record in run_on_terminal(experiment, folder / name, device, None)
    ]


def load_pairs(folder: Path = SHIPPED) -> dict[str, Pair]:
    """The trained pairs, by name. The networks for photographs are those of the package where a folder has none.

    Raises:
        OSError, ValueError: weights or records are missing or damaged.
    """
    pairs = {name: load_digits(experiment, folder / name) for name, experiment in experiments().items()}
    own = folder / "photographs"
    return {**pairs, "photographs": load_photographs(own if own.is_dir() else SHIPPED / "photographs")}


def load_digits(experiment: Experiment, folder: Path) -> Pair:
    """The pair of an experiment on digits or scenes."""
    digits, data = embedded_digits(), experiment.settings.data
    assert isinstance(data, DigitData)
    unseen = divide(digits.labels, data, experiment.folds[0]).test
    runs = plan_runs(experiment)
    plain, invariant = (_load(run.weights(folder))[0] for run in runs)
    trained = data.scales.partition(":")[2].replace(",", " to ")
    accuracy = read_accuracy(folder, [run.name for run in runs])
    return Pair(plain, invariant, data.size, trained, digits.images[unseen], digits.labels[unseen], accuracy)


def load_photographs(folder: Path) -> Pair:
    """The pair that `compare` has left in a folder."""
    names = [run_name(method, "", 0, 0) for method in ("plain", "late")]
    (plain, settings), (invariant, _) = (_load(run_file(folder, name, "weights")) for name in names)
    drawings, (least, most) = draw_examples(), settings.training.rescale
    if not (isinstance(settings.data, FolderData) and settings.data.size and {*drawings} <= {*plain.classes}):
        known = f"{', '.join(drawings)}, got {', '.join(plain.classes)}"
        raise ValueError(f"`networks` must have networks for photographs of one size that know {known}")
    labels = torch.tensor([plain.classes.index(name) for name in drawings])
    images = torch.stack(list(drawings.values()))
    trained, accuracy = f"{least:g} to {most:g}", read_accuracy(folder, names)
    return Pair(plain, invariant, settings.data.size[0], trained, images, labels, accuracy)


def read_accuracy(folder: Path, names: list[str]) -> Accuracy:
    """What the records of a folder say of the plain and of the invariant network, by the names of their runs."""
    records = {record.name: record for record in read_records(folder)}
    if not set(names) <= set(records):
        raise ValueError(f"`networks` must have the records of {' and '.join(names)} in {records_file(folder)}")
    plain, invariant = (_right(records[name]) for name in names)
    config = records[names[0]].config
    return Accuracy(config["measure"]["digits"] or config["data"]["test"], plain.x, plain.y, invariant.y)


def _right(record: Record) -> Series:
    """Percent right by scale."""
    if "accuracy by scale" in record.series:
        return record.series["accuracy by scale"]
    errors = record.series["test_error"]
    return Series(errors.x, [100 - error for error in errors.y])


def _load(path: Path) -> tuple[Classifier, Settings]:
    try:
        return load_run(path)
    except OSError as error:
        raise type(error)(f"{error}: `networks` must be a folder that scaleconv demo --train has filled") from None
