"""How the output of a network changes when images are rescaled: how often its prediction stays, how far it moves."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import torch
from torch import Tensor, nn

from ..metrics.equivariance import rescale_maps
from ..nn.observe import Call, answer, batches_of, check_call, check_module, evaluating, images_of, with_images
from ..ops.call import check_factors
from ..ops.checks import check_count, check_number
from ..table import Table
from .pictures import Figure, Tabled, make_figure

SCALES = tuple(2 ** (k / 3) for k in range(-3, 4))  # 0.5 … 2


@dataclass(frozen=True, repr=False)
class ScaleCheck(Tabled):
    """What `check_scale` found. It shows itself as a table.

    Attributes:
        consistency: for each scale the share of predictions that stay the same, between 0 and 1; NaN without classes.
        distance: for each scale the relative distance of the output.
        images: how many were looked at.
    """

    consistency: dict[float, float]
    distance: dict[float, float]
    images: int

    def table(self) -> Table:
        rows = [
            (f"{scale:.3g}", f"{100 * same:.1f}", f"{self.distance[scale]:.3f}")
            for scale, same in self.consistency.items()
        ]
        header = ("scale", "same prediction, %", "distance of the output")
        return Table(f"Outputs for rescaled images, against those for the {self.images} images", header, rows)

    def plot(self) -> Figure:
        """Draw both against the scale."""
        figure, axes = make_figure(2, width=3.6, height=3)
        scales = sorted(self.consistency)
        axes[0].plot(scales, [100 * self.consistency[scale] for scale in scales], marker="o")
        axes[0].set_ylabel("same prediction (%)")
        axes[0].set_ylim(0, 102)
        axes[1].plot(scales, [self.distance[scale] for scale in scales], marker="o")
        axes[1].set_ylabel("relative distance of the output")
        axes[1].set_ylim(bottom=0)
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_xticks(scales, [f"{scale:.2g}" for scale in scales])
            axis.minorticks_off()
            axis.set_xlabel("scale of the image")
        return figure


def check_scale(
    model: nn.Module,
    images: Tensor | Iterable[Any],
    scales: Iterable[float] = SCALES,
    *,
    fill: float = 0.0,
    batch: int = 100,
    call: Call | None = None,
) -> ScaleCheck:
    """Rescale images about their centre, and compare the output of the network with that for the original images.

    With f the network and T_s the rescaling by s, bilinear, on the same canvas:

        consistency(s) = share of f(T_s x) and f(x) with the same largest class
        distance(s)    = ‖f(T_s x) − f(x)‖ / ‖f(x)‖,   both norms over all images together

    A network that returns maps (N, K, H, W) is compared position by position with T_s f(x), where that is known. Where
    nothing is, as in a map of 2×2 that is shrunk, both are NaN. With K = 1, as for a depth map, there are no classes,
    and the consistency is NaN.

    Args:
        model: a network, converted or not.
        images: (N, C, H, W), as the network takes them; or an iterable of batches, such as a `DataLoader`. A batch may
            be a tuple, a list or a mapping: the first tensor like images in it is rescaled.
        scales: the factors, at most 1000; above 1 enlarges, and what leaves the canvas is cut off.
        fill: what surrounds a shrunk image, in the units of `images`.
        batch: images at a time, of a tensor.
        call: a function of the model and a batch that returns the output (N, K) or (N, K, H, W), if the network takes
            more than images or returns more than a tensor. It gets every batch with its images, then with rescaled
            ones in their place: `call=lambda model, batch: model(**batch).logits`.

    Raises:
        TypeError: an argument of the wrong type, or a network that returns no tensor, with a `call` that takes one.
        ValueError: an argument that breaks its rule, or an output of another shape.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> found = check_scale(network, torch.rand(5, 1, 8, 8), scales=(0.5, 1))
        >>> found.consistency[1], round(found.distance[1], 5)
        (1.0, 0.0)
    """
    check_module(model)
    check_call(call)
    factors = check_factors(scales)
    if not factors:
        raise ValueError("`scales` must hold at least one number, got none")
    fill, batch = check_number("fill", fill, least=-inf), check_count("batch", batch)
    same, compared, distance, norm = (dict.fromkeys(factors, 0.0) for _ in range(4))
    seen = 0
    with evaluating(model):
        for place, some in enumerate(batches_of(images, batch)):
            pictures = images_of(some, f"images[{place}]")
            seen += len(pictures)
            plain = _classes(answer(model, some, call), len(pictures))
            for scale in factors:
                moved, inside = rescale_maps(pictures - fill, scale)
                rescaled = with_images(some, moved * inside + fill)
                found, expected = _classes(answer(model, rescaled, call), len(pictures)), plain
                known = torch.ones_like(plain[:1, :1])
                if plain.ndim == 4:
                    expected, known = rescale_maps(plain, scale)
                if plain.shape[1] > 1:
                    matches = (found.argmax(1, keepdim=True) == expected.argmax(1, keepdim=True)) * known
                    same[scale] += float(matches.sum())
                    compared[scale] += float(known.sum()) * len(pictures)
                distance[scale] += float(((found - expected) * known).double().square().sum())
                norm[scale] += float((expected * known).double().square().sum())
    return ScaleCheck(
        {scale: _ratio(same[scale], compared[scale]) for scale in factors},
        {scale: _ratio(distance[scale], norm[scale]) ** 0.5 for scale in factors},
        seen,
    )


def _ratio(above: float, below: float) -> float:
    return above / below if below else nan


def _classes(output: Tensor, images: int) -> Tensor:
    """The output as (N, K) or (N, K, H, W)."""
    if output.ndim not in (2, 4) or len(output) != images:
        remedy = " (give `call`: a map (N, H, W) becomes one by unsqueeze(1))" if output.ndim == 3 else ""
        raise ValueError(
            f"`model` must return (N, K) or (N, K, H, W) with N (={images}), got shape {tuple(output.shape)}{remedy}"
        )
    return output.float()
