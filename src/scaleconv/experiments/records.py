"""Finished runs: the evidence behind every table and figure. One file for each item, a line of JSON for each run.

A record says what was run (settings, seed, fold), where (versions, hardware, commit) and what came out (per epoch, and
in the end). Floats are rounded to what is significant, the history is stored as columns, and a checksum covers
everything. The file is written whole or not at all, by one process at a time, sorted. A line that was damaged, or that
contradicts itself, is refused by its number.
"""

import csv
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from filelock import FileLock
from msgspec import Struct

from ..data.files import atomic_path
from .methods import FEATURE_SECTIONS, NETWORK_SECTIONS, TITLES, epochs_of
from .settings import Settings, brief, read

DIGITS, LOSS_DIGITS, TIME_DIGITS = 6, 5, 3  # significant digits of a number, of a loss and of an epoch's seconds
SUFFIXES = {"weights": ".safetensors", "checkpoints": ".safetensors", "logs": ".csv"}  # by folder
MOST_TOGETHER = 1000  # runs that shared a device
ROUNDING = 1e-5  # relative: how far rounded numbers may differ that should be equal


class Epoch(Struct, frozen=True):
    """One epoch of a run: the training loss, test and validation error in percent where measured, and its seconds.

    The loss of an RBM is the mean squared error of its reconstructions. The softmax on pixels has one entry, with the
    cross-entropy on its held-out digits.
    """

    epoch: int
    train_loss: float
    test_error: float | None
    seconds: float
    val_error: float | None = None


class Columns(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A history as a file holds it: a value for each epoch, and errors for those that were tested or validated."""

    train_loss: list[float]
    seconds: list[float]
    tested: list[int]
    test_error: list[float]
    validated: list[int] = []
    val_error: list[float] = []

    @classmethod
    def of(cls, history: Sequence[Epoch]) -> "Columns":
        """The columns of a history, rounded.

        Example:
            >>> found = Columns.of([Epoch(1, 2.302585, None, 0.1234567), Epoch(2, 1.5, 12.5, 0.1)])
            >>> found.train_loss, found.seconds, found.tested, found.test_error
            ([2.3026, 1.5], [0.123, 0.1], [2], [12.5])
        """
        tested = [entry for entry in history if entry.test_error is not None]
        validated = [entry for entry in history if entry.val_error is not None]
        return cls(
            [_significant(entry.train_loss, LOSS_DIGITS) for entry in history],
            [_significant(entry.seconds, TIME_DIGITS) for entry in history],
            [entry.epoch for entry in tested],
            [_significant(entry.test_error, DIGITS) for entry in tested],
            [entry.epoch for entry in validated],
            [_significant(entry.val_error, DIGITS) for entry in validated],
        )

    def history(self) -> list[Epoch]:
        """The epochs, counted from 1.

        Raises:
            ValueError: columns of different lengths, or errors of unknown epochs.
        """
        epochs = range(1, len(self.train_loss) + 1)
        pairs = [(self.tested, self.test_error), (self.validated, self.val_error)]
        if len(self.seconds) != len(epochs) or any(
            len(at) != len(errors) or not set(at) <= set(epochs) for at, errors in pairs
        ):
            raise ValueError("`history` must have seconds for each epoch, and an error for each that was tested")
        test, val = (dict(zip(at, errors, strict=True)) for at, errors in pairs)
        values = zip(epochs, self.train_loss, self.seconds, strict=True)
        return [Epoch(n, loss, test.get(n), seconds, val.get(n)) for n, loss, seconds in values]


class Series(Struct, frozen=True):
    """Values measured along an axis."""

    x: list[float]
    y: list[float]


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finished run.

    Attributes:
        experiment: name of the results, such as `table1`.
        model, fold, seed: which run of it.
        test_error: after the last epoch, in percent; where a series is called `test_error`, its mean. None where
            nothing is classified.
        config: the settings the result depends on.
        environment: versions, hardware, commit.
        history: what was measured in each epoch.
        parameters: numbers the network learned.
        seconds: of training, without tests, over all sittings; of an RBM, with the choice of its classifier.
        seconds_per_epoch: median over the epochs, without tests.
        runs_together: how many runs shared the device.
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
    series: dict[str, Series] = {}
    cost: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The run, as files are named after it."""
        return run_name(self.model, self.point, self.fold, self.seed)

    @property
    def error(self) -> float:
        """The test error of a run that has one."""
        if self.test_error is None:
            raise ValueError(f"`test_error` of {self.name} must be there, got None")
        return self.test_error

    @property
    def order(self) -> tuple[Any, ...]:
        """By which records are sorted."""
        return self.model, -math.inf if self.x is None else self.x, self.point, self.fold, self.seed


def run_name(model: str, point: str, fold: int, seed: int) -> str:
    """A run in the files of its experiment.

    Example:
        >>> run_name("convnet", "maps9", 0, 1)
        'convnet-maps9-fold0-seed1'
    """
    at = f"-{point}" if point else ""
    return f"{model}{at}-fold{fold}-seed{seed}"


def records_file(folder: Path) -> Path:
    """The file of the records whose weights and tables lie in a folder: `results/table1.jsonl` of `results/table1`."""
    return folder.parent / f"{folder.name}.jsonl"


def run_file(folder: Path, name: str, kind: str) -> Path:
    """Where a run keeps its `weights`, `checkpoints` or `logs`.

    Example:
        >>> run_file(Path("results/table1"), "convnet-fold0-seed0", "weights").as_posix()
        'results/table1/weights/convnet-fold0-seed0.safetensors'
    """
    return folder / kind / f"{name}{SUFFIXES[kind]}"


def write_record(folder: Path, record: Record) -> None:
    """Add a record to its file, in the place of one of the same run; others, also those of other processes, stay."""
    path = records_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        found = {each.name: (each.order, line) for each, line in _read_lines(path)}
        found[record.name] = (record.order, _encode(record))
        with atomic_path(path) as part:
            part.write_bytes(b"".join(line + b"\n" for _, line in sorted(found.values())))


def read_records(folder: Path) -> list[Record]:
    """All records of an experiment, by model, point, fold and seed; none, if there is no file.

    Raises:
        ValueError: a line is not a whole, valid record, or is of the same run as one before it.
        OSError: the file cannot be read.
    """
    return sorted((record for record, _ in _read_lines(records_file(folder))), key=lambda record: record.order)


def write_log(folder: Path, name: str, history: Sequence[Epoch], *, tensorboard: bool = False) -> None:
    """Write the history so far of a run on a user's images: as CSV, and for TensorBoard if asked."""
    with atomic_path(run_file(folder, name, "logs")) as part, part.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("epoch", "train_loss", "val_error", "seconds"))
        rows.writerows((e.epoch, f"{e.train_loss:.6g}", e.val_error, f"{e.seconds:.3f}") for e in history)
    if tensorboard:
        last = history[-1]
        with summary_writer()(str(folder / "tensorboard" / name)) as board:
            board.add_scalar("train_loss", last.train_loss, last.epoch)
            if last.val_error is not None:
                board.add_scalar("val_error", last.val_error, last.epoch)


