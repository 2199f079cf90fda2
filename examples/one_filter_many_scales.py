"""Draws what the layer does: one filter, a ring at three sizes, the responses of Conv2d and of SIConv2d.

Prints the responses and writes the picture to the path given, by default `build/one_filter_many_scales.png`.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d

HEIGHT, WIDTH, KERNEL = 40, 96, 17
RINGS = {14: 6, 40: 10, 74: 16}  # column of the centre: diameter


def ring(height: int, width: int, row: float, column: float, diameter: float) -> Tensor:
    """An image of one ring, its stroke a fifth of its diameter."""
    radius = torch.hypot(torch.arange(1.0 * height)[:, None] - row, torch.arange(1.0 * width)[None, :] - column)
    return torch.exp(-(((radius - diameter / 2) / (diameter / 5)) ** 2))


def responses() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The image, Conv2d's response, SIConv2d's, and the winning scale."""
    image = sum(
        (ring(HEIGHT, WIDTH, HEIGHT // 2, column, diameter) for column, diameter in RINGS.items()),
        torch.zeros(HEIGHT, WIDTH),
    )
    pattern = ring(KERNEL, KERNEL, KERNEL // 2, KERNEL // 2, 10)
    weight = pattern - pattern.mean()
    weight = weight / (weight * pattern).sum()  # its response to its own pattern is 1
    images, weights = image[None, None], weight[None, None]
    plain = F.conv2d(images, weights, padding=KERNEL // 2)
    output, winner = si_conv2d(images, weights, padding=KERNEL // 2, return_winner=True)
    scale = torch.tensor(DEFAULT_SCALES)[winner.long()]
    return image, plain[0, 0], output[0, 0], scale[0, 0]


def draw(path: Path, image: Tensor, plain: Tensor, output: Tensor, scale: Tensor) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(10, 5), layout="constrained")
    panels = {
        "input: one pattern, three sizes": (image, "gray", None, None),
        "winning scale of SIConv2d": (scale.log2() * 3, plt.get_cmap("viridis", 6), -2.5, 3.5),
        "Conv2d + ReLU: responds to the size of its filter": (plain.clamp(min=0), "magma", 0, 1),
        "SIConv2d + ReLU: responds to all three, same weights": (output.clamp(min=0), "magma", 0, 1),
    }
    for axis, (title, (values, colours, low, high)) in zip(axes.flat, panels.items(), strict=True):
        shown = axis.imshow(values, cmap=colours, vmin=low, vmax=high)
        axis.set_title(title, fontsize=11)
        axis.set_xticks([])
        axis.set_yticks([])
        if title.startswith("winning"):
            bar = figure.colorbar(shown, ax=axis, ticks=range(-2, 4), fraction=0.025)
            bar.ax.set_yticklabels([f"{value:.2f}" for value in DEFAULT_SCALES])
        if values.max() <= 2 and colours == "magma":
            figure.colorbar(shown, ax=axis, fraction=0.025)
            for column in RINGS:
                peak = values[HEIGHT // 2, column].item()
                axis.text(column, HEIGHT // 2 + 10, f"{peak:.2f}", color="white", ha="center", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(path: Path) -> None:
    image, plain, output, scale = responses()
    draw(path, image, plain, output, scale)
    print("Response at the centre of each ring. The filter is a ring of diameter 10.")
    print("diameter   Conv2d   SIConv2d   winning scale")
    for column, diameter in RINGS.items():
        place = (HEIGHT // 2, column)
        print(f"{diameter:8d}   {plain[place]:6.2f}   {output[place]:8.2f}   {scale[place]:13.2f}")
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/one_filter_many_scales.png"))
