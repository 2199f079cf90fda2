"""What `scaleconv bench` does not measure of single layers, and what each special case of the layer is worth.

    python benchmarks/layers.py [--device cuda] [--parts late,host] [--repeats 11] [--out FILE]

- layers: layers of usual networks, of sizes up to 2048 pixels, and a 7×7 layer on a large image, each on one image,
  forward without gradients, beside `Conv2d`
- late: late layers of networks for small images at two and three scales, forward and backward in channels_last,
  beside `Conv2d`
- host: what the host does to issue forward and backward of a layer: milliseconds, launches of kernels and calls of a
  library, beside `Conv2d`
- rotations: `TIConv2d` with eight angles beside `Conv2d` with eight times the maps, forward and backward
- ablation: training steps of whole networks without a special case, whose place the next general form takes

Times are medians of interleaved repeats; on a GPU those of the last two are also of CUDA graphs. `run_parts` is the
command line of all scripts here: it prints Markdown tables and writes one JSON file, joining what that holds.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from scaleconv import DEFAULT_SCALES, TIConv2d, rotation
from scaleconv.bench.layer_costs import make_layer
from scaleconv.bench.network_costs import Step, make_network
from scaleconv.bench.shapes import DTYPES, SHAPES, LayerShape
from scaleconv.data.files import atomic_path
from scaleconv.environment import choose_device, describe_environment
from scaleconv.ops import cpu, custom_op, plan
from scaleconv.ops.call import Call
from scaleconv.ops.geometry import Level
from scaleconv.table import Table
from scaleconv.timing import LayerPass, captured, repeated, time_interleaved

Row = dict[str, Any]
Rows = Iterator[Row]
Part = tuple[Callable[[argparse.Namespace], Rows], Callable[[Sequence[Row]], Table]]
Calls = Mapping[str, Callable[[], object]]

one_image = partial(LayerShape, batch=1, cpu_batch=1)
LAYERS = {
    "8→16, 3×3, stride 2, 112²": one_image(8, 16, 112, kernel=3, padding=1, stride=2),
    "depthwise 96, 3×3, 56²": one_image(96, 96, 56, kernel=3, padding=1, groups=96),
    "depthwise 96, 7×7, 56²": one_image(96, 96, 56, kernel=7, padding=3, groups=96),
    "3→64, 7×7, stride 2, 224²": one_image(3, 64, 224, kernel=7, padding=3, stride=2),
    "64→64, 3×3, 56²": one_image(64, 64, 56, kernel=3, padding=1),
    "512→512, 3×3, 7²": one_image(512, 512, 7, kernel=3, padding=1),
    **{f"16→16, 3×3, {size}²": one_image(16, 16, size, kernel=3, padding=1) for size in (32, 128, 256, 400, 512, 2048)},
    "3→64, 7×7, 2000²": one_image(3, 64, 2000, kernel=7, padding=3),
}
some_images = partial(LayerShape, kernel=3, padding=1, batch=64)
LATE = {
    "80→80, 4²": some_images(80, 80, 4, cpu_batch=64),
    "40→80, stride 2, 8²": some_images(40, 80, 8, stride=2, cpu_batch=64),
    "192→192, 8²": some_images(192, 192, 8, cpu_batch=64),
    "512→512, 7²": some_images(512, 512, 7, cpu_batch=8),
}
RESNET = ("res56", "res28", "res14", "res7", "down56")
LATE_SCALES = ((0.5, 0.5**0.5, 1.0), (0.5**0.5, 1.0, 2**0.5), (0.5**0.5, 1.0))
ANGLES = tuple(45.0 * turn for turn in range(8))


def make_images(shape: LayerShape, batch: int, device: str) -> Tensor:
    return torch.randn(batch, shape.in_channels, shape.size, shape.size, device=device)


def compare(calls: Calls, asked: argparse.Namespace) -> Row:
    """Milliseconds of two calls, and the ratios of the second to the first, by the medians and by the minima."""
    times = time_interleaved({name: repeated(call) for name, call in calls.items()}, asked.device, asked.repeats)
    (first, base), (second, timing) = times.items()
    medians = {f"{first}_ms": base.median_ms, f"{second}_ms": timing.median_ms}
    ratios = {f"{second} / {first}": timing.median_ms / base.median_ms, "by minima": timing.min_ms / base.min_ms}
    return {**medians, **ratios, "n": asked.repeats}


@torch.no_grad()
def measure_layers(asked: argparse.Namespace) -> Rows:
    for name, shape in LAYERS.items():
        image, kinds = make_images(shape, 1, asked.device), ("conv2d", "si")
        layers = {kind: make_layer(kind, shape, DEFAULT_SCALES).to(asked.device) for kind in kinds}
        yield {"layer": name, **compare({kind: partial(layer, image) for kind, layer in layers.items()}, asked)}


def measure_late(asked: argparse.Namespace) -> Rows:
    for (name, shape), scales in product(LATE.items(), LATE_SCALES):
        images = make_images(shape, shape.cpu_batch if asked.device == "cpu" else shape.batch, asked.device)
        passes = {}
        for kind in ("conv2d", "si"):
            layer = make_layer(kind, shape, scales).to(asked.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            passes[kind] = LayerPass(layer, images.clone(memory_format=torch.channels_last), torch.channels_last)
        yield {"layer": name, "scales": ", ".join(f"{scale:.2g}" for scale in scales), **compare(passes, asked)}


def both_clocks(calls: Calls, device: str) -> dict[str, Calls]:
    graphs = {"graph": {name: captured(call) for name, call in calls.items()}} if device != "cpu" else {}
    return {"eager": calls, **graphs}


LIBRARY = ("aten::convolution_backward", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::bmm")


def measure_host(asked: argparse.Namespace) -> Rows:
    for name, dtype, scales in product(RESNET, ("float32", "bfloat16"), (DEFAULT_SCALES, LATE_SCALES[0])):
        shape, layout = SHAPES[name], torch.channels_last
        images = make_images(shape, shape.cpu_batch if asked.device == "cpu" else shape.batch, asked.device)
        images = images.to(DTYPES[dtype], memory_format=layout)
        passes = {}
        for kind in ("conv2d", "si"):
            layer = make_layer(kind, shape, scales).to(asked.device, DTYPES[dtype], memory_format=layout)  # type: ignore[call-overload]
            passes[kind] = LayerPass(layer, images.clone(), layout)
        workloads = {kind: repeated(call, host=asked.device != "cpu") for kind, call in passes.items()}
        times = time_interleaved(workloads, asked.device, asked.repeats)
        issued = {f"{kind}_ms": timing.median_ms for kind, timing in times.items()}
        counted = {f"{kind} {what}": n for kind, call in passes.items() for what, n in count_calls(call).items()}
        yield {"shape": name, "dtype": dtype, "scales": len(scales), **issued, **counted, "n": asked.repeats}


def count_calls(call: Callable[[], object]) -> dict[str, int]:
    """Launches of kernels and calls of a library's convolutions and products in one call, which has run before."""
    with torch.profiler.profile() as seen:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    counts = {event.key: event.count for event in seen.key_averages()}
    launches = sum(count for key, count in counts.items() if "LaunchKernel" in key)
    return {"launches": launches, "library": sum(counts.get(key, 0) for key in LIBRARY)}


