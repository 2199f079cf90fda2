"""A tiny machine by brute force: every state of every unit listed, every sum written out, float64."""

import itertools
import math

import torch

from scaleconv.models.rbm import RBM
from scaleconv.models.si_rbm import SIRBM

SIZE, SCALES, HIDDEN = (3, 3), (0.7, 1.0, 1.6), 3


def transform_loops(scale, size=SIZE, canvas=None):
    """T_s as a dense matrix, pixel by pixel."""
    canvas = canvas or size
    matrix = torch.zeros(canvas[0] * canvas[1], size[0] * size[1], dtype=torch.float64)
    for row, column in itertools.product(range(canvas[0]), range(canvas[1])):
        y = (row - (canvas[0] - 1) / 2) / scale + (size[0] - 1) / 2
        x = (column - (canvas[1] - 1) / 2) / scale + (size[1] - 1) / 2
        if not (-0.5 <= y <= size[0] - 0.5 and -0.5 <= x <= size[1] - 0.5):
            continue
        y, x = min(max(y, 0), size[0] - 1), min(max(x, 0), size[1] - 1)
        for i, j in itertools.product(range(size[0]), range(size[1])):
            weight = max(0, 1 - abs(y - i)) * max(0, 1 - abs(x - j))
            matrix[row * canvas[1] + column, i * size[1] + j] = weight
    return matrix


class Tiny:
    """A machine with random parameters, as the package has it and as lists of states."""

    def __init__(self, scales=SCALES, seed=0):
        plain, scales = scales is None, scales or (1.0,)
        random = torch.Generator().manual_seed(seed)
        pixels, count = SIZE[0] * SIZE[1], len(scales)

        def normal(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        self.weight, self.hidden_bias, self.visible_bias = (
            normal(HIDDEN, pixels), normal(count, HIDDEN), normal(pixels),
        )  # fmt: skip
        self.model = RBM(HIDDEN) if plain else SIRBM(HIDDEN, SIZE, scales=scales)
        self.model.load(self.weight, self.hidden_bias, self.visible_bias)
        self.transforms = [transform_loops(scale) for scale in scales]
        # A unit is off (None) or on at one of the scales.
        self.hidden_states = list(itertools.product([None, *range(count)], repeat=HIDDEN))
        self.visible_states = [
            torch.tensor(state, dtype=torch.float64) for state in itertools.product([0.0, 1.0], repeat=pixels)
        ]
        self.images = torch.rand(4, pixels, generator=random, dtype=torch.float64)

    def energy(self, visible, state):
        total = -(self.visible_bias @ visible)
        for unit, scale in enumerate(state):
            if scale is not None:
                total -= self.weight[unit] @ (self.transforms[scale] @ visible) + self.hidden_bias[scale, unit]
        return total.item()

    def one_hot(self, state):
        """(S, J)"""
        hidden = torch.zeros(len(self.transforms), HIDDEN, dtype=torch.float64)
        for unit, scale in enumerate(state):
            if scale is not None:
                hidden[scale, unit] = 1
        return hidden

    def hidden_distribution(self, visible):
        """The probability of every hidden state given the visible units, in the order of `hidden_states`."""
        weights = [math.exp(-self.energy(visible, state)) for state in self.hidden_states]
        return [weight / math.fsum(weights) for weight in weights]

    def hidden_means(self, visible):
        """E[h_{j,s} | v]: (S, J)"""
        chances = self.hidden_distribution(visible)
        return sum(chance * self.one_hot(state) for chance, state in zip(chances, self.hidden_states, strict=True))

    def free_energy(self, visible):
        return -math.log(math.fsum(math.exp(-self.energy(visible, state)) for state in self.hidden_states))

    def visible_distribution(self):
        """The probability of every visible state, in the order of `visible_states`."""
        weights = torch.tensor(
            [math.exp(-self.free_energy(visible)) for visible in self.visible_states], dtype=torch.float64
        )
        return weights / weights.sum()

    def minus_energy_gradient(self, visible, hidden):
        """−∂E/∂(weight, hidden_bias, visible_bias) at hidden units (S, J), states or means."""
        weight = torch.zeros_like(self.weight)
        for unit, scale in itertools.product(range(HIDDEN), range(len(self.transforms))):
            weight[unit] += hidden[scale, unit] * (self.transforms[scale] @ visible)
        return weight, hidden, visible
