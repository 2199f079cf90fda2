"""How long the page of `scaleconv demo` waits for an answer, from the request to its last byte.

    python benchmarks/demo.py [--repeats 50] [--networks FOLDER] [--out results/bench/demo-cpu.json]

Requests are those of a visitor who moves a slider, picks another image or filter, or asks for another scene, one after
the other. Beside the median and the 95th percentile of the time stands the median of the time that the CPU spent on it:
where other programs run, the first two grow with them. Prints a Markdown table and writes one JSON file.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from scaleconv.data.files import atomic_path
from scaleconv.demo.pairs import SHIPPED, load_pairs
from scaleconv.demo.routes import Pairs
from scaleconv.demo.server import PageServer
from scaleconv.environment import describe_environment
from scaleconv.table import Table

Fields = dict[str, Any]


def ask(address: str, path: str, fields: Fields) -> Any:
    with urlopen(Request(f"{address}api/{path}", json.dumps(fields).encode(), method="POST")) as reply:
        return json.load(reply)


def requests(pairs: Pairs, offer: Any, turn: int) -> dict[str, tuple[str, Fields]]:
    """What is asked in a turn: each another scale, image, filter or scene than in the turn before."""
    scale = 0.3 + 0.05 * (turn % 35)
    image = {name: offer["examples"][0][name] for name in ("pixels", "width", "height")}
    layer = {**image, "layer": "SI-FCN.conv2", "filter": turn % 16}
    found: dict[str, tuple[str, Fields]] = {}
    for title, pair in (("digit", "digits"), ("photograph", "photographs")):
        index = {"pair": pair, "index": turn % len(pairs[pair].images)}
        found[f"{title}: slide its scale"] = ("classify", {**index, "scale": scale})
        found[f"{title}: curve of another one"] = ("curve", index)
    for by in ("scale", "rotation"):
        found[f"filter: another filter, by {by}"] = ("filter", {**layer, "by": by})
    found["scene: another scene"] = ("scene", {"seed": turn, "digits": 4, "low": 0.5, "high": 2.0})
    return found


def measure(networks: Path, repeats: int) -> list[dict[str, Any]]:
    pairs = load_pairs(networks)
    page = PageServer("127.0.0.1", 0, pairs)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    offer, times = ask(page.address, "offer", {}), dict[str, list[tuple[float, float]]]()
    for turn in range(repeats):
        for name, (path, fields) in requests(pairs, offer, turn).items():
            wall, cpu = time.perf_counter(), time.process_time()
            ask(page.address, path, fields)
            times.setdefault(name, []).append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
    page.should_exit = True
    rows = []
    for name, pairs_of_times in times.items():
        walls, spent = (sorted(each) for each in zip(*pairs_of_times, strict=True))
        at = {"median_ms": walls[repeats // 2], "p95_ms": walls[int(0.95 * repeats)], "cpu_ms": spent[repeats // 2]}
        rows.append({"name": name, **{key: round(value, 1) for key, value in at.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--networks", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path, default=Path("results/bench/demo-cpu.json"))
    asked = parser.parse_args()
    rows = measure(asked.networks, asked.repeats)
    header = ("request", "median ms", "95th percentile ms", "CPU ms")
    cells = [(row["name"], *(f"{row[key]:.0f}" for key in ("median_ms", "p95_ms", "cpu_ms"))) for row in rows]
    print(Table(f"{asked.repeats} requests each", header, cells).markdown())
    found = {"repeats": asked.repeats, "environment": describe_environment("cpu"), "rows": rows}
    with atomic_path(asked.out) as part:
        part.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
