"""One JSON file per finished run: the evidence behind every table and figure.

A record says what was run (settings, seed, fold), where (versions, hardware, commit) and what came out (per epoch, and
in the end). It is written whole or not at all. Floats are rounded to what is significant, the history is stored as
columns, and a checksum covers everything. A file that was damaged, or that contradicts itself, is refused by name.

Records of the first format (a list of epochs, no checksum) are still read.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..data.atomic import atomic_path
from ..environment import describe_environment as describe_environment
from .config import TITLES, Settings, sections
from .parsing import brief, build

DIGITS, LOSS_DIGITS, TIME_DIGITS = 6, 5, 3  # significant digits of a number, of a loss and of an epoch's seconds
COLUMNS = ("epoch", "train_loss", "seconds", "tested", "test_error")  # of a history
VALIDATED = ("validated", "val_error")  # of a history with validation errors, besides
SUFFIXES = {"weights": ".safetensors", "checkpoints": ".safetensors", "logs": ".csv"}  # by folder
MOST_TOGETHER = 1000  # runs that shared a device
ROUNDING = 1e-5  # relative: how far rounded numbers may differ that should be equal


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run: the training loss, test and validation error in percent where measured, and its seconds.

    The loss of an RBM is the mean squared error of its reconstructions. The softmax on pixels has one entry, with the
    cross-entropy on its held-out digits.
    """

    epoch: int
    train_loss: float
    test_error: float | None
    seconds: float
    val_error: float | None = None


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
        point, x, label: which point of the experiment, its position on the axis, and its label.
        series: what else was measured, by name.
        cost: of the network, by name: operations, memory, time.
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
    cost: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its file's name."""
        return record_name(self.model, self.point, self.fold, self.seed)

    @property
    def error(self) -> float:
        """The test error of a run that has one."""
        if self.test_error is None:
            raise ValueError(f"`test_error` of {self.name} must be there, got None")
        return self.test_error


def record_name(model: str, point: str, fold: int, seed: int) -> str:
    """The file of a run in the folder of its experiment."""
    at = f"-{point}" if point else ""
    return f"{model}{at}-fold{fold}-seed{seed}.json"


def run_file(record: Path, kind: str) -> Path:
    """Where a run keeps its `weights`, `checkpoints` or `logs`: in a folder beside its record, under the same name.

    Example:
        >>> run_file(Path("table1/convnet-fold0-seed0.json"), "weights").as_posix()
        'table1/weights/convnet-fold0-seed0.safetensors'
    """
    return record.parent / kind / record.with_suffix(SUFFIXES[kind]).name


def write_record(folder: Path, record: Record) -> Path:
    """Write a record, whole or not at all: a line per key, and per column of the history."""
    path = folder / record.name
    values = {**_rounded(asdict(record)), "history": to_columns(record.history)}
    lines = [f' "{key}": {_line(value)}' for key, value in {**values, "checksum": checksum(values)}.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        ValueError: the file is not a whole, valid record.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        record = build(Record, _checked(values), "the record")
        _check_consistency(record)
        if record.name != path.name:
            raise ValueError(f"it is of {record.name.removesuffix('.json')}")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a valid record ({brief(error)}): delete it and run the experiment again"
        ) from None
    except OSError as error:
        raise type(error)(f"cannot read the record {path} ({error.strerror})") from None
    return record


