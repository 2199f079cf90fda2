"""A set of scaled digits: made from digits, a distribution of scales and a seed; written to a file and read back.

`make_set()` with nothing but digits is the paper's MNIST-Scale (section 4): s ~ U(0.3, 1), 28×28, plain bilinear. A
file is safetensors: the tensors, the parameters and a checksum, which is verified when it is read. No pickle. Here are
also the training mean, which is subtracted before training, and what other sets do to scaled digits: MNIST Large Scale
(Jansson and Lindeberg, "Scale-invariant scale-channel networks", 2022) smooths them, and the MNIST of STIR (Altstidl
and others, "Just a matter of scale?", 2022) also shifts them.
"""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .datasets import Digits
from .files import atomic_path, check_writable, refuse_pipes
from .rescale import make_scaled
from .scales import ScaleDistribution, Uniform

MNIST_SCALE = Uniform(0.3, 1.0)
SUFFIX = ".safetensors"
FORMAT = "scaleconv scaled set 1"
MAKE = "make it again with `scaleconv data make`"
SMOOTHING = 7 / 8  # standard deviation in pixels of the original digit
STEEPNESS = 0.02 * 255  # of the arctangent, for pixels between 0 and 1
MIDDLE = 128 / 255  # goes to 0
CHUNK = 2048  # digits that are smoothed at a time


@dataclass(frozen=True)
class Parameters:
    """Everything a set depends on."""

    dataset: str  # of the digits
    part: str
    checksums: tuple[str, str]  # MD5 of their two files, images and labels
    scales: str  # the distribution, as `parse_scales` reads it
    seed: int  # of the scales
    size: tuple[int, int]  # of the canvas, (height, width)
    interpolation: str  # as in `make_scaled`
    antialias: bool
    truncate: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class ScaledSet:
    """Scaled digits."""

    images: Tensor  # (N, 1, H, W) float32 in [0, 1]
    labels: Tensor  # (N,) int64, 0 … 9
    scales: Tensor  # (N,) float64, the factor of each digit
    parameters: Parameters  # what they were made from

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
    source, canvas = (digits.dataset, digits.part, digits.checksums), (images.shape[2], images.shape[3])
    parameters = Parameters(*source, str(scales), seed, canvas, interpolation, antialias, truncate)
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
                raise ValueError("it has another format")
            tensors = {name: stored.get_tensor(name) for name in ("images", "labels", "scales")}
        scaled = ScaledSet(**tensors, parameters=msgspec.json.decode(about["parameters"], type=Parameters))
        _check_layout(scaled)
        checksum = scaled.checksum()
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror or error}): check the path, or {MAKE}") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
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
    return hashlib.md5(f"{checksum} {parameters}".encode(), usedforsecurity=False).hexdigest()


def scalar_mean(images: Tensor) -> float:
    """The mean over all images and pixels, one number.

    Deviation: the paper subtracts "the training mean", which may be read as a mean image. A mean image does not scale
    with the digit; one number leaves the background constant.
    """
    if not images.numel():
        raise ValueError("`images` must not be empty: there is no mean of nothing")
    return float(images.mean(dtype=torch.float64))


def subtract_mean(train: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    """Subtract the scalar mean of the training images from them, and from all other images.

    Example:
        >>> train, test = subtract_mean(torch.tensor([0.0, 1.0]), torch.tensor([1.0]))
        >>> train, test
        (tensor([-0.5000,  0.5000]), tensor([0.5000]))
    """
    mean = scalar_mean(train)
    return tuple(images - mean for images in (train, *more))


def smooth(images: Tensor, scales: Tensor | float) -> Tensor:
    """Smooth each image by a Gaussian of 7/8 of its scale, so that it looks the same at all scales, and contrast it.

    Shapes: images (N, 1, H, W) in [0, 1], scales (N,) or one number → (N, 1, H, W) in [0, 1].

    With σ = 7/8·s the result is a + b·(2/π)·arctan(0.02·(I − 128)), I the smoothed image between 0 and 255. The two
    numbers a and b bring black to 0 and white to 1; in the published files it lies between −0.76 and 0.76. Outside of
    the image is black.

    Example:
        >>> dot = torch.zeros(1, 1, 9, 9)
        >>> dot[..., 4, 4] = 1
        >>> smooth(dot, 0.5)[0, 0, 4].argmax().item()
        4
    """
    factors = torch.as_tensor(scales, dtype=images.dtype, device=images.device).expand(len(images))
    if not (factors > 0).all():
        raise ValueError(f"`scales` must be above 0, got {float(factors.min())}")
    result = torch.empty_like(images)
    low, high = (math.atan(STEEPNESS * (end - MIDDLE)) for end in (0.0, 1.0))
    for start in range(0, len(images), CHUNK):
        part = slice(start, start + CHUNK)
        rows, columns = (_gaussians(SMOOTHING * factors[part], length) for length in images.shape[2:])
        smoothed = rows @ images[part] @ columns.mT
        result[part] = (torch.atan(STEEPNESS * (smoothed - MIDDLE)) - low) / (high - low)
    return result


def shift(images: Tensor, scales: Tensor | float, side: int, seed: int) -> Tensor:
    """Move each scaled digit from the middle to any place where its whole original image fits.

    Shapes: images (N, 1, H, W), scales (N,) or one number → (N, 1, H, W).

    Args:
        images: digits in the middle of the canvas.
        scales: of the digits.
        side: of the original images, in pixels.
        seed: of the places, whole pixels from the middle, all equally likely.
    """
    factors = torch.as_tensor(scales, dtype=torch.float64).cpu().expand(len(images))
    random = np.random.default_rng([seed, len(images)])
    index = []
    for length in images.shape[2:]:
        most = ((length - factors.numpy() * side) / 2).clip(min=0).astype(np.int64)
        moved = torch.from_numpy(random.integers(-most, most + 1)).to(images.device)
        index.append((torch.arange(length, device=images.device) - moved.view(-1, 1)) % length)  # (N, length)
    each = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    return images[:, 0][each, index[0].unsqueeze(2), index[1].unsqueeze(1)].unsqueeze(1)


def _gaussians(deviations: Tensor, length: int) -> Tensor:
    """The matrix that smooths an axis, for each standard deviation: (N, 1, length, length).

    A Gaussian is taken at whole pixels, and its sum over all of them is 1, those outside of the image too.
    """
    pixels = torch.arange(length, dtype=deviations.dtype, device=deviations.device)
    reach = torch.arange(-4 * length, 4 * length + 1, dtype=deviations.dtype, device=deviations.device)
    width = 2 * deviations.square().view(-1, 1, 1, 1)
    weights = torch.exp(-(pixels.view(-1, 1) - pixels).square() / width)
    return weights / torch.exp(-reach.square() / width).sum(-1, keepdim=True)
