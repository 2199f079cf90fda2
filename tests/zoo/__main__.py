"""python -m zoo [--networks 'timm/*'] [--steps convert,train] [--jobs 2]

Every step with every network, some networks at a time. Prints what failed and the table. A run of everything also
writes the table into docs/networks-tried.md. Exits with 1 if a step failed that does not fail with the plain network.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path

from zoo.networks import ENTRIES
from zoo.report import render, write
from zoo.steps import FAILED, FAILED_PLAIN, STEPS, Outcome, run_by_name

PAGE = Path(__file__).parents[2] / "docs" / "networks-tried.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="*", help="a pattern of names")
    parser.add_argument("--steps", default=",".join(STEPS), help="names with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="networks at a time")
    given = parser.parse_args()
    names = [name for name in ENTRIES if fnmatchcase(name, given.networks)]
    steps = given.steps.split(",")
    if not names or not set(steps) <= set(STEPS):
        parser.error(f"no such networks or steps; steps are {', '.join(STEPS)}")
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # of the processes
    start, found = time.perf_counter(), {}
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        futures = {pool.submit(run_by_name, name, steps): name for name in names}
        for future in as_completed(futures):
            name = futures[future]
            try:
                found[name], seconds = future.result()
            except Exception as error:  # it cannot be built, or took the process with it
                found[name], seconds = dict.fromkeys(steps, Outcome(FAILED, f"{type(error).__name__}: {error}")), 0
            print(f"{len(found)}/{len(names)} {name}, {seconds:.0f} s", flush=True)
            for step, outcome in found[name].items():
                if outcome.mark in (FAILED, FAILED_PLAIN):
                    print(f"  {outcome.mark} {step}: {outcome.note}", flush=True)
    found = {name: found[name] for name in names}
    text = render(found, steps)
    print(text)
    if names == list(ENTRIES) and steps == list(STEPS):
        write(text, PAGE)
    failed = sum(outcome.mark == FAILED for outcomes in found.values() for outcome in outcomes.values())
    print(f"{len(names)} networks, {failed} failed steps, {time.perf_counter() - start:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
