"""What each special case of the layer is worth: whole networks with and without it, in one process, interleaved.

    python benchmarks/ablation.py [--device cuda] [--out results/bench/h200-ablation.json] [--repeats 7]

Without a case, the next general form takes its place, and the numbers stay the same. Training steps of ResNet-18, of a
network of depthwise layers and of the paper's SI-ConvNet; on a GPU both eager and replayed as a CUDA graph.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaleconv import SIConv2d, convert
from scaleconv.bench.network_costs import make_depthwise_network
from scaleconv.experiments.records import describe_environment
from scaleconv.metrics.timing import Workload, captured, repeated, time_interleaved
from scaleconv.models.convnet import ConvNet
from scaleconv.models.resnet import make_resnet18
from scaleconv.ops import cpu, custom_op, plan
from scaleconv.ops.call import Call
from scaleconv.ops.geometry import Level

NEVER = 10**12


def no_strided() -> list[Any]:
    return [mock.patch.object(Level, "regular", property(lambda self: False))]


def no_patches() -> list[Any]:
    return [mock.patch.object(plan, "PATCHES", 0.0)]


def no_patches_of_few_channels() -> list[Any]:
    """Few channels as many: dense levels, convolved by a library."""
    return [mock.patch.object(plan, "FEW_CHANNELS", 0)]


def no_shared_canvases() -> list[Any]:
    return [mock.patch.object(plan, name, value) for name, value in (("SHARED", 0), ("TINY", 0), ("AS_WIDE", 2.0))]


def more_shared_canvases() -> list[Any]:
    return [mock.patch.object(plan, "SHARED", 2 * plan.SHARED)]


def depthwise_by_patches() -> list[Any]:
    """A depthwise layer as any other with groups."""
    return [mock.patch.object(Call, "depthwise", property(lambda self: False))]


def depthwise_by_a_library() -> list[Any]:
    dense: Callable[..., str] = lambda *_: "dense"  # noqa: E731
    return [*depthwise_by_patches(), mock.patch.object(plan, "choose_form", dense)]


def no_sparse_matrices() -> list[Any]:
    return [mock.patch.object(cpu, "MANY_CHANNELS", NEVER)]


ON_A_GPU = {
    "as it is": list,
    "no strided form": no_strided,
    "no im2col": no_patches_of_few_channels,
    "no shared canvases": no_shared_canvases,
    "canvases shared up to twice the size": more_shared_canvases,
    "depthwise by im2col": depthwise_by_patches,
    "depthwise by a library": depthwise_by_a_library,
}
ON_A_CPU = {
    "as it is": list,
    "no strided form": no_strided,
    "no im2col": no_patches,
    "no sparse matrices of both axes": no_sparse_matrices,
}


def networks(device: str) -> dict[str, tuple[nn.Module, Tensor]]:
    """Each with images for a training step."""
    on_gpu = device != "cpu"
    batch, size = (32, 224) if on_gpu else (2, 224)
    torch.manual_seed(0)
    image = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    digits = torch.randn(128, 1, 28, 28, device=device)
    made = {
        "ResNet-18": (convert(make_resnet18()), image),
        "depthwise network": (convert(make_depthwise_network()), image),
        "SI-ConvNet": (ConvNet(SIConv2d), digits),
    }
    return {
        name: (network.to(device).to(memory_format=torch.channels_last), images)  # type: ignore[call-overload]
        for name, (network, images) in made.items()
    }


def training_step(network: nn.Module, images: Tensor) -> Callable[[], object]:
    target = torch.zeros(len(images), dtype=torch.long, device=images.device)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        F.cross_entropy(network(images), target).backward()

    return step


class Case:
    """The layer without something, with plans of its own."""

    def __init__(self, patches: list[Any]) -> None:
        self.patches = [*patches, mock.patch.object(custom_op, "make_plan", lru_cache(plan.make_plan.__wrapped__))]

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch)
            yield

    def steps(self, step: Callable[[], object]) -> Workload:
        """The workload of eager steps; those that warm up also plan."""

        def patched() -> None:
            with self.active():
                step()

        return repeated(patched)


def measure(device: str, repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, (network, images) in networks(device).items():
        step = training_step(network, images)
        workloads: dict[tuple[str, str], Workload] = {}
        for title, patches in (ON_A_CPU if device == "cpu" else ON_A_GPU).items():
            if "depthwise" in title and "depthwise" not in name:
                continue
            case = Case(patches())
            workloads[title, "eager"] = case.steps(step)
            if device != "cpu":
                with case.active():
                    workloads[title, "graph"] = repeated(captured(step))
        timings = time_interleaved(workloads, device, repeats)
        for (title, how), timing in timings.items():
            ratio = timing.median_ms / timings["as it is", how].median_ms
            rows.append({"network": name, "case": title, "how": how, "ms": timing.median_ms, "ratio": ratio})
            print(f"{name:18} {how:6} {title:38} {timing.median_ms:9.2f} ms  {ratio:5.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    rows = measure(arguments.device, arguments.repeats)
    if arguments.out:
        record = {"environment": describe_environment(arguments.device), "repeats": arguments.repeats, "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
