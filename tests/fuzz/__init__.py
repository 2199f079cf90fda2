"""Drawn calls of the public functions against references in float64, and damaged files: `python -m fuzz`, `make fuzz`.

A case is a pure function of (seed, number), so a failure is named by two numbers and can be run again.

A spawned process does not see the functions of a `__main__`, so what it runs is here.
"""

import traceback
import warnings
from collections import Counter

import pytest
import torch

from fuzz import cases, files

KINDS = {"calls": cases.run, "files": files.run}


def run_chunk(kind, seed, numbers, device):
    """How many of each kind passed, and the failures by number."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU: less exact than float32 should be
    warnings.simplefilter("ignore")
    passed, failed = Counter(), {}
    for number in numbers:
        try:
            passed[KINDS[kind](seed, number, device)] += 1
        except (Exception, pytest.fail.Exception) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[number] = f"{type(error).__name__} in {where.name}: {str(error)[:300]}"
    return passed, failed
