"""Give every channel of a converted network the mean and the deviation that it has in the plain one."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ops.torch_private import BatchNorm
from .layers import SIConv2d
from .paired import Pair, Seen

LEAST = 1e-10  # a smaller variance is none


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of the channels of two tensors, the plain one first, over all calls of a layer."""

    count: int
    mean: Tensor  # (2, C)
    covariance: Tensor  # (2, 2, C)

    @classmethod
    def of(cls, plain: Tensor, ours: Tensor, dims: list[int]) -> "Moments":
        mean = torch.stack([plain.mean(dims), ours.mean(dims)])
        centred = [each - each.mean(dims, keepdim=True) for each in (plain, ours)]
        covariance = torch.stack([torch.stack([(a * b).mean(dims) for a in centred]) for b in centred])
        return cls(plain.numel() // mean.shape[1], mean, covariance)

    def joined(self, other: "Moments | None") -> "Moments":
        if other is None:
            return self
        count = self.count + other.count
        share, step = other.count / count, other.mean - self.mean
        covariance = self.covariance + share * (other.covariance - self.covariance)
        return Moments(count, self.mean + share * step, covariance + share * (1 - share) * step[:, None] * step)

    def moved(self, factor: Tensor, shift: Tensor) -> "Moments":
        """Those after a factor and a shift of the second tensor."""
        factors = torch.stack([torch.ones_like(factor), factor])
        mean = self.mean * factors + torch.stack([torch.zeros_like(shift), shift])
        return Moments(self.count, mean, self.covariance * factors[:, None] * factors)

    def ratio(self) -> Tensor:
        """Of the deviations of each channel, plain to ours; 1 where there is none."""
        above, below = self.covariance[0, 0], self.covariance[1, 1]
        return torch.where((above > LEAST) & (below > LEAST), above / below.clamp(min=LEAST), 1.0).sqrt()

    def projection(self) -> Tensor:
        """The factor of each channel that brings ours nearest to the plain; 1 where it would not be above 0."""
        above, below = (self.covariance[1] + self.mean[1] * self.mean).unbind()
        return torch.where((above > 0) & (below > LEAST), above / below.clamp(min=LEAST), 1.0)


def match_statistics(pair: Pair, batches: list[Any]) -> None:
    """Give every channel of every layer the mean and the deviation that it has in the plain network.

    All in one pass: a layer is corrected as it is called, and the next one sees the corrected output. A layer that is
    called several times is corrected each time, by the statistics of all calls so far.
    """
    modules = list(pair.network.modules())
    owners = Counter(id(each) for module in modules for each in module._parameters.values())
    normed = any(isinstance(module, BatchNorm) for module in modules)
    moments: dict[str, Moments] = {}
    trained: dict[str, tuple[Tensor, Tensor]] = {}

    def correct(name: str, seen: Seen) -> Tensor:
        if isinstance(seen.layer, SIConv2d):
            output, moments[name] = _match_layer(seen.layer, seen, moments.get(name), owners, normed)
            return output
        norm: Any = seen.layer
        if norm.running_mean is not None:
            mean, variance = trained.setdefault(name, (norm.running_mean.clone(), norm.running_var.clone()))
            moments[name] = Moments.of(seen.plain_input, seen.input, seen.dims).joined(moments.get(name))
            factor = 1 / moments[name].ratio()
            norm.running_mean.copy_(moments[name].mean[1] - factor * (moments[name].mean[0] - mean))
            norm.running_var.copy_((factor.square() * (variance + norm.eps) - norm.eps).clamp(min=0))
        corrected: Tensor = norm.forward(seen.input)
        return corrected

    for batch in batches:
        pair.run(batch, correct)


def _match_layer(
    layer: SIConv2d, seen: Seen, before: Moments | None, owners: Counter[int], normed: bool
) -> tuple[Tensor, Moments]:
    """By factors a and shifts c of the channels: a · max z + c = max (a · z + c), so weight and bias take them in.

    Where neither a bias nor BatchNorm takes the shift, the factor is that of the least squared error. A parameter that
    is computed from something, such as a direction and a length, or that layers share, stays as it is.
    """
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    has_bias = layer.bias is not None
    weight, bias = (each if owners[id(each)] == 1 else None for each in (weight, bias))
    output, moments = seen.output, Moments.of(seen.plain_output, seen.output, seen.dims).joined(before)
    factor = torch.ones_like(moments.mean[0])
    if weight is not None and (bias is not None or not has_bias):
        factor = moments.ratio() if has_bias or normed else moments.projection()
        weight.mul_(factor.view(-1, 1, 1, 1))
        if bias is not None:
            bias.mul_(factor)
        output = layer.forward(seen.input)
        before = before and before.moved(factor, torch.zeros_like(factor))
        moments = Moments.of(seen.plain_output, output, seen.dims).joined(before)
    if bias is not None:
        shift = moments.mean[0] - moments.mean[1]
        bias.add_(shift)
        output = output + shift.view(-1, 1, 1)
        moments = moments.moved(torch.ones_like(shift), shift)
    return output, moments
