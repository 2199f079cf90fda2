"""The fused kernels as operators that PyTorch knows, so that its compilers, exporters and transforms do.

Each has an implementation, the shapes of its results for tracing, a derivative, and a rule for `torch.vmap`, which
makes one batch of several: that is how networks of one shape train together.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .geometry import Axis
from .levels import level_maps
from .pool import is_channels_last, pool_backward
from .signature import Signature


@lru_cache(maxsize=256)
def _signature(
    size: tuple[int, int],
    weight: tuple[int, int, int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    parts: int,
    scales: tuple[float, ...],
) -> Signature:
    height, width = (
        Axis(size[i], weight[2 + i], stride[i], (padding[2 * i], padding[2 * i + 1]), dilation[i]) for i in (0, 1)
    )
    return Signature(height, width, scales, weight[1] * groups, weight[0] // parts, groups)


def _plan(input: Tensor, weight: Tensor, settings: Sequence[Any]) -> tuple[Signature, int, bool]:
    """The signature of a call, the parts of its batch, and whether it is antialiased."""
    stride, padding, dilation, groups, parts, scales, antialias = settings
    signature = _signature(
        tuple(int(length) for length in input.shape[2:]),
        tuple(int(length) for length in weight.shape),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        parts,
        tuple(scales),
    )
    return signature, parts, antialias


# Written out, because older versions of torch cannot read all of the annotations.
SETTINGS = "int[] stride, int[] padding, int[] dilation, int groups, int parts, float[] scales, bool antialias"
FORWARD = f"(Tensor input, Tensor weight, Tensor? bias, {SETTINGS}) -> (Tensor, Tensor)"
BACKWARD = (
    f"(Tensor grad, Tensor input, Tensor weight, Tensor winner, {SETTINGS}, bool[] needed) -> (Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("scaleconv::si_conv2d", mutates_args=(), schema=FORWARD)
def si_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    parts: int,
    scales: list[float],
    antialias: bool,
) -> tuple[Tensor, Tensor]:
    """Output, and for each output the index in `scales` of the level it came from.

    Args:
        input: (N, C, H, W), N a multiple of `parts`.
        weight, bias: of all parts, one after the other.
        padding: above, below, left, right.
        parts: of the batch; each has filters of its own.
    """
    from .fused import fused_forward

    settings = (stride, padding, dilation, groups, parts, scales, antialias)
    return fused_forward(input, weight, bias, *_plan(input, weight, settings))


@si_conv2d.register_fake
def _(input, weight, bias, stride, padding, dilation, groups, parts, scales, antialias):  # type: ignore[no-untyped-def]
    settings = (stride, padding, dilation, groups, parts, scales, antialias)
    signature, _, _ = _plan(input, weight, settings)
    images, filters = input.shape[0], signature.out_channels
    shape = (signature.height.output_size, signature.width.output_size)
    last = parts > 1 or is_channels_last(input) or is_channels_last(weight)
    output = input.new_empty((images, *shape, filters)).permute(0, 3, 1, 2)
    several = len(signature.plan.levels) > 1
    winner = input.new_empty((images if several else 0, *shape, filters), dtype=torch.uint8).permute(0, 3, 1, 2)
    return output if last else input.new_empty((images, filters, *shape)), winner


@torch.library.custom_op("scaleconv::si_conv2d_backward", mutates_args=(), schema=BACKWARD)
def si_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    winner: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    parts: int,
    scales: list[float],
    antialias: bool,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of the weight and of the bias; without elements where they are not needed."""
    from .fused import fused_backward

    settings = (stride, padding, dilation, groups, parts, scales, antialias)
    grad_input, grad_weight = None, None
    if needed[0] or needed[1]:
        plan = _plan(input, weight, settings)
        grad_input, grad_weight = fused_backward(grad, input, weight, winner, *plan, needed[:2])
    return (
        input.new_empty(0) if grad_input is None else grad_input,
        weight.new_empty(0) if grad_weight is None else grad_weight,
        _bias_grad(grad, parts) if needed[2] else weight.new_empty(0),
    )


def _bias_grad(grad: Tensor, parts: int) -> Tensor:
    """The sum over images and positions, for each part of the batch: (parts · M,)."""
    from .kernels.column_sum import column_sum

    pixels = grad.permute(0, 2, 3, 1)
    sums: Tensor  # (parts, M)
    if pixels.is_contiguous():
        sums = column_sum(pixels.flatten(0, 2).unflatten(0, (parts, -1)))
    else:
        sums = grad.unflatten(0, (parts, -1)).sum((1, 3, 4))
    return sums.flatten().to(grad.dtype)


@si_conv2d_backward.register_fake
def _(grad, input, weight, winner, stride, padding, dilation, groups, parts, scales, antialias, needed):  # type: ignore[no-untyped-def]
    filters, channels, height, width = weight.shape
    grad_weight = weight.new_empty((filters, height, width, channels)).permute(0, 3, 1, 2)
    return (
        torch.empty_like(input) if needed[0] else input.new_empty(0),
        grad_weight if needed[1] else weight.new_empty(0),
        weight.new_empty(filters if needed[2] else 0),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, _, *ctx.settings = inputs
    ctx.save_for_backward(input, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor | None, ...]:
    input, weight, winner = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:3])
    parts = ctx.settings[4]
    grads: list[Tensor | None] = [None, None, None]
    if torch.is_grad_enabled() and parts == 1:  # to be differentiated again, which the kernels cannot
        signature, _, antialias = _plan(input, weight, ctx.settings)
        levels = level_maps(signature, antialias, input.dtype, input.device)
        places = torch.zeros(len(signature.scales), dtype=torch.uint8, device=winner.device)
        places[[level.index for level in levels]] = torch.arange(len(levels), dtype=torch.uint8, device=winner.device)
        grads = pool_backward(grad, input, weight, places[winner.int()], levels, needed)
    elif any(needed):
        every = si_conv2d_backward(grad, input, weight, winner, *ctx.settings, needed)
        grads = [one if wanted else None for one, wanted in zip(every, needed, strict=True)]
    return *grads, *(None for _ in ctx.settings)


si_conv2d.register_autograd(_differentiate, setup_context=_keep)


@si_conv2d.register_vmap
def _(info, in_dims, input, weight, bias, stride, padding, dilation, groups, parts, scales, antialias):  # type: ignore[no-untyped-def]
    """Each of the batches becomes a part, with its own filters or a copy of the shared ones."""

    def together(tensor: Tensor, dim: int | None) -> Tensor:
        every = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return every.flatten(0, 1)

    output, winner = si_conv2d(
        together(input, in_dims[0]),
        together(weight, in_dims[1]),
        None if bias is None else together(bias, in_dims[2]),
        stride,
        padding,
        dilation,
        groups,
        parts * info.batch_size,
        scales,
        antialias,
    )
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in (output, winner)), (0, 0)
