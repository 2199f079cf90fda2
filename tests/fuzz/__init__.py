"""Drawn calls of the public functions against references in float64, and damaged files: `python -m fuzz`, `make fuzz`.

A case is a pure function of (seed, number), so a failure is named by two numbers and can be run again. What a spawned
process runs is here, since it does not see the functions of a `__main__`.
"""

import traceback
import warnings

import pytest
import torch

from fuzz import cases, files

KINDS = {"calls": cases.run, "files": files.run}


def run_case(kind, seed, device, number):
    """The number of a case, what it was, and what was wrong with it; one of the two is None."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU: less exact than float32 should be
    warnings.simplefilter("ignore")
    try:
        return number, KINDS[kind](seed, number, device), None
    except (Exception, pytest.fail.Exception) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return number, None, f"{type(error).__name__} in {where.name}: {str(error)[:300]}"
