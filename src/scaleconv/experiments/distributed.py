"""Processes that train one network together, as torchrun starts them: one for each GPU, or several on CPUs.

Every process holds the whole network and learns from its share of each batch. Gradients are summed over the processes,
and BatchNorm sees the whole batch, so that a step is that of one process on the same batch, to rounding. The first
process alone reads and writes results; what it finds, the others are told.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..ops.torch_private import BatchNorm as _BatchNorm

T = TypeVar("T")
LOST = "another process of this run was lost: the same command goes on from the last checkpoint"


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Attributes:
        rank: its number; 0 leads.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, batch: Sequence[T]) -> Sequence[T]:
        """What this process takes of a batch; all of it, where there are fewer images than processes.

        Example:
            >>> Processes(rank=1, size=2).share([5, 6, 7]), Processes(rank=1, size=2).share([5])
            ([6], [5])
        """
        return batch[self.rank :: self.size] if len(batch) >= self.size else batch

    def taken(self, batch: Sequence[Any]) -> int:
        """How many images the shares of all processes hold together."""
        return len(batch) if len(batch) >= self.size else len(batch) * self.size

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place.

        Raises:
            ConnectionError: a process was lost.
        """
        return _sum(tensor) if self.size > 1 else tensor

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process. Goes from CPU to CPU: a GPU is not waited for."""
        return bool(self.add(torch.tensor(float(flag)))) if self.size > 1 else flag

    def add_gradients(self, network: nn.Module, loss: Tensor) -> Tensor:
        """Sum the gradients over all processes, in one message with the loss, whose sum is returned."""
        if self.size == 1:
            return loss
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        message = self.add(torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)]))
        parts = message.split([*(gradient.numel() for gradient in gradients), 1])
        for gradient, part in zip(gradients, parts, strict=False):
            gradient.copy_(part.view(gradient.shape))
        total: Tensor = parts[-1][0]
        return total

    def agree(self, make: Callable[[], T]) -> T:
        """What the first process makes, told to all; so is its refusal.

        Raises:
            ConnectionError: a process was lost.
        """
        if self.size == 1:
            return make()
        told: list[Any] = [None, None]
        if self.leads:
            try:
                told[0] = make()
            except (ValueError, OSError) as error:
                told[1] = error
        with _noticing_losses():
            dist.broadcast_object_list(told)
        if told[1] is not None:
            raise told[1]
        found: T = told[0]
        return found


ALONE = Processes()


def leave(code: int) -> None:
    """End this process, if it is one of several, once what is to be done at its end is done.

    The interpreter is not ended: meanwhile a thread that still lets go of a tensor it has sent would abort the process,
    and torchrun would stop the others.
    """
    if dist.is_initialized():
        atexit._run_exitfuncs()  # destroys the group
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def join_processes(device: str) -> tuple[Processes, str]:
    """Join the processes that torchrun has started, and the device of this one: each takes a GPU of its own."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        return ALONE, device
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu and torch.device(device).index is None:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), size), device


@contextmanager
def joint_norms(network: nn.Module, processes: Processes, device: str) -> Iterator[None]:
    """In training, BatchNorm takes mean and variance over the images of all processes."""
    kind = nn.SyncBatchNorm if torch.device(device).type == "cuda" else _JointBatchNorm
    layers = [layer for layer in network.modules() if type(layer) in BATCH_NORMS] if processes.size > 1 else []
    before = [type(layer) for layer in layers]
    for layer in layers:
        layer.__class__ = kind
        layer.__dict__["process_group"] = None  # of SyncBatchNorm: all processes
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.__class__ = own
            del layer.__dict__["process_group"]


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _JointBatchNorm(_BatchNorm):
    """BatchNorm over the images of all processes, on a CPU, which PyTorch's SyncBatchNorm refuses."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        size = input.new_tensor([input.numel() / input.shape[1]])
        sums = _Sum.apply(torch.cat([input.sum(axes), size]))
        count = sums[-1].detach()
        centred = input - (mean := sums[:-1] / count).view(shape)
        variance = _Sum.apply(centred.square().sum(axes)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        output: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        return output if self.weight is None else output * self.weight.view(shape) + self.bias.view(shape)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics as BatchNorm does."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance, factor)

    def _check_input_dim(self, input: Tensor) -> None: ...


class _Sum(torch.autograd.Function):
    """The sum over all processes; the loss is the sum of theirs, so the gradient is summed too."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return _sum(tensor.clone())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _sum(gradient.clone())


def _sum(tensor: Tensor) -> Tensor:
    with _noticing_losses():
        dist.all_reduce(tensor)
    return tensor


@contextmanager
def _noticing_losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # whatever the backend says of a closed connection
        raise ConnectionError(LOST) from error
