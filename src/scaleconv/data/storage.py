"""Sets on disk: one safetensors file with the tensors, uncompressed, the parameters and the checksum.

A file is whole or not there (see `atomic.py`), and is only believed when its checksum agrees. No pickle.
"""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .atomic import atomic_path
from .idx import md5_hex
from .sets import Parameters, ScaledSet

SUFFIX = ".safetensors"
FORMAT = "scaleconv scaled set 1"
MAKE = "make it again with `scaleconv data make`"


def check_set_path(path: str | os.PathLike[str]) -> None:
    """Refuse a name that is not a set's, before any work is done for it."""
    if Path(path).suffix != SUFFIX:
        raise ValueError(f"`path` (={path}) must end in {SUFFIX}")


def write_set(scaled: ScaledSet, path: str | os.PathLike[str]) -> str:
    """Write a set, replacing what is there; returns the checksum.

    Raises:
        ValueError: the name does not end in `.safetensors`.
        OSError: the file cannot be written; nothing is left behind.
    """
    check_set_path(path)
    checksum = scaled.checksum()
    parameters = json.dumps(scaled.parameters.as_dict())
    about = {"format": FORMAT, "checksum": checksum, "parameters": parameters, "seal": _seal(checksum, parameters)}
    tensors = {"images": scaled.images, "labels": scaled.labels, "scales": scaled.scales}
    with atomic_path(path) as part:
        try:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, part, about)
        except SafetensorError as error:
            raise OSError(f"cannot write {path} ({error}): free some space, or name another place") from None
    return checksum


def read_set(path: str | os.PathLike[str]) -> ScaledSet:
    """Read a set and verify its checksum.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a set, or is damaged.
    """
    try:
        with open(path, "rb"):
            pass  # for an error with the system's reason; safetensors gives its own for all
        with safe_open(path, framework="pt") as stored:
            about = stored.metadata() or {}
            if about.get("format") != FORMAT:
                raise ValueError(f"{path} is not a set of scaled digits: {MAKE}")
            tensors = {name: stored.get_tensor(name) for name in ("images", "labels", "scales")}
        scaled = ScaledSet(**tensors, parameters=_parameters(about["parameters"]))
        checksum = scaled.checksum()
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror or error}): check the path, or {MAKE}") from None
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged or not a set of scaled digits ({error}): {MAKE}") from None
    if checksum != about.get("checksum"):
        raise ValueError(f"{path} is damaged: its MD5 is {checksum}, not {about.get('checksum')}; {MAKE}")
    if _seal(checksum, about["parameters"]) != about.get("seal"):
        raise ValueError(f"{path} is damaged: its parameters are not those it was written with; {MAKE}")
    return scaled


def _seal(checksum: str, parameters: str) -> str:
    """Ties the parameters to the tensors: the checksum covers the tensors alone."""
    return md5_hex(f"{checksum} {parameters}".encode())


def _parameters(text: str) -> Parameters:
    stored: dict[str, Any] = json.loads(text)
    if set(stored) != {field.name for field in fields(Parameters)}:
        raise KeyError("its parameters are not those of this version")
    for name in ("checksums", "size"):
        stored[name] = tuple(stored[name])  # JSON knows lists only
    return Parameters(**stored)
