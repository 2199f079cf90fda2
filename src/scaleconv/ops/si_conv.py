"""The locally scale-invariant convolution: transform, convolve, align, pool over scale (paper, section 3).

The contract of the operator is here, its checks, and who evaluates a call; `scaleconv.nn.SIConv2d` only owns the
parameters. A call is planned by `plan` and executed by `scale_max`, or taken apart by `traceable` for whatever traces
or transforms it. No modules, files or randomness in this room.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import index
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from . import custom_op
from .dispatch import is_plain, must_be_traced, refuse_jit_trace
from .geometry import competing_order
from .signature import DEFAULT_SCALES, Padding, Settings, Size, check_call
from .traceable import traceable_si_conv2d

AnyTensor = TypeVar("AnyTensor", Tensor, Tensor | None)


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
    return_winner: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
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
    """Convolve at many scales with one weight and keep, at each position, the strongest response.

    The input is rescaled by every s of `scales`, each level is convolved with the same weight, the responses are
    brought back to the grid of the unscaled output, and the maximum over the levels is taken. The activation follows,
    as it would follow `torch.nn.functional.conv2d`, whose argument order and output shape this function has:

        z_s = T_s⁻¹(W ∗ T_s(x) + b),   output = max over s of z_s

    Shapes:
        input (N, C, H, W) or (C, H, W), weight (M, C / groups, Kh, Kw), bias (M) → output (N, M, H0, W0) or
        (M, H0, W0), with H0 and W0 those of `conv2d`.

    Convention, for an axis of length H with kernel K, stride t, padding P and dilation d; both axes are treated alike:
        - T_s makes h = floor(s·H + 1e-6) samples; sample q reads x at u = (q − (h−1)/2)/s + (H−1)/2, linear between the
          two neighbours, edge pixels clamped. A scale above 1 enlarges. Pixel centres are the integers, and the centre
          of the image stays in place.
        - The zeros of `padding` are put around each level, after it was rescaled.
        - With r = d(K−1)/2 − P, output p reads the response at v = (s·(t·p + r − (H−1)/2) + (h−1)/2 − r)/t, linear,
          edges clamped: the centre of the kernel stays over the same point of the pattern.
        - A level covers p if −½ ≤ v ≤ h' − ½ on both axes, h' being the number of its responses. A level takes no part
          where it does not cover the position, nor anywhere if it is too small for the kernel. Nothing is filled in.
        - A tie goes to the scale listed first.

    What is invariant: where a pattern is rescaled about the centre of the kernel by a ratio of two of the `scales`, the
    output there stays the same, up to interpolation. Measured on smooth oriented patterns (3 orientations, 17 factors
    between 0.63 and 1.59, on the scales and between them), the response changes by 4.1 % on average and 11 % at most,
    that of `conv2d` by 20 % and 49 % (`tests/ops/test_invariance.py`). It stops being so for fine detail, which
    interpolation blurs; for factors that lie between two scales or beyond the last; near the borders, where fewer
    levels cover; and where the surroundings of the pattern come into view.

    The gradient goes to the winning level only. Forward and backward are deterministic wherever `conv2d` is, and can be
    differentiated again, in reverse and in forward mode. `scales=(1,)` is `conv2d`, bit for bit. A NaN
    or an infinity reaches every output that sees it, and no other.

    Args:
        input: images, of a floating-point type.
        weight: filters, shared by all scales.
        bias: one number per filter, or None.
        stride, dilation: an integer or a pair (height, width).
        padding: an integer, a pair, 'valid' or 'same' (which needs a stride of 1).
        groups: blocks of channels that are convolved apart.
        scales: the factors; distinct, positive, at most 1000, 1 among them.
        antialias: average pixels when a level shrinks the input, instead of skipping some. The paper does not.
        return_winner: also return, for each output, the index in `scales` of the level it came from.

    Returns:
        The output, or (output, winner) with winner a uint8 tensor of the output's shape. A channels_last input gives a
        channels_last output.

    Raises:
        TypeError: an argument of the wrong type, an integer tensor, or tensors of different types.
        ValueError: an argument that breaks its rule, shapes that do not fit, or tensors on different devices.
        RuntimeError: a call inside `torch.jit.trace`, or inside an exporter that uses it.

    Example:
        >>> image, weight = torch.rand(1, 3, 32, 32), torch.rand(8, 3, 5, 5)
        >>> si_conv2d(image, weight, padding=2).shape
        torch.Size([1, 8, 32, 32])
        >>> output, winner = si_conv2d(image, weight, scales=(1, 0.5, 2), return_winner=True)
        >>> winner.dtype, bool((output >= torch.nn.functional.conv2d(image, weight)).all())
        (torch.uint8, True)
    """
    refuse_jit_trace()
    input, weight, bias = _autocast(input), _autocast(weight), _autocast(bias)
    _check_tensors(input, weight, bias)
    scales = tuple(scales) if isinstance(scales, Iterator) else scales  # which can be read but once
    settings = _settings(input.shape, weight.shape, stride, padding, dilation, groups, scales)
    images = input if input.ndim == 4 else input.unsqueeze(0)
    output, winner = _evaluate(images, weight, bias, settings, antialias)
    if input.ndim == 3:
        output, winner = output.squeeze(0), winner.squeeze(0)
    if not return_winner:
        return output
    order = torch.tensor(competing_order(settings.scales), dtype=torch.uint8, device=input.device)
    return output, order[winner.int()]


def _evaluate(
    images: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, antialias: bool
) -> tuple[Tensor, Tensor]:
    """Output and winner by the way that suits the tensors and whatever traces or transforms them."""
    traced = len(settings.scales) == 1 or must_be_traced(images, weight, bias)
    if not traced and is_plain(images, weight, bias):
        results: tuple[Tensor, Tensor] = custom_op.PlainSIConv2d.apply(images, weight, bias, settings, antialias)
        return results
    evaluate: Callable[..., tuple[Tensor, Tensor]] = traceable_si_conv2d if traced else custom_op.si_conv2d
    return evaluate(images, weight, bias, *settings.arguments, antialias)


def _settings(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    scales: Iterable[float],
) -> Settings:
    """Check the arguments, once for all calls that are alike."""
    call: tuple[Any, ...] = (image_shape, weight_shape, stride, padding, dilation, groups, scales)
    if torch.compiler.is_compiling():  # the sizes may be symbolic, but all else is part of the graph
        return check_call(*call[:2], *map(_plain, call[2:]))
    try:
        return _check_once(*call, tuple(map(type, (stride, padding, dilation, groups))))
    except TypeError:  # a list has no hash; and an argument of a wrong type is to be named
        return check_call(*call)


@lru_cache(maxsize=1024, typed=True)
def _check_once(
    image_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
    scales: Iterable[float],
    _types: tuple[type, ...],
) -> Settings:
    return check_call(image_shape, weight_shape, stride, padding, dilation, groups, scales)


def _plain(value: Any) -> Any:
    """Plain numbers, alone or in a sequence, for the symbolic ones of a compiler."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return index(value)
    return value.__float__() if isinstance(value, float) else value  # float(value) would stay symbolic


def _autocast(tensor: AnyTensor) -> AnyTensor:
    """Cast as `conv2d` would inside `torch.autocast`."""
    if not isinstance(tensor, Tensor) or tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if eligible else tensor


def _check_tensors(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"`{name}` must be of a floating-point type, got {tensor.dtype}")
        if tensor.dtype != input.dtype:
            raise TypeError(f"`{name}` must have the type of `input` (={input.dtype}), got {tensor.dtype}")
        if tensor.device != input.device:
            raise ValueError(f"`{name}` must be on the device of `input` (={input.device}), got {tensor.device}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"`bias` must hold one number per output channel (={weight.shape[0]}), got shape {tuple(bias.shape)}"
        )
