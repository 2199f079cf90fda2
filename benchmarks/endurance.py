"""What a long life costs: memory, descriptors, threads and children over many steps and calls of changing sizes.

    python benchmarks/endurance.py [--steps 20000] [--calls 100000] [--sessions 500] [--work NAME …] [--out FILE]

Training steps of one size; forward calls of drawn sizes, of which there are more than any cache keeps, in turn and by
8 threads; a tenth as many in processes that are forked or spawned, and in workers of a DataLoader; visitors of the
demo. Every work has a process of its own. After each tenth its resident memory is noted, and what is open. The calls
of `Conv2d` stand beside those of the layer, and so do those of a pyramid without any of our code: oneDNN and the C
library keep memory of their own.
"""

import argparse
import gc
import json
import math
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from scaleconv import SIConv2d
from scaleconv.experiments.records import describe_environment
from scaleconv.ops.cpu import SPARSE_MAPS
from scaleconv.ops.plan import make_plan
from scaleconv.table import Table

SIDES = range(8, 48)  # pixels; 1,600 sizes, whose matrices take three times what is kept of them
SCALES = (0.7, 1.0, 1.4)
THREADS, WORKERS = 8, 2
VISIT: dict[str, dict[str, float]] = {
    "/api/digit": {"index": 0, "scale": 1},
    "/api/curve": {"index": 0},
    "/api/scene": {"seed": 0, "digits": 4, "low": 0.5, "high": 2},
}


class PyramidConv2d(nn.Conv2d):
    """Rescale, convolve, scale back and take the maximum, by operations of PyTorch alone."""

    def forward(self, images: Tensor) -> Tensor:
        responses = []
        for scale in SCALES:
            level = F.interpolate(images, [max(3, math.floor(scale * n)) for n in images.shape[2:]], mode="bilinear")
            responses.append(F.interpolate(super().forward(level), images.shape[2:], mode="bilinear"))
        return torch.stack(responses).amax(0)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "si_conv2d": partial(SIConv2d, scales=SCALES),
    "conv2d": nn.Conv2d,
    "pyramid": PyramidConv2d,
}


def train(network: nn.Module, first: int, last: int) -> None:
    optimiser, images = torch.optim.SGD(network.parameters(), lr=1e-4), torch.randn(2, 16, 20, 16)
    for _ in range(first, last):
        optimiser.zero_grad()
        network(images).square().mean().backward()
        optimiser.step()


def call(network: nn.Module, number: int) -> Tensor:
    """One image, whose sides are drawn."""
    dice = Random(number)
    with torch.no_grad():
        answer: Tensor = network(torch.zeros(1, 16, dice.choice(SIDES), dice.choice(SIDES))).mean()
    return answer


def call_in_turn(network: nn.Module, first: int, last: int) -> None:
    for number in range(first, last):
        call(network, number)


def call_by_threads(network: nn.Module, first: int, last: int) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(partial(call, network), range(first, last)))


def call_in_processes(network: nn.Module, first: int, last: int, *, method: str) -> None:
    """By processes that end with this part of the work; what they are forked from has called the layer before."""
    call(network, first)
    middle = (first + last) // 2
    context: Any = get_context(method)
    processes = [
        context.Process(target=call_in_turn, args=(network, *part)) for part in ((first, middle), (middle, last))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with {process.exitcode}")


class Answers(Dataset[Tensor]):
    """The layer as a part of how images are read."""

    def __init__(self, network: nn.Module, first: int, last: int) -> None:
        self.network, self.first, self.last = network, first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, number: int) -> Tensor:
        return call(self.network, self.first + number)


def call_in_loader(network: nn.Module, first: int, last: int) -> None:
    for _ in DataLoader(Answers(network, first, last), batch_size=16, num_workers=WORKERS):
        pass


WORKS: dict[str, Callable[[nn.Module, int, int], None]] = {
    "training steps": train,
    "calls": call_in_turn,
    f"calls by {THREADS} threads": call_by_threads,
    "calls in forked processes": partial(call_in_processes, method="fork"),
    "calls in spawned processes": partial(call_in_processes, method="spawn"),
    "calls in workers of a DataLoader": call_in_loader,
}
SESSIONS = "sessions of the demo"


