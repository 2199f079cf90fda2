"""Draws what the layer does: one filter, a ring at three sizes, the responses of Conv2d and of SIConv2d.

Prints the responses and writes the picture to the path given, by default `build/one_filter_many_scales.svg`.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.drawing import (
    ON_LIGHT,
    RESPONSES,
    SITE_WIDTH,
    make_figure,
    reach_of,
    scale_colours,
    style,
    winner_colours,
    write_figure,
)

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
    with style():
        figure = make_figure(SITE_WIDTH, 3.6)
        (first, conv), (won, layer) = figure.subplots(2, 2)
        first.imshow(image, cmap="gray")
        first.set_title("input: one pattern, three sizes")
        for axis, values, title in (
            (conv, plain, "Conv2d + ReLU: responds to one size"),
            (layer, output, "SIConv2d + ReLU: to all three, same weights"),
        ):
            shown = axis.imshow(values.clamp(min=0), cmap=RESPONSES, vmin=-1, vmax=1)
            axis.set_title(title)
            for column in RINGS:
                axis.text(
                    column, HEIGHT - 3, f"{max(values[HEIGHT // 2, column].item(), 0):.2f}", ha="center", color=ON_LIGHT
                )
        responses = figure.colorbar(shown, ax=[conv, layer], label="response", aspect=30)
        responses.ax.set_ylim(0, 1)
        reach = reach_of(DEFAULT_SCALES)
        won.imshow(winner_colours(scale, output.clamp(min=0), reach))
        won.set_title("which scale won; black where none responds")
        for place, (factor, colour) in enumerate(zip(DEFAULT_SCALES, scale_colours(DEFAULT_SCALES), strict=True)):
            left = WIDTH * (place + 0.5) / len(DEFAULT_SCALES)
            won.text(left, HEIGHT + 3, f"{factor:.2f}", ha="center", va="center")
            won.plot(left - 6.3, HEIGHT + 3, "s", color=colour, clip_on=False)
        for axis in (first, conv, won, layer):
            axis.set(xticks=[], yticks=[])
        won.set(xlim=(-0.5, WIDTH - 0.5), ylim=(HEIGHT - 0.5, -0.5))
        write_figure(figure, path)


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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/one_filter_many_scales.svg"))
