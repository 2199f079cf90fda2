"""What stands under a table: how its numbers came about, from the records."""

from collections.abc import Iterable, Sequence

from .config import Experiment
from .cost import CostStudy
from .panels import is_table
from .records import Record

UNDER_TABLE = (
    "Test error in percent, mean ± standard deviation over folds; p of an exact paired sign-flip test.",
    "A dash under “ours” is a method with no records here; the paper's number is shown alone.",
    "s / epoch: seconds of the device for one epoch of one run, without tests.",
)


def footnotes(item: Experiment | CostStudy, records: Sequence[Record]) -> list[str]:
    """The lines under an item's table."""
    if not records:
        return ["No records yet."]
    devices = _joined(record.environment["device"] for record in records)
    repeats = _numbers(len({(r.fold, r.seed) for r in records if (r.model, r.point) == key}) for key in _keys(records))
    if isinstance(item, CostStudy):
        calls = _joined(record.config["cost"]["calls"] for record in records)
        batch = _joined(record.config["cost"]["batch"] for record in records)
        return [
            f"Batches of {batch}, on {devices}.",
            f"Time is the median of {calls} calls; mean ± standard deviation over {repeats} repeats.",
            "Operations count the resampling too; the paper's formula does not.",
        ]
    trained = (
        f"Trained on {_numbers(record.config['data']['train'] for record in records)} "
        f"{_joined(record.config['data']['dataset'] for record in records)} digits for "
        f"{_numbers(len(record.history) for record in records)} epochs, on {devices}; "
        f"{_joined(' and '.join(map(str, record.config['network']['maps'])) for record in records)} feature maps."
    )
    if is_table(item):
        return [UNDER_TABLE[0], trained, *UNDER_TABLE[1:]]
    return [f"Mean ± standard deviation over {repeats} folds.", trained]


def _keys(records: Sequence[Record]) -> set[tuple[str, str]]:
    return {(record.model, record.point) for record in records}


def _joined(values: Iterable[object]) -> str:
    return " / ".join(dict.fromkeys(map(str, values)))


def _numbers(values: Iterable[int]) -> str:
    return " / ".join(map(str, sorted(set(values))))
