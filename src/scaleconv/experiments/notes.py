"""What stands under a table: how its numbers came about, from the records."""

from collections.abc import Iterable, Sequence

from .config import Experiment
from .cost import CostStudy
from .panels import is_table
from .records import Record
from .tables import make_rows

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
            f"Time is the median of {calls} calls, on a GPU replays of a CUDA graph, which leave out the host; "
            f"mean ± standard deviation over {repeats} repeats.",
            "Operations count the resampling too; the paper's formula does not.",
        ]
    trained = _training(records, devices)
    if is_table(item):
        return [UNDER_TABLE[0], *trained, *_features(records), *UNDER_TABLE[1:]]
    return [f"Mean ± standard deviation over {repeats} folds.", *trained]


def _training(records: Sequence[Record], devices: str) -> list[str]:
    """On what was trained, and how large the networks are."""
    networks = [record for record in records if "network" in record.config]
    digits = (
        f"Trained on {_numbers(_trained_on(record) for record in records)} "
        f"{_joined(record.config['data']['dataset'] for record in records)} digits"
    )
    if not networks:
        return [f"{digits}, on {devices}."]
    pairs = sorted({(_trained_on(record), len(record.history)) for record in networks})
    epochs = _joined(count for _, count in pairs)  # in the order of the digits
    maps = _joined(" and ".join(map(str, record.config["network"]["maps"])) for record in networks)
    return [f"{digits} for {epochs} epochs, on {devices}; {maps} feature maps."]


def _trained_on(record: Record) -> int:
    data = record.config["data"]
    return int(data["train"]) - int(data.get("held_out", 0))


def _features(records: Sequence[Record]) -> list[str]:
    """How the RBMs were trained, how they compare with each other, and what the control is."""
    lines = []
    machines = [record for record in records if record.model in ("rbm", "si_rbm")]
    if machines:
        hidden = _numbers(record.config[record.model]["hidden"] for record in machines)
        epochs = _numbers(len(record.history) for record in machines)
        lines.append(f"RBMs: {hidden} hidden units, {epochs} epochs without labels, then a softmax classifier.")
    for row in make_rows(machines, {}, "rbm"):
        if row.reduction is not None:
            p = "" if row.p is None else f" (p = {row.p:.3f})"
            lines.append(f"{row.title} lies {row.reduction:.1f} % under RBM{p}.")
    if any(record.model == "pixels" for record in records):
        lines.append(
            "Softmax on pixels is their classifier without their features; its one epoch is all of its training."
        )
    return lines


def _keys(records: Sequence[Record]) -> set[tuple[str, str]]:
    return {(record.model, record.point) for record in records}


def _joined(values: Iterable[object]) -> str:
    return " / ".join(dict.fromkeys(map(str, values)))


def _numbers(values: Iterable[int]) -> str:
    return " / ".join(map(str, sorted(set(values))))
