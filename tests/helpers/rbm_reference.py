"""A tiny RBM by brute force: every state of every unit listed, every sum written out, float64."""

import itertools
import math

import torch

from scaleconv.models import RBM, SIRBM

SIZE, HIDDEN, SCALES = (3, 4), 2, (0.5, 1.0, 1.6)
PIXELS = SIZE[0] * SIZE[1]


def transform_loops(scale):
    """T_s as a dense matrix, pixel by pixel."""
    height, width = SIZE
    matrix = torch.zeros(PIXELS, PIXELS, dtype=torch.float64)
    for row, column in itertools.product(range(height), range(width)):
        y, x = ((q - (n - 1) / 2) / scale + (n - 1) / 2 for q, n in ((row, height), (column, width)))
        if -0.5 <= y <= height - 0.5 and -0.5 <= x <= width - 0.5:
            y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
            for i, j in itertools.product(range(height), range(width)):
                matrix[row * width + column, i * width + j] = max(0, 1 - abs(y - i)) * max(0, 1 - abs(x - j))
    return matrix


class Tiny:
    """Random parameters, the model that has them, and lists of all states. Without scales, a plain RBM."""

    def __init__(self, scales=SCALES, recipe=None):
        random = torch.Generator().manual_seed(0)
        shapes = (HIDDEN, PIXELS), (len(scales) or 1, HIDDEN), (PIXELS,)
        self.weight, self.hidden_bias, self.visible_bias = (
            torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes
        )
        self.images = torch.rand(12, PIXELS, generator=random, dtype=torch.float64)
        self.model = SIRBM(HIDDEN, SIZE, recipe, scales=scales) if scales else RBM(HIDDEN, recipe)
        self.model.load(self.weight.clone(), self.hidden_bias.clone(), self.visible_bias.clone())
        self.transforms = [transform_loops(scale) for scale in scales or (1.0,)]
        # A unit is off (None) or on at one of the scales.
        self.hidden_states = list(itertools.product([None, *range(len(self.transforms))], repeat=HIDDEN))
        self.visible_states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=PIXELS)), dtype=torch.float64)

    def energy(self, visible, state):
        """Of images (*, V) and one hidden state: (*)"""
        total = -(visible @ self.visible_bias)
        for unit, scale in enumerate(state):
            if scale is not None:
                total -= visible @ self.transforms[scale].T @ self.weight[unit] + self.hidden_bias[scale, unit]
        return total

    def hidden_means(self, visible):
        """E[h_{j,s} | v]: (S, J)"""
        means = torch.zeros(len(self.transforms), HIDDEN, dtype=torch.float64)
        weights = [math.exp(-self.energy(visible, state)) for state in self.hidden_states]
        for weight, state in zip(weights, self.hidden_states, strict=True):
            for unit, scale in enumerate(state):
                if scale is not None:
                    means[scale, unit] += weight / math.fsum(weights)
        return means

    def visible_means(self):
        """E[v] of the model: (V,)"""
        weights = sum(torch.exp(-self.energy(self.visible_states, state)) for state in self.hidden_states)
        return weights @ self.visible_states / weights.sum()

    def minus_energy_gradient(self, visible, hidden):
        """−∂E/∂(weight, hidden_bias, visible_bias) at hidden means (S, J)."""
        weight = torch.zeros_like(self.weight)
        for unit, scale in itertools.product(range(HIDDEN), range(len(self.transforms))):
            weight[unit] += hidden[scale, unit] * (self.transforms[scale] @ visible)
        return weight, hidden, visible
