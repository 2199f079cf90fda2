"""Which scale wins: at every position of every layer, and as a share of all positions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.observe import check_images, evaluating, find_layers, watching_winners
from ..ops.checks import check_count
from ..table import Table, terminal_width
from .pictures import Figure, make_figure, name_the_layers, scale_colours

Shares = dict[float, float]


@dataclass(frozen=True)
class Winners:
    """What `winners` found.

    Attributes:
        images: (N, C, H, W), those that the network saw.
        maps: for each layer the winning scales (N, M, H0, W0), float32.
    """

    images: Tensor
    maps: dict[str, Tensor]

    def plot(self, image: int = 0) -> Figure:
        """Draw an image and, for each layer, the winning scale at every position, the geometric mean over the maps."""
        if check_count("image", image, least=0) >= len(self.images):
            raise ValueError(f"`image` must be from 0 to {len(self.images) - 1}, got {image}")
        figure, axes = make_figure(1 + len(self.maps))
        shown = self.images[image].float().cpu()
        axes[0].imshow(shown.mean(0).numpy(), cmap="gray")
        axes[0].set_title("image")
        reach = max(float(each.log2().abs().max()) for each in self.maps.values()) or 1.0
        for axis, (name, found) in zip(axes[1:], self.maps.items(), strict=True):
            drawn = axis.imshow(found[image].log2().mean(0).cpu().numpy(), cmap="coolwarm", vmin=-reach, vmax=reach)
            axis.set_title(name)
        for axis in axes:
            axis.set_xticks([])
            axis.set_yticks([])
        ticks = [-reach, 0, reach]
        bar = figure.colorbar(drawn, ax=list(axes), ticks=ticks, label="winning scale")
        bar.set_ticklabels([f"{2**tick:.3g}" for tick in ticks])
        return figure


def winners(model: nn.Module, images: Tensor) -> Winners:
    """Find, for each scale-invariant layer, which scale won at every position.

    A scale above 1 won where the pattern is smaller than the filter. A layer that is called several times shows its
    last call.

    Args:
        model: a network with `SIConv2d`, as `convert` returns it.
        images: (N, C, H, W), as the network takes them.

    Raises:
        TypeError: `model` is not a Module, or `images` not a tensor.
        ValueError: the network has no `SIConv2d`, or the images another shape.

    Example:
        >>> from scaleconv import convert
        >>> network = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))
        >>> found = winners(network, torch.rand(5, 1, 12, 12))
        >>> {name: tuple(scales.shape) for name, scales in found.maps.items()}
        {'0': (5, 4, 10, 10), '2': (5, 2, 8, 8)}
    """
    layers, images = find_layers(model), check_images(images)
    maps: dict[str, Tensor] = {}

    def keep(name: str, winner: Tensor) -> None:
        maps[name] = torch.tensor(layers[name].scales, device=winner.device)[winner.long()]

    with evaluating(model), watching_winners(layers, keep):
        model(images)
    return Winners(images, maps)


@dataclass(frozen=True)
class ScaleUsage:
    """What `scale_usage` found. `str` gives a table.

    Attributes:
        shares: for each layer the share of its outputs that each scale won, between 0 and 1.
        images: how many the network saw.
    """

    shares: dict[str, Shares]
    images: int

    def __str__(self) -> str:
        return self.table().text(terminal_width())

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


def scale_usage(model: nn.Module, batches: Tensor | Iterable[Any]) -> ScaleUsage:
    """Count how often each scale wins, in each scale-invariant layer.

    Args:
        model: a network with `SIConv2d`, as `convert` returns it.
        batches: images (N, C, H, W), or an iterable of such batches. A `DataLoader` will do: of a batch that is a tuple
            or a list, the first part is taken.

    Raises:
        TypeError: `model` is not a Module, or a batch not a tensor.
        ValueError: the network has no `SIConv2d`, or there are no images, or images of another shape.

    Example:
        >>> from scaleconv import convert
        >>> network = convert(nn.Sequential(nn.Conv2d(1, 4, 3)), scales=(1, 2))
        >>> shares = scale_usage(network, torch.rand(5, 1, 12, 12)).shares["0"]
        >>> list(shares), round(sum(shares.values()), 6)
        ([1.0, 2.0], 1.0)
    """
    layers = find_layers(model)
    if not isinstance(batches, Iterable):
        raise TypeError(f"`batches` must be images or an iterable of batches, got {batches!r}")
    counts = {name: torch.zeros(len(layer.scales), dtype=torch.long) for name, layer in layers.items()}
    images = 0

    def count(name: str, winner: Tensor) -> None:
        counts[name] += torch.bincount(winner.flatten().long(), minlength=len(counts[name])).cpu()

    with evaluating(model), watching_winners(layers, count):
        for place, batch in enumerate([batches] if isinstance(batches, Tensor) else batches):
            name = "batches" if batch is batches else f"batches[{place}]"
            some = check_images(batch[0] if isinstance(batch, tuple | list) and batch else batch, name)
            images += len(some)
            model(some)
    if not images:
        raise ValueError("`batches` must hold images, got none")
    shares = {
        name: {
            scale: float(won) / int(counts[name].sum()) for scale, won in zip(layer.scales, counts[name], strict=True)
        }
        for name, layer in layers.items()
        if counts[name].sum()
    }
    return ScaleUsage(shares, images)
