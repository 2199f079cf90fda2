"""Who can take the planned layer, and who has to take it apart into plain operations."""

import os
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from .signature import Settings

KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"


def needs_plain_operations(images: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> bool:
    """Whether plain operations are to evaluate a call.

    One map alone is a convolution, and volumes have no plan. Exporters, derivatives in forward mode, `torch.func.grad`
    and devices without kernels of ours need them. A GPU needs them for float64, and for clamped borders of maps that
    mix the axes: an edge pixel is read so often there that tables of who reads it would not fit.
    """
    if len(settings.matrices) == 1 or images.ndim == 5:
        return True
    if is_exporting():
        return True
    if not (images.is_cpu or (images.is_cuda and HAS_TRITON and images.dtype in KERNEL_TYPES)):
        return True
    if images.is_cuda and settings.reading.border == "clamp" and settings.mixes_axes:
        return True
    if torch.compiler.is_compiling():
        return False
    if images.is_cuda and not _runs_our_kernels(images.device):
        return True
    if transforms := get_interpreter_stack():
        return any(transform.key() != TransformType.Vmap for transform in transforms)
    return any(_is_dual(tensor) for tensor in (images, weight, bias) if tensor is not None)


def is_exporting() -> bool:
    """Whether an exporter takes the layer apart. Before torch 2.7 it cannot be told from a compiler."""
    return getattr(torch.compiler, "_is_exporting_flag", False)  # the function of torch says yes to compilers, too


def refuse_jit_trace() -> None:
    """Say what to use instead of `torch.jit.trace`, which would keep the sizes of its example as constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(
            "torch.jit.trace and torch.onnx.export(dynamo=False) cannot take a scale-invariant layer; "
            "use torch.export.export, torch.onnx.export(dynamo=True) or torch.compile"
        )


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


def _is_dual(tensor: Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


@lru_cache(maxsize=64)
def _runs_our_kernels(device: torch.device) -> bool:
    """Whether the kernels were made for such a GPU: compute capability 8.0 or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)
