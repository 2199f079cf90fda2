"""Draws the steps of the layer on a real digit: pyramid, convolution, alignment, maximum.

The filter is the loop of one handwritten nine; the image is another nine at 0.6 of its size. Checks that the steps, one
after the other, give what `si_conv2d` gives. Writes the picture to the path given, by default `build/step_by_step.svg`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from torch import Tensor
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.data import embedded_digits
from scaleconv.drawing import (
    RESPONSES,
    SITE_WIDTH,
    make_figure,
    reach_of,
    scale_map,
    style,
    winner_colours,
    write_figure,
)
from scaleconv.ops.levels import align, level_size, rescale

NINES = (99, 16)  # among the test digits; the second is the image
LOOP = (slice(5, 18), slice(6, 19))  # of the first nine: rows and columns
SHRUNK = 0.6


@dataclass(frozen=True)
class Step:
    """One level: the image at its scale, the response at its own size, the response on the output grid, NaN beyond."""

    scale: float
    level: Tensor
    response: Tensor
    aligned: Tensor


def digit_and_filter() -> tuple[Tensor, Tensor]:
    """The image (1, 1, 28, 28), and the weight (1, 1, 13, 13): it sums to 0, and its response to its own loop is 1."""
    pattern, image = embedded_digits().images[list(NINES)].float() / 255
    loop = pattern[LOOP]
    weight = loop - loop.mean()
    small = rescale(image[None, None], SHRUNK, image.shape)
    return small, (weight / (weight * loop).sum())[None, None]


def run_steps(image: Tensor, weight: Tensor) -> list[Step]:
    """The layer as the paper writes it, level by level."""
    size, pad = image.shape[2:], weight.shape[-1] // 2
    steps = []
    for scale in DEFAULT_SCALES:
        level = rescale(image, scale, level_size(size, scale))
        response = F.conv2d(level, weight, padding=pad)
        aligned, covered = align(response, scale, size, size, level.shape[2:], (1, 1), (0, 0))
        steps.append(Step(scale, level[0, 0], response[0, 0], aligned[0, 0].where(covered, torch.nan)))
    return steps


def draw(path: Path, image: Tensor, weight: Tensor, steps: list[Step], output: Tensor, winner: Tensor) -> None:
    figure = make_figure(SITE_WIDTH, 5.4)
    above, below = figure.subfigures(2, 1, height_ratios=(3, 1.25), squeeze=False)[:, 0]
    rows = above.subplots(3, len(steps))
    largest = max(step.level.shape[0] for step in steps)
    most, strongest = float(output.max()), float(weight.abs().max())
    red: dict[str, Any] = {"cmap": RESPONSES, "vmin": -most, "vmax": most}
    for column, step in enumerate(steps):
        drawn: tuple[tuple[Tensor, dict[str, Any]], ...] = (
            (step.level, {"cmap": "gray"}),
            (step.response, red),
            (step.aligned, red),
        )
        for axis, (values, look) in zip(rows[:, column], drawn, strict=True):
            axis.imshow(values.numpy(), **look)
            axis.set_facecolor("#cccccc")
            axis.set(xticks=[], yticks=[])
            if values is not step.aligned:  # at its size: all levels in one unit
                low = (values.shape[0] - largest) / 2 - 0.5
                axis.set(xlim=(low, low + largest), ylim=(low + largest, low))
                axis.set_facecolor("white")
                axis.spines[:].set_visible(False)
        rows[0, column].set_title(f"scale {step.scale:.2f}")
    for axis, text in zip(rows[:, 0], ("1  rescale", "2  convolve", "3  align"), strict=True):
        axis.set_ylabel(text)
    panels = below.subplots(1, 4)
    reach = reach_of(DEFAULT_SCALES)
    won = torch.tensor(DEFAULT_SCALES)[winner[0, 0].long()]
    shown: list[tuple[str, Any, dict[str, Any]]] = [
        ("the image", image[0, 0].numpy(), {"cmap": "gray"}),
        ("the filter", weight[0, 0].numpy(), {"cmap": RESPONSES, "vmin": -strongest, "vmax": strongest}),
        ("4  maximum: the output", output[0, 0].numpy(), red),
        ("the winning scale", winner_colours(won, output[0, 0], reach), {}),
    ]
    for axis, (title, values, look) in zip(panels, shown, strict=True):
        axis.imshow(values, **look)
        axis.set(title=title, xticks=[], yticks=[])
    bar = below.colorbar(ScalarMappable(Normalize(-reach, reach), scale_map()), ax=panels[3])
    bar.set_ticks(torch.tensor(DEFAULT_SCALES).log2().tolist(), labels=[f"{step.scale:.2f}" for step in steps])
    write_figure(figure, path)


def main(path: Path) -> None:
    image, weight = digit_and_filter()
    steps = run_steps(image, weight)
    output, winner = si_conv2d(image, weight, padding=weight.shape[-1] // 2, return_winner=True)
    by_hand = torch.stack([step.aligned.nan_to_num(nan=-torch.inf) for step in steps]).amax(0)
    torch.testing.assert_close(by_hand, output[0, 0])
    with style():
        draw(path, image, weight, steps, output, winner)
    plain = F.conv2d(image, weight, padding=weight.shape[-1] // 2)
    best = int(output.flatten().argmax())
    print(f"Largest response of Conv2d {plain.max():.2f}, of SIConv2d {output.max():.2f},")
    print(f"where scale {DEFAULT_SCALES[int(winner.flatten()[best])]:.2f} won. Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/step_by_step.svg"))
