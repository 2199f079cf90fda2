"""One JSON file per finished run: the evidence behind every table and figure.

A record says what was run (settings, seed, fold), where (versions, hardware, commit) and what came out (per epoch, and
in the end). It is written whole or not at all, and checked when it is read.
"""

import json
import math
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..data.atomic import atomic_path
from .schema import build


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run: the training loss, the test error in percent where it was measured, and its seconds.

    The loss of an RBM is the mean squared error of its reconstructions. The control on pixels has one entry, with the
    cross-entropy on its held-out digits.
    """

    epoch: int
    train_loss: float
    test_error: float | None
    seconds: float


@dataclass(frozen=True)
class Series:
    """Values measured along an axis."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Record:
    """One finished run.

    Attributes:
        experiment: name of the folder, such as `table1`.
        model, fold, seed: which run of it.
        test_error: after the last epoch, in percent; where a series is called `test_error`, its mean. None where
            nothing is classified.
        config: the settings the result depends on.
        environment: versions, hardware, commit.
        history: what was measured in each epoch.
        parameters: numbers the network learned.
        seconds: of training, without tests, over all sittings; of an RBM, with the choice of its classifier.
        seconds_per_epoch: median over the epochs, without tests.
        runs_together: how many runs shared the device meanwhile.
        point, x, label: at which point of the experiment, where that lies on its axis, and its name for people.
        series: what else was measured, by name.
    """

    experiment: str
    model: str
    fold: int
    seed: int
    test_error: float | None
    config: dict[str, Any]
    environment: dict[str, Any]
    history: list[Epoch]
    parameters: int
    seconds: float
    seconds_per_epoch: float
    runs_together: int
    point: str = ""
    x: float | None = None
    label: str = ""
    series: dict[str, Series] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """The test error of a run that has one."""
        if self.test_error is None:
            raise ValueError(f"`test_error` of {self.model}, fold {self.fold}, must be there, got None")
        return self.test_error


def record_path(folder: Path, model: str, point: str, fold: int, seed: int) -> Path:
    """Where the record of a run lies in the folder of its experiment."""
    at = f"-{point}" if point else ""
    return folder / f"{model}{at}-fold{fold}-seed{seed}.json"


def path_of(folder: Path, record: Record) -> Path:
    """Where this record lies."""
    return record_path(folder, record.model, record.point, record.fold, record.seed)


def write_record(folder: Path, record: Record) -> Path:
    """Write a record, whole or not at all."""
    path = path_of(folder, record)
    with atomic_path(path) as part:
        part.write_text(json.dumps(asdict(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        ValueError: the file is not a whole, valid record.
    """
    try:
        record = build(Record, json.loads(path.read_text(encoding="utf-8")), "the record")
        if record.test_error is not None and not (record.history and 0 <= record.test_error <= 100):
            raise ValueError("`history` must not be empty, and `test_error` a percentage")
        if record.test_error is None and not record.series:
            raise ValueError("`test_error` must be there where no `series` is")
        if any(len(series.x) != len(series.y) for series in record.series.values()):
            raise ValueError("`series` must have a value for each x")
        if path_of(path.parent, record) != path:
            at = f", {record.point}" if record.point else ""
            raise ValueError(f"it is of {record.model}{at}, fold {record.fold}, seed {record.seed}")
    except ValueError as error:
        raise ValueError(f"{path} is not a valid record ({error}): delete it and run the experiment again") from None
    return record


def read_records(folder: Path) -> list[Record]:
    """All records of an experiment, by model, point, fold and seed."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda r: (r.model, -math.inf if r.x is None else r.x, r.point, r.fold, r.seed))


@lru_cache(maxsize=8)
def describe_environment(device: str) -> dict[str, Any]:
    """Versions, hardware and commit of this process."""
    kind = torch.device(device)
    return {
        "scaleconv": _version("scaleconv"),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(kind) if kind.type == "cuda" else f"{kind.type}, {_processor()}",
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with `+` if it was changed; None if it is installed.

    `$SCALECONV_COMMIT` names it where a tree was copied without its history.
    """
    if named := os.environ.get("SCALECONV_COMMIT"):
        return named
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "status", "--porcelain", "src"], cwd=root, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
