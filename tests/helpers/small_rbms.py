"""RBMs that learn in no time."""

import pytest
import torch

from scaleconv.models.contrastive import Recipe
from scaleconv.models.rbm import RBM
from scaleconv.models.si_rbm import SIRBM

kinds = pytest.mark.parametrize("kind", ["rbm", "si_rbm"])
QUICK = Recipe(epochs=3, batch=20)


def random_images(count=100, pixels=64, seed=0):
    """Noise, most of it dark: (count, pixels)."""
    return torch.rand(count, pixels, generator=torch.Generator().manual_seed(seed)) ** 3


IMAGES = random_images()


def make(kind, recipe=QUICK, seed=0, hidden=7):
    return RBM(hidden, recipe, seed=seed) if kind == "rbm" else SIRBM(hidden, 8, recipe, scales=(1, 1.5), seed=seed)
