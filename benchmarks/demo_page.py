"""How long the page of `scaleconv demo` takes to answer, from the request to the last byte, on this machine.

    python benchmarks/demo_page.py [--repeats 50] [--out results/bench/demo-cpu.json]

The server runs as a user starts it, in a process of its own. Every request has another scale, filter or seed than the
one before, as a moving slider has it. The first of each kind is not counted.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import Request, urlopen

from scaleconv.experiments.records import describe_environment

Fields = dict[str, Any]


def ask(address: str, path: str, fields: Fields) -> tuple[float, Any]:
    """Milliseconds, and the answer."""
    request = Request(address + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    start = time.perf_counter()
    with urlopen(request) as reply:
        text = reply.read()
    return 1000 * (time.perf_counter() - start), json.loads(text)


def moves(offer: Any) -> dict[str, Callable[[], tuple[str, Fields]]]:
    """What a visitor may do, with the request that follows."""
    draw = random.Random(0)
    image = {name: offer["examples"][0][name] for name in ("pixels", "width", "height")}

    def digit() -> Fields:
        return {"index": draw.choice(offer["digits"])["index"]}

    def filters(by: str) -> tuple[str, Fields]:
        layer = draw.choice(offer["layers"])
        chosen = {"layer": layer["name"], "filter": draw.randrange(layer["filters"])}
        return "api/filter", {**image, **chosen, "by": by}

    return {
        "digit: slide its scale": lambda: ("api/digit", {**digit(), "scale": draw.uniform(0.3, 2)}),
        "digit: curve of another digit": lambda: ("api/curve", digit()),
        "filter: another filter, by scale": lambda: filters("scale"),
        "filter: another filter, by rotation": lambda: filters("rotation"),
        "scene: another scene": lambda: (
            "api/scene",
            {"seed": draw.randrange(10**6), "digits": draw.randint(1, 6), "low": 0.5, "high": draw.uniform(0.5, 2.2)},
        ),
    }


def measure(address: str, repeats: int) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each move, in milliseconds."""
    offer = ask(address, "api/offer", {})[1]
    rows = {}
    for name, move in moves(offer).items():
        times = [ask(address, *move())[0] for _ in range(1 + repeats)][1:]
        rows[name] = {"median_ms": round(median(times), 1), "p95_ms": round(quantiles(times, n=20)[-1], 1)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = [sys.executable, "-m", "scaleconv", "demo", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            rows = measure(server.stdout.readline().split()[0], options.repeats)
        finally:
            server.terminate()
    for name, row in rows.items():
        print(f"{name:38} median {row['median_ms']:6.1f} ms   95 % below {row['p95_ms']:6.1f} ms")
    if options.out:
        result = {"repeats": options.repeats, "environment": describe_environment("cpu"), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