def state(process: int) -> dict[str, float]:
    """Of a process: resident MiB, and the descriptors and threads that are open."""
    proc = Path(f"/proc/{process}")
    pages = int((proc / "statm").read_text().split()[1])
    return {
        "resident_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "descriptors": len(os.listdir(proc / "fd")),
        "threads": len(os.listdir(proc / "task")),
    }


def own_state() -> dict[str, float]:
    """Of this process, also MiB and number of what the caches keep, and the MiB of the largest child so far."""
    gc.collect()
    return state(os.getpid()) | {
        "matrices_mib": round(SPARSE_MAPS.nbytes / 2**20, 1),
        "plans": make_plan.cache_info().currsize,
        "child_mib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10, 1),
    }


def watch(work: Callable[[int, int], None], total: int, look: Callable[[], dict[str, float]]) -> list[dict[str, float]]:
    """The state at the start and after each tenth of the work, which is done from one number to another."""
    bounds = [total * part // 10 for part in range(11)]
    states = [{"done": 0, **look()}]
    for first, last in pairwise(bounds):
        work(first, last)
        states.append({"done": last, **look()})
    return states


def measure(layer: str, work: str, total: int) -> list[dict[str, Any]]:
    """The states of one work, in a process that does nothing else."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # that the sizes need more matrices than are kept
    if work == SESSIONS:
        with demo() as (process, address):
            found = watch(partial(visit, address), total, partial(state, process))
    else:
        found = watch(partial(WORKS[work], LAYERS[layer](16, 8, 3, padding=1)), total, own_state)
    return [{"layer": layer, "work": work, **each} for each in found]


@contextmanager
def demo() -> Any:
    """The number of the process that serves the page, and its address."""
    command = [sys.executable, "-m", "scaleconv", "demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"the demo has ended: {said}")
            said += line
        try:
            yield process.pid, found.group()
        finally:
            process.terminate()


def visit(address: str, first: int, last: int) -> None:
    """Sessions one after the other: the page, and a question of each kind, each about something else."""
    for number in range(first, last):
        for path in ("/", "/demo.css", "/demo.js", "/icon.svg"):
            urlopen(address + path).read()
        for path, fields in VISIT.items():
            key = "seed" if "seed" in fields else "index"
            body = json.dumps({**fields, key: number % 10}).encode()
            urlopen(Request(address + path, body, {"Content-Type": "application/json"})).read()


def make_table(record: dict[str, Any]) -> Table:
    """A row for each layer and work: the memory over its course, and what was open before and after."""
    states, rows = record["states"], []
    for layer, work in dict.fromkeys((state["layer"], state["work"]) for state in states):
        found = [state for state in states if (state["layer"], state["work"]) == (layer, work)]
        memory = [f"{found[part]['resident_mib']:.0f}" for part in (0, 1, 5, 10)]
        child = f"{found[-1]['child_mib']:.0f}" if found[-1].get("child_mib") else "–"
        opened = [f"{found[0][key]} → {found[-1][key]}" for key in ("descriptors", "threads")]
        rows.append((layer, f"{found[-1]['done']:,} {work}", *memory, child, *opened))
    header = ("layer", "work", "MiB at the start", "after 1/10", "1/2", "all", "a child", "descriptors", "threads")
    return Table("", header, rows, labels=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--work", choices=[*WORKS, SESSIONS], nargs="+", default=[*WORKS, SESSIONS])
    parser.add_argument("--jobs", type=int, default=1, help="works that go on at once")
    parser.add_argument("--out", type=Path, help="file for the record, such as results/trust/endurance-cpu.json")
    given = parser.parse_args()
    totals = {work: given.calls // 10 for work in WORKS if " in " in work}
    totals |= {"training steps": given.steps, SESSIONS: given.sessions}
    tasks = [
        (layer, work, totals.get(work, given.calls))
        for work in given.work
        for layer in (LAYERS if work == "calls" else ["si_conv2d"])
    ]
    record: dict[str, Any] = {"environment": describe_environment("cpu"), "states": []}
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(measure, *zip(*tasks, strict=True)):
            record["states"] += found
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(make_table(record).markdown())


if __name__ == "__main__":
    main()
