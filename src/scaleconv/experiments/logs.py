"""The history of an unfinished run, for a user to look at: as CSV, and for TensorBoard if asked."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.files import atomic_path
from .records import Epoch, run_file


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
