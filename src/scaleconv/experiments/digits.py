"""The digits of a run on the device: which train, which test, at which scales.

Sets are scaled once and shared by all runs that use them. The mean of the training pixels, one number, is subtracted
from everything a network sees (paper, appendix C).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..data import (
    Digits,
    ScaledSet,
    Split,
    hold_out,
    load_digits,
    make_folds,
    make_scaled,
    make_set,
    make_split,
    parse_scales,
    scalar_mean,
)
from .config import DataConfig


@dataclass(frozen=True)
class RunDigits:
    """What one run sees.

    Attributes:
        train, test: images (N, 1, H, W), the training mean subtracted.
        train_labels, test_labels: (N,)
        originals: (N, 28, 28) uint8, the test digits as published.
        scales: (N,) float64, the factors of the test digits.
        mean: of the training pixels.
        config: how they were made.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    originals: Tensor
    scales: Tensor
    mean: float
    config: DataConfig

    def at_scale(self, scale: float, count: int | None = None) -> Tensor:
        """The test digits, all scaled by one factor instead of their own, as the network would see them.

        What leaves the canvas is cut off: these are scales the network was not made for.
        """
        made = make_scaled(self.originals[:count], scale, self.config.size, truncate="allow")
        return made - self.mean

    def pixels(self, images: Tensor) -> Tensor:
        """Images as they were before the mean was subtracted, in [0, 1]."""
        return (images + self.mean).clamp(0, 1)

    def blank(self) -> Tensor:
        """An empty image, as the network would see it: (1, 1, H, W)."""
        return torch.full_like(self.test[:1], -self.mean)


class DigitStore:
    """Makes the digits of runs, each scaled set once."""

    def __init__(self, device: torch.device, data_dir: Path | None = None) -> None:
        self.device, self.data_dir = device, data_dir
        self._digits: dict[str, Digits] = {}
        self._sets: dict[tuple[str, str, int, int, str], ScaledSet] = {}

    def of(self, config: DataConfig, fold: int) -> RunDigits:
        digits, made = self._load(config.dataset), self._scaled(config)
        split = divide(digits.labels, config, fold)
        train, test = split.train.to(self.device), split.test.to(self.device)
        mean = scalar_mean(made.images[train])
        return RunDigits(
            train=made.images[train] - mean,
            train_labels=made.labels[train],
            test=made.images[test] - mean,
            test_labels=made.labels[test],
            originals=digits.images[split.test].to(self.device),
            scales=made.scales[test],
            mean=mean,
            config=config,
        )

    def _load(self, dataset: str) -> Digits:
        if dataset not in self._digits:
            self._digits[dataset] = load_digits(dataset, data_dir=self.data_dir)
        return self._digits[dataset]

    def _scaled(self, config: DataConfig) -> ScaledSet:
        key = (config.dataset, config.scales, config.size, config.seed, config.truncate)
        if key not in self._sets:
            scales = parse_scales(config.scales)
            digits = self._load(config.dataset)
            made = make_set(digits, scales, config.size, seed=config.seed, truncate=config.truncate)
            images, labels, factors = (part.to(self.device) for part in (made.images, made.labels, made.scales))
            self._sets[key] = ScaledSet(images, labels, factors, made.parameters)
        return self._sets[key]


def divide(labels: Tensor, config: DataConfig, fold: int) -> Split:
    """Which digits train and test in a fold.

    With `test` digits named, each fold is a draw of its own: for one fold the test digits are the same whatever the
    number of training digits, and a smaller training set is part of a larger one.
    """
    if config.test:
        split = make_split(labels, config.train, config.test, seed=config.fold_seed + fold)
    else:
        seed = config.fold_seed if config.fold_seed >= 0 else None
        split = make_folds(labels, config.train, count=config.sets, seed=seed)[fold]
    return hold_out(split, config.held_out, labels) if config.held_out else split
