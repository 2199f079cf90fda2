"""Multinomial logistic regression, many problems at once: mean cross-entropy + penalty/2 · ‖weight‖².

Limited-memory BFGS in its compact form (Byrd, Nocedal and Schnabel, 1994). An iteration
needs two products with the features, which all problems on these features share. Logits are linear in the step, so the
line search needs no further product. Tensor code only: nothing is checked here, nothing is random, and the host waits
for the device every `PATIENCE` iterations.

Letters: F sets of features, P problems of each, N rows, D features, C classes, M pairs remembered.
"""

import torch
from torch import Tensor
from torch.nn import functional as nn

MEMORY = 10  # pairs
SEARCH = 2  # Newton steps of a line search
PATIENCE = 25  # iterations until the logits are computed anew from the weights, and a GPU is asked if all are done
ENOUGH = 1e-10  # a problem is done when its quadratic model predicts a decrease of less than half of this


@torch.no_grad()
def minimise(
    features: Tensor, labels: Tensor, penalties: Tensor, classes: int, iterations: int, start: Tensor | None = None
) -> Tensor:
    """The weights of all problems: (F, P, D + 1, C), biases last.

    Each problem stops by itself, as if it were alone.

    Args:
        features: (F, N, D)
        labels: (F, N)
        penalties: (F, P), of the squared weights; biases have none.
        classes: how many there are.
        iterations: at most so many.
        start: weights to start from; by default 0.
    """
    centre = features.mean(1, keepdim=True)
    loss = Loss(features - centre, labels, penalties, classes)  # centred, which makes the problem well conditioned
    shape = (*penalties.shape, features.shape[2] + 1, classes)
    weights = features.new_zeros(shape) if start is None else shift_biases(start, centre)
    history = History(weights)
    done = torch.zeros_like(penalties, dtype=torch.bool)
    for iteration in range(iterations):
        if iteration % PATIENCE == 0:
            logits = loss.logits(weights)
            chances = softmax(logits)
            history.gradient = loss.gradient(weights, chances)
        direction, slope = history.direction()
        if iteration:  # before, there is no model
            done |= slope >= -ENOUGH
        if (iteration % PATIENCE == PATIENCE - 1 or not features.is_cuda) and done.all():
            break
        change = loss.logits(direction)
        length = loss.search(weights, direction, slope, logits, change, chances).masked_fill(done, 0)
        step = length[..., None, None] * direction
        weights = weights + step
        logits = torch.addcmul(logits, length[:, None, :, None], change)
        chances = softmax(logits)
        history.add(step, loss.gradient(weights, chances))
    return shift_biases(weights, -centre)


def shift_biases(weights: Tensor, centre: Tensor) -> Tensor:
    """The weights with which features − centre get the logits of the features: (F, P, D + 1, C), (F, 1, D)."""
    biases = weights[:, :, -1:] + centre.unsqueeze(1) @ weights[:, :, :-1]
    return torch.cat([weights[:, :, :-1], biases], 2)


def softmax(logits: Tensor) -> Tensor:
    """Over the last dimension."""
    if logits.is_cuda:
        return logits.softmax(-1)
    powers = (logits - logits.amax(-1, keepdim=True)).exp_()  # torch's own is slow on a CPU where classes are few
    return powers.div_(powers.sum(-1, keepdim=True))


class Loss:
    """The losses of all problems on fixed features; the arguments are those of `minimise`."""

    def __init__(self, features: Tensor, labels: Tensor, penalties: Tensor, classes: int) -> None:
        self.features = features
        self.labels = labels[..., None, None]  # (F, N, 1, 1)
        self.truth = nn.one_hot(self.labels.squeeze(-1), classes).to(features.dtype)  # (F, N, 1, C)
        self.penalty = penalties[..., None, None].repeat(1, 1, features.shape[2] + 1, 1)  # (F, P, D + 1, 1)
        self.penalty[:, :, -1] = 0

    def logits(self, weights: Tensor) -> Tensor:
        """(F, P, D + 1, C) → (F, N, P, C), relative to that of the true class."""
        columns = weights.transpose(1, 2).flatten(2)  # (F, D + 1, P·C)
        products: Tensor = torch.baddbmm(columns[:, -1:], self.features, columns[:, :-1])
        products = products.unflatten(2, weights.shape[1::2])
        return products - products.take_along_dim(self.labels, -1)

    def gradient(self, weights: Tensor, chances: Tensor) -> Tensor:
        """∂loss/∂weights, from the probabilities of the classes (F, N, P, C)."""
        excess = (chances - self.truth).flatten(2)  # (F, N, P·C)
        columns = torch.cat([self.features.mT @ excess, excess.sum(1, keepdim=True)], 1) / self.features.shape[1]
        gradient: Tensor = columns.unflatten(2, weights.shape[1::2]).transpose(1, 2) + self.penalty * weights
        return gradient

    def search(
        self, weights: Tensor, direction: Tensor, slope: Tensor, logits: Tensor, change: Tensor, chances: Tensor
    ) -> Tensor:
        """The line search: the length of the step (F, P), never beyond the minimum along the direction.

        Along a line, |loss‴| ≤ r·loss″ with r the widest spread of the logits' change. Seen from a slope l and a
        curvature c, the minimum is at least log(1 + r·|l|/c)/r away: a Newton step for small r, and safe for any.

        Args:
            weights, direction: (F, P, D + 1, C)
            slope: (F, P), along the direction at the weights.
            logits, change: (F, N, P, C), of the weights and of the direction.
            chances: (F, N, P, C), of the classes at the weights.
        """
        lowest, highest = change.aminmax(dim=-1)
        spread = (highest - lowest).amax(1).clamp(min=1e-30)
        force = self.penalty * direction
        pull, stiffness = (force * weights).sum((2, 3)), (force * direction).sum((2, 3))
        length = torch.zeros_like(slope)
        for look in range(SEARCH):
            if look:
                chances = softmax(torch.addcmul(logits, length[:, None, :, None], change))
            parts = chances * change
            means = parts.sum(-1)  # (F, N, P), of the change of the logits; the true class has none
            if look:
                slope = means.mean(1) + pull + length * stiffness
            variance = ((parts * change).sum(-1) - means.square()).mean(1).clamp(min=0)
            curvature = (variance + stiffness).clamp(min=1e-30)
            length = length - slope.sign() * (spread * slope.abs() / curvature).log1p() / spread
        return length


