"""The paper's example of two circles (section 2): which networks have both in one map, for the second layer to see.

Each image has a small and a large circle, and a small and a large square, in two pairs of neighbours. Either the two
circles are neighbours, or each has a square beside it; all images have the same four shapes. The first layer is one
filter that responds to the large circle, or two filters, one for each size. The second layer is ideal: of two places
that are as far apart as neighbours it takes the lesser response, and of all such places the greatest. So it responds if
two circles stand side by side in what it sees: one map of a ConvNet or of a layer with scales, or the maps of one scale
of a hierarchical network, whose scales meet only later. Nothing is learned but the threshold above which an image
counts as one of two circles, on other images.

Prints the errors and writes the picture to the path given, by default `build/two_circles.png`.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.drawing import RESPONSES, SITE_WIDTH, make_figure, style
from scaleconv.ops.levels import level_size, rescale

SIZE, KERNEL = 48, 15
SMALL, LARGER, JITTER = 2.8, (4.0, 4.5, 5.0, 5.6), 0.05  # radii in pixels, and how much an image may differ from them
GAP = 1.5  # pixels between neighbours
STROKE, SQUARE = 0.8, 0.9  # width of the lines; half a side of a square, in radii
DRAWS, IMAGES = 6, 200  # of each draw one half chooses the threshold


def outline(size: int, circle: bool, x: float, y: float, radius: float) -> Tensor:
    """An image of one circle or square."""
    across, down = (torch.arange(1.0 * size) - x).abs(), (torch.arange(1.0 * size)[:, None] - y).abs()
    distance = torch.hypot(across, down) - radius if circle else torch.maximum(across, down) - SQUARE * radius
    return torch.exp(-((distance / STROKE) ** 2))


def make_images(count: int, large: float, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, 1, S, S), and whether the two circles are neighbours (N,): in every other one."""
    random = np.random.default_rng(seed)
    images = torch.zeros(count, SIZE, SIZE)
    for index in range(count):
        for pair in (0, 1):  # the upper and the lower half
            radii = [radius * random.uniform(1 - JITTER, 1 + JITTER) for radius in (SMALL, large)]
            first = pair == index // 2 % 2  # the small shape of this pair is the circle
            kinds = [first, first if index % 2 else not first]
            order = random.permutation(2)
            x = random.uniform(1, SIZE - 2 - 2 * sum(radii) - GAP)
            y = pair * SIZE / 2 + random.uniform(radii[1] + 1, SIZE / 2 - radii[1] - 2)
            for shape in order:
                images[index] += outline(SIZE, kinds[shape], x + radii[shape], y, radii[shape])
                x += 2 * radii[shape] + GAP
    return images.clamp(max=1).unsqueeze(1), torch.arange(count) % 2 == 1


def circle_filter(radius: float) -> Tensor:
    """A filter (1, 1, K, K) for a circle and against a square; its response to the circle is 1."""
    centre = KERNEL // 2
    circle, square = (outline(KERNEL, kind, centre, centre, radius) for kind in (True, False))
    weight = circle - (circle * square).sum() / square.square().sum() * square
    weight = weight - weight.mean()
    return (weight / (weight * circle).sum())[None, None]


def respond(images: Tensor, weight: Tensor) -> Tensor:
    """What a filter finds, 0 or more."""
    return F.conv2d(images, weight, padding=KERNEL // 2).relu()


def side_by_side(left: Tensor, right: Tensor, apart: float) -> Tensor:
    """The greatest response (N,) to a left and a right one at once, so many pixels apart, each give or take one."""
    step = round(apart)
    one, other = (F.max_pool2d(each, 3, 1, 1) for each in (left, right))
    return torch.minimum(one[..., :-step], other[..., step:]).amax((1, 2, 3))


def both(maps: Sequence[Tensor], apart: float) -> Tensor:
    """What a second layer that sees these maps makes of an image: whichever of them has the left and the right one."""
    return torch.stack([side_by_side(left, right, apart) for left, right in product(maps, maps)]).amax(0)


def scores(images: Tensor, radius: float) -> dict[str, Tensor]:
    """How sure each network is of two circles side by side, the larger one of this radius: (N,)."""
    large, small, apart = circle_filter(radius), circle_filter(SMALL), SMALL + radius + GAP
    levels = {scale: rescale(images, scale, level_size((SIZE, SIZE), scale)) for scale in DEFAULT_SCALES}
    found = {scale: respond(level, large) for scale, level in levels.items()}
    aligned = [rescale(maps, 1 / scale, (SIZE, SIZE)) for scale, maps in found.items()]
    return {
        "ConvNet, one filter": both([respond(images, large)], apart),
        "ConvNet, two filters": both([respond(images, large), respond(images, small)], apart),
        "hierarchical, one filter": torch.stack([both([maps], s * apart) for s, maps in found.items()]).amax(0),
        "hierarchical, one filter, scales joined": both(aligned, apart),
        "SIConv2d, one filter": both([si_conv2d(images, large, padding=KERNEL // 2).relu()], apart),
    }


def error(score: Tensor, pairs: Tensor) -> float:
    """The error in percent on one half of the images, with the threshold that has the least on the other half."""
    half = len(pairs) // 2
    thresholds = score[:half].unique()
    wrong = ((score[:half] > thresholds[:, None]) != pairs[:half]).float().mean(1)
    return 100 * float(((score[half:] > thresholds[wrong.argmin()]) != pairs[half:]).float().mean())


def draw(path: Path) -> None:
    images, _ = make_images(2, LARGER[1], 0)
    large, scale = circle_filter(LARGER[1]), DEFAULT_SCALES[4]
    level = rescale(images, scale, level_size((SIZE, SIZE), scale))
    shown = [
        ("image", images),
        ("scale 1 alone", respond(images, large)),
        (f"scale {scale:.2f} alone", respond(level, large)),
        ("SIConv2d", si_conv2d(images, large, padding=KERNEL // 2).relu()),
    ]
    with style():
        figure = make_figure(SITE_WIDTH, 4.2)
        for axes, row in zip(figure.subplots(2, len(shown)), (0, 1), strict=True):
            for axis, (title, maps) in zip(axes, shown, strict=True):
                gray = maps is images
                axis.imshow(maps[row, 0], cmap="gray" if gray else RESPONSES, vmin=0 if gray else -1, vmax=1)
                axis.set(xticks=[], yticks=[])
                if row == 0:
                    axis.set_title(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def main(path: Path) -> None:
    errors: dict[str, dict[float, list[float]]] = {}
    for radius, seed in product(LARGER, range(DRAWS)):
        images, pairs = make_images(IMAGES, radius, seed)
        for name, score in scores(images, radius).items():
            errors.setdefault(name, {}).setdefault(radius, []).append(error(score, pairs))
    print(
        f"Are the two circles neighbours? Error in percent, {DRAWS} draws of {IMAGES // 2} images, by ratio of radii:"
    )
    print(f"{'':40s}" + "".join(f"{radius / SMALL:13.2f}" for radius in LARGER))
    for name, found in errors.items():
        print(f"{name:40s}" + "".join(f"{fmean(each):7.1f} ± {stdev(each):3.1f}" for each in found.values()))
    draw(path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/two_circles.png"))
