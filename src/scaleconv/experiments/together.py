"""Epochs of several runs at once.

On a GPU one small network leaves most of the chip idle. There the steps of all runs are captured in one CUDA graph,
each run on a stream of its own, and the graph is replayed until the epoch is over: the host does nothing in between. On
the CPU the runs simply take turns.
"""

from collections.abc import Sequence

import torch

from .training import Trainer

UNROLL = 6  # at most so many steps of each run in one graph; more take longer to capture, and gain nothing
WARM_UP = 3


class Together:
    """Trains runs of the same number of batches side by side; each ends where it would have ended alone."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.batches = self.trainers[0].batches
        if any(trainer.batches != self.batches for trainer in self.trainers):
            raise ValueError(f"`trainers` must have equally many batches, got {[t.batches for t in self.trainers]}")
        self.unrolled = max(n for n in range(1, UNROLL + 1) if self.batches % n == 0)
        self.graph = _capture(self.trainers, self.unrolled) if self.trainers[0].images.is_cuda else None

    def epoch(self, number: int) -> None:
        """Run one epoch of every run, counted from 1; returns before a GPU has finished it."""
        for trainer in self.trainers:
            trainer.begin_epoch(number)
        if self.graph is not None:
            for _ in range(self.batches // self.unrolled):
                self.graph.replay()
            return
        for trainer in self.trainers:
            for _ in range(self.batches):
                trainer.step()


def _capture(trainers: Sequence[Trainer], steps: int) -> torch.cuda.CUDAGraph:
    before = [{name: tensor.clone() for name, tensor in trainer.state().items()} for trainer in trainers]
    for trainer in trainers:
        trainer.begin_epoch(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries choose their algorithms and buffers now, not under capture
        for trainer in trainers:
            for _ in range(min(WARM_UP, trainer.batches)):
                trainer.step()
    torch.cuda.current_stream().wait_stream(side)
    for trainer, state in zip(trainers, before, strict=True):
        trainer.load_state(state)
        trainer.begin_epoch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    streams = [torch.cuda.Stream() for _ in trainers]
    with torch.cuda.graph(graph):
        here = torch.cuda.current_stream()
        for trainer, stream in zip(trainers, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                for _ in range(steps):
                    trainer.step()
        for stream in streams:
            here.wait_stream(stream)
    return graph
