"""What changes the weights of a network in a step: an optimiser, and a running mean that follows them.

What has one dimension, biases and norms, does not decay, whatever the optimiser.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# What an optimiser keeps for each parameter: our name for it, and PyTorch's.
ADAM = {"first": "exp_avg", "second": "exp_avg_sq", "step": "step"}
KEPT = {"sgd": {"momentum": "momentum_buffer"}, "adam": ADAM, "adamw": ADAM}


def make_optimiser(
    name: str,
    parameters: Iterable[Tensor],
    rate: float,
    *,
    weight_decay: float,
    momentum: float = 0.9,
    bias_rate: float = 1.0,
    captured: bool = False,
    varies: bool = False,
) -> torch.optim.Optimizer:
    """An optimiser of parameters that require a gradient.

    Args:
        name: `sgd`, `adam` or `adamw`.
        parameters: those that do not require a gradient are left alone.
        rate: the learning rate.
        weight_decay: of what has two dimensions and more.
        momentum: of the gradient, for `sgd`.
        bias_rate: learning rate of biases and norms, in units of `rate`.
        captured: whether its steps are part of a CUDA graph.
        varies: whether the rate is to change; then it is a tensor, so that a CUDA graph reads what it is at each step.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = []
    for flat, decay, factor in ((False, weight_decay, 1.0), (True, 0.0, bias_rate)):
        chosen = [parameter for parameter in trained if (parameter.dim() < 2) == flat]
        own = torch.tensor(rate * factor, device=trained[0].device) if varies else rate * factor
        groups.append({"params": chosen, "weight_decay": decay, "lr": own})
    fused = True if captured else None  # else PyTorch chooses
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, fused=fused)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, fused=fused, capturable=captured)


def mean_moves(decay: float, step: int) -> float:
    """How far a running mean moves to the weights in a step, counted from 0: early on further than 1 − decay."""
    return 1 - min(decay, (2 + step) / (11 + step))


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, share: Tensor | float) -> None:
    """Move a running mean this share of the way to a network; what is no floating-point number is copied."""
    for mean, value in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, share.to(mean.dtype) if isinstance(share, Tensor) else share)
        else:
            mean.copy_(value)
