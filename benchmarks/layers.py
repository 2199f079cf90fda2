"""What `scaleconv bench` does not measure of single layers, and what each special case of the layer is worth.

    python benchmarks/layers.py [--device cuda] [--parts layers,rotations] [--repeats 11] [--out FILE]

- planning: the first call on a new image size minus a later one
- layers: layers of usual networks on one image
- sizes: one layer from 32 to 2048 pixels
- large: time and peak memory of 2000×2000 pixels through a 7×7 layer
- rotations: `TIConv2d` with eight angles beside `Conv2d` with eight times the maps, forward and backward
- ablation: training steps of whole networks without a special case, whose place the next general form takes

All but the last two are forward passes without gradients, beside `Conv2d`. Times are medians of interleaved repeats; on a
GPU the last two are also replays of CUDA graphs. Prints Markdown tables and writes one JSON file, which grows with every
part.
"""

import argparse
import gc
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from scaleconv import DEFAULT_SCALES, TIConv2d, rotation
from scaleconv.bench.layer_costs import make_layer
from scaleconv.bench.network_costs import Step, make_network
from scaleconv.bench.settings import SHAPES, LayerShape
from scaleconv.data.atomic import atomic_path
from scaleconv.environment import choose_device, describe_environment
from scaleconv.ops import cpu, custom_op, plan
from scaleconv.ops.geometry import Level
from scaleconv.ops.signature import Signature
from scaleconv.table import Table
from scaleconv.timing import LayerPass, captured, milliseconds, peak_memory, repeated, time_interleaved

Row = dict[str, Any]
Calls = Mapping[str, Callable[[], object]]

one_image = partial(LayerShape, batch=1, cpu_batch=1)
LAYERS = {
    "8→16, 3×3, stride 2, 112²": one_image(8, 16, 112, kernel=3, padding=1, stride=2),
    "depthwise 96, 3×3, 56²": one_image(96, 96, 56, kernel=3, padding=1, groups=96),
    "depthwise 96, 7×7, 56²": one_image(96, 96, 56, kernel=7, padding=3, groups=96),
    "3→64, 7×7, stride 2, 224²": one_image(3, 64, 224, kernel=7, padding=3, stride=2),
    "64→64, 3×3, 56²": one_image(64, 64, 56, kernel=3, padding=1),
    "512→512, 3×3, 7²": one_image(512, 512, 7, kernel=3, padding=1),
}
SIZES = (32, 64, 128, 256, 384, 400, 512, 1024, 2048)
PLANNED = range(212, 237, 3)  # pixels
ANGLES = tuple(45.0 * turn for turn in range(8))


def make_images(shape: LayerShape, batch: int, device: str) -> Tensor:
    return torch.randn(batch, shape.in_channels, shape.size, shape.size, device=device)


def make_calls(shape: LayerShape, device: str) -> Calls:
    """`Conv2d` and `SIConv2d` on the same image."""
    image = make_images(shape, 1, device)
    return {name: partial(make_layer(name, shape, DEFAULT_SCALES).to(device), image) for name in ("conv2d", "si")}


def compare(calls: Calls, device: str, repeats: int) -> Row:
    """Milliseconds of each call, and the ratio of the last to the first."""
    times = time_interleaved({name: repeated(call) for name, call in calls.items()}, device, repeats)
    first, *_, last = times
    row = {f"{name}_ms": timing.median_ms for name, timing in times.items()}
    return row | {f"{last} / {first}": times[last].median_ms / times[first].median_ms, "n": repeats}


@torch.no_grad()
def measure_planning(device: str, repeats: int) -> list[Row]:
    rows = []
    for name in ("conv2d", "si"):
        layer = make_layer(name, one_image(64, 64, 224, kernel=3, padding=1), DEFAULT_SCALES).to(device)
        layer(torch.randn(1, 64, 256, 256, device=device))  # compiles kernels and allocates memory
        extra = []
        for size in PLANNED:
            call = partial(layer, torch.randn(1, 64, size, size, device=device))
            first, *later = (milliseconds(call, device) for _ in range(1 + repeats))
            extra.append(first - median(later))
        rows.append({"layer": name, "sizes": len(PLANNED), "planning_ms": median(extra), "n": repeats})
    return rows


@torch.no_grad()
def measure_layers(device: str, repeats: int) -> list[Row]:
    return [{"layer": name, **compare(make_calls(shape, device), device, repeats)} for name, shape in LAYERS.items()]


@torch.no_grad()
def measure_sizes(device: str, repeats: int) -> list[Row]:
    shapes = [one_image(16, 16, size, kernel=3, padding=1) for size in SIZES]
    return [{"size": shape.size, **compare(make_calls(shape, device), device, repeats)} for shape in shapes]


@torch.no_grad()
def measure_large(device: str, repeats: int, size: int = 2000) -> list[Row]:
    shape, peaks = one_image(3, 64, size, kernel=7, padding=3), {}
    for name, call in make_calls(shape, device).items():
        if memory := peak_memory(call, device):
            peaks[name] = memory.peak_mib
        else:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                peaks[name] = pool.submit(grow_by_call, name, shape).result()
    memory_row = {f"{name}_mib": peak for name, peak in peaks.items()} | {"memory": peaks["si"] / peaks["conv2d"]}
    return [{"size": size, **memory_row, **compare(make_calls(shape, device), device, repeats)}]


