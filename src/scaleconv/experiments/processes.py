"""Devices, precision and processes of a run, by Lightning Fabric: one process, or those that torchrun has started.

Every process holds the whole network and learns from its share of each batch. Gradients are averaged over processes,
and BatchNorm sees the whole batch, so that a step is that of one process on the same batch, to rounding. The first
process alone reads and writes results.
"""

import atexit
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..ops.torch_private import BatchNorm

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the one that reads and writes results."""
    return os.environ.get("RANK", "0") == "0"


def make_fabric(device: str, precision: str = "float32") -> Any:
    """What runs a network on a device, in a precision; it joins the processes that torchrun has started.

    Raises:
        ImportError: Lightning Fabric is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from lightning_fabric import Fabric
    except ImportError:
        raise ImportError("training needs Lightning Fabric: pip install 'scaleconv[experiments]'") from None
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)  # its import sets another level
    kind = torch.device(device)
    options: dict[str, Any] = {"devices": 1 if kind.index is None or kind.type == "cpu" else [kind.index]}
    if started_by_torchrun():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        nodes = int(os.environ["WORLD_SIZE"]) // local
        options = {"devices": local, "num_nodes": nodes, "strategy": "ddp"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = Fabric(accelerator=kind.type, precision=PRECISIONS[precision], **options)  # type: ignore[arg-type]
        fabric.launch()
    if fabric.device.type == "cuda":
        torch.cuda.set_device(fabric.device)
        torch.set_float32_matmul_precision("high")  # TF32 in all products, as convolutions have it anyway
    return fabric


def agreed(device: str, make: Callable[[], Any]) -> Any:
    """What the first of several processes makes, told to all of them."""
    if not started_by_torchrun():
        return make()
    return make_fabric(device).broadcast(make() if is_first() else None)


@contextmanager
def noticing_loss() -> Iterator[None]:
    """Say that another process is lost in place of what the backend says of a closed connection."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise ConnectionError(
            "another process of this run was lost: the same command goes on from the last checkpoint"
        ) from error


def leave(code: int) -> None:
    """End this process, if it is one of several, once what is to be done at its end is done.

    The interpreter is not shut down: a thread that frees a tensor it has sent could abort the process at that time, and
    torchrun would stop the others.
    """
    if dist.is_initialized():
        atexit._run_exitfuncs()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def join_norms(network: nn.Module, device: torch.device) -> None:
    """Let BatchNorm take mean and variance over the images of all processes; SyncBatchNorm does so on GPUs alone."""
    for layer in network.modules():
        if type(layer) in BATCH_NORMS:
            layer.__class__ = nn.SyncBatchNorm if device.type == "cuda" else JointBatchNorm
            layer.__dict__["process_group"] = None  # of SyncBatchNorm: all processes


class JointBatchNorm(BatchNorm):
    """BatchNorm over the images of all processes, on a CPU, which PyTorch's SyncBatchNorm refuses."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
        size = input.new_tensor([input.numel() / input.shape[1]])
        sums = _Sum.apply(torch.cat([input.sum(axes), size]))
        count = sums[-1].detach()
        centred = input - (mean := sums[:-1] / count).view(shape)
        variance = _Sum.apply(centred.square().sum(axes)) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), factor)
            self.running_var.lerp_(variance.detach() * count / (count - 1), factor)
        output: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        return output if self.weight is None else output * self.weight.view(shape) + self.bias.view(shape)

    def _check_input_dim(self, input: Tensor) -> None: ...


class _Sum(torch.autograd.Function):
    """The sum over all processes; the loss is the sum of theirs, so the gradient is summed too."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        dist.all_reduce(total := tensor.clone())
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        dist.all_reduce(total := gradient.clone())
        return total


def any_process(fabric: Any, *flags: bool) -> list[bool]:
    """Whether each is so in any of the processes."""
    if fabric.world_size == 1:
        return list(flags)
    found: list[bool] = (
        fabric.all_reduce(torch.tensor(flags, device=fabric.device).float(), reduce_op="sum").gt(0).tolist()
    )
    return found


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Notes Ctrl-C and SIGTERM instead of stopping in the middle of a step; a second one stops at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
