"""How far the layer is from the limits of a GPU: operations and bytes counted, ceilings measured, kernels profiled.

For every shape of `scaleconv bench`, in float32 (TF32 products) and bfloat16, one forward and backward of `SIConv2d`
is profiled in channels_last. The least time it could take is the larger of two: its products, at the rate that a large
matrix product reaches on this GPU, and its bytes, at the rate of a large copy. The products are those of the
convolution at every level in the order with fewer of them, forward and for each gradient; the bytes are those of input,
output, winner and their gradients, each read or written once in each pass that needs it.

    python benchmarks/kernels.py [--out results/bench/kernels.json]

Prints Markdown tables.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scaleconv import DEFAULT_SCALES
from scaleconv.bench.layer_costs import make_layer
from scaleconv.bench.settings import DTYPES, SHAPES, LayerShape
from scaleconv.data.files import atomic_path
from scaleconv.experiments.records import describe_environment
from scaleconv.metrics.timing import LayerPass, repeated, time_interleaved
from scaleconv.ops import macs
from scaleconv.table import Table

PASSES = 20
REPEATS = 20
LIBRARY = ("cutlass", "xmma", "nvjet", "cudnn", "conv", "gemm", "implicit", "nchwToNhwc", "nhwcToNchw")
OURS = {
    "_write_canvas": "sample the input, spread the gradient",
    "_read_canvas": "align and compete, collect the gradient",
    "_convolve": "depthwise convolution and its transpose",
    "_weight_grad": "depthwise gradient of the weight",
}


def milliseconds(call: Callable[[], object]) -> float:
    """Median over repeats, on the device."""
    return time_interleaved({"call": repeated(call)}, "cuda", REPEATS)["call"].median_ms


def measure_ceilings() -> dict[str, float]:
    """TB/s of a copy that no cache holds, and TFLOP/s of square matrix products."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ceilings = {"copy_tb_per_s": 2 * source.numel() / milliseconds(lambda: target.copy_(source)) / 1e9}
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    for name, dtype in DTYPES.items():
        side = 8192
        left, right = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
        ceilings[f"{name}_tflop_per_s"] = 2 * side**3 / milliseconds(lambda: left @ right) / 1e9  # noqa: B023
    torch.backends.cuda.matmul.allow_tf32 = before
    return ceilings


def count(shape: LayerShape, dtype: torch.dtype) -> dict[str, float]:
    """GFLOP and MB of one forward and backward."""
    size = (shape.batch, shape.in_channels, shape.size, shape.size)
    weight = (shape.out_channels, shape.in_channels // shape.groups, shape.kernel, shape.kernel)
    convolution = macs(size, weight, shape.stride, shape.padding, groups=shape.groups, gpu=True).planned.convolution
    pixels = shape.batch * shape.in_channels * shape.size**2
    outputs = shape.batch * shape.out_channels * shape.output_size**2
    forward = pixels + outputs
    backward = 2 * pixels + outputs  # the input and both gradients
    bytes_ = dtype.itemsize * (forward + backward) + 2 * outputs  # the winner is written, and read
    return {"gflop": 2 * convolution * 3 / 1e9, "mb": bytes_ / 1e6}  # forward and two gradients


def profile_layer(shape: LayerShape, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Milliseconds and launches of one forward and backward, by what the kernels do."""
    layer = make_layer("si", shape, DEFAULT_SCALES).to("cuda", dtype)
    images = torch.randn(shape.batch, shape.in_channels, shape.size, shape.size, device="cuda", dtype=dtype)
    once = LayerPass(layer, images.to(memory_format=torch.channels_last), torch.channels_last)
    for _ in range(3):
        once()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PASSES):
            once()
        torch.cuda.synchronize()
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: {"ms": 0.0, "launches": 0.0})
    for event in profiler.key_averages():
        if event.device_time_total > 0:
            kind = kinds[_kind(event.key)]
            kind["ms"] += event.device_time_total / 1e3 / PASSES
            kind["launches"] += event.count / PASSES
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["ms"]))


def _kind(kernel: str) -> str:
    if kernel in OURS:
        return OURS[kernel]
    if any(part in kernel for part in LIBRARY):
        return "library's convolutions"
    return "copies, fills and sums"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bench/kernels.json"))
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = True
    ceilings = measure_ceilings()
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        for precision, dtype in DTYPES.items():
            counted = count(shape, dtype)
            kernels = profile_layer(shape, dtype)
            limits = {
                "products": counted["gflop"] / ceilings[f"{precision}_tflop_per_s"],
                "bytes": counted["mb"] / ceilings["copy_tb_per_s"] / 1e3,
            }
            taken = sum(kernel["ms"] for kernel in kernels.values())
            rows.append(
                {"shape": name, "dtype": precision, **counted, "limits_ms": limits, "ms": taken, "kernels": kernels}
            )
    record = {"environment": describe_environment("cuda"), "ceilings": ceilings, "rows": rows}
    with atomic_path(arguments.out) as part:
        part.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(ceilings))
    print(limits_table(rows).markdown())
    for row in rows:
        print(f"\n{row['shape']}, {row['dtype']}\n\n{kernel_table(row).markdown()}")


def limits_table(rows: list[dict[str, Any]]) -> Table:
    """What each shape takes, and the least it could take."""
    lines = []
    for row in rows:
        products, moved = row["limits_ms"]["products"], row["limits_ms"]["bytes"]
        counts = (f"{row['gflop']:.1f}", f"{row['mb']:.0f}", f"{products:.3f}", f"{moved:.3f}", f"{row['ms']:.2f}")
        lines.append((row["shape"], row["dtype"], *counts, f"{max(products, moved) / row['ms']:.2f}"))
    header = ("shape", "dtype", "GFLOP", "MB", "products, ms", "bytes, ms", "taken, ms", "fraction of the limit")
    return Table("limits", header, lines, labels=2)


def kernel_table(row: dict[str, Any]) -> Table:
    """Where the time of one shape goes."""
    lines = [
        (kind, f"{kernel['launches']:.0f}", f"{kernel['ms']:.3f}", f"{kernel['ms'] / row['ms']:.0%}")
        for kind, kernel in row["kernels"].items()
    ]
    return Table("kernels", ("kernels", "launches", "ms", "share"), lines)


if __name__ == "__main__":
    main()
