"""Time, memory and ONNX export of networks of torchvision, timm and smp, plain and converted, on a CPU. Linux only.

    python benchmarks/networks.py [--parts time,onnx] [--size 96] [--batch 2] [--repeats 5] [--out FILE]

The networks are those of tests/zoo. `time` is a forward pass and a training step, plain and converted interleaved, and
the MiB by which a process of its own grows in a training step. `onnx` exports with fixed height and width, and times a
call of ONNX Runtime beside one in eager PyTorch, both with one thread. Results join those that the file holds.
"""

import argparse
import json
import logging
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from layers import peak_growth, write
from torch import Tensor, nn

from scaleconv import convert
from scaleconv.environment import describe_environment
from scaleconv.table import Table
from scaleconv.timing import repeated, time_interleaved

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from zoo.networks import ENTRIES  # noqa: E402

NETWORKS = {
    "ResNet-18": "torchvision/resnet18",
    "ResNetV2-50": "timm/resnetv2_50x1_bit",
    "VGG": "torchvision/vgg",
    "DenseNet": "torchvision/densenet",
    "ConvNeXt": "torchvision/convnext",
    "MobileNetV3": "torchvision/mobilenet_v3_small",
    "U-Net": "smp/Unet",
    "RetinaNet": "torchvision/retinanet",
}
VARIANTS = ("plain", "converted")
Row = dict[str, Any]


class Network(nn.Module):
    """A network of the zoo, called with a batch of images, which returns one tensor."""

    def __init__(self, name: str, variant: str) -> None:
        super().__init__()
        self.entry = ENTRIES[NETWORKS[name]]
        model = self.entry.build()
        self.model = model if variant == "plain" else convert(model)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.entry.run(self.model, images)
        return output


def training_step(network: nn.Module, images: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    network(images).square().mean().backward()


@torch.no_grad()
def infer(network: nn.Module, images: Tensor) -> None:
    network(images)


def grow_by_step(name: str, variant: str, images: Tensor) -> float:
    network = Network(name, variant).train()
    training_step(network, images[..., :64, :64])  # loads the libraries
    return peak_growth(partial(training_step, network, images))


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
    calls = {}
    for variant in VARIANTS:
        network = Network(name, variant).eval()
        begin = time.process_time()
        program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
        row[f"{variant}_seconds"], row[f"{variant}_nodes"] = time.process_time() - begin, len(program.model.graph)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        model = program.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given, expected = {session.get_inputs()[0].name: images.numpy()}, network(images)
        row[f"{variant}_error"] = float(
            (torch.from_numpy(session.run(None, given)[0]) - expected).norm() / expected.norm()
        )
        calls |= {
            f"{variant}_onnx_ms": partial(session.run, None, given),
            f"{variant}_eager_ms": partial(network, images),
        }
    timings = time_interleaved({key: repeated(call) for key, call in calls.items()}, "cpu", repeats)
    return row | {key: timing.median_ms for key, timing in timings.items()}


def time_table(rows: list[Row]) -> Table:
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


def onnx_table(rows: list[Row]) -> Table:
    """As in docs/export.md."""
    columns = {"nodes": "d", "seconds": ".1f", "onnx_ms": ".1f", "eager_ms": ".1f"}
    lines = [
        (
            row["network"],
            *(f"{row[f'plain_{key}']:{form}} → {row[f'converted_{key}']:{form}}" for key, form in columns.items()),
        )
        for row in rows
    ]
    return Table("", ("network", "ONNX nodes", "export, s", "ONNX Runtime, ms", "eager, ms"), lines)


PARTS = {"time": (measure_time, time_table), "onnx": (measure_onnx, onnx_table)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="time,onnx", type=lambda text: text.split(","))
    parser.add_argument("--networks", default=list(NETWORKS), type=lambda text: text.split(","))
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench/cpu-networks-zoo.json"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")  # raised inside the exporters
    logging.disable(logging.WARNING)
    images = torch.randn(given.batch, 3, given.size, given.size, generator=torch.Generator().manual_seed(0))
    for part in given.parts:
        measure, table = PARTS[part]
        rows = []
        for name in given.networks:
            rows.append(measure(name, images, given.repeats))
            print(table(rows[-1:]).markdown().splitlines()[-1], flush=True)
            record = json.loads(given.out.read_text()) if given.out.exists() else {}
            settings = {key: getattr(given, key) for key in ("size", "batch", "repeats")}
            write(given.out, record | {part: {"environment": describe_environment("cpu"), **settings, "rows": rows}})


if __name__ == "__main__":
    main()
