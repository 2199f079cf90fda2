"""Pooling over scale: the response of each level, the strongest of them, and its derivatives (paper, appendix A).

A level is linear in the input, and in weight and bias; the maximum passes a derivative on to the level that won. So the
winners are all that the backward pass needs beside the input and the weight, and it samples the levels again. No sizes
or matrices are made here.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .bags import Bags, resample_by_bags, sparse_product
from .levels import LevelMap
from .resample import gather_patches, resample, spread_patches

# Bytes of a sampled input beyond which a CPU takes the images in parts, so that they stay in its cache.
WORKSPACE = 6 * 2**20
# Share of a gradient up to which its zeros are left out. Behind max-pooling a level has few other numbers.
FEW = 0.125


def pool_levels(
    images: Tensor, weight: Tensor, bias: Tensor | None, levels: tuple[LevelMap, ...]
) -> tuple[Tensor, Tensor]:
    """The maximum over the levels (N, M, H0, W0), and for each output the place in `levels` of the one it came from."""
    if len(levels) == 1:  # only the identity takes part
        output = _respond(levels[0], images, weight, bias)
        return output, torch.zeros_like(output, dtype=torch.uint8)
    parts = _parts(images, levels)
    if parts == 1:
        return _pool_some(images, weight, bias, levels)
    results = [_pool_some(some, weight, bias, levels) for some in images.chunk(parts)]
    return torch.cat([output for output, _ in results]), torch.cat([winner for _, winner in results])


def _pool_some(
    images: Tensor, weight: Tensor, bias: Tensor | None, levels: tuple[LevelMap, ...]
) -> tuple[Tensor, Tensor]:
    pool = _Pool if torch.compiler.is_compiling() else _PoolWithTangents
    output, winner = pool.apply(images, weight, bias, levels)
    return output if is_channels_last(images) or is_channels_last(weight) else output.contiguous(), winner


def _parts(images: Tensor, levels: tuple[LevelMap, ...]) -> int:
    """Into how many parts a CPU takes the images; a compiler takes them whole, because their number may be open."""
    if images.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(images.shape[0], torch.SymInt):
        return 1
    largest = max((level.by_bags or level).sampled for level in levels)
    return 1 + len(images) * images.shape[1] * largest * images.itemsize // WORKSPACE


class _Pool(torch.autograd.Function):
    """Keeps the input, the weight and one byte per output for the backward pass.

    Works in channels_last, in which sampling and convolving are faster. Arithmetic on bytes stands where a `where`
    would read better: on the CPU that takes many times as long.
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

        winner = winner.to(input.dtype)

        def share(place: int, level: LevelMap) -> Tensor:
            change = _respond(level, input_tangent, weight, None) + _respond(level, input, weight_tangent, bias_tangent)
            return _won(change, winner[level.region], place)

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
    asked = input  # in the layout of its gradient: what comes before the layer may be slow in another
    input, weight, grad = as_channels_last(input), as_channels_last(weight), as_channels_last(grad)
    totals: list[Tensor | None] = [None, None]
    if any(needed[:2]):
        winner = winner.to(grad.dtype)
        for place, level in enumerate(levels):
            share = _won(grad[level.region], winner[level.region], place)
            grads = _respond_backward(level, share, input, weight, needed[:2])
            totals = [a if b is None else b if a is None else a + b for a, b in zip(totals, grads, strict=True)]
    if totals[0] is not None and not is_channels_last(asked):
        totals[0] = totals[0].contiguous()
    # Whichever level won, the bias was added to it once.
    return [*totals, grad.sum((0, 2, 3)) if needed[2] else None]


