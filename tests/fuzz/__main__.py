"""python -m fuzz [--kind calls] [--cases 10000] [--seed 0] [--device cpu] [--jobs 2] [--minutes M] [--out FILE]

Kinds of cases are `calls` of the functions and damaged `files`.

Prints every failure with the number that runs it again (`--first N --cases 1`), and exits with 1 if there was one.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from fuzz import KINDS, run_case
from scaleconv.data.progress import make_progress
from scaleconv.environment import describe_environment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="calls")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further cases are begun")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    numbers, start = range(given.first, given.first + given.cases), time.perf_counter()
    run = partial(run_case, given.kind, given.seed, given.device)
    passed, failed = Counter(), {}
    with make_progress(Console(stderr=True)) as progress, ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        task = progress.add_task("fuzz", total=given.cases, figures="")
        for number, kind, reason in pool.map(run, numbers, chunksize=50):
            if reason is None:
                passed[kind] += 1
            else:
                print(f"case {number} of seed {given.seed}: {reason}", flush=True)
                failed[number] = reason
            progress.update(task, advance=1, figures=f"{len(failed)} failed")
            if time.perf_counter() - start > 60 * given.minutes:
                pool.shutdown(cancel_futures=True)
                break
    seconds = round(time.perf_counter() - start, 1)
    print(f"{passed.total()} passed, {len(failed)} failed in {seconds} s: {dict(passed)}")
    if given.out:
        settings = {name: getattr(given, name) for name in ("kind", "seed", "first", "device")}
        settings |= {"cases": passed.total() + len(failed), "seconds": seconds, "passed": passed, "failed": failed}
        result = {"environment": describe_environment(given.device), **settings}
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
