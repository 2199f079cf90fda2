"""Batches of a set that lives on the device, whole, as one tensor. No worker processes, no copies from the host."""

from collections.abc import Iterator

import torch
from torch import Tensor


class Batches:
    """One pass over a set per iteration: shuffled by the generator, or in order without one.

    The shuffle is drawn on the generator's own device: a generator on the CPU gives the same batches on every device.
    Its state is the only state, so saving and restoring it resumes a run exactly.

    Args:
        images: (N, …), on the device where they are used.
        labels: (N,), on the same device.
        size: of a batch.
        generator: of the order; None for the order of the set.
        drop_last: leave out the last batch where it is not full. 10,000 digits in batches of 128 are 78 full batches.

    Example:
        >>> images, labels = torch.arange(5.0), torch.arange(5)
        >>> [batch.tolist() for batch, _ in Batches(images, labels, 2)]
        [[0.0, 1.0], [2.0, 3.0]]
        >>> len(Batches(images, labels, 2, drop_last=False))
        3
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        size: int = 128,
        generator: torch.Generator | None = None,
        *,
        drop_last: bool = True,
    ) -> None:
        if len(images) != len(labels):
            raise ValueError(f"`labels` (={len(labels)}) must be as many as `images` (={len(images)})")
        if images.device != labels.device:
            raise ValueError(f"`labels` (on {labels.device}) must be on the device of `images` (={images.device})")
        if size < 1:
            raise ValueError(f"`size` (={size}) must be at least 1")
        if drop_last and len(images) < size:
            raise ValueError(f"`size` (={size}) must not exceed the {len(images)} images, or no batch would be full")
        self.images, self.labels, self.size, self.generator, self.drop_last = images, labels, size, generator, drop_last

    def __len__(self) -> int:
        return len(self.images) // self.size if self.drop_last else -(-len(self.images) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.generator is None:
            for k in range(len(self)):
                part = slice(k * self.size, (k + 1) * self.size)
                yield self.images[part], self.labels[part]
            return
        order = torch.randperm(len(self.images), generator=self.generator, device=self.generator.device)
        for chosen in order.to(self.images.device).split(self.size)[: len(self)]:
            yield self.images[chosen], self.labels[chosen]