def summary_writer() -> Any:
    """The class that writes for TensorBoard.

    Raises:
        ImportError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("`tensorboard` needs its package: pip install 'scaleconv[tensorboard]'") from None
    return SummaryWriter


def _read_lines(path: Path) -> Iterator[tuple[Record, bytes]]:
    try:
        lines = path.read_bytes().splitlines() if os.path.lexists(path) else []
    except OSError as error:
        raise type(error)(f"cannot read the records {path} ({error.strerror})") from None
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = _decode(line)
            if (first := found.setdefault(record.name, number)) < number:
                raise ValueError(f"it is of {record.name}, as line {first} is")
            yield record, line
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"line {number} of {path} is not a valid record ({brief(error)}): delete it and run the item again"
            ) from None


def _encode(record: Record) -> bytes:
    values = _rounded(msgspec.to_builtins(record), keep=("config",))
    values["history"] = msgspec.to_builtins(Columns.of(record.history))
    return msgspec.json.encode({**values, "checksum": checksum(values)})


def _decode(line: bytes) -> Record:
    values = msgspec.json.decode(line)
    if not isinstance(values, dict):
        raise ValueError(f"it must be a table, got {type(values).__name__}")
    if values.pop("checksum", None) != checksum(values):
        raise ValueError("its checksum does not agree with its content")
    history = read(Columns, values["history"], "`history`").history()
    record = read(Record, {**values, "history": msgspec.to_builtins(history)}, "the record")
    _check_consistency(record)
    return record


def checksum(values: Any, *parts: bytes) -> str:
    """SHA-256 of plain values, whatever the order of their keys, and of further bytes."""
    digest = hashlib.sha256(msgspec.json.encode(values, order="sorted"))
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


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
                f"`series` must have a value for each x, got {len(series.y)} for {len(series.x)} in {name}"
            )
    if record.model in TITLES:
        _check_epochs(record)
    if record.test_error is None:
        return
    errors = [record.test_error, *(entry.test_error for entry in record.history if entry.test_error is not None)]
    if wrong := [error for error in errors if not 0 <= error <= 100]:
        raise ValueError(f"`test_error` must be a percentage, got {wrong[0]}")
    measured = record.series.get("test_error")
    last = record.history[-1].test_error if record.history else None
    expected = fmean(measured.y) if measured and measured.y else last
    if expected is None or not math.isclose(expected, record.test_error, rel_tol=ROUNDING, abs_tol=ROUNDING):
        source = "the mean of its series" if measured else "the last of its history"
        raise ValueError(f"`test_error` (={record.test_error}) must be {source} (={expected})")


def _check_epochs(record: Record) -> None:
    """Refuse settings that cannot be read, and a history of other epochs than they ask for."""
    if missing := set(FEATURE_SECTIONS.get(record.model, NETWORK_SECTIONS)) - set(record.config):
        raise ValueError(f"`config` must have the section {min(missing)}, got {brief(list(record.config))}")
    settings = read(Settings, record.config, "`config`")
    planned, losses = epochs_of(record.model, settings), [entry.train_loss for entry in record.history]
    settled = len(losses) < planned and "training" in record.config and settings.training.ended(losses)
    if len(losses) != planned and not settled:
        raise ValueError(
            f"`history` must have the {planned} epochs of `config`, or end where the loss has settled, "
            f"got {len(losses)}"
        )


def _rounded(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """Plain values with floats rounded, but not under the keys to keep."""
    if isinstance(value, dict):
        return {key: item if key in keep else _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return _significant(value, DIGITS)


def _significant(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