def read_records(folder: Path) -> list[Record]:
    """All records of an experiment, by model, point, fold and seed."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda r: (r.model, -math.inf if r.x is None else r.x, r.point, r.fold, r.seed))


def to_columns(history: Sequence[Epoch]) -> dict[str, list[Any]]:
    """A history as columns of rounded numbers: three of all epochs, two of those that were tested or validated.

    Example:
        >>> to_columns([Epoch(1, 2.302585, None, 0.1234567), Epoch(2, 1.5, 12.5, 0.1)])
        {'epoch': [1, 2], 'train_loss': [2.3026, 1.5], 'seconds': [0.123, 0.1], 'tested': [2], 'test_error': [12.5]}
    """
    tested = [entry for entry in history if entry.test_error is not None]
    validated = [entry for entry in history if entry.val_error is not None]
    columns = {
        "epoch": [entry.epoch for entry in history],
        "train_loss": [_significant(entry.train_loss, LOSS_DIGITS) for entry in history],
        "seconds": [_significant(entry.seconds, TIME_DIGITS) for entry in history],
        "tested": [entry.epoch for entry in tested],
        "test_error": [_significant(entry.test_error, DIGITS) for entry in tested],
    }
    if validated:
        columns["validated"] = [entry.epoch for entry in validated]
        columns["val_error"] = [_significant(entry.val_error, DIGITS) for entry in validated]
    return columns


def from_columns(columns: Any) -> list[Epoch]:
    """The history of a file: columns, or in the first format a list of epochs.

    Raises:
        ValueError: columns that are missing or of different lengths, or epochs that are not 1, 2, 3, …
    """
    entries = columns
    if isinstance(columns, Mapping):
        named = set(columns) - set(VALIDATED) if set(VALIDATED) <= set(columns) else set(columns)
        if named != set(COLUMNS) or not all(isinstance(column, list) for column in columns.values()):
            raise ValueError(f"`history` must have the columns {', '.join(COLUMNS)}, each a list, got {brief(columns)}")
        epoch, loss, seconds = (columns[name] for name in COLUMNS[:3])
        measured = [(columns.get(at, []), columns.get(name, [])) for at, name in (COLUMNS[3:], VALIDATED)]
        whole = all(len(at) == len(errors) and set(at) <= set(epoch) for at, errors in measured)
        if not (len(epoch) == len(loss) == len(seconds) and whole):
            lengths = {name: len(column) for name, column in columns.items()}
            raise ValueError(
                f"`history` must have a value for each epoch, and an error for each that was tested, got {lengths}"
            )
        tested, validated = (dict(zip(at, errors, strict=True)) for at, errors in measured)
        entries = [
            {"epoch": n, "train_loss": a, "test_error": tested.get(n), "seconds": b, "val_error": validated.get(n)}
            for n, a, b in zip(epoch, loss, seconds, strict=True)
        ]
    if not isinstance(entries, list):
        raise ValueError(f"`history` must be columns, got {type(entries).__name__}")
    history = [build(Epoch, entry, "the history") for entry in entries]
    if (counted := [entry.epoch for entry in history]) != list(range(1, len(history) + 1)):
        raise ValueError(f"`epoch` in the history must count from 1 without a gap, got {brief(counted)}")
    return history


def checksum(values: Any, *others: bytes) -> str:
    """SHA-256 of plain values, whatever the order of their keys, and of further bytes."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
    for other in others:
        digest.update(other)
    return digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """As `atomic_path`, with a message that names the file."""
    try:
        with atomic_path(path) as part:
            yield part
    except OSError as error:
        if error.errno is None:  # it has its message
            raise
        raise type(error)(f"cannot write {path} ({error.strerror}): make room, or name another directory") from None


def _checked(values: Any) -> dict[str, Any]:
    """The values of a file without their checksum, the history as epochs."""
    if not isinstance(values, dict):
        raise ValueError(f"the record must be a table, got {type(values).__name__}")
    columnar = isinstance(values.get("history"), dict)
    if columnar or "checksum" in values:
        stored = values.pop("checksum", None)
        if stored != checksum(values):
            raise ValueError("its checksum does not agree with its content")
    return {**values, "history": from_columns(values.get("history"))}


def _check_consistency(record: Record) -> None:
    """Refuse a record whose parts contradict each other, or lack what tables are made of."""
    if not isinstance(device := record.environment.get("device"), str):
        raise ValueError(f"`environment` must name the device, got {brief(device)}")
    if not 1 <= record.runs_together <= MOST_TOGETHER:
        raise ValueError(f"`runs_together` must be from 1 to {MOST_TOGETHER}, got {record.runs_together}")
    if record.test_error is None and not record.series:
        raise ValueError("`test_error` must be there where no `series` is, got None")
    for name, series in record.series.items():
        if len(series.x) != len(series.y):
            raise ValueError(
                f"`series` must have a value for each x, got {len(series.y)} for {len(series.x)} in {brief(name)}"
            )
    if record.model in TITLES:
        if missing := [name for name in sections(record.model) if name not in record.config and name != "measure"]:
            raise ValueError(f"`config` must have the section {missing[0]}, got {brief(list(record.config))}")
        settings = build(Settings, record.config, "`config`")
        planned, losses = settings.epochs(record.model), [entry.train_loss for entry in record.history]
        settled = len(losses) < planned and "training" in record.config and settings.training.ended(losses)
        if len(losses) != planned and not settled:
            raise ValueError(
                f"`history` must have the {planned} epochs of `config`, or end where the loss has settled, "
                f"got {len(losses)}"
            )
    if record.test_error is None:
        return
    errors = [record.test_error, *(entry.test_error for entry in record.history if entry.test_error is not None)]
    if not record.history:
        raise ValueError("`history` must not be empty where there is a `test_error`, got no epochs")
    if wrong := [error for error in errors if not 0 <= error <= 100]:
        raise ValueError(f"`test_error` must be a percentage, got {wrong[0]}")
    measured = record.series.get("test_error")
    expected = fmean(measured.y) if measured and measured.y else record.history[-1].test_error
    if expected is None or not math.isclose(expected, record.test_error, rel_tol=ROUNDING, abs_tol=ROUNDING):
        source = "the mean of its series" if measured else "the last of its history"
        raise ValueError(f"`test_error` (={record.test_error}) must be {source} (={expected})")


def _rounded(value: Any) -> Any:
    """Plain values with floats rounded; `config` holds settings, which are kept as they are."""
    if isinstance(value, dict):
        return {key: item if key == "config" else _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return _significant(value, DIGITS)


def _significant(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _line(value: Any) -> str:
    """JSON on one line, but a history as one line per column."""
    if isinstance(value, dict) and "train_loss" in value:
        return "{\n" + ",\n".join(f'  "{key}": {_line(column)}' for key, column in value.items()) + "\n }"
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
