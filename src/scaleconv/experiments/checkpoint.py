"""Checkpoints: the state of an unfinished run, and the weights of a finished one, as safetensors.

A checkpoint carries the settings of its run and a checksum of its tensors. One that does not fit, or was damaged, is
refused with a message that says what to do; it is never silently started over.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..data.atomic import atomic_path
from .records import Epoch
from .schema import build


@dataclass(frozen=True)
class Checkpoint:
    """State after `epoch` epochs; `run` is all that identifies the run, settings included."""

    epoch: int
    run: dict[str, Any]
    history: list[Epoch]
    tensors: dict[str, Tensor]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    header = {
        "epoch": json.dumps(checkpoint.epoch),
        "run": json.dumps(checkpoint.run),
        "history": json.dumps([asdict(entry) for entry in checkpoint.history]),
        "md5": _checksum(tensors),
    }
    with atomic_path(path) as part:
        part.write_bytes(save(tensors, metadata=header))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of any run.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _checksum(tensors) != header["md5"]:
            raise ValueError("its checksum does not agree")
        history = [build(Epoch, entry, "its history") for entry in json.loads(header["history"])]
        return Checkpoint(json.loads(header["epoch"]), json.loads(header["run"]), history, tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole checkpoint ({error}): delete it to start this run again") from None


def read_checkpoint(path: Path, run: dict[str, Any]) -> Checkpoint:
    """Read a checkpoint of this very run.

    Raises:
        ValueError: the file is damaged, or belongs to a run with other settings.
    """
    found = load_checkpoint(path)
    if found.run != run:
        raise ValueError(
            f"{path} belongs to other settings ({difference(found.run, run)}): "
            "delete it to start this run again, or give the results another --name"
        )
    return found


def difference(before: Any, now: Any, key: str = "") -> str:
    """The first setting in which two runs differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return difference(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    return f"{key} was {before!r}, now {now!r}"


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
