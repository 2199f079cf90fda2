"""Pooling over scale: the response of each level, the strongest of them, and its derivatives (paper, appendix A).

A level is linear in the input, and in weight and bias; the maximum passes a derivative on to the level that won. So the
winners are all that the backward pass needs beside the input and the weight, and it samples the levels again. No sizes
or matrices are made here.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .levels import LevelMap
from .resample import resample


def pool_levels(
    images: Tensor, weight: Tensor, bias: Tensor | None, levels: tuple[LevelMap, ...]
) -> tuple[Tensor, Tensor]:
    """The maximum over the levels (N, M, H0, W0), and for each output the place in `levels` of the one it came from."""
    if len(levels) == 1:  # only the identity takes part
        output = _respond(levels[0], images, weight, bias)
        return output, torch.zeros_like(output, dtype=torch.uint8)
    pool = _Pool if torch.compiler.is_compiling() else _PoolWithTangents
    output, winner = pool.apply(images, weight, bias, levels)
    if not (is_channels_last(images) or is_channels_last(weight)):
        output = output.contiguous()
    return output, winner


class _Pool(torch.autograd.Function):
    """Keeps the input, the weight and one byte per output for the backward pass.

    Works in channels_last, in which sampling and convolving are faster. Arithmetic on whole tensors stands where a
    `where` or `masked_fill` would read better: on the CPU those take many times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor, bias: Tensor | None, levels: tuple[LevelMap, ...]
    ) -> tuple[Tensor, Tensor]:
        input, weight = as_channels_last(input), as_channels_last(weight)
        output = _respond(levels[0], input, weight, bias)  # (N, M, H0, W0)
        winner = torch.zeros_like(output, dtype=torch.uint8)
        for place, level in enumerate(levels[1:], start=1):
            aligned = _respond(level, input, weight, bias)
            best = output[level.region]
            wins = aligned >= best if level.wins_ties else aligned > best
            winner[level.region].clamp_min_(wins.to(torch.uint8) * place)
            best.clamp_min_(aligned)  # keeps a NaN from either side
        return output, winner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, weight, _, ctx.levels = inputs
        ctx.save_for_backward(input, weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, winner = ctx.saved_tensors
        return *pool_backward(grad, input, weight, winner, ctx.levels, ctx.needs_input_grad[:3]), None


class _PoolWithTangents(_Pool):
    """`_Pool` with forward-mode differentiation; apart, because `torch.compile` refuses a function with a `jvp`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _Pool.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2], output[1])

    @staticmethod
    def jvp(
        ctx: Any, input_tangent: Tensor, weight_tangent: Tensor, bias_tangent: Tensor | None, _: None
    ) -> tuple[Tensor, None]:
        input, weight, winner = ctx.saved_tensors

        def share(place: int, level: LevelMap) -> Tensor:
            change = _respond(level, input_tangent, weight, None) + _respond(level, input, weight_tangent, bias_tangent)
            return change * _won(winner, place, level, change.dtype)

        tangent = share(0, ctx.levels[0])  # the identity covers every position
        for place, level in enumerate(ctx.levels[1:], start=1):
            tangent[level.region].add_(share(place, level))
        return tangent, None


def pool_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    winner: Tensor,
    levels: tuple[LevelMap, ...],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients for the input, the weight and the bias, each None if it is not needed."""
    input, weight, grad = as_channels_last(input), as_channels_last(weight), as_channels_last(grad)
    totals: list[Tensor | None] = [None, None, None]
    for place, level in enumerate(levels):
        share = grad[level.region] * _won(winner, place, level, grad.dtype)
        grads = _respond_backward(level, share, input, weight, needed)
        totals = [a if b is None else b if a is None else a + b for a, b in zip(totals, grads, strict=True)]
    return totals


def _respond(level: LevelMap, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One level's answer at the positions it covers."""
    sampled = _sample(level, input)
    how = level.convolution
    response = F.conv2d(sampled, weight, bias, how.stride, how.padding, how.dilation, how.groups)
    return resample(response, *level.align) if level.align else response


def _respond_backward(
    level: LevelMap, grad: Tensor, input: Tensor, weight: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of `_respond` for the input, the weight and the bias: the transposed maps in reverse order."""
    sampled = _sample(level, input)
    how = level.convolution
    if level.align:
        grad = resample(grad, *(matrix.mT for matrix in level.align))
    grad_sampled, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad,
        sampled,
        weight,
        [weight.shape[0]],
        how.stride,
        how.padding,
        how.dilation,
        False,
        [0, 0],
        how.groups,
        needed,
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


def _won(winner: Tensor, place: int, level: LevelMap, dtype: torch.dtype) -> Tensor:
    """1 where the level won and 0 elsewhere, over the positions it covers, to be multiplied with a derivative.

    An infinite derivative times 0 is NaN: the levels that lost spread it as NaN, which the loss scaling of mixed
    precision treats alike. Computed in bytes, because on the CPU a tensor of bools takes many times as long to make.
    """
    lost = (winner[level.region] ^ place).clamp(max=1)
    return (1 - lost).to(dtype)


def as_channels_last(tensor: Tensor) -> Tensor:
    """The tensor in channels_last, by permutation because `vmap` knows no memory formats.

    One channel lies alike in both layouts; its copy has the strides by which a convolution recognises channels_last.
    """
    pixels = tensor.permute(0, 2, 3, 1)
    pixels = pixels.clone(memory_format=torch.contiguous_format) if tensor.shape[1] == 1 else pixels.contiguous()
    return pixels.permute(0, 3, 1, 2)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.stride(1) == 1 < tensor.shape[1]
