"""Clocks that always tell the same."""

import pytest
import torch

from scaleconv.inspection import advice, overview
from scaleconv.timing import Timing


class Clock:
    """Stands in for `time_interleaved`: runs every workload once, and gives it the milliseconds of its name.

    Attributes:
        ms: by the name of the workload; a list has one number for each time that it is asked for.
        asked: what each call of it was given: names, device, repeats.
        ran: for every workload its name, and whether gradients were on.
    """

    def __init__(self):
        self.ms, self.asked, self.ran = {}, [], []

    def __call__(self, workloads, device, repeats):
        turn = len(self.asked)
        self.asked.append((list(workloads), device, repeats))
        timings = {}
        for name, workload in workloads.items():
            workload.prepare(1)()
            self.ran.append((name, torch.is_grad_enabled()))
            ms = self.ms[name][turn] if isinstance(self.ms[name], list) else self.ms[name]
            timings[name] = Timing(ms, ms / 2, 2 * ms, 1)
        return timings


@pytest.fixture
def clock(monkeypatch):
    fixed = Clock()
    monkeypatch.setattr(advice, "time_interleaved", fixed)
    monkeypatch.setattr(overview, "time_interleaved", fixed)
    return fixed
