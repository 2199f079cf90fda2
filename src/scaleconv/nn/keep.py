"""Keep a conversion beside a checkpoint, and make it again: `scaleconv.json`.

The weights of a converted network are those of a plain one, and so are the files in which other libraries keep them.
`from_pretrained` and its like build the plain network and load them without a word. This file says what it was.
"""

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from .convert import Network, conversion, convert

FILE = "scaleconv.json"


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Keep a conversion beside a checkpoint: write which layers are scale-invariant, and how. Weights are not written.

    Args:
        model: a converted network.
        path: the folder of the checkpoint, or a file that ends in `.json`.

    Returns:
        The file, `scaleconv.json` in a folder.

    Raises:
        TypeError: `model` is not a Module.
        ValueError: no layer is scale-invariant.

    Example:
        >>> from scaleconv import SIConv2d
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = save(nn.Sequential(SIConv2d(3, 8, 3, scales=(1, 2))), folder)
        ...     load(nn.Sequential(nn.Conv2d(3, 8, 3)), folder)
        Sequential(
          (0): SIConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), scales=(1, 2))
        )
    """
    layers = conversion(model)
    if not layers:
        raise ValueError(f"`model` (={type(model).__name__}) must hold a scale-invariant layer: convert it first")
    file = _file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")  # so that a full disk leaves the old file as it was
    try:
        unfinished.write_text(json.dumps({"layers": layers}, indent=2), encoding="utf-8")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return file


def load(model: Network, path: str | os.PathLike[str], *, inplace: bool = False) -> Network:
    """Make a kept conversion again: convert a network as one was when `save` wrote the file, and no other layers.

    Args:
        model: the plain network, or one converted otherwise, with the weights of the checkpoint or without.
        path: the folder of the checkpoint, or the file.
        inplace: change the network itself instead of a copy.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no such file, or names layers that the network does not have.
    """
    file = _file(path)
    if not file.is_file():
        raise FileNotFoundError(f"`path` must hold {FILE}, as `scaleconv.save` writes it, got {str(path)!r}")
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        layers = found["layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"`path` (={str(file)!r}) must be a file of `scaleconv.save`, got another one") from error
    return convert(model, like=layers, inplace=inplace)


def _file(path: str | os.PathLike[str]) -> Path:
    return Path(path) if Path(path).suffix == ".json" else Path(path) / FILE
