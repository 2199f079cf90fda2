"""Checkpoints: the state of an unfinished run, and the weights of a finished one, as safetensors.

A checkpoint carries the settings and the history of its run, and a checksum of all of it: names, types, shapes and
values of the tensors, and the header. One that does not fit, or was damaged, is refused with a message that names the
file and says what to do. It is never silently started over.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .records import Epoch, checksum, from_columns, to_columns, writing


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        run: all that identifies the run, settings included.
        history: of the epochs so far.
        tensors: by name.
    """

    run: dict[str, Any]
    history: list[Epoch]
    tensors: dict[str, Tensor]

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.history)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    header = {
        "epoch": json.dumps(checkpoint.epoch),
        "run": json.dumps(checkpoint.run),
        "history": json.dumps(to_columns(checkpoint.history)),
    }
    with writing(path) as part:
        part.write_bytes(save(tensors, metadata={**header, "checksum": _checksum(header, tensors)}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of any run.

    Raises:
        ValueError: the file is damaged, or contradicts itself.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.pop("checksum", None) != _checksum(header, tensors):
            raise ValueError("its checksum does not agree with its content")
        epoch, run, history = (json.loads(header[key]) for key in ("epoch", "run", "history"))
        found = Checkpoint(run, from_columns(history), tensors)
        if epoch != found.epoch:
            raise ValueError(f"`epoch` (={epoch}) must be the {found.epoch} epochs of its history")
        return found
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a whole checkpoint ({error}): delete it to start this run again") from None
    except OSError as error:
        raise type(error)(f"cannot read the checkpoint {path} ({error.strerror or error})") from None


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


def check_shapes(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor | None]) -> None:
    """Refuse tensors of a file that do not fit: copying would silently repeat those that are too small."""
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items() if tensor is not None}
    for name in sorted({*found, *wanted}):
        shape = tuple(found[name].shape) if name in found else None
        if shape != shapes.get(name):
            raise ValueError(
                f"{path} does not fit the network ({name} must be of shape {shapes.get(name)}, got {shape}): "
                "delete it to start this run again"
            )


def difference(before: Any, now: Any, key: str = "") -> str:
    """The first setting in which two runs differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return difference(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    return f"{key} was {before!r}, now {now!r}"


def _checksum(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    described = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    return checksum([dict(header), described], *(tensors[name].numpy().tobytes() for name in sorted(tensors)))
