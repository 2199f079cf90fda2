"""Calls on a GPU without the host: captured once in a CUDA graph, then replayed."""

from collections.abc import Callable

import torch

WARM_UP = 3


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph to be replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries choose their algorithms and buffers now, not under capture
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    kept = (graph, call)  # a graph works in the memory of what it was captured from, and does not hold it

    def replay() -> None:
        kept[0].replay()

    return replay
