"""How invariant the neurons of a network are to a transformation of its input.

The measure of Goodfellow, Le, Saxe, Lee and Ng, *Measuring invariances in deep networks* (2009), as the paper uses it
in section 4.1.1. The paper does not say what a neuron of a map is: `NEURONS` has three readings. The function that
transforms images is an argument.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .activations import activations

# A layer's output as neurons (N, U); an output without positions has a neuron for each number.
NEURONS: dict[str, Callable[[Tensor], Tensor]] = {
    "position": lambda output: output.flatten(1),
    "centre": lambda output: _centre(output).flatten(1),
    "channel": lambda output: output.flatten(2).amax(2) if output.dim() > 2 else output,
}


def _centre(output: Tensor) -> Tensor:
    """The middle of a map along each axis: one number of an odd length, two of an even one."""
    for axis in range(2, output.dim()):
        length = output.shape[axis]
        output = output.narrow(axis, (length - 1) // 2, 2 - length % 2)
    return output


def invariance_scores(
    model: nn.Module,
    images: Tensor,
    layers: Sequence[str],
    transform: Callable[[Tensor, float], Tensor],
    factors: Sequence[float],
    *,
    neuron: str = "position",
    firing: float = 0.01,
    silent: float = 0.0,
    batch: int = 1000,
) -> dict[str, Tensor]:
    """The invariance score of every neuron of each layer.

    Shapes: images (N, …) → for each layer (U,) float64, with U its neurons.

    Neuron i fires to an image x when h_i(x) > t_i. With Z_i the images it fires to,

        G(i) = |Z_i| / N,   L(i) = mean over x in Z_i and over the factors f of [h_i(transform(x, f)) > t_i]
        score(i) = L(i) / G(i)

    Convention: t_i is the highest threshold at which G(i) ≥ `firing`, so that the images a neuron fires to are those
    that activate it most; images that tie with the last of them fire too. An activation that is not above `silent`
    never counts: a rectified neuron that is off is not firing. A neuron that is above `silent` for fewer than `firing`
    of the images has no such threshold, and scores 0. One that fires to everything scores 1; one that fires to as few
    as it may, and to all their transforms, scores 1 / `firing`, the most there is.

    Args:
        model: the network, whose `layers` are named as in `named_modules`.
        images: what the thresholds are set on.
        layers: whose outputs are looked at.
        transform: takes images and a factor, and returns as many transformed images.
        factors: of the transformation.
        neuron: what counts as one, of a map (N, C, H, W): every number ('position'), the numbers at the centre, which
            alone stay where they are under a transformation about it ('centre'), or the maximum of each channel over
            its positions ('channel').
        firing: the least part of the images that a neuron must fire to.
        silent: the activation of a neuron that is off; −inf where negative activations count.
        batch: images at a time.

    Example:
        >>> unit = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU())
        >>> _ = nn.init.ones_(unit[0].weight)
        >>> shrink = lambda images, factor: images * factor
        >>> invariance_scores(unit, torch.arange(1.0, 101).unsqueeze(1), ["1"], shrink, [1.0, 0.5])
        {'1': tensor([50.], dtype=torch.float64)}
    """
    if not len(images):
        raise ValueError("`images` must not be empty")
    if not len(factors):
        raise ValueError("`factors` must not be empty")
    if not 0 < firing <= 1:
        raise ValueError(f"`firing` must lie above 0 and not above 1, got {firing}")
    if neuron not in NEURONS:
        raise ValueError(f"`neuron` must be one of {', '.join(NEURONS)}, got {neuron!r}")
    as_neurons = NEURONS[neuron]
    responses = {name: as_neurons(output) for name, output in activations(model, images, layers, batch).items()}
    fewest = math.ceil(firing * len(images) - 1e-9)
    fires, threshold, still = {}, {}, {}
    for name, response in responses.items():
        strongest = response.topk(fewest, dim=0).values[-1]  # (U,) what the last image that must fire reaches
        threshold[name] = torch.where(strongest > silent, strongest, math.inf)
        fires[name] = response >= threshold[name]  # (N, U)
        still[name] = torch.zeros(response.shape[1], dtype=torch.float64, device=images.device)
    del responses
    for factor in factors:
        for start in range(0, len(images), batch):
            part = slice(start, start + batch)
            moved = activations(model, transform(images[part], factor), layers, batch)
            for name, output in moved.items():
                still[name] += (fires[name][part] & (as_neurons(output) >= threshold[name])).sum(0)
    scores = {}
    for name in layers:
        fired = fires[name].sum(0).double()
        local = still[name] / (fired * len(factors)).clamp(min=1)
        scores[name] = local / (fired / len(images)).clamp(min=1 / len(images))
    return scores


def top_mean(scores: Tensor, part: float = 0.2) -> float:
    """The mean of the highest scores, a part of all; at least one.

    Example:
        >>> top_mean(torch.tensor([1.0, 5.0, 3.0, 2.0, 4.0]), 0.4)
        4.5
    """
    if not 0 < part <= 1:
        raise ValueError(f"`part` must lie above 0 and not above 1, got {part}")
    count = max(1, round(part * len(scores)))
    return float(scores.topk(count).values.mean())
