"""Time and memory of networks of well-known shapes, plain and converted, on a CPU. Linux only.

    python benchmarks/networks.py [--width 16] [--size 96] [--batch 2] [--repeats 3] [--out FILE]

A forward pass and a training step of `scaleconv.bench.architectures`, plain and converted interleaved. Memory is what a
process of its own grows by at most in a training step, after one on smaller images that loads the libraries.
"""

import argparse
import gc
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from goals import resident
from torch import Tensor, nn

from scaleconv import convert
from scaleconv.bench.architectures import ARCHITECTURES
from scaleconv.experiments.records import describe_environment
from scaleconv.metrics.timing import repeated, time_interleaved

VARIANTS = ("plain", "converted")


def make_network(name: str, variant: str, width: int) -> nn.Module:
    torch.manual_seed(0)
    network = ARCHITECTURES[name](width)
    return network if variant == "plain" else convert(network)


def make_images(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def training_step(network: nn.Module, images: Tensor) -> Callable[[], None]:
    def step() -> None:
        network.zero_grad(set_to_none=True)
        network(images).square().mean().backward()

    return step


def inference(network: nn.Module, images: Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            network(images)

    return call


def peak_growth(name: str, variant: str, width: int, batch: int, size: int) -> float:
    """MiB by which this process grows at most in a training step."""
    network = make_network(name, variant, width)
    training_step(network, make_images(2, 32))()
    images = make_images(batch, size)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    training_step(network, images)()
    return resident("VmHWM") - before


def measure(name: str, width: int, batch: int, size: int, repeats: int) -> dict[str, Any]:
    """One network, plain and converted."""
    row: dict[str, Any] = {"network": name}
    images = make_images(batch, size)
    for task, make in (("inference", inference), ("training", training_step)):
        calls = {}
        for variant in VARIANTS:
            network = make_network(name, variant, width).train(task == "training")
            calls[variant] = repeated(make(network, images))
        for variant, timing in time_interleaved(calls, "cpu", repeats).items():
            row[f"{task}_{variant}_ms"] = round(timing.median_ms, 2)
    for variant in VARIANTS:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            growth = pool.submit(peak_growth, name, variant, width, batch, size).result()
        row[f"memory_{variant}_mib"] = round(growth, 1)
    return row


def markdown_row(row: dict[str, Any]) -> str:
    """The row of docs/networks.md."""
    cells = [row["network"]]
    for task, unit in (("inference", "ms"), ("training", "ms"), ("memory", "mib")):
        plain, converted = (row[f"{task}_{variant}_{unit}"] for variant in VARIANTS)
        cells += [f"{plain:.3g}", f"{converted:.3g}", f"{converted / plain:.1f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/bench/cpu-shapes.json"))
    settings = vars(parser.parse_args())
    out = settings.pop("out")
    rows = []
    for name in ARCHITECTURES:
        rows.append(measure(name, **settings))
        print(markdown_row(rows[-1]), flush=True)
        record = {"environment": describe_environment("cpu"), "settings": settings, "rows": rows}
        out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
