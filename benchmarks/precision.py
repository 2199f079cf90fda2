"""How far each floating-point type is from float64: over sizes, over scales, and through layers.

    python benchmarks/precision.py [--device cuda] [--seeds 5] [--out results/trust/precision-cpu.json]
        [--figure docs/figures/precision.png]

Every number is the root mean square of the difference to float64, divided by the root mean square of float64, of the
output and of the gradients of the images and the weight; mean over seeds. Conv2d stands beside it. Both get the same
numbers, rounded to the type before, so an error is of the evaluation alone.

Where two levels are nearly equal, rounding may choose another winner. The output is hardly changed by that, but the
gradient goes elsewhere; so the gradients are compared as they are, and the share of other winners is recorded.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, si_conv2d
from scaleconv.experiments.records import describe_environment
from scaleconv.table import Table

TYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COLOURS = {"float32": "#4477aa", "tf32": "#228833", "bfloat16": "#cc3311", "float16": "#aa7700"}
SIZES = (8, 16, 32, 64, 128)
SCALES = (0.5, 0.63, 0.79, 1.26, 1.59, 2.0, 3.0, 4.0)  # each beside scale 1
DEPTHS = range(1, 9)
IMAGES, CHANNELS, KERNEL, SIDE = 2, 16, 3, 32  # where they do not vary
PARTS = {"depth": "layers", "size": "side of the image", "scale": "scale beside 1"}
Layer = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Lets a GPU round what it multiplies to TF32, or not."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def make_layer(kind: str, scales: tuple[float, ...]) -> Layer:
    if kind == "conv2d":
        return lambda images, weight: F.conv2d(images, weight, padding=KERNEL // 2)
    return lambda images, weight: si_conv2d(images, weight, padding=KERNEL // 2, scales=scales)


def evaluate(layer: Layer, images: Tensor, weights: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output of the layers, ReLU between them, and the gradients of images and weights; in float64."""
    images, weights = (tensor.to(dtype).requires_grad_() for tensor in (images, weights))
    output = images
    for number, weight in enumerate(weights):
        output = layer(F.relu(output) if number else output, weight)
    sent = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return [tensor.detach().double() for tensor in (output, *torch.autograd.grad(output, (images, weights), sent))]


def draw(size: int, depth: int, seed: int, device: str) -> list[Tensor]:
    """Images, and weights for which ReLU keeps the variance (He et al.)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((IMAGES, CHANNELS, size, size), (depth, CHANNELS, CHANNELS, KERNEL, KERNEL))
    images, weights = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [images.to(device), (weights * (2 / (CHANNELS * KERNEL**2)) ** 0.5).to(device)]


def errors(
    kind: str, name: str, size: int, scales: tuple[float, ...], depth: int, seed: int, device: str
) -> list[float]:
    """Relative errors of the output, the gradient of the images and that of the weights."""
    dtype, layer = TYPES[name], make_layer(kind, scales)
    tensors = [tensor.to(dtype) for tensor in draw(size, depth, seed, device)]
    with precision(name):
        actual = evaluate(layer, tensors[0], tensors[1], dtype)
    expected = evaluate(layer, tensors[0], tensors[1], torch.float64)
    return [
        float((a - e).square().mean().sqrt() / e.square().mean().sqrt()) for a, e in zip(actual, expected, strict=True)
    ]


def other_winners(name: str, seed: int, device: str) -> float:
    """The share of outputs of one layer, in percent, that another level wins than in float64."""
    images, weights = (tensor.to(TYPES[name]) for tensor in draw(SIDE, 1, seed, device))
    with precision(name):
        actual = si_conv2d(images, weights[0], padding=KERNEL // 2, return_winner=True)[1]
    expected = si_conv2d(images.double(), weights[0].double(), padding=KERNEL // 2, return_winner=True)[1]
    return 100 * float((actual != expected).double().mean())


def measure(device: str, seeds: int) -> dict[str, Any]:
    """All errors, as they are written."""
    calls: list[tuple[str, float, int, tuple[float, ...], int]] = []
    calls += [("depth", depth, SIDE, DEFAULT_SCALES, depth) for depth in DEPTHS]
    calls += [("size", size, size, DEFAULT_SCALES, 1) for size in SIZES]
    calls += [("scale", scale, SIDE, (1.0, scale), 1) for scale in SCALES]
    names = [name for name in TYPES if name != "tf32" or torch.device(device).type == "cuda"]
    rows = []
    for part, x, size, scales, depth in calls:
        for kind in ("si_conv2d", "conv2d"):
            for name in names:
                found = [errors(kind, name, size, scales, depth, seed, device) for seed in range(seeds)]
                output, to_images, to_weights = (float(f"{fmean(each):.3g}") for each in zip(*found, strict=True))
                row = {"part": part, "x": x, "layer": kind, "type": name}
                rows.append({**row, "output": output, "to_images": to_images, "to_weights": to_weights})
    winners = {name: round(fmean(other_winners(name, seed, device) for seed in range(seeds)), 4) for name in names}
    return {"environment": describe_environment(device), "seeds": seeds, "rows": rows, "other_winners_percent": winners}


def make_table(record: dict[str, Any]) -> Table:
    """A row for each type and number of layers: errors of the layer, and of Conv2d in brackets."""
    found = {(row["type"], row["x"], row["layer"]): row for row in record["rows"] if row["part"] == "depth"}
    rows = []
    for name in dict.fromkeys(row["type"] for row in record["rows"]):
        for depth in (1, 2, 4, 8):
            ours, plain = (found[name, depth, kind] for kind in ("si_conv2d", "conv2d"))
            cells = (f"{ours[key]:.1e} ({plain[key]:.1e})" for key in ("output", "to_images", "to_weights"))
            rows.append((name, str(depth), *cells))
    return Table("", ("type", "layers", "output", "gradient of the images", "gradient of the weights"), rows, labels=2)


def draw_figure(record: dict[str, Any], path: Path) -> None:
    """A panel for the layers, one for the sizes, one for the scales; Conv2d is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, (part, title) in zip(figure.subplots(1, 3, sharey=True), PARTS.items(), strict=True):
        for name, colour in COLOURS.items():
            for kind, style in (("si_conv2d", "o-"), ("conv2d", "s--")):
                shown = [r for r in record["rows"] if (r["part"], r["type"], r["layer"]) == (part, name, kind)]
                label = {"si_conv2d": name, "conv2d": f"{name}, Conv2d"}[kind]
                if shown:
                    points = [row["x"] for row in shown], [row["output"] for row in shown]
                    axes.plot(*points, style, color=colour, label=label, markersize=4, linewidth=1.2)
        axes.set(xlabel=title, yscale="log", xscale="linear" if part == "depth" else "log")
        ticks = sorted({row["x"] for row in record["rows"] if row["part"] == part})
        axes.set_xticks(ticks, map("{:g}".format, ticks), rotation=45 if part == "scale" else 0)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("relative error of the output")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file for the record, such as results/trust/precision-cpu.json")
    parser.add_argument("--figure", type=Path, help="file for the picture, such as docs/figures/precision.png")
    arguments = parser.parse_args()
    record = measure(arguments.device, arguments.seeds)
    print(make_table(record).markdown())
    print(f"other winners than in float64, %: {record['other_winners_percent']}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.figure:
        draw_figure(record, arguments.figure)


if __name__ == "__main__":
    main()
