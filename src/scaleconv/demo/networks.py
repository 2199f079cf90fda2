"""The small networks behind the page: how they are trained, and how they are read.

Two pairs, plain and scale-invariant: for single digits (ConvNet and SI-ConvNet on 48×48, the network of Figure 5a with
a third of its maps), and for scenes (FCN and SI-FCN). Both are trained near scale 1, so that the slider of the page
leaves what they know. The digits that the page offers took no part in training.
"""

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data import embedded_digits
from ..experiments import Experiment, Record, load_experiment, plan_runs
from ..experiments.explanation import load_network
from ..experiments.parsing import brief, build
from ..experiments.records import writing
from ..experiments.run import run_on_terminal
from ..experiments.train import DigitStore, divide

SHIPPED = Path(str(resources.files(__package__))) / "trained"
MEANS = "means.json"
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
        plain, invariant: in evaluation mode.
        mean: of the training pixels, which is subtracted from an image.
        size: side of the images they were trained on.
        trained: scales of the digits in them, in words.
        digits, labels: (N, 28, 28) uint8 and (N,): test digits, which neither has seen.
    """

    plain: nn.Module
    invariant: nn.Module
    mean: float
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
    """Train both pairs; what is finished is not trained again.

    The means of the training pixels are written beside them: making all training images again would take seconds.
    """
    records, means = [], {}
    for name, experiment in experiments().items():
        records += run_on_terminal(experiment, folder / name, device, None)
        means[name] = DigitStore("cpu").of(experiment.settings.data, experiment.folds[0]).mean
    with writing(folder / MEANS) as part:
        part.write_text(json.dumps(means) + "\n")
    return records


def load_pairs(folder: Path = SHIPPED) -> dict[str, Pair]:
    """The trained pairs, by name.

    Raises:
        OSError, ValueError: weights are missing or damaged.
    """
    digits, means, pairs = embedded_digits(), read_means(folder / MEANS), {}
    for name, experiment in experiments().items():
        (plain, run), (invariant, _) = (load_network(run.weights(folder / name)) for run in plan_runs(experiment))
        data = run.settings.data
        unseen = divide(digits.labels, data, run.fold).test
        pairs[name] = Pair(
            plain.eval(),
            invariant.eval(),
            mean=means[name],
            size=data.size,
            trained=data.scales.partition(":")[2].replace(",", " to "),
            digits=digits.images[unseen],
            labels=digits.labels[unseen],
        )
    return pairs


@dataclass(frozen=True)
class _Means:
    digits: float
    scenes: float

    def __post_init__(self) -> None:
        if not all(0 <= mean <= 1 for mean in asdict(self).values()):
            raise ValueError(f"means of pixels must lie between 0 and 1, got {self.digits}, {self.scenes}")


def read_means(path: Path) -> dict[str, float]:
    """The means of the training pixels, by pair.

    Raises:
        OSError, ValueError: the file is missing or damaged.
    """
    try:
        return asdict(build(_Means, json.loads(path.read_text()), "the means"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not hold the means of the networks ({brief(error)}): train them again") from None
    except OSError as error:
        raise type(error)(
            f"cannot read {path} ({error.strerror}): `networks` must be a folder that scaleconv demo --train has filled"
        ) from None
