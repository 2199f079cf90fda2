"""Small sources of images written by hand, in memory or decoded on the way, of one size or several."""

import torch

from scaleconv.experiments.sources import InMemory, Source
from scaleconv.models import Images


class Streamed:
    """Examples that do not lie in memory: a list of images (C, H, W), of one size or several, and their labels."""

    tensors = None

    def __init__(self, images, labels):
        self.images, self.labels = list(images), list(labels)
        self.workers = set()

    @property
    def sizes(self):
        return [tuple(image.shape[1:]) for image in self.images]

    @property
    def masked(self):
        return self.labels[0].dim() > 0

    def __len__(self):
        return len(self.images)

    def batches(self, order, workers=0):
        self.workers.add(workers)
        for indices in order:
            yield torch.stack([self.images[i] for i in indices]), torch.stack([self.labels[i] for i in indices])


def random_examples(count=10, size=(6, 6), classes=3, seed=0, dtype=torch.float32, masks=False):
    """Images of noise, and labels of any class."""
    random = torch.Generator().manual_seed(seed)
    shape = (count, *size) if masks else (count,)
    images = torch.rand(count, 1, *size, generator=random, dtype=dtype)
    return InMemory(images, torch.randint(classes, shape, generator=random))


def make_source(train, test=None, val=None, *, classes=3, task="classification", **others):
    """A source of these examples; the test examples are the training examples unless there are others."""
    size = train.sizes[0] if len(set(train.sizes)) == 1 else None
    found = {"uncounted": None, "at_scale": None, "mean": (0.0,), "std": (1.0,), **others}
    names = tuple(f"class{k}" for k in range(classes))
    return Source(Images(size, 1, classes, task), names, train=train, val=val or [], test=test or train, **found)
