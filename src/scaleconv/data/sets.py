"""A set of scaled digits: what MNIST-Scale is, from digits, a distribution of scales and a seed.

`make_set()` with nothing but digits is the paper's MNIST-Scale (section 4): s ~ U(0.3, 1), 28×28, plain bilinear.
Preprocessing is here too: the training mean, as one number.
"""

import hashlib
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from .digits import Digits
from .scaled import make_scaled
from .scales import ScaleDistribution, Uniform

MNIST_SCALE = Uniform(0.3, 1.0)


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


def scalar_mean(images: Tensor) -> float:
    """The mean over all images and pixels, one number.

    Deviation: the paper subtracts "the training mean", which may be read as a mean image. A mean image does not scale
    with the digit and costs half of the layer's gain; one number leaves the background constant.
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
