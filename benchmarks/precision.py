"""How exact each floating-point type is: the numbers of docs/precision.md.

    python benchmarks/precision.py [--device cuda] [--seeds 5] [--out results/trust/precision-cpu.json]
    python benchmarks/precision.py draw  # docs/figures/precision.svg, from results/trust/precision-cpu.json

The root mean square of the difference to float64, relative to float64, of the output and of the gradients of images and
weights, through 1 to 8 layers with ReLU between them; `Conv2d` stands beside it. Both get numbers that were rounded to
the type before, so an error is of the evaluation alone.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from layers import Row, run_parts
from torch import Tensor
from torch.nn import functional as F

from scaleconv import si_conv2d
from scaleconv.drawing import COLOURS, MARKERS, SITE_WIDTH, make_figure, save_figure, style
from scaleconv.table import Table

TYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ERRORS = ("output", "to_images", "to_weights")
ROOT = Path(__file__).parents[1]
RECORD, FIGURE = ROOT / "results" / "trust" / "precision-cpu.json", ROOT / "docs" / "figures" / "precision.svg"
PARTS = {"depth": "layers", "size": "side of the image", "scale": "scale beside 1"}  # panels of the figure
DASHES = {"float32": "-", "bfloat16": "--", "float16": ":"}
POWERS = {10.0**-power: f"10⁻{'⁰¹²³⁴⁵⁶⁷⁸⁹'[power]}" for power in range(3, 8)}
LAYERS: dict[str, Callable[..., Tensor]] = {"si_conv2d": si_conv2d, "conv2d": F.conv2d}


def evaluate(layer: Callable[..., Tensor], images: Tensor, weights: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output of the layers, ReLU between them, and the gradients of images and weights; in float64."""
    images, weights = (tensor.to(dtype).requires_grad_() for tensor in (images, weights))
    output = images
    for number, weight in enumerate(weights):
        output = layer(F.relu(output) if number else output, weight, padding=1)
    sent = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return [tensor.detach().double() for tensor in (output, *torch.autograd.grad(output, (images, weights), sent))]


def find_errors(kind: str, name: str, depth: int, seed: int, device: str) -> list[float]:
    """Relative errors of the output, the gradient of the images and that of the weights."""
    random, dtype = torch.Generator().manual_seed(seed), TYPES[name]
    images = torch.randn(2, 16, 32, 32, generator=random, dtype=torch.float64).to(device, dtype)
    weights = torch.randn(depth, 16, 16, 3, 3, generator=random, dtype=torch.float64)
    weights = (weights * (2 / 144) ** 0.5).to(device, dtype)  # so that ReLU keeps the variance
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    actual, expected = (evaluate(LAYERS[kind], images, weights, each) for each in (dtype, torch.float64))
    return [float((a - e).norm() / e.norm()) for a, e in zip(actual, expected, strict=True)]


def measure_precision(asked: argparse.Namespace) -> Iterator[Row]:
    names = [name for name in TYPES if name != "tf32" or asked.device.startswith("cuda")]
    for depth, kind, name in product(range(1, 9), LAYERS, names):
        found = [find_errors(kind, name, depth, seed, asked.device) for seed in range(asked.seeds)]
        means = [float(f"{fmean(each):.3g}") for each in zip(*found, strict=True)]
        yield {"part": "depth", "x": depth, "layer": kind, "type": name, **dict(zip(ERRORS, means, strict=True))}


def precision_table(given: Sequence[Row]) -> Table:
    """A row for each type and number of layers: errors of the layer, and of Conv2d in brackets."""
    found = {(row["type"], row["x"], row["layer"]): row for row in given if row["part"] == "depth"}
    rows = []
    for name in dict.fromkeys(row["type"] for row in given):
        for depth in (1, 2, 4, 8):
            ours, plain = (found[name, depth, kind] for kind in LAYERS)
            rows.append((name, str(depth), *(f"{ours[key]:.1e} ({plain[key]:.1e})" for key in ERRORS)))
    return Table("", ("type", "layers", "output", "gradient of the images", "gradient of the weights"), rows, labels=2)


def draw(rows: Sequence[Row], path: Path) -> None:
    """The error of the output against depth, size of the image and scale; a style of line for each type."""
    with style():
        figure = make_figure(SITE_WIDTH, 3.6)
        axes = figure.subplots(1, len(PARTS), sharey=True)
        for axis, (part, label) in zip(axes, PARTS.items(), strict=True):
            _draw_errors(axis, [row for row in rows if row["part"] == part])
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        axes[0].set(yscale="log", ylabel="relative error of the output", ylim=(1e-7, 1e-2))
        axes[0].set_yticks([*POWERS], [*POWERS.values()])
        axes[0].set_yticks([], minor=True)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        save_figure(figure, "How exact each floating-point type is", "Beside float64, on a CPU; n = 3 seeds.", [path])


def _draw_errors(axis: Any, rows: Sequence[Row]) -> None:
    for name, kind in product(DASHES, LAYERS):
        points = {row["x"]: row["output"] for row in rows if (row["type"], row["layer"]) == (name, kind)}
        look = {"marker": MARKERS.get(kind, "o"), "markersize": 4, "color": COLOURS[kind], "linestyle": DASHES[name]}
        axis.plot(
            [*points], [*points.values()], label=f"{'SIConv2d' if kind == 'si_conv2d' else 'Conv2d'}, {name}", **look
        )
    xs = sorted({row["x"] for row in rows})
    if xs[-1] / xs[0] > 8 or xs[0] < 1:
        axis.set_xscale("log")
        xs = [x for x in xs if float(f"{x:.1g}") == x or x >= 8]
    axis.set_xticks(xs, [f"{x:g}" for x in xs])
    axis.set_xticks([], minor=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads(RECORD.read_text(encoding="utf-8"))["rows"], FIGURE)
    else:
        run_parts(__doc__, {"rows": (measure_precision, precision_table)}, "results/trust/precision.json", seeds=5)