def measure_rotations(asked: argparse.Namespace) -> Rows:
    for name in ("mnist1", "res28", "res14"):
        shape, transforms = SHAPES[name], [rotation(degrees) for degrees in ANGLES]
        sizes = (shape.in_channels, shape.out_channels, shape.kernel)
        turned = TIConv2d(*sizes, stride=shape.stride, padding=shape.padding, transforms=transforms)
        layers = {"wide": make_layer("conv2d_wide", shape, ANGLES), "ti": turned}
        images = make_images(shape, shape.cpu_batch if asked.device == "cpu" else shape.batch, asked.device)
        passes = {key: LayerPass(layer.to(asked.device), images.clone()) for key, layer in layers.items()}
        for mode, calls in both_clocks(passes, asked.device).items():
            yield {"shape": name, "batch": len(images), "mode": mode, **compare(calls, asked)}


def patched(target: Any, **values: Any) -> list[Any]:
    return [mock.patch.object(target, name, value) for name, value in values.items()]


NOT_DEPTHWISE = patched(Call, depthwise=property(lambda self: False))
CASES = {  # what each puts in the place of a special case; the second name is the device
    ("no strided form", ""): patched(Level, regular=property(lambda self: False)),
    ("no im2col", "cuda"): patched(plan, FEW_CHANNELS=0),
    ("no im2col", "cpu"): patched(plan, PATCHES=0.0),
    ("no shared canvases", "cuda"): patched(plan, SHARED=0, TINY=0, AS_WIDE=2.0),
    ("depthwise by im2col", "cuda"): NOT_DEPTHWISE,
    ("depthwise by a library", "cuda"): NOT_DEPTHWISE + patched(plan, choose_form=lambda *_: "dense"),
    ("no sparse matrices of both axes", "cpu"): patched(cpu, MANY_CHANNELS=10**12),
}


