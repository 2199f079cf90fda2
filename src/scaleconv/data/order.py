"""Which images make up which batch, in every pass over a training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]
MIX = 3  # the purpose of a random stream: which batch comes when


@dataclass(frozen=True)
class Order:
    """Which images make up which batch.

    Images of one size go together. The last, partial batch of a pass is left out, unless it is all there is of a size.

    Attributes:
        sizes: (height, width) of every image.
        batch: images in a batch.
        seed, fold: of the order.

    Example:
        >>> order = Order([(8, 8), (8, 8), (9, 9), (8, 8)], batch=2, seed=0, fold=0)
        >>> [batch.tolist() for batch in order.of_pass(1)], order.per_pass
        ([[2], [3, 1]], 2)
    """

    sizes: Sequence[Size]
    batch: int
    seed: int
    fold: int

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """For each image, which of the sizes it has, counted in the order of their first images."""
        known: dict[Size, int] = {}
        return np.array([known.setdefault(size, len(known)) for size in self.sizes])

    @cached_property
    def per_pass(self) -> int:
        """Batches in a pass."""
        counts = np.bincount(self._groups)
        return int(sum(count // min(self.batch, count) for count in counts))

    def of_pass(self, number: int) -> list[NDArray[np.int64]]:
        """The batches of a pass over the images, counted from 1."""
        shuffled = np.random.default_rng([self.seed, self.fold, number]).permutation(len(self.sizes))
        batches: list[NDArray[np.int64]] = []
        groups = range(int(self._groups.max()) + 1)
        for group in groups:
            own = shuffled[self._groups[shuffled] == group]
            size = min(self.batch, len(own))
            batches += list(own[: len(own) // size * size].reshape(-1, size))
        if len(groups) > 1:
            mixed = np.random.default_rng([self.seed, self.fold, number, MIX]).permutation(len(batches))
            batches = [batches[index] for index in mixed]
        return batches

    def of_steps(self, first: int, count: int) -> list[NDArray[np.int64]]:
        """The batches of some steps, counted from 0 over all passes."""
        passes = range(first // self.per_pass, -(-(first + count) // self.per_pass))
        batches = [batch for number in passes for batch in self.of_pass(number + 1)]
        start = first - passes[0] * self.per_pass
        return batches[start : start + count]
