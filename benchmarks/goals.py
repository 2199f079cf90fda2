"""What `scaleconv bench` does not measure of `SIConv2d`, beside `Conv2d` with the same arguments.

- planning: the first call on a new image size minus a later one; and by how much a call is longer that only has to
  plan, because libraries know its size
- sizes: one layer from 32 to 2048 pixels, eager and compiled; the ratio should not jump between neighbours
- large image: time and peak memory of 2000×2000 pixels through a 7×7 layer
- layers: layers of usual networks on one image
- dynamic: `torch.compile(dynamic=True)` over twelve sizes, compilations and seconds
- rotations: `TIConv2d` with eight angles beside `Conv2d` with eight times the maps, forward and backward; on a GPU also
  as CUDA graphs

All others are forward passes without gradients. Times are medians of `n` interleaved repeats. Prints Markdown tables
and writes one JSON file, which grows with every part.

    python benchmarks/goals.py [--device cpu] [--out results/bench/goals-cpu.json] [--parts layers,rotations] [--quick]
"""

import argparse
import gc
import json
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from scaleconv import DEFAULT_SCALES, TIConv2d, convert, rotation
from scaleconv.bench.layer_costs import make_layer
from scaleconv.bench.settings import DTYPES, SHAPES, LayerShape
from scaleconv.data.files import atomic_path
from scaleconv.experiments.records import describe_environment
from scaleconv.experiments.sgd import choose_device
from scaleconv.metrics.timing import (
    LayerPass,
    captured,
    milliseconds,
    one_line,
    peak_memory,
    repeated,
    time_interleaved,
)
from scaleconv.ops import cpu, plan
from scaleconv.table import Table

Row = dict[str, Any]

COMPARED = ("conv2d", "si")
SIZES = (32, 64, 128, 256, 384, 400, 512, 1024, 2048)
LARGEST_COMPILED = 512
FEW = 3  # repeats of images too large for more
PLANNED_SIZES = (212, 215, 218, 221, 224, 227, 230, 233, 236)
DYNAMIC_SIZES = tuple((64 + 8 * k, 80 + 12 * k) for k in range(12))  # (height, width)
LAYERS = {
    "8→16, 3×3, stride 2, 112²": LayerShape(8, 16, 112, kernel=3, padding=1, batch=1, cpu_batch=1, stride=2),
    "depthwise 96, 3×3, 56²": LayerShape(96, 96, 56, kernel=3, padding=1, batch=1, cpu_batch=1, groups=96),
    "depthwise 96, 7×7, 56²": LayerShape(96, 96, 56, kernel=7, padding=3, batch=1, cpu_batch=1, groups=96),
    "3→64, 7×7, stride 2, 224²": LayerShape(3, 64, 224, kernel=7, padding=3, batch=1, cpu_batch=1, stride=2),
    "64→64, 3×3, 56²": LayerShape(64, 64, 56, kernel=3, padding=1, batch=1, cpu_batch=1),
    "512→512, 3×3, 7²": LayerShape(512, 512, 7, kernel=3, padding=1, batch=1, cpu_batch=1),
}

ANGLES = tuple(45.0 * turn for turn in range(8))
ROTATED = ("mnist1", "res28", "res14")


