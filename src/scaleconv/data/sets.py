"""A set of scaled digits: made from digits, a distribution of scales and a seed; written to a file and read back.

`make_set()` with nothing but digits is the paper's MNIST-Scale (section 4): s ~ U(0.3, 1), 28×28, plain bilinear. A
file is safetensors: the tensors, the parameters and a checksum, which is verified when it is read. No pickle. The
training mean, which is subtracted before training, is here too.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .atomic import atomic_path, check_writable, refuse_pipes
from .digits import Digits
from .idx import md5_hex
from .scaled import make_scaled
from .scales import ScaleDistribution, Uniform

MNIST_SCALE = Uniform(0.3, 1.0)
SUFFIX = ".safetensors"
FORMAT = "scaleconv scaled set 1"
MAKE = "make it again with `scaleconv data make`"


@dataclass(frozen=True)
class Parameters:
    """Everything a set depends on.

    Attributes:
        dataset, part: the digits.
        checksums: MD5 of their two files, images and labels.
        scales: the distribution, as `parse_scales` reads it.
        seed: of the scales.
        size: of the canvas, (height, width).
        interpolation, antialias, truncate: as in `make_scaled`.
    """

    dataset: str
    part: str
    checksums: tuple[str, str]
    scales: str
    seed: int
    size: tuple[int, int]
    interpolation: str
    antialias: bool
    truncate: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class ScaledSet:
    """Scaled digits.

    Attributes:
        images: (N, 1, H, W) float32 in [0, 1].
        labels: (N,) int64, 0 … 9.
        scales: (N,) float64, the factor of each digit.
        parameters: what they were made from.
    """

    images: Tensor
    labels: Tensor
    scales: Tensor
    parameters: Parameters

    def __len__(self) -> int:
        return len(self.labels)

    def checksum(self) -> str:
        """MD5 of the images, labels and scales, as little-endian bytes in that order."""
        digest = hashlib.md5(usedforsecurity=False)
        for tensor, kind in ((self.images, "<f4"), (self.labels, "<i8"), (self.scales, "<f8")):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy(), dtype=kind).data)
        return digest.hexdigest()


def make_set(
    digits: Digits,
    scales: ScaleDistribution = MNIST_SCALE,
    size: int | tuple[int, int] = 28,
    *,
    seed: int = 0,
    interpolation: str = "bilinear",
    antialias: bool = False,
    truncate: str = "error",
) -> ScaledSet:
    """Draw a scale for each digit and scale it; the arguments are those of `make_scaled`.

    Example:
        >>> from scaleconv.data import embedded_digits
        >>> made = make_set(embedded_digits())
        >>> made.images.shape, made.parameters.scales
        (torch.Size([10000, 1, 28, 28]), 'uniform:0.3,1')
    """
    factors = torch.from_numpy(scales.draw(len(digits), seed))
    images = make_scaled(digits.images, factors, size, interpolation, antialias, truncate=truncate)
    parameters = Parameters(
        dataset=digits.dataset,
        part=digits.part,
        checksums=digits.checksums,
        scales=str(scales),
        seed=seed,
        size=(images.shape[2], images.shape[3]),
        interpolation=interpolation,
        antialias=antialias,
        truncate=truncate,
    )
    return ScaledSet(images, digits.labels, factors, parameters)


def check_set_path(path: str | os.PathLike[str]) -> None:
    """Refuse a file name with another suffix, or a place that cannot be written to: before the set is made."""
    if Path(path).suffix != SUFFIX:
        raise ValueError(f"`path` (={path}) must end in {SUFFIX}")
    check_writable(path)


def write_set(scaled: ScaledSet, path: str | os.PathLike[str]) -> str:
    """Write a set, replace the file that is there, and return the checksum.

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
        refuse_pipes(path)
        with open(path, "rb"):
            pass  # raises with the reason of the system, which safetensors does not tell
        with safe_open(path, framework="pt") as stored:
            about = stored.metadata() or {}
            if about.get("format") != FORMAT:
                raise ValueError(f"{path} is not a set of scaled digits: {MAKE}")
            tensors = {name: stored.get_tensor(name) for name in ("images", "labels", "scales")}
        scaled = ScaledSet(**tensors, parameters=_parameters(about["parameters"]))
        _check_layout(scaled)
        checksum = scaled.checksum()
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror or error}): check the path, or {MAKE}") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        if str(error).startswith(str(path)):  # it has its message
            raise
        raise ValueError(f"{path} is damaged or not a set of scaled digits ({error}): {MAKE}") from None
    if checksum != about.get("checksum"):
        raise ValueError(f"{path} is damaged: its MD5 is {checksum}, not {about.get('checksum')}; {MAKE}")
    if _seal(checksum, about["parameters"]) != about.get("seal"):
        raise ValueError(f"{path} is damaged: its parameters are not those it was written with; {MAKE}")
    return scaled


def _check_layout(scaled: ScaledSet) -> None:
    """Refuse tensors of other shapes or types: the checksum is of their numbers alone."""
    count, size = len(scaled.labels), scaled.parameters.size
    layouts = [(tuple(tensor.shape), tensor.dtype) for tensor in (scaled.images, scaled.labels, scaled.scales)]
    if layouts != [((count, 1, *size), torch.float32), ((count,), torch.int64), ((count,), torch.float64)]:
        raise ValueError("its tensors are not of the shapes and types of a set")


def _seal(checksum: str, parameters: str) -> str:
    """A checksum of the parameters and of the tensors' checksum, which covers the tensors alone."""
    return md5_hex(f"{checksum} {parameters}".encode())


def _parameters(text: str) -> Parameters:
    stored: dict[str, Any] = json.loads(text)
    if set(stored) != {field.name for field in fields(Parameters)}:
        raise KeyError("its parameters are not those of this version")
    for name in ("checksums", "size"):
        stored[name] = tuple(stored[name])  # JSON knows lists only
    return Parameters(**stored)


def scalar_mean(images: Tensor) -> float:
    """The mean over all images and pixels, one number.

    Deviation: the paper subtracts "the training mean", which may be read as a mean image. A mean image does not scale
    with the digit; one number leaves the background constant.
    """
    if not images.numel():
        raise ValueError("`images` must not be empty: there is no mean of nothing")
    return float(images.mean(dtype=torch.float64))


def subtract_mean(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Subtract the scalar mean of the training images from them, and from the others.

    Example:
        >>> train, test = subtract_mean(torch.tensor([0.0, 1.0]), torch.tensor([1.0]))
        >>> train, test
        (tensor([-0.5000,  0.5000]), tensor([0.5000]))
    """
    mean = scalar_mean(train)
    return tuple(images - mean for images in (train, *others))
