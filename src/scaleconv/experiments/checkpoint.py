"""Checkpoints: the state of an unfinished run, and the weights of a finished one, as safetensors; `load` reads these.

A checkpoint carries the settings and the history of its run, and a checksum of all of it: names, types, shapes and
values of the tensors, and the header. One that does not fit, or was damaged, is refused with a message that names the
file and says what to do. It is never silently started over.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..data.files import atomic_path, refuse_pipes
from ..models import Classifier, make_network
from .methods import of_weights
from .records import Columns, Epoch, checksum
from .settings import Settings, brief, read
from .sources import images_of

M = TypeVar("M", bound=nn.Module)


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


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as the bytes of its file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    header = {
        "run": json.dumps(checkpoint.run),
        "history": msgspec.json.encode(Columns.of(checkpoint.history)).decode(),
    }
    return save(tensors, metadata={**header, "checksum": _checksum(header, tensors)})


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    with atomic_path(path) as part:
        part.write_bytes(encode_checkpoint(checkpoint))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of any run.

    Raises:
        ValueError: the file is damaged, or contradicts itself.
    """
    try:
        refuse_pipes(path)
        with path.open("rb"):
            pass  # raises with the reason of the system, which safetensors does not tell
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.pop("checksum", None) != _checksum(header, tensors):
            raise ValueError("its checksum does not agree with its content")
        run = json.loads(header["run"])
        if not isinstance(run, dict):
            raise ValueError(f"`run` must be a table, got {run!r}")
        if isinstance(config := run.get("config"), dict) and isinstance(model := run.get("model"), str):
            run["config"] = of_weights(model, config)  # with the settings that there were not yet
        return Checkpoint(run, read(Columns, json.loads(header["history"]), "its history").history(), tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole checkpoint ({brief(error)}): delete it to start this run again"
        ) from None
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
            f"{path} belongs to other settings ({brief(difference(found.run, run))}): "
            "delete it to start this run again, or give the results another --name"
        )
    return found


def check_shapes(path: Path | str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor | None]) -> None:
    """Refuse tensors of a file that do not fit: copying would silently repeat the small ones, and round others."""
    for name in sorted({*found, *wanted}):
        right, got = (_layout(tensors.get(name)) for tensors in (wanted, found))
        if right != got:
            what = "shape" if right[0] != got[0] else "type"
            right, got = (layout[what == "type"] for layout in (right, got))
            raise ValueError(
                f"{path} does not fit the network ({brief(name)} must be of {what} {right}, got {got}): "
                "delete it to start this run again"
            )


def load(path: str | os.PathLike[str], model: nn.Module | str | None = None) -> Classifier:
    """Load a network that `scaleconv train`, `compare` or `reproduce` has trained, ready to classify.

    A file cannot run code: it is read as numbers and text, and a factory that it names is called only if you name it.

    Args:
        path: its file of weights.
        model: the network, if it was given to `fit` as a Module and not by name; its weights are replaced. Or
            `package.module:factory`, if that has made it.

    Returns:
        The classifier, in evaluation mode: takes (N, C, H, W) in [0, 1]; `classes` are the names of its outputs.

    Raises:
        OSError, ValueError: the file cannot be read, or does not fit the network.
    """
    return load_run(Path(path), model)[0]


def load_run(path: Path, model: nn.Module | str | None = None) -> tuple[Classifier, Settings]:
    """As `load`, and the settings of the run."""
    found = load_checkpoint(path)
    config = found.run.get("config")
    if not (isinstance(config, dict) and "network" in config and {"mean", "std"} <= found.tensors.keys()):
        raise ValueError(f"`path` must be weights of a network that scaleconv has trained, got {path}")
    settings = read(Settings, config, str(path))
    name = settings.network.name
    if model is None and ":" in name:
        raise ValueError(
            f"`model` must be given for the weights of a network of your own ({brief(name)} in {path}): "
            "the Module, or the name package.module:factory"
        )
    if isinstance(model, str) and model != name:
        raise ValueError(f"`model` must be {brief(name)} for {path}, got {model}")
    mean, std = found.tensors["mean"].squeeze(0), found.tensors["std"].flatten().tolist()
    images, classes = images_of(settings.data)

    def make() -> Classifier:
        named = msgspec.structs.asdict(settings.network)
        network = model if isinstance(model, nn.Module) else make_network(images, **named)
        return Classifier(network, mean, std, classes)

    return make_fitting(path, found.tensors, make, planned=":" not in name).eval(), settings


def make_fitting(path: Path, tensors: dict[str, Tensor], make: Callable[[], M], *, planned: bool = True) -> M:
    """The network that a file describes, with the file's weights.

    Args:
        path, tensors: the file.
        make: the network, from what the file says.
        planned: make it without memory first, since a damaged file may ask for more than there is. Not every network
            of someone else can be made so.

    Raises:
        ValueError: there is no such network, or the weights do not fit it.
    """
    for device in ("meta", "cpu") if planned else ("cpu",):
        try:
            with torch.device(device):
                network = make()
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"{path} describes no network that can be made ({brief(error)})") from None
        check_shapes(path, tensors, network.state_dict())
    network.load_state_dict(tensors)
    return network


def _layout(tensor: Tensor | None) -> tuple[Any, Any]:
    return (None, None) if tensor is None else (tuple(tensor.shape), tensor.dtype)


def check_settings(path: Path | str, before: Any, now: Any) -> None:
    """Refuse a record that was made with other settings than those of now, since the two cannot be compared."""
    if before != now:
        raise ValueError(
            f"{path} was made with other settings ({brief(difference(before, now))}): "
            "give these results another --name, or delete the old ones"
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
    parts = (tensors[name].reshape(-1).view(torch.uint8) for name in sorted(tensors))  # NumPy has no bfloat16
    return checksum([dict(header), described], *(part.numpy().tobytes() for part in parts))
