"""Networks of well-known shapes leave PyTorch, plain and converted: nodes, seconds to export, milliseconds of a call.

    python benchmarks/onnx_export.py [--networks ResNet-18,FPN] [--parts networks,int8] [--label after] [--out FILE]

Height and width are fixed. A call is one of ONNX Runtime, or one in eager PyTorch without gradients. Both have one
thread, and all times are those of the processor, so that other work on the machine counts for little. Plain and
converted are interleaved; times are medians of `exports` and of `repeats`. Before, one small export loads the exporter.
`int8` is the seconds that it takes to quantize three small layers. Prints Markdown tables and writes one JSON file,
which keeps what it has under other labels.
"""

import argparse
import json
import logging
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime
import torch
from networks import VARIANTS, make_images, make_network
from torch import Tensor, nn

from scaleconv import SIConv2d
from scaleconv.bench.architectures import ARCHITECTURES
from scaleconv.data.files import atomic_path
from scaleconv.experiments.records import describe_environment
from scaleconv.table import Table

Row = dict[str, Any]

WARM_UP = 2


def export(network: nn.Module, images: Tensor) -> tuple[int, float, bytes]:
    """How many nodes its ONNX graph has, the seconds that the export took, and the model."""
    begin = time.process_time()
    program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
    seconds = time.process_time() - begin
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    return len(program.model.graph), seconds, program.model_proto.SerializeToString()


def make_session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def measure_network(name: str, width: int, images: Tensor, exports: int, repeats: int) -> Row:
    networks = {variant: make_network(name, variant, width).eval() for variant in VARIANTS}
    row: Row = {"network": name}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    calls: dict[str, Callable[[], object]] = {}
    for number in range(exports):
        for variant, network in networks.items():
            nodes, taken, model = export(network, images)
            seconds[variant].append(taken)
            if number == 0:
                session = make_session(model)
                row[f"{variant}_nodes"] = nodes
                given, expected = {session.get_inputs()[0].name: images.numpy()}, network(images)
                found = torch.from_numpy(session.run(None, given)[0])
                row[f"{variant}_error"] = float((found - expected).norm() / expected.norm())
                calls[f"{variant}_onnx_ms"] = partial(session.run, None, given)
                calls[f"{variant}_eager_ms"] = partial(network, images)
    row |= {f"{variant}_seconds": median(taken) for variant, taken in seconds.items()}
    times: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(WARM_UP + repeats):
        for key, call in calls.items():
            begin = time.process_time()
            call()
            times[key].append(1000 * (time.process_time() - begin))
    row |= {key: median(taken[WARM_UP:]) for key, taken in times.items()}
    row["seconds / plain"] = row["converted_seconds"] / row["plain_seconds"]
    row["onnx / eager"] = row["converted_onnx_ms"] / row["converted_eager_ms"]
    return row | {"exports": exports, "repeats": repeats}


def measure_int8() -> Row:
    """Seconds to export, prepare, calibrate and convert three small layers."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    torch.manual_seed(0)
    layers = (SIConv2d(channels, 8, 3, padding=1) for channels in (3, 8, 8))
    network, images = nn.Sequential(*layers).eval(), make_images(2, 32)
    begin = time.process_time()
    exported = torch.export.export(network, (images,), strict=True).module()
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    prepared(images)
    quantized = convert_pt2e(prepared)
    seconds, expected = time.process_time() - begin, network(images)
    return {"seconds": seconds, "error": float((quantized(images) - expected).norm() / expected.norm()), "n": 1}


def write(path: Path, label: str, part: str, found: Any, settings: Row) -> None:
    """Add a part to what the file has under this label."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    load = round(os.getloadavg()[0], 1)  # of other work on the machine, this one included
    part_of = record.setdefault(label, {})
    part_of |= {"environment": describe_environment("cpu"), "settings": settings, "load": load, part: found}
    with atomic_path(path) as made:
        made.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def table(rows: list[Row]) -> Table:
    header = ("network", "nodes", "export s", "export / plain", "ONNX Runtime ms", "eager ms", "ONNX / eager")
    cells = [
        (
            row["network"],
            f"{row['plain_nodes']} → {row['converted_nodes']}",
            f"{row['plain_seconds']:.1f} → {row['converted_seconds']:.1f}",
            f"{row['seconds / plain']:.1f}",
            f"{row['plain_onnx_ms']:.1f} → {row['converted_onnx_ms']:.1f}",
            f"{row['plain_eager_ms']:.1f} → {row['converted_eager_ms']:.1f}",
            f"{row['onnx / eager']:.2f}",
        )
        for row in rows
    ]
    return Table("Plain → converted", header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(ARCHITECTURES))
    parser.add_argument("--parts", default="networks,int8")
    parser.add_argument("--label", default="after")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--exports", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/bench/onnx-export.json"))
    asked = parser.parse_args()
    settings = {name: getattr(asked, name) for name in ("width", "size", "batch")}
    warnings.filterwarnings("ignore")  # raised inside the exporters
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    images = make_images(asked.batch, asked.size)
    with torch.no_grad():
        export(nn.Conv2d(3, 4, 3), images)
        rows: list[Row] = []
        for name in asked.networks.split(",") if "networks" in asked.parts else ():
            rows.append(measure_network(name, asked.width, images, asked.exports, asked.repeats))
            write(asked.out, asked.label, "networks", rows, settings)
            print(table(rows[-1:]).markdown(), flush=True)
        if "int8" in asked.parts:
            found = measure_int8()
            write(asked.out, asked.label, "int8", found, settings)
            print(f"int8: {found['seconds']:.1f} s, error {found['error']:.3f}")
    print(table(rows).markdown())


if __name__ == "__main__":
    main()
