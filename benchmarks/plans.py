"""What a training step of every method of a plan costs: time and memory beside the plain one, on random images.

    python benchmarks/plans.py [--device cuda] [--networks cifar-scales,signs] [--repeats 11] [--out FILE]

The plans are those of examples/plans, each with its networks, batch and precision. Times are medians of interleaved
repeats, as called and on a GPU also as CUDA graphs; the ratios are to `plain`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from layers import Row, Rows, run_parts
from msgspec.structs import asdict
from torch import nn

from scaleconv.bench.network_costs import Step
from scaleconv.experiments.compare import Plan
from scaleconv.experiments.items import read_toml
from scaleconv.experiments.settings import read
from scaleconv.models import Images, make_network
from scaleconv.models.networks import NETWORKS, SEGMENTATION
from scaleconv.table import Table
from scaleconv.timing import captured, peak_memory, repeated, time_interleaved

PLANS = Path(__file__).parents[1] / "examples" / "plans"
IMAGES = {  # (side, channels, classes) of what the plan's folder holds
    "signs": (32, 3, 43),
    "tiny": (32, 3, 30),
    "fashion": (28, 1, 10),
    "far-signs": (32, 3, 43),
    **dict.fromkeys(("cifar", "cifar-small", "cifar-layers", "cifar-scales", "cifar-controls"), (32, 3, 10)),
    "nuclei": (96, 1, 10),  # as labels of a step have ten classes
    "scenes": (64, 1, 11),
}


def measure_plans(asked: argparse.Namespace) -> Rows:
    for name in asked.networks.split(","):
        side, channels, classes = IMAGES[name]
        methods = read(Plan, read_toml(PLANS / f"{name}.toml"), name).settings(name)
        steps, memory = {}, {}
        for method, (network, training) in methods.items():
            images = torch.randn(training.batch, channels, side, side)
            task = NETWORKS[network.name].task
            made = make_network(Images((side, side), channels, classes, task), **asdict(network))
            if task == SEGMENTATION:  # the loss is of one label an image
                made = nn.Sequential(made, nn.AdaptiveAvgPool2d(1), nn.Flatten())
            step = Step(made, "training", images.to(asked.device), training.precision, "channels_last")
            steps[method] = step
            memory[method] = peak_memory(step, asked.device)
        calls = {(method, "called"): repeated(step) for method, step in steps.items()}
        if asked.device == "cuda":
            calls |= {(method, "graph"): repeated(captured(step)) for method, step in steps.items()}
        times = time_interleaved(calls, asked.device, asked.repeats)
        for method in methods:
            row: Row = {"network": name, "how": method, "n": asked.repeats, "batch": len(steps[method].images)}
            for kind in ("called", "graph"):
                if (method, kind) in times:
                    ms, plain = times[method, kind].median_ms, times["plain", kind].median_ms
                    row |= {f"{kind}_ms": ms, f"{kind} / plain": ms / plain}
            if (found := memory[method]) is not None:
                row["peak_mib"] = found.peak_mib - found.held_mib
            yield row


def table(rows: Sequence[Row]) -> Table:
    keys = [key for key in rows[0] if key not in ("n", "batch")]
    cells = [tuple(f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key]) for key in keys) for row in rows]
    return Table("A training step of each method", tuple(keys), cells)


if __name__ == "__main__":
    run_parts(
        __doc__, {"plans": (measure_plans, table)}, "results/bench/plans.json", networks=",".join(IMAGES), repeats=11
    )