def one_image(channels: int, size: tuple[int, int], device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator(device).manual_seed(0)
    return torch.randn(1, channels, *size, generator=random, device=device).to(dtype)


def square(channels: int, maps: int, size: int, kernel: int) -> LayerShape:
    """A layer on one image whose output has the size of its input."""
    return LayerShape(channels, maps, size, kernel=kernel, padding=kernel // 2, batch=1, cpu_batch=1)


def calls(
    shape: LayerShape, device: str, dtype: torch.dtype = torch.float32, *, compiled: bool = False
) -> dict[str, Callable[[], Tensor]]:
    """`Conv2d` and `SIConv2d` on the same image."""
    image = one_image(shape.in_channels, (shape.size, shape.size), device, dtype)
    layers = {name: make_layer(name, shape, DEFAULT_SCALES).to(device, dtype) for name in COMPARED}
    return {name: partial(torch.compile(layer) if compiled else layer, image) for name, layer in layers.items()}


def compare(layers: Mapping[str, Callable[[], object]], device: str, repeats: int) -> Row:
    """Medians of both, and their ratio."""
    workloads = {name: repeated(call) for name, call in layers.items()}
    times = time_interleaved(workloads, device, repeats, warm_up=2)
    plain, si = times["conv2d"].median_ms, times["si"].median_ms
    return {"conv2d_ms": plain, "si_ms": si, "si / conv2d": si / plain, "n": repeats}


def measure_planning(device: str, sizes: Sequence[int], repeats: int) -> list[Row]:
    """Milliseconds by which the first call on a new size exceeds a later one, the median over the sizes."""
    layers = {name: make_layer(name, square(64, 64, 224, 3), DEFAULT_SCALES).to(device) for name in COMPARED}
    for layer in layers.values():
        for _ in range(2):  # compiles kernels and allocates memory, which is not planning
            layer(one_image(64, (max(sizes) + 1, max(sizes) + 1), device))
    firsts: dict[str, list[float]] = {name: [] for name in layers}
    laters: dict[str, list[float]] = {name: [] for name in layers}
    for size in sizes:
        image = one_image(64, (size, size), device)
        for name, layer in layers.items():
            first, *others = (milliseconds(partial(layer, image), device) for _ in range(1 + repeats))
            firsts[name].append(first)
            laters[name].append(median(others))
    rows = []
    for name in layers:
        planning = median(first - later for first, later in zip(firsts[name], laters[name], strict=True))
        times = {"first_ms": median(firsts[name]), "later_ms": median(laters[name]), "planning_ms": planning}
        rows.append({"layer": name, "sizes": len(sizes), **times, "n": repeats})
    planned = layers["si"]
    image = one_image(64, (sizes[0], sizes[0]), device)
    again = []
    for _ in range(repeats):
        forget_plans()
        again.append(milliseconds(partial(planned, image), device) - milliseconds(partial(planned, image), device))
    rows[-1]["plan_ms"] = median(again)
    return rows


def forget_plans() -> None:
    """So that a call plans again, while libraries still know its sizes."""
    for cached in (plan.make_plan, plan.axis_maps):
        cached.cache_clear()
    cpu.SPARSE_MAPS.clear()


def measure_sizes(device: str, sizes: Sequence[int], repeats: int) -> list[Row]:
    """`SIConv2d(16, 16, 3, padding=1)` on one image of each size."""
    rows = []
    for dtype in DTYPES:
        for size in sizes:
            n = repeats if size <= LARGEST_COMPILED else min(FEW, repeats)
            for mode in ("eager", "compiled") if size <= LARGEST_COMPILED else ("eager",):
                row = {"size": size, "dtype": dtype, "mode": mode}
                torch.compiler.reset()  # otherwise the second size would be compiled with dynamic shapes
                layers = calls(square(16, 16, size, 3), device, DTYPES[dtype], compiled=mode == "compiled")
                try:
                    rows.append(row | compare(layers, device, n))
                except RuntimeError as error:
                    rows.append(row | {"error": one_line(error)})
    return rows


def measure_large_image(device: str, size: int, repeats: int) -> list[Row]:
    """One image of size×size×3 through a 7×7 layer with 64 maps; memory includes the image and the output."""
    shape = square(3, 64, size, 7)
    row: Row = {"size": size}
    try:
        peaks = {name: _large_image_peak(name, shape, device) for name in COMPARED}
        row |= {f"{name}_mib": peak for name, peak in peaks.items()}
        row |= {"memory si / conv2d": peaks["si"] / peaks["conv2d"]}
        row |= compare(calls(shape, device), device, min(FEW, repeats))
    except (RuntimeError, OSError) as error:  # among them a process that was killed because memory ran out
        row["error"] = one_line(error)
    return [row]


def _large_image_peak(name: str, shape: LayerShape, device: str) -> float:
    """Peak memory in MiB: on a GPU PyTorch's own count, on a CPU that of a process of its own."""
    if torch.device(device).type != "cuda":
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(peak_growth, name, shape).result()
    layer, image = make_layer(name, shape, DEFAULT_SCALES).to(device), one_image(3, (shape.size, shape.size), device)
    layer(image)
    return peak_memory(lambda: layer(image), device).peak_mib  # type: ignore[union-attr]  # None is for a CPU


def peak_growth(name: str, shape: LayerShape) -> float:
    """MiB by which this process grows at most, from before it makes the image until it has the output. Linux only."""
    layer = make_layer(name, shape, DEFAULT_SCALES)
    with torch.no_grad():
        layer(one_image(shape.in_channels, (64, 64), "cpu"))  # loads libraries
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = resident("VmRSS")
        layer(one_image(shape.in_channels, (shape.size, shape.size), "cpu"))
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """MiB of resident memory now (VmRSS) or at most (VmHWM)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(found[1]) / 1024


def measure_layers(device: str, layers: Mapping[str, LayerShape], repeats: int) -> list[Row]:
    """Layers of usual networks on one image."""
    return [{"layer": name, **compare(calls(shape, device), device, repeats)} for name, shape in layers.items()]


def measure_dynamic(device: str, sizes: Sequence[tuple[int, int]], backend: str = "inductor") -> list[Row]:
    """Compilations, and seconds of the first calls on all sizes, of two layers compiled with dynamic shapes."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)).to(device)
    images = [one_image(3, size, device) for size in sizes]
    limits = torch._dynamo.config.patch(recompile_limit=4 * len(sizes), accumulated_recompile_limit=4 * len(sizes))
    uncached = torch._inductor.config.patch(force_disable_caches=True)  # a second run would find its results on disk
    rows = []
    for name, network in {"plain": plain, "converted": convert(plain)}.items():
        for image in images:
            network(image)  # libraries and plans
        torch.compiler.reset()
        counter = CompileCounterWithBackend(backend)
        compiled = torch.compile(network, dynamic=True, backend=counter)
        row: Row = {"network": name, "sizes": len(sizes)}
        begin = time.perf_counter()
        try:
            with limits, uncached, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")  # as asked for
                for image in images:
                    compiled(image).cpu()
            row |= {"compilations": counter.frame_count, "seconds": time.perf_counter() - begin, "n": 1}
        except RuntimeError as error:
            row["error"] = one_line(error)
        rows.append(row)
    return rows


@torch.enable_grad()
def measure_rotations(device: str, shapes: Sequence[str], repeats: int) -> list[Row]:
    """Forward and backward with the gradient of the input, float32."""
    on_gpu = torch.device(device).type == "cuda"
    rows = []
    for name in shapes:
        shape = SHAPES[name]
        batch = shape.batch if on_gpu else shape.cpu_batch
        turned = TIConv2d(
            shape.in_channels,
            shape.out_channels,
            shape.kernel,
            stride=shape.stride,
            padding=shape.padding,
            transforms=[rotation(degrees) for degrees in ANGLES],
        )
        layers = {"wide": make_layer("conv2d_wide", shape, ANGLES), "ti": turned}
        images = one_image(shape.in_channels, (shape.size, shape.size), device).repeat(batch, 1, 1, 1)
        passes = {layer: LayerPass(made.to(device), images.clone()) for layer, made in layers.items()}
        modes = {"eager": passes} | ({"graph": {key: captured(each) for key, each in passes.items()}} if on_gpu else {})
        for mode, calls in modes.items():
            times = time_interleaved({key: repeated(call) for key, call in calls.items()}, device, repeats, warm_up=2)
            wide, ti = times["wide"].median_ms, times["ti"].median_ms
            row = {"shape": name, "batch": batch, "mode": mode, "wide_ms": wide, "ti_ms": ti}
            rows.append(row | {"ti / wide": ti / wide, "n": repeats})
    return rows


def markdown(title: str, rows: Sequence[Row]) -> str:
    """One table; a column for every key of any row."""
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    table = Table(title, columns, [tuple(_cell(row.get(key, "–")) for key in columns) for row in rows])
    return f"## {title}\n\n{table.markdown()}\n"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="by default results/bench/goals-DEVICE.json")
    parser.add_argument("--parts", help="those to measure, separated by commas; by default all")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, to see that it runs")
    arguments = parser.parse_args()
    device, quick = choose_device(arguments.device), arguments.quick
    out = arguments.out or Path(f"results/bench/goals-{torch.device(device).type}.json")
    repeats = 3 if quick else 11
    # Planning is first: the other parts would leave plans behind.
    parts: dict[str, Callable[[], list[Row]]] = {
        "planning": lambda: measure_planning(device, PLANNED_SIZES[:3] if quick else PLANNED_SIZES, repeats),
        "layers": lambda: measure_layers(device, LAYERS, repeats),
        "sizes": lambda: measure_sizes(device, SIZES[:2] if quick else SIZES, repeats),
        "large image": lambda: measure_large_image(device, 200 if quick else 2000, repeats),
        "dynamic": lambda: measure_dynamic(device, DYNAMIC_SIZES[:2] if quick else DYNAMIC_SIZES),
        "rotations": lambda: measure_rotations(device, ROTATED, repeats),
    }
    record: dict[str, Any] = {"environment": describe_environment(device), "quick": quick}
    chosen = arguments.parts.split(",") if arguments.parts else list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"--parts must be among {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    for name in chosen:
        measure = parts[name]
        with torch.no_grad():
            record[name] = measure()
        print(markdown(name, record[name]), flush=True)
        with atomic_path(out) as written:
            written.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
