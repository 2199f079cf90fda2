"""The energy function of the RBM and of its transform-invariant form (Sohn and Lee, 2012), and what follows from it.

Tensor code only: nothing is checked here, nothing waits for the device, and randomness comes from the caller. Every
tensor may carry leading dimensions `*`, the same for parameters and data: independent machines that are evaluated, and
so trained, in one batch of matrix products.

Letters: V visible units, J hidden units, S scales, D pixels of a filter, N images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


class Identity:
    """The one transform of a plain RBM: a filter sees the image as it is."""

    count = 1

    def __init__(self, visible: int) -> None:
        self.visible = self.filter_pixels = visible

    def spread(self, images: Tensor) -> Tensor:
        return images.unsqueeze(-2)  # (*, N, 1, V)

    def gather(self, patterns: Tensor) -> Tensor:
        return patterns.squeeze(-2)  # (*, N, V)


class Rescaling:
    """The scale pyramid on the filter's canvas: T_s for every scale, each axis one small matrix.

    Args:
        rows, columns: (S, height or width of the filter, height or width of the image).
    """

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        self.rows, self.columns = rows, columns
        self.count = len(rows)
        self.visible = rows.shape[2] * columns.shape[2]
        self.filter_pixels = rows.shape[1] * columns.shape[1]

    def spread(self, images: Tensor) -> Tensor:
        """T_s v for all scales: (*, N, V) → (*, N, S, D)."""
        pixels = images.unflatten(-1, (self.rows.shape[2], self.columns.shape[2]))  # (*, N, H, W)
        lines = (pixels @ self.columns.flatten(0, 1).mT).unflatten(-1, self.columns.shape[:2])  # (*, N, H, S, w)
        return torch.einsum("shH,...Hsw->...shw", self.rows, lines).flatten(-2)

    def gather(self, patterns: Tensor) -> Tensor:
        """Σ_s T_sᵀ z_s, the transpose of `spread`: (*, N, S, D) → (*, N, V)."""
        canvases = patterns.unflatten(-1, (self.rows.shape[1], self.columns.shape[1]))  # (*, N, S, h, w)
        lines = torch.einsum("shH,...shw->...Hsw", self.rows, canvases)
        return (lines.flatten(-2) @ self.columns.flatten(0, 1)).flatten(-2)


@dataclass
class Boltzmann:
    """E(v, h) = − Σ_{j,s} (w_jᵀ T_s v + b_{j,s}) h_{j,s} − cᵀ v, where at most one h_{j,s} of a unit j is on.

    Attributes:
        transform: the T_s.
        weight: (*, J, D)
        hidden_bias: (*, S, J)
        visible_bias: (*, V)
    """

    transform: Identity | Rescaling
    weight: Tensor
    hidden_bias: Tensor
    visible_bias: Tensor

    def parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.hidden_bias, self.visible_bias

    def inputs(self, levels: Tensor) -> Tensor:
        """w_jᵀ T_s v + b_{j,s} from the levels T_s v: (*, N, S, D) → (*, N, S, J)."""
        products: Tensor = (levels.flatten(-3, -2) @ self.weight.mT).unflatten(-2, levels.shape[-3:-1])
        return products + self.hidden_bias.unsqueeze(-3)

    def hidden(self, levels: Tensor) -> Tensor:
        """p(h_{j,s} = 1 | v) from the levels: (*, N, S, D) → (*, N, S, J); 1 minus their sum is that of no scale."""
        inputs = self.inputs(levels)
        if self.transform.count == 1:  # the same numbers in a third of the kernel launches
            return torch.sigmoid(inputs)
        return torch.softmax(F.pad(inputs, (0, 0, 0, 1)), -2)[..., :-1, :]

    def visible(self, hidden: Tensor) -> Tensor:
        """p(v_i = 1 | h): (*, N, S, J) → (*, N, V)."""
        patterns = (hidden.flatten(-3, -2) @ self.weight).unflatten(-2, hidden.shape[-3:-1])  # (*, N, S, D)
        return torch.sigmoid(self.transform.gather(patterns) + self.visible_bias.unsqueeze(-2))

    def free_energy(self, visible: Tensor) -> Tensor:
        """F(v) = − cᵀ v − Σ_j log(1 + Σ_s exp(w_jᵀ T_s v + b_{j,s})): (*, N, V) → (*, N)."""
        inputs = F.pad(self.inputs(self.transform.spread(visible)), (0, 0, 0, 1))
        return -(visible @ self.visible_bias.unsqueeze(-1)).squeeze(-1) - inputs.logsumexp(-2).sum(-1)

    def statistics(self, visible: Tensor, levels: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """−∂E/∂(weight, hidden_bias, visible_bias), averaged over the images."""
        share = hidden / visible.shape[-2]
        return share.flatten(-3, -2).mT @ levels.flatten(-3, -2), share.sum(-3), visible.mean(-2)


def draw_hidden(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Switch on at most one scale of each unit: (*, N, S, J).

    All machines of a batch get the same random numbers, so each learns what it would have learned alone.
    """
    count, scales, units = probabilities.shape[-3:]
    chance = torch.rand(count, 1, units, generator=generator, dtype=probabilities.dtype, device=probabilities.device)
    if scales == 1:
        return (chance < probabilities).to(probabilities.dtype)
    reached = (chance < probabilities.cumsum(-2)).to(probabilities.dtype)
    return reached - F.pad(reached[..., :-1, :], (0, 0, 1, 0))


def draw_visible(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """Binary images: (*, N, V); the random numbers are shared as in `draw_hidden`."""
    shape = probabilities.shape[-2:]
    chance = torch.rand(shape, generator=generator, dtype=probabilities.dtype, device=probabilities.device)
    return (chance < probabilities).to(probabilities.dtype)
