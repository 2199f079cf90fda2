"""Which digits train and which test. Indices only; no images.

Paper, section 4.1, after Sohn and Lee: six folds; each trains on one set of 10,000 and tests on the other 50,000. The
experiments of sections 4.2 and 4.3 train on a number of digits and test on 10,000 others. On the 10,000 digits of the
package the same is done at a tenth of the size.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .scales import raw_stream

FOLDS = 6
FOLD_SIZE = 10_000
REDUCED_SIZE = FOLD_SIZE // 10
CLASSES = 10
PURPOSE = 1  # of the random stream; from that of the scales, a fold would be digits of one scale


@dataclass(frozen=True)
class Split:
    """Indices of the digits that train, of those that test, and of those that choose between networks, int64."""

    train: Tensor
    test: Tensor
    val: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


def paper_folds(labels: Tensor) -> tuple[Split, ...]:
    """The six folds of the paper: the 60,000 training digits in six random sets; fold k trains on the k-th 10,000.

    Drawn with seed 0. The paper does not say how its sets were drawn; sets of consecutive digits give higher errors
    than it reports (docs/protocol.md).

    Example:
        >>> labels = torch.arange(60_000) % 10
        >>> folds = paper_folds(labels)
        >>> [len(fold.train) for fold in folds], [len(fold.test) for fold in folds][:2]
        ([10000, 10000, 10000, 10000, 10000, 10000], [50000, 50000])
    """
    if len(labels) != FOLDS * FOLD_SIZE:
        raise ValueError(
            f"`labels` (of {len(labels)} digits) must be those of the 60,000 training digits: load the train part of "
            "MNIST, or use reduced_folds for the embedded digits"
        )
    return make_folds(labels, FOLD_SIZE, seed=0)


def reduced_folds(labels: Tensor) -> tuple[Split, ...]:
    """The same at a tenth of the size, for the embedded digits: train on 1,000, test on 5,000 others.

    The digits are shuffled first (seed 0), because the first half of the file is known to be easier than the second.
    """
    return make_folds(labels, REDUCED_SIZE, seed=0)


def make_folds(labels: Tensor, size: int, *, count: int = FOLDS, seed: int | None = None) -> tuple[Split, ...]:
    """Divide the digits into sets; fold k trains on set k and tests on all the other sets.

    Args:
        labels: (N,) of the digits to divide.
        size: digits in a set; those left over when all sets are full take no part.
        count: of the sets.
        seed: of the order in which the sets are filled; None for the order of the file.

    Raises:
        ValueError: there are too few digits, or a class is missing from a set.
    """
    if count < 2 or size < 1:
        raise ValueError(f"`count` (={count}) must be at least 2, and `size` (={size}) at least 1")
    _check_enough(labels, count * size)
    order = torch.arange(len(labels)) if seed is None else _permutation(len(labels), seed)
    sets = order[: count * size].reshape(count, size).sort().values
    rest = [torch.cat([*sets[:k], *sets[k + 1 :]]).sort().values for k in range(count)]
    return tuple(_checked(Split(sets[k], rest[k]), labels) for k in range(count))


def make_split(
    labels: Tensor,
    train: int = FOLD_SIZE,
    test: int = FOLD_SIZE,
    *,
    val: int = 0,
    seed: int = 0,
    stratified: bool = False,
) -> Split:
    """Draw digits to train on and others to test on.

    For one seed and number of test and validation digits, these are the same whatever the number of training digits,
    and a smaller training set is part of a larger one.

    Args:
        labels: (N,) of the digits to draw from.
        train, test, val: how many.
        seed: of the draw.
        stratified: give all three the shares of the classes that all digits have, as the later literature does.

    Raises:
        ValueError: there are too few digits, or a class is missing from either side.
    """
    if train < 1 or test < 1 or val < 0:
        raise ValueError(f"`train` (={train}) and `test` (={test}) must be at least 1, `val` (={val}) at least 0")
    _check_enough(labels, train + val + test)
    order = _permutation(len(labels), seed)
    if stratified:
        order = order[_spread(labels[order])]
    tests, vals, trains = order[: train + val + test].split([test, val, train])
    return _checked(Split(trains.sort().values, tests.sort().values, vals.sort().values), labels)


def hold_out(split: Split, count: int, labels: Tensor, *, seed: int = 0) -> Split:
    """Test on some of the training digits and train on the rest, to choose settings without the test digits.

    Validation digits stay what they were.

    Raises:
        ValueError: there are too few training digits, or a class is missing from either side.
    """
    if not 0 < count < len(split.train):
        raise ValueError(f"`count` (={count}) must lie between 1 and {len(split.train) - 1}, of the training digits")
    order = split.train[_permutation(len(split.train), seed)]
    return _checked(replace(split, train=order[count:].sort().values, test=order[:count].sort().values), labels)


def _permutation(count: int, seed: int) -> Tensor:
    return torch.from_numpy(np.argsort(raw_stream(count, seed, PURPOSE), kind="stable"))


def _spread(labels: Tensor) -> Tensor:
    """An order in which every stretch has its share of each class, and digits of a class stay in their order."""
    place = torch.zeros(len(labels), dtype=torch.float64)
    for label in labels.unique():
        of_class = (labels == label).nonzero()[:, 0]
        place[of_class] = (torch.arange(len(of_class), dtype=torch.float64) + 0.5) / len(of_class)
    return place.argsort(stable=True)


def _check_enough(labels: Tensor, needed: int) -> None:
    if labels.dim() != 1:
        raise ValueError(f"`labels` (of shape {tuple(labels.shape)}) must be (N,)")
    if len(labels) < needed:
        raise ValueError(
            f"`labels` (of {len(labels)} digits) must be of at least {needed}: use smaller sets or more digits"
        )


def _checked(split: Split, labels: Tensor) -> Split:
    for name, indices in (("train", split.train), ("test", split.test)):
        if len(missing := set(range(CLASSES)) - set(labels[indices.to(labels.device)].unique().tolist())):
            raise ValueError(f"`labels` leave class {min(missing)} out of the {name} digits: use larger sets")
    return split