def measure_ablation(asked: argparse.Namespace) -> Rows:
    for network, variant in (("resnet18", "converted"), ("depthwise", "converted"), ("paper", "si_convnet")):
        shape = (128, 1, 28, 28) if network == "paper" else (2 if asked.device == "cpu" else 32, 3, 224, 224)
        made = make_network(network, variant, DEFAULT_SCALES)
        step = Step(made, "training", torch.randn(shape).to(asked.device), "float32", "channels_last")
        cases = {case: patches for (case, device), patches in CASES.items() if asked.device.startswith(device)}
        calls = {case: without(patches, step) for case, patches in cases.items() if case.split()[0] in ("no", network)}
        for mode, timed in both_clocks({"as it is": step, **calls}, asked.device).items():
            workloads = {case: repeated(call) for case, call in timed.items()}
            timings = time_interleaved(workloads, asked.device, asked.repeats)
            for case, timing in timings.items():
                ratio = timing.median_ms / timings["as it is"].median_ms
                yield {"network": network, "case": case, "how": mode, "ms": timing.median_ms, "ratio": ratio}


def without(patches: list[Any], step: Callable[[], object]) -> Callable[[], object]:
    """The step while something is patched, with plans of its own."""
    make, place = (lru_cache(cached.__wrapped__) for cached in (plan.make_plan, plan._make_plan))

    def run() -> None:
        with ExitStack() as stack:
            for patch in [*patches, *patched(custom_op, make_plan=make), *patched(plan, _make_plan=place)]:
                stack.enter_context(patch)
            step()

    return run


def plain_table(rows: Sequence[Row]) -> Table:
    """A column for each key; numbers with three digits."""
    lines = [tuple(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows]
    return Table("", tuple(rows[0]), lines)


def run_parts(about: str | None, parts: Mapping[str, Part], out: str, **options: Any) -> None:
    """Measure the parts that the command line names, and print their tables.

    Args:
        about: the help.
        parts: how each is measured, row by row, and how its rows become a table.
        out: the file; its rows of the same network, seed and `how` are replaced.
        options: further options with their defaults.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"parts": ",".join(parts), "out": out, "device": "cpu", **options}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    if unknown := set(asked.parts.split(",")) - set(parts):
        parser.error(f"--parts must be among {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    asked.device, path = choose_device(asked.device), Path(asked.out)
    for name in asked.parts.split(","):
        measure, table = parts[name]
        rows: list[Row] = []
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for row in measure(asked):
            rows.append(row)
            key = {tuple(each.get(k) for k in ("network", "seed", "how")) for each in rows}
            kept = [o for o in before.get(name, []) if tuple(o.get(k) for k in ("network", "seed", "how")) not in key]
            record = before | {"environment": describe_environment(asked.device), name: kept + rows}
            with atomic_path(path) as part:
                part.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"## {name}\n\n{table(kept + rows).markdown()}\n", flush=True)


PARTS: dict[str, Part] = {
    "layers": (measure_layers, plain_table),
    "late": (measure_late, plain_table),
    "host": (measure_host, plain_table),
    "rotations": (measure_rotations, plain_table),
    "ablation": (measure_ablation, plain_table),
}

if __name__ == "__main__":
    run_parts(__doc__, PARTS, "results/bench/layers.json", repeats=11)