def _respond(level: LevelMap, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One level's answer at the positions it covers."""
    level = _fastest(level, input, weight)
    how = level.convolution
    sampled, kernel = _sample(level, input), _kernel(level, weight)
    response = F.conv2d(sampled, kernel, bias, how.stride, how.padding, how.dilation, how.groups)
    return _resampled(response, level.align, level.align_bags[:1])


def _respond_backward(
    level: LevelMap, grad: Tensor, input: Tensor, weight: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of `_respond` for the input and the weight: the transposed maps in reverse order."""
    level = _fastest(level, grad, input, weight)
    how = level.convolution
    if level.gathered and grad.count_nonzero() <= FEW * grad.numel():
        return _sparse_respond_backward(level.gathered, grad, input, weight, needed)
    grad = _resampled(grad, [matrix.mT for matrix in level.align], level.align_bags[1:])
    grad_sampled, grad_kernel, _ = torch.ops.aten.convolution_backward(
        grad,
        _sample(level, input),
        _kernel(level, weight),
        None,
        how.stride,
        how.padding,
        how.dilation,
        False,
        [0, 0],
        how.groups,
        [*needed, False],
    )
    return [
        _sample_backward(level, grad_sampled) if needed[0] else None,
        _kernel_backward(level, grad_kernel) if needed[1] else None,
    ]


def _sparse_respond_backward(
    level: LevelMap, grad: Tensor, input: Tensor, weight: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The same for patches whose taps are channels, by the few numbers of the gradient that are not zero."""
    pixels, sent = _sample(level, input).permute(0, 2, 3, 1), grad.permute(0, 2, 3, 1).flatten(0, 2)
    to_input = to_weight = None
    if needed[0]:
        to_patches = sparse_product(sent, _kernel(level, weight).flatten(1))
        to_input = _sample_backward(level, to_patches.view(pixels.shape).permute(0, 3, 1, 2))
    if needed[1]:
        to_kernel = sparse_product(sent.mT.contiguous(), pixels.flatten(0, 2))
        to_weight = _kernel_backward(level, to_kernel[:, :, None, None])
    return [to_input, to_weight]


def _fastest(level: LevelMap, *tensors: Tensor) -> LevelMap:
    return level.by_bags if level.by_bags and len(tensors[0]) and _are_just_numbers(*tensors) else level


def _are_just_numbers(*tensors: Tensor) -> bool:
    """Whether these are numbers on a CPU and nothing else: not to be differentiated once more, traced or transformed.

    A GPU would have to wait to know which of them are zero.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    return all(
        type(tensor) is Tensor
        and tensor.is_cpu
        and not is_functorch_wrapped_tensor(tensor)
        and forward_ad.unpack_dual(tensor).tangent is None
        for tensor in tensors
    )


def _sample(level: LevelMap, input: Tensor) -> Tensor:
    if level.taps and not level.bags:
        return gather_patches(input, level.taps, *level.sample)
    if level.margin:
        above, below, left, right = level.margin
        return input[..., above : input.shape[-2] - below, left : input.shape[-1] - right]
    sampled = _resampled(input, level.sample, level.bags[:1])
    below, right = level.convolution.excess
    return F.pad(sampled, (0, right, 0, below)) if below or right else sampled


def _sample_backward(level: LevelMap, grad: Tensor) -> Tensor:
    if level.taps and not level.bags:
        return spread_patches(grad, level.taps, *level.sample)
    if level.margin:
        above, below, left, right = level.margin
        return F.pad(grad, (left, right, above, below))
    below, right = level.convolution.excess
    if below or right:
        grad = grad[..., : -below or None, : -right or None]
    return _resampled(grad, [matrix.mT for matrix in level.sample], level.bags[1:], math.prod(level.taps))


def _resampled(images: Tensor, matrices: Sequence[Tensor], bags: Sequence[Bags], taps: int = 1) -> Tensor:
    """The images resampled by bags or by matrices, or as they are; `taps` are the pixels among their channels."""
    if bags:
        return resample_by_bags(images, bags[0], images.shape[1] // taps)
    return resample(images, *matrices) if matrices else images


def _kernel(level: LevelMap, weight: Tensor) -> Tensor:
    """The weight (M, C, Kh, Kw); with the taps as channels, in the order of a gathered patch: (M, Kw·Kh·C, 1, 1)."""
    if level.filter:
        return as_channels_last(resample(weight, *level.filter))
    return weight.permute(0, 3, 2, 1).reshape(len(weight), -1, 1, 1) if level.taps else weight


def _kernel_backward(level: LevelMap, grad: Tensor) -> Tensor:
    if level.filter:
        return resample(grad, *(matrix.mT for matrix in level.filter))
    return grad.reshape(len(grad), *reversed(level.taps), -1).permute(0, 3, 2, 1) if level.taps else grad


def _won(derivative: Tensor, winner: Tensor, place: int) -> Tensor:
    """The derivative where the level of this place won, 0 elsewhere.

    The derivative of `hardtanh` does just that: it passes what stands beside a number inside the bounds. It takes one
    pass over the tensors, and on the CPU a tensor of bools takes many times as long.
    """
    share: Tensor = torch.ops.aten.hardtanh_backward(derivative, winner, place - 1, place + 1)
    return share


def as_channels_last(tensor: Tensor) -> Tensor:
    """The tensor in channels_last, by permutation because `vmap` knows no memory formats.

    One channel lies alike in both layouts; its copy has the strides by which a convolution recognises channels_last.
    """
    pixels = tensor.permute(0, 2, 3, 1)
    pixels = pixels.clone(memory_format=torch.contiguous_format) if tensor.shape[1] == 1 else pixels.contiguous()
    return pixels.permute(0, 3, 1, 2)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.stride(1) == 1 < tensor.shape[1]
