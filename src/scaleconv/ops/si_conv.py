"""The locally scale-invariant convolution: transform, convolve, align, pool over scale (paper, section 3).

The maths is here, as a function; `scaleconv.nn.SIConv2d` only owns the parameters. Sizes and coordinates come from
`geometry`, matrices from `levels`. No modules, files or randomness in this room.
"""

from collections.abc import Iterable
from operator import index
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from .levels import LevelMap, level_maps
from .resample import resample
from .signature import DEFAULT_SCALES, Padding, Size, make_signature


@overload
def si_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    stride: Size = ...,
    padding: Padding = ...,
    dilation: Size = ...,
    groups: int = ...,
    *,
    scales: Iterable[float] = ...,
    antialias: bool = ...,
    return_winner: Literal[False] = ...,
) -> Tensor: ...
@overload
def si_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    stride: Size = ...,
    padding: Padding = ...,
    dilation: Size = ...,
    groups: int = ...,
    *,
    scales: Iterable[float] = ...,
    antialias: bool = ...,
    return_winner: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def si_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    scales: Iterable[float] = DEFAULT_SCALES,
    antialias: bool = False,
    return_winner: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """TODO"""
    input, weight, bias = _autocast(input, weight, bias)
    _check_tensors(input, weight, bias)
    levels = _levels(
        tuple(index(n) for n in input.shape[-3:]),
        tuple(index(n) for n in weight.shape),
        stride,
        padding,
        dilation,
        groups,
        scales,
        antialias,
        input.dtype,
        input.device,
    )
    batch = input if input.ndim == 4 else input.unsqueeze(0)
    output, winner = _SIConv2d.apply(batch, weight, bias, levels, groups)
    if input.ndim == 3:
        output, winner = output.squeeze(0), winner.squeeze(0)
    return (output, winner) if return_winner else output


class _SIConv2d(torch.autograd.Function):
    """Keeps the input, the weight and one winner byte per output; the backward pass samples the levels again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor, bias: Tensor | None, levels: tuple[LevelMap, ...], groups: int
    ) -> tuple[Tensor, Tensor]:
        identity, *others = levels
        output = _respond(identity, input, weight, bias, groups)  # (N, M, H0, W0)
        winner = torch.full_like(output, identity.index, dtype=torch.uint8)
        for level in others:
            aligned = _respond(level, input, weight, bias, groups)
            best = output[..., level.rows, level.columns]
            wins = aligned >= best if level.wins_ties else aligned > best
            winner[..., level.rows, level.columns].masked_fill_(wins, level.index)
            best.clamp_min_(aligned)
        return output, winner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, weight, bias, ctx.levels, ctx.groups = inputs
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(input, weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        input, weight, winner = ctx.saved_tensors
        needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2])
        totals: list[Tensor | None] = [None, None, None]
        for level in ctx.levels:
            won = winner[..., level.rows, level.columns] == level.index
            share = torch.where(won, grad[..., level.rows, level.columns], 0)
            grads = _respond_backward(level, share, input, weight, ctx.groups, needed)
            totals = [a if b is None else b if a is None else a + b for a, b in zip(totals, grads, strict=True)]
        return *totals, None, None


def _respond(level: LevelMap, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """One level's answer at the positions it covers."""
    sampled = _sample(level, input)
    how = level.convolution
    response = F.conv2d(sampled, weight, bias, how.stride, how.padding, how.dilation, groups)
    return resample(response, *level.align) if level.align else response


def _respond_backward(
    level: LevelMap, grad: Tensor, input: Tensor, weight: Tensor, groups: int, needed: tuple[bool, bool, bool]
) -> list[Tensor | None]:
    """Gradients of `_respond` for the input, the weight and the bias: the transposed maps in reverse order."""
    sampled = _sample(level, input)
    how = level.convolution
    if level.align:
        grad = resample(grad, *(matrix.mT for matrix in level.align))
    grad_sampled, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad, sampled, weight, [weight.shape[0]], how.stride, how.padding, how.dilation, False, [0, 0], groups, needed
    )
    if needed[0]:
        if any(how.excess):
            grad_sampled = grad_sampled[..., : -how.excess[0] or None, : -how.excess[1] or None]
        if level.sample:
            grad_sampled = resample(grad_sampled, *(matrix.mT for matrix in level.sample))
    return [grad_sampled if needed[0] else None, grad_weight if needed[1] else None, grad_bias if needed[2] else None]


def _sample(level: LevelMap, input: Tensor) -> Tensor:
    sampled = resample(input, *level.sample) if level.sample else input
    below, right = level.convolution.excess
    return F.pad(sampled, (0, right, 0, below)) if below or right else sampled


@torch.compiler.assume_constant_result
def _levels(input_shape, weight_shape, stride, padding, dilation, groups, scales, antialias, dtype, device):
    signature = make_signature(input_shape, weight_shape, stride, padding, dilation, groups, scales)
    return level_maps(signature, bool(antialias), dtype, device)


def _autocast(input, weight, bias):
    device = input.device.type
    if not torch.is_autocast_enabled(device):
        return input, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t is not None and t.dtype in (torch.float32, torch.float16, torch.bfloat16) else t for t in (input, weight, bias))


def _check_tensors(input, weight, bias): pass