class History:
    """The last steps of all problems and how the gradients changed, from which a quadratic model of each loss is made.

    Args:
        weights: (F, P, D + 1, C), whose shape, type and device it takes.
    """

    def __init__(self, weights: Tensor) -> None:
        self.shape = weights.shape
        # Steps, changes of the gradient, and the gradient.
        self.pairs = weights.new_zeros(weights.shape[:2].numel(), 2 * MEMORY + 1, weights.shape[2:].numel())
        self.scale = weights.new_ones(len(self.pairs), dtype=torch.float64)
        self.newest = MEMORY - 1

    @property
    def gradient(self) -> Tensor:
        """(F, P, D + 1, C), at the end of the last step."""
        return self.pairs[:, -1].view(self.shape)

    @gradient.setter
    def gradient(self, gradient: Tensor) -> None:
        self.gradient.copy_(gradient)

    def add(self, step: Tensor, gradient: Tensor) -> None:
        """Remember a step (F, P, D + 1, C), and the gradient after it."""
        self.newest = (self.newest + 1) % MEMORY
        self.pairs[:, self.newest].view(self.shape).copy_(step)
        torch.sub(gradient, self.gradient, out=self.pairs[:, self.newest + MEMORY].view(self.shape))
        self.gradient = gradient

    def direction(self) -> tuple[Tensor, Tensor]:
        """To the minimum of the model, (F, P, D + 1, C), and the slope of the loss along it, (F, P)."""
        products = (self.pairs @ self.pairs.mT).double()  # (F·P, 2·M + 1, 2·M + 1)
        oldest = self.newest + 1  # which comes first in what follows
        ahead, across = products[:, :-1, -1].unflatten(1, (2, MEMORY)).roll(-oldest, 2).unsqueeze(-1).unbind(1)
        table = (
            products[:, :-1, :-1].unflatten(2, (2, MEMORY)).unflatten(1, (2, MEMORY)).roll((-oldest, -oldest), (2, 4))
        )
        mixed, changes = table[:, :, :, 1].unbind(1)  # (F·P, M, M)
        squares = table[:, 0, :, 0].diagonal(dim1=1, dim2=2), changes.diagonal(dim1=1, dim2=2)
        bends = mixed.diagonal(dim1=1, dim2=2)
        # A pair without curvature, as of a problem that is done, is left out.
        there = bends > torch.finfo(self.pairs.dtype).eps * (squares[0] * squares[1]).sqrt()
        self.scale = torch.where(there[:, -1], bends[:, -1] / squares[1][:, -1], self.scale)
        scale, bends, kept = self.scale[:, None, None], bends.unsqueeze(-1), there.unsqueeze(-1).double()
        upper = (mixed * kept * kept.mT).triu() + (~there).double().diag_embed()
        first = torch.linalg.solve_triangular(upper, kept * ahead, upper=True)
        inner = kept * (bends * first + scale * (changes @ first - across))
        second = torch.linalg.solve_triangular(upper.mT, inner, upper=False)
        shares = -torch.cat([second.roll(oldest, 1), -scale * first.roll(oldest, 1), scale], 1)  # (F·P, 2·M + 1, 1)
        direction = shares.mT.to(self.pairs.dtype) @ self.pairs
        slope = (shares.squeeze(-1) * products[:, :, -1]).sum(1)
        return direction.view(self.shape), slope.to(self.pairs.dtype).view(self.shape[:2])
