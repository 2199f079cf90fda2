"""Every private API of PyTorch that the package uses; no other file uses one.

`tests/ops/test_torch_private.py` fails if a version of PyTorch drops one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.utils._python_dispatch import _disable_current_modes as without_dispatch_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as active_dispatch_modes
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_iter,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def is_exporting() -> bool:
    """Whether an exporter takes the layer apart. Before torch 2.7 nothing tells it from a compiler."""
    return getattr(torch.compiler, "_is_exporting_flag", False)  # the public function says yes to compilers, too


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether nothing traces or transforms these tensors, so that no dispatcher has to see the call."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and not get_interpreter_stack()
        and all(
            tensor is None or (type(tensor) in (Tensor, Parameter) and not is_legacy_batchedtensor(tensor))
            for tensor in tensors
        )
    )


def under_functional_derivative(*tensors: Tensor | None) -> bool:
    """Whether `torch.func` or forward mode differentiates these tensors; `vmap` alone does not."""
    if transforms := get_interpreter_stack():
        return any(transform.key() != TransformType.Vmap for transform in transforms)
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def has_known_lengths(lengths: Sequence[int]) -> bool:
    """Whether an exporter knows these lengths; others are symbols."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import, and loaded by an exporter

    return all(has_static_value(length) for length in lengths)


def mark_constant(function: AnyFunction) -> AnyFunction:
    """Let a compiler call the function when it traces, and take what it returns for a constant.

    That is `torch.compiler.assume_constant_result`, which would import all of the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def tf32_of_convolutions() -> Iterator[None]:
    """Matrix products of float32 as the user has them for convolutions: in TF32 unless that is switched off.

    The public switches warn where they were set in the newer of two ways.
    """
    before = torch._C._get_cublas_allow_tf32()
    torch._C._set_cublas_allow_tf32(torch._C._get_cudnn_allow_tf32())
    try:
        yield
    finally:
        torch._C._set_cublas_allow_tf32(before)


def free_cublas_workspaces() -> None:
    """Free what earlier matrix products left behind on the GPUs."""
    torch._C._cuda_clearCublasWorkspaces()


__all__ = [
    "BatchNorm",
    "ConvNd",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "TreeSpec",
    "active_dispatch_modes",
    "free_cublas_workspaces",
    "has_known_lengths",
    "is_eager",
    "is_exporting",
    "keystr",
    "mark_constant",
    "tf32_of_convolutions",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_iter",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
    "under_functional_derivative",
    "without_dispatch_modes",
]
