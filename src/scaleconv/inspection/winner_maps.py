"""Which scale wins: at every position of every layer, and as a share of all positions.

`nn.observe.winner_of` says who has won where scales tie: scale 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..drawing import reach_of, scale_colours
from ..nn.layers import SIConv2d
from ..nn.observe import Call, batches_of, check_call, evaluating, find_layers, images_of, run, watching, winner_of
from ..ops.checks import check_count
from ..table import Table
from .pictures import (
    Figure,
    Tabled,
    make_figure,
    name_the_layers,
    scale_bar,
    show_image,
    show_scales,
    sizes_as_text,
)

Shares = dict[float, float]


@dataclass(frozen=True, repr=False)
class Winners(Tabled):
    """What `winners` found. It shows itself as a table.

    Attributes:
        images: (N, C, H, W), those that the network saw.
        maps: for each layer the winning scales (N, M, H0, W0), float32.
    """

    images: Tensor
    maps: dict[str, Tensor]

    def table(self) -> Table:
        rows = [(name, sizes_as_text(found.shape)) for name, found in self.maps.items()]
        return Table(f"Winning scales on {len(self.images)} images", ("layer", "map"), rows)

    def plot(self, image: int = 0) -> Figure:
        """Draw an image and, for each layer, the winning scale at every position, the geometric mean over the maps."""
        if check_count("image", image, least=0) >= len(self.images):
            raise ValueError(f"`image` must be from 0 to {len(self.images) - 1}, got {image}")
        figure, axes = make_figure(1 + len(self.maps))
        show_image(axes[0], self.images[image], "image")
        scales = sorted({float(scale) for found in self.maps.values() for scale in found.unique()})
        reach = reach_of(scales)
        for axis, (name, found) in zip(axes[1:], self.maps.items(), strict=True):
            show_scales(axis, found[image].log2().mean(0).exp2(), reach, name)
        scale_bar(figure, axes, scales, reach)
        return figure


def winners(model: nn.Module, images: Tensor | Iterable[Any], *, call: Call | None = None) -> Winners:
    """Find, for each scale-invariant layer, which scale won at every position.

    A scale above 1 won where the pattern is smaller than the filter. Where scales tie, as on a constant background,
    scale 1 has won. A layer that is called several times shows its last call. All maps are kept in memory.

    Args:
        model: a network with `SIConv2d`, as `convert` returns it.
        images: (N, C, H, W), as the network takes them; or an iterable of batches, such as a `DataLoader`. A batch may
            be a tuple, a list or a mapping: the first tensor like images in it is taken.
        call: a function of the model and a batch that runs the network, if it takes more than images. What it returns
            does not matter.

    Raises:
        TypeError: an argument of the wrong type, or a batch without images.
        ValueError: the network has no `SIConv2d`, or there are no images, or images of another shape, or batches of
            images of different sizes.

    Example:
        >>> from scaleconv import convert
        >>> network = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), include="*")
        >>> found = winners(network, torch.rand(5, 1, 12, 12))
        >>> {name: tuple(scales.shape) for name, scales in found.maps.items()}
        {'0': (5, 4, 10, 10), '2': (5, 2, 8, 8)}
    """
    layers = find_layers(model)
    check_call(call)
    pictures: list[Tensor] = []
    maps: dict[str, list[Tensor]] = {}
    of_batch: dict[str, Tensor] = {}

    def keep(name: str, layer: SIConv2d, given: Tensor, _: Tensor) -> None:
        winner = winner_of(layer, given)
        of_batch[name] = torch.tensor(layer.scales, device=winner.device)[winner.long()]

    with evaluating(model), watching(layers, keep):
        for place, batch in enumerate(batches_of(images)):
            some = images_of(batch, f"images[{place}]")
            if pictures and some.shape[1:] != pictures[0].shape[1:]:
                sizes = f"{tuple(pictures[0].shape[1:])} and {tuple(some.shape[1:])}"
                raise ValueError(f"`images` must be of one size in all batches, got {sizes}")
            of_batch.clear()
            run(model, batch, call)
            pictures.append(some)
            for name, found in of_batch.items():
                maps.setdefault(name, []).append(found)
    complete = {name: torch.cat(found) for name, found in maps.items() if len(found) == len(pictures)}
    return Winners(torch.cat(pictures), complete)


@dataclass(frozen=True, repr=False)
class ScaleUsage(Tabled):
    """What `scale_usage` found. It shows itself as a table.

    Attributes:
        shares: for each layer the share of its outputs that each scale won, between 0 and 1.
        images: how many the network saw.
    """

    shares: dict[str, Shares]
    images: int

    @property
    def scales(self) -> list[float]:
        """Those of all layers, in ascending order."""
        return sorted({scale for each in self.shares.values() for scale in each})

    def table(self) -> Table:
        rows = [
            (name, *(f"{100 * each[scale]:.1f}" if scale in each else "–" for scale in self.scales))
            for name, each in self.shares.items()
        ]
        title = f"Outputs won by each scale, percent, on {self.images} images"
        return Table(title, ("layer", *(f"{scale:.3g}" for scale in self.scales)), rows)

    def plot(self) -> Figure:
        """Draw the shares of each layer as a bar."""
        figure, (axis,) = make_figure(1, width=3 + 0.35 * len(self.shares), height=3.6)
        places, bottom = range(len(self.shares)), [0.0] * len(self.shares)
        for scale, colour in zip(self.scales, scale_colours(self.scales), strict=True):
            heights = [100 * each.get(scale, 0.0) for each in self.shares.values()]
            axis.bar(places, heights, bottom=bottom, color=colour, label=f"{scale:.3g}")
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        name_the_layers(axis, list(self.shares))
        axis.set_ylabel("outputs won (%)")
        axis.legend(title="scale", bbox_to_anchor=(1, 1), loc="upper left", reverse=True)
        return figure


def scale_usage(model: nn.Module, images: Tensor | Iterable[Any], *, call: Call | None = None) -> ScaleUsage:
    """Count how often each scale wins, in each scale-invariant layer.

    Where scales tie, as on a constant background, scale 1 has won: the other scales were not needed there.

    Args:
        model: a network with `SIConv2d`, as `convert` returns it.
        images: (N, C, H, W), as the network takes them; or an iterable of batches, such as a `DataLoader`. A batch may
            be a tuple, a list or a mapping: the first tensor like images in it is taken.
        call: a function of the model and a batch that runs the network, if it takes more than images. What it returns
            does not matter.

    Raises:
        TypeError: an argument of the wrong type, or a batch without images.
        ValueError: the network has no `SIConv2d`, or there are no images, or images of another shape.

    Example:
        >>> from scaleconv import convert
        >>> network = convert(nn.Sequential(nn.Conv2d(1, 4, 3)), scales=(1, 2))
        >>> shares = scale_usage(network, torch.rand(5, 1, 12, 12)).shares["0"]
        >>> list(shares), round(sum(shares.values()), 6)
        ([1.0, 2.0], 1.0)
    """
    layers = find_layers(model)
    check_call(call)
    counts = {name: torch.zeros(len(layer.scales), dtype=torch.long) for name, layer in layers.items()}
    seen = 0

    def count(name: str, layer: SIConv2d, given: Tensor, _: Tensor) -> None:
        winner = winner_of(layer, given)
        counts[name] += torch.bincount(winner.flatten().long(), minlength=len(layer.scales)).cpu()

    with evaluating(model), watching(layers, count):
        for place, batch in enumerate(batches_of(images)):
            seen += len(images_of(batch, f"images[{place}]"))
            run(model, batch, call)
    shares = {
        name: dict(zip(layers[name].scales, (found.double() / found.sum()).tolist(), strict=True))
        for name, found in counts.items()
        if found.any()
    }
    return ScaleUsage(shares, seen)
