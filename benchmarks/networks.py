"""Time, memory and ONNX export of networks of torchvision, timm and smp, plain and converted, on a CPU. Linux only.

    python benchmarks/networks.py [--parts time,onnx] [--networks ResNet-18,VGG] [--size 96] [--batch 2] [--repeats 5]

The networks are those of tests/zoo. `time` is a forward pass and a training step, plain and converted interleaved, and
the MiB by which a process of its own grows in a training step. `onnx` exports with fixed height and width, and times a
call of ONNX Runtime beside one in eager PyTorch, both with one thread.
"""

import argparse
import gc
import importlib
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from layers import Part, Row, run_parts
from torch import Tensor, nn

from scaleconv import DEFAULT_SCALES, convert
from scaleconv.table import Table
from scaleconv.timing import repeated, time_interleaved

sys.path.append(str(Path(__file__).parents[1] / "tests"))
ENTRIES: dict[str, Any] = importlib.import_module("zoo.networks").ENTRIES

NETWORKS = {
    "ResNet-18": "torchvision/resnet18",
    "VGG": "torchvision/vgg",
    "DenseNet": "torchvision/densenet",
    "ConvNeXt": "torchvision/convnext",
    "MobileNetV3": "torchvision/mobilenet_v3_small",
    "EfficientNet-B0": "timm/tf_efficientnet_b0",
    "U-Net": "smp/Unet",
    "RetinaNet": "torchvision/retinanet",
}
VARIANTS = ("plain", "converted")


class Network(nn.Module):
    """A network of the zoo, called with a batch of images, which returns one tensor."""

    def __init__(self, name: str, variant: str) -> None:
        super().__init__()
        self.entry = ENTRIES[NETWORKS[name]]
        model = self.entry.build()
        self.model = model if variant == "plain" else convert(model, include="*", scales=DEFAULT_SCALES)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.entry.run(self.model, images)
        return output


def training_step(network: nn.Module, images: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    network(images).square().mean().backward()


@torch.no_grad()
def infer(network: nn.Module, images: Tensor) -> None:
    network(images)


def resident(field: str) -> float:
    """MiB of resident memory now (VmRSS) or at most (VmHWM)."""
    (found,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1024


def grow_by_step(name: str, variant: str, images: Tensor) -> float:
    """MiB by which this process grows at most in a training step. Linux only."""
    network = Network(name, variant).train()
    training_step(network, images[..., :64, :64])  # loads the libraries
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    training_step(network, images)
    return resident("VmHWM") - before


def measure_time(name: str, images: Tensor, repeats: int) -> Row:
    """Milliseconds and MiB of both variants."""
    row: Row = {"network": name}
    for task, call in (("inference", infer), ("training", training_step)):
        made = {variant: Network(name, variant).train(task == "training") for variant in VARIANTS}
        calls = {variant: repeated(partial(call, network, images)) for variant, network in made.items()}
        for variant, timing in time_interleaved(calls, "cpu", repeats).items():
            row[f"{task}_{variant}_ms"] = round(timing.median_ms, 2)
    for variant in VARIANTS:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            row[f"memory_{variant}_mib"] = round(pool.submit(grow_by_step, name, variant, images).result(), 1)
    return row


@torch.no_grad()
def measure_onnx(name: str, images: Tensor, repeats: int) -> Row:
    """Nodes, seconds to export, and milliseconds of a call of both variants."""
    import onnxruntime

    torch.set_num_threads(1)
    row: Row = {"network": name}
    calls: dict[str, Callable[[], object]] = {}
    for variant in VARIANTS:
        network = Network(name, variant).eval()
        begin = time.process_time()
        program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
        if program is None:
            raise RuntimeError("the exporter returned nothing")
        row[f"{variant}_seconds"], row[f"{variant}_nodes"] = time.process_time() - begin, len(program.model.graph)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        model = program.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given, expected = {session.get_inputs()[0].name: images.numpy()}, network(images)
        found = torch.from_numpy(session.run(None, given)[0])
        row[f"{variant}_error"] = float((found - expected).norm() / expected.norm())
        calls[f"{variant}_onnx_ms"] = partial(session.run, None, given)
        calls[f"{variant}_eager_ms"] = partial(network, images)
    timings = time_interleaved({key: repeated(call) for key, call in calls.items()}, "cpu", repeats)
    return row | {key: timing.median_ms for key, timing in timings.items()}


def time_table(rows: Sequence[Row]) -> Table:
    """As in docs/networks.md."""
    lines = []
    for row in rows:
        cells = [row["network"]]
        for task, unit in (("inference", "ms"), ("training", "ms"), ("memory", "mib")):
            plain, converted = (row[f"{task}_{variant}_{unit}"] for variant in VARIANTS)
            cells += [f"{plain:.3g}", f"{converted:.3g}", f"{converted / plain:.1f}"]
        lines.append(tuple(cells))
    columns = (f"{what}{end}" for what in ("forward", "step", "MiB") for end in (", plain", ", converted", ", ratio"))
    return Table("", ("network", *columns), lines)


def onnx_table(rows: Sequence[Row]) -> Table:
    """As in docs/export.md."""
    lines = []
    for row in rows:
        cells = [f"{row['plain_nodes']} → {row['converted_nodes']}"]
        cells += [
            f"{row[f'plain_{key}']:.1f} → {row[f'converted_{key}']:.1f}" for key in ("seconds", "onnx_ms", "eager_ms")
        ]
        lines.append((row["network"], *cells))
    return Table("", ("network", "ONNX nodes", "export, s", "ONNX Runtime, ms", "eager, ms"), lines)


def part(measure: Callable[[str, Tensor, int], Row], table: Callable[[Sequence[Row]], Table]) -> Part:
    def rows(asked: argparse.Namespace) -> Iterator[Row]:
        images = torch.randn(asked.batch, 3, asked.size, asked.size, generator=torch.Generator().manual_seed(0))
        for name in asked.networks.split(","):
            yield measure(name, images, asked.repeats)

    return rows, table


PARTS = {"time": part(measure_time, time_table), "onnx": part(measure_onnx, onnx_table)}

if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # raised inside the exporters
    logging.disable(logging.WARNING)
    options = {"networks": ",".join(NETWORKS), "size": 96, "batch": 2, "repeats": 5}
    run_parts(__doc__, PARTS, "results/bench/zoo-cpu.json", **options)
