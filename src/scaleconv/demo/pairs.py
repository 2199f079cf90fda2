"""The small networks behind the page: how they are trained, and how they are read.

Two pairs, plain and scale-invariant: for single digits (ConvNet and SI-ConvNet on 48×48, the network of Figure 5a with
a third of its maps), and for scenes (FCN and SI-FCN). Both are trained near scale 1, so that the slider of the page
leaves what they know. The digits that the page offers took no part in training.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data import embedded_digits
from ..experiments import Experiment, Record, load, load_experiment, plan_runs
from ..experiments.display import run_on_terminal
from ..experiments.settings import DigitData
from ..experiments.sources import divide
from ..models import Classifier

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
class Pair:
    """A plain network and the scale-invariant one with the same number of weights.

    Attributes:
        plain, invariant: take images in [0, 1]; in evaluation mode.
        size: side of the images they were trained on.
        trained: scales of the digits in them, in words.
        digits, labels: (N, 28, 28) uint8 and (N,): test digits, which neither has seen.
    """

    plain: Classifier
    invariant: Classifier
    size: int
    trained: str
    digits: Tensor
    labels: Tensor


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
    """The trained pairs, by name.

    Raises:
        OSError, ValueError: weights are missing or damaged.
    """
    digits, pairs = embedded_digits(), {}
    for name, experiment in experiments().items():
        runs = plan_runs(experiment)
        try:
            plain, invariant = (load(run.weights(folder / name)) for run in runs)
        except OSError as error:
            raise type(error)(f"{error}: `networks` must be a folder that scaleconv demo --train has filled") from None
        data = experiment.settings.data
        assert isinstance(data, DigitData)
        unseen = divide(digits.labels, data, experiment.folds[0]).test
        pairs[name] = Pair(
            plain,
            invariant,
            size=data.size,
            trained=data.scales.partition(":")[2].replace(",", " to "),
            digits=digits.images[unseen],
            labels=digits.labels[unseen],
        )
    return pairs
