"""The first layer of a network in training, as one operator that PyTorch knows: convolution, ReLU and max-pooling.

What the convolution puts out is never written: each window keeps the strongest response in it, at any scale. Nothing
comes back to the input, which for a first layer are images.
"""

from typing import Any

import torch
from torch import Tensor

from .backends import KERNEL_TYPES
from .geometry import Axis
from .signature import Signature, check_scales

MOST_WINNERS = 255  # places of a window times scales: one byte, of which one value is for none


@torch.library.custom_op(
    "scaleconv::first_layer",
    mutates_args=(),
    schema="(Tensor input, Tensor weight, Tensor? bias, float[] scales, int pool, int parts) -> (Tensor, Tensor)",
)
def first_layer(
    input: Tensor, weight: Tensor, bias: Tensor | None, scales: list[float], pool: int, parts: int
) -> tuple[Tensor, Tensor]:
    """`F.max_pool2d(F.relu(si_conv2d(…)), pool, pool, ceil_mode=True)` in channels_last, and its winners.

    Runs where the fused kernels do. Of several NaNs in a window the first wins, where PyTorch takes the last.

    Args:
        input: (N, C, H, W), N a multiple of `parts`; gets no gradient.
        weight, bias: of all parts, one after the other.
        scales: of the layer; 1 alone for a plain convolution. Stride 1, no padding, no dilation, no groups.
        pool: side and stride of the windows, which are cut where they reach over the edge.
        parts: of the batch; each has filters of its own.

    Raises:
        TypeError: tensors of a type that the kernels do not take.
        ValueError: shapes that do not fit, or more scales and places than a byte can tell apart.
    """
    from .fused import first_layer_forward

    return first_layer_forward(input, weight, bias, _signature(input, weight, scales, pool, parts), parts, pool)


@first_layer.register_fake
def _(input, weight, bias, scales, pool, parts):  # type: ignore[no-untyped-def]
    signature = _signature(input, weight, scales, pool, parts)
    shape = [-(-axis.output_size // pool) for axis in (signature.height, signature.width)]
    output = input.new_empty((input.shape[0], *shape, signature.out_channels)).permute(0, 3, 1, 2)
    return output, torch.empty_like(output, dtype=torch.uint8)


@torch.library.custom_op(
    "scaleconv::first_layer_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor input, Tensor weight, Tensor winner, float[] scales, int pool, int parts)"
    " -> (Tensor, Tensor)",
)
def first_layer_backward(
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, scales: list[float], pool: int, parts: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and of the bias."""
    from . import fused

    signature = _signature(input, weight, scales, pool, parts)
    return fused.first_layer_backward(grad, input, weight, winner, signature, parts, pool)


@first_layer_backward.register_fake
def _(grad, input, weight, winner, scales, pool, parts):  # type: ignore[no-untyped-def]
    return weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, bias, *ctx.settings = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(input, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.needs_input_grad[0]:
        raise NotImplementedError("the input of a first layer must not require a gradient")
    to_weight, to_bias = first_layer_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return None, to_weight, to_bias if ctx.has_bias else None, *(None for _ in ctx.settings)


first_layer.register_autograd(_differentiate, setup_context=_keep)


@first_layer.register_vmap
def _(info, in_dims, input, weight, bias, scales, pool, parts):  # type: ignore[no-untyped-def]
    """Each of the batches becomes a part, with its own filters or a copy of the shared ones."""

    def together(tensor: Tensor, dim: int | None) -> Tensor:
        every = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return every.flatten(0, 1)

    results = first_layer(
        together(input, in_dims[0]),
        together(weight, in_dims[1]),
        None if bias is None else together(bias, in_dims[2]),
        scales,
        pool,
        parts * info.batch_size,
    )
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0, 0)


def _signature(input: Tensor, weight: Tensor, scales: list[float], pool: int, parts: int) -> Signature:
    if input.dtype not in KERNEL_TYPES or weight.dtype != input.dtype:
        raise TypeError(f"`input` and `weight` must be of one type of the kernels, got {input.dtype}, {weight.dtype}")
    if pool < 1 or pool**2 * len(scales) > MOST_WINNERS:
        raise ValueError(
            f"`pool` (={pool}) must be at least 1, and its square times the {len(scales)} scales at most {MOST_WINNERS}"
        )
    check_scales(tuple(scales))
    if input.ndim != 4 or weight.ndim != 4 or input.shape[1] != weight.shape[1]:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"`input` and `weight` must be images and filters of as many channels, got {shapes}")
    if any(side < kernel for side, kernel in zip(input.shape[2:], weight.shape[2:], strict=True)):
        raise ValueError(f"`input` {tuple(input.shape)} must be at least as large as the kernel, {tuple(weight.shape)}")
    if input.shape[0] % parts or weight.shape[0] % parts:
        raise ValueError(
            f"`parts` (={parts}) must divide the {input.shape[0]} images and the {weight.shape[0]} filters"
        )
    height, width = (
        Axis(int(length), int(kernel), 1, (0, 0), 1)
        for length, kernel in zip(input.shape[2:], weight.shape[2:], strict=True)
    )
    return Signature(height, width, tuple(scales), int(weight.shape[1]), int(weight.shape[0]) // parts, 1)