@torch.no_grad()
def grow_by_call(name: str, shape: LayerShape) -> float:
    layer = make_layer(name, shape, DEFAULT_SCALES)
    layer(torch.randn(1, shape.in_channels, 64, 64))  # loads libraries
    return peak_growth(lambda: layer(make_images(shape, 1, "cpu")))


def peak_growth(call: Callable[[], object]) -> float:
    """MiB by which this process grows at most while it makes a call. Linux only."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """MiB of resident memory now (VmRSS) or at most (VmHWM)."""
    (found,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1024


def both_clocks(calls: Calls, device: str) -> dict[str, Calls]:
    graphs = {"graph": {name: captured(call) for name, call in calls.items()}} if device != "cpu" else {}
    return {"eager": calls, **graphs}


def measure_rotations(device: str, repeats: int) -> list[Row]:
    rows = []
    for name in ("mnist1", "res28", "res14"):
        shape, transforms = SHAPES[name], [rotation(degrees) for degrees in ANGLES]
        sizes = (shape.in_channels, shape.out_channels, shape.kernel)
        turned = TIConv2d(*sizes, stride=shape.stride, padding=shape.padding, transforms=transforms)
        layers = {"wide": make_layer("conv2d_wide", shape, ANGLES), "ti": turned}
        images = make_images(shape, shape.cpu_batch if device == "cpu" else shape.batch, device)
        passes = {key: LayerPass(layer.to(device), images.clone()) for key, layer in layers.items()}
        for mode, calls in both_clocks(passes, device).items():
            rows.append({"shape": name, "batch": len(images), "mode": mode, **compare(calls, device, repeats)})
    return rows


def patched(target: Any, **values: Any) -> list[Any]:
    return [mock.patch.object(target, name, value) for name, value in values.items()]


NOT_DEPTHWISE = patched(Signature, depthwise=property(lambda self: False))
CASES = {  # what each puts in the place of a special case; the second name is the device
    ("no strided form", ""): patched(Level, regular=property(lambda self: False)),
    ("no im2col", "cuda"): patched(plan, FEW_CHANNELS=0),
    ("no im2col", "cpu"): patched(plan, PATCHES=0.0),
    ("no shared canvases", "cuda"): patched(plan, SHARED=0, TINY=0, AS_WIDE=2.0),
    ("depthwise by im2col", "cuda"): NOT_DEPTHWISE,
    ("depthwise by a library", "cuda"): NOT_DEPTHWISE + patched(plan, choose_form=lambda *_: "dense"),
    ("no sparse matrices of both axes", "cpu"): patched(cpu, MANY_CHANNELS=10**12),
}


def measure_ablation(device: str, repeats: int) -> list[Row]:
    rows = []
    for network, variant in (("resnet18", "converted"), ("depthwise", "converted"), ("paper", "si_convnet")):
        shape = (128, 1, 28, 28) if network == "paper" else (2 if device == "cpu" else 32, 3, 224, 224)
        made = make_network(network, variant, DEFAULT_SCALES)
        step = Step(made, "training", torch.randn(shape).to(device), "float32", "channels_last")
        cases = {case: patches for (case, kind), patches in CASES.items() if device.startswith(kind)}
        calls = {case: without(patches, step) for case, patches in cases.items() if case.split()[0] in ("no", network)}
        for mode, timed in both_clocks({"as it is": step, **calls}, device).items():
            timings = time_interleaved({case: repeated(call) for case, call in timed.items()}, device, repeats)
            whole = timings["as it is"].median_ms
            for case, timing in timings.items():
                row = {"network": network, "case": case, "how": mode, "ms": timing.median_ms}
                rows.append(row | {"ratio": timing.median_ms / whole})
    return rows


def without(patches: list[Any], step: Callable[[], object]) -> Callable[[], object]:
    """The step while something is patched, with plans of its own."""
    make, find = (lru_cache(cached.__wrapped__) for cached in (plan.make_plan, custom_op.find_plan))

    def run() -> None:
        with ExitStack() as stack:
            for patch in [*patches, *patched(custom_op, make_plan=make, find_plan=find)]:
                stack.enter_context(patch)
            step()

    return run


PARTS: dict[str, Callable[[str, int], list[Row]]] = {
    "planning": measure_planning,  # first, because the others leave plans behind
    "layers": measure_layers,
    "sizes": measure_sizes,
    "large": measure_large,
    "rotations": measure_rotations,
    "ablation": measure_ablation,
}


def markdown(title: str, rows: list[Row]) -> str:
    """One table; numbers with three digits."""
    lines = [tuple(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows]
    return f"## {title}\n\n{Table(title, tuple(rows[0]), lines).markdown()}\n"


def write(path: Path, record: Row) -> None:
    with atomic_path(path) as part:
        part.write_text(json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=Path, help="by default results/bench/layers-DEVICE.json")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"--parts must be among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    device = choose_device(given.device)
    record: Row = {"environment": describe_environment(device)}
    for part in given.parts:
        record[part] = PARTS[part](device, given.repeats)
        print(markdown(part, record[part]), flush=True)
        write(given.out or Path(f"results/bench/layers-{device.split(':')[0]}.json"), record)


if __name__ == "__main__":
    main()
