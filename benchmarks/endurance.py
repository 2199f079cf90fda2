"""What a long life costs: memory, descriptors and threads over many steps and calls of changing sizes.

    python benchmarks/endurance.py [--steps 20000] [--calls 100000] [--threads 8] [--out FILE]

Training steps of one size, then forward calls of sizes that repeat seldom, by one layer of few channels and one of
many, then forward calls by several threads at once. After each tenth the resident memory is noted, and at the end what
is still open. The same calls of Conv2d stand beside it: oneDNN keeps what it has made for a size, too.
"""

import argparse
import gc
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaleconv import SIConv2d
from scaleconv.experiments.records import describe_environment
from scaleconv.ops.cpu import SPARSE_MAPS
from scaleconv.ops.plan import make_plan
from scaleconv.table import Table

SIDES = range(16, 80)  # pixels; 4,096 sizes in all
LAYERS = {"si_conv2d": SIConv2d, "conv2d": nn.Conv2d}


def state() -> dict[str, float]:
    """Of this process: resident MiB, descriptors and threads that are open, MiB and entries of the caches."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "matrices_mib": round(SPARSE_MAPS.nbytes / 2**20, 1),
        "plans": make_plan.cache_info().currsize,
    }


def make_network(conv: Callable[..., nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 16, 3, padding=1), nn.ReLU(), conv(16, 8, 3, padding=1))


def train(network: nn.Module, steps: int) -> None:
    optimiser, images = torch.optim.SGD(network.parameters(), lr=1e-4), torch.randn(4, 3, 24, 20)
    for _ in range(steps):
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()


def call(network: nn.Module, number: int) -> None:
    """One image, whose sides go through all pairs."""
    height, width = SIDES[number % len(SIDES)], SIDES[number // len(SIDES) % len(SIDES)]
    with torch.no_grad():
        network(torch.zeros(1, 3, height, width))


def watch(work: Callable[[int, int], None], total: int) -> list[dict[str, float]]:
    """The state at the start and after each tenth of the work, which is done from one number to another."""
    bounds = [total * part // 10 for part in range(11)]
    states = [state()]
    for first, last in pairwise(bounds):
        work(first, last)
        states.append(state())
    return states


def measure(steps: int, calls: int, threads: int) -> dict[str, Any]:
    """All states, as they are written."""
    record: dict[str, Any] = {
        "environment": describe_environment("cpu"),
        "settings": {"steps": steps, "calls": calls, "threads": threads},
        "states": [],
    }
    for name, conv in reversed(LAYERS.items()):
        network = make_network(conv)

        def several(first: int, last: int, network: nn.Module = network) -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(partial(call, network), range(first, last)))

        def in_turn(first: int, last: int, network: nn.Module = network) -> None:
            for number in range(first, last):
                call(network, number)

        def training(first: int, last: int, network: nn.Module = network) -> None:
            train(network, last - first)

        works: dict[str, tuple[Callable[[int, int], None], int]] = {
            "training steps": (training, steps),
            "calls": (in_turn, calls),
            f"calls by {threads} threads": (several, calls),
        }
        for work, (do, total) in works.items():
            record["states"] += [
                {"layer": name, "work": work, "done": total * part // 10, **found}
                for part, found in enumerate(watch(do, total))
            ]
    return record


def make_table(record: dict[str, Any]) -> Table:
    """A row for each layer and work: the memory over its course, and what was open before and after."""
    rows = []
    for layer, work in dict.fromkeys((state["layer"], state["work"]) for state in record["states"]):
        found = [state for state in record["states"] if (state["layer"], state["work"]) == (layer, work)]
        memory = [f"{found[part]['resident_mib']:.0f}" for part in (0, 1, 5, 10)]
        opened = [f"{found[0][key]} → {found[-1][key]}" for key in ("descriptors", "threads")]
        rows.append((layer, f"{found[-1]['done']:,} {work}", *memory, *opened))
    header = ("layer", "work", "MiB at the start", "after 1/10", "1/2", "all", "descriptors", "threads")
    return Table("", header, rows, labels=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--out", type=Path, help="file for the record, such as results/trust/endurance-cpu.json")
    arguments = parser.parse_args()
    record = measure(arguments.steps, arguments.calls, arguments.threads)
    print(make_table(record).markdown())
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
