"""Convolution under linear transforms of the input: transform, convolve, align, pool (paper, section 3).

The contract of the general operator is here, its checks, and who evaluates a call; `si_conv` has the special case of
scales, and `scaleconv.nn` only owns the parameters. A call is planned by `plan` and executed by `scale_max`, or taken
apart by `traceable` for whatever traces or transforms it. No modules, files or randomness in this room.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import index
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from . import custom_op, flops
from .checks import check_flag
from .dispatch import is_eager, is_exporting, needs_plain_operations, refuse_jit_trace
from .fixed_size import fixed_size_conv, has_fixed_size
from .geometry import competing_order
from .signature import Padding, Settings, Size, check_ti_call
from .traceable import traceable_conv
from .transforms import Transform

AnyTensor = TypeVar("AnyTensor", Tensor, Tensor | None)
Check = Callable[..., Settings]


@overload
def ti_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    stride: Size = ...,
    padding: Padding = ...,
    dilation: Size = ...,
    groups: int = ...,
    *,
    transforms: Iterable[Transform],
    interpolation: Literal["bilinear", "nearest"] = ...,
    border: Literal["zeros", "clamp", "reflect"] = ...,
    return_winner: Literal[False] = ...,
) -> Tensor: ...
@overload
def ti_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    stride: Size = ...,
    padding: Padding = ...,
    dilation: Size = ...,
    groups: int = ...,
    *,
    transforms: Iterable[Transform],
    interpolation: Literal["bilinear", "nearest"] = ...,
    border: Literal["zeros", "clamp", "reflect"] = ...,
    return_winner: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def ti_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    transforms: Iterable[Transform],
    interpolation: Literal["bilinear", "nearest"] = "bilinear",
    border: Literal["zeros", "clamp", "reflect"] = "zeros",
    return_winner: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve under many transforms with one weight and keep, at each position, the strongest response.

    The input is transformed by every T of `transforms` about its centre, each level is convolved with the same weight,
    the responses are brought back to the grid of the untransformed output, and the maximum over the levels is taken:

        z_T = T⁻¹(W ∗ T(x) + b),   output = max over T of z_T

    With pure scales, 'bilinear' and 'zeros' this is `si_conv2d`, bit for bit.

    Shapes:
        input (N, C, H, W) or (C, H, W), weight (M, C / groups, Kh, Kw), bias (M) → output (N, M, H0, W0) or
        (M, H0, W0), with H0 and W0 those of `conv2d`.

    Convention. Points are vectors (y, x), y downwards and x to the right; products with t and divisions by it are per
    axis. The image has its centre at c = ((H−1)/2, (W−1)/2), the kernel r = d(K−1)/2 − P from the first pixel.
        - The canvas of T is the bounding box of the mapped image, h = floor(|yy|·H + |yx|·W + 1e-6) and
          w = floor(|xy|·H + |xx|·W + 1e-6), with its centre at e = ((h−1)/2, (w−1)/2). Sample q reads x at
          u = T⁻¹(q − e) + c.
        - The zeros of `padding` are put around each canvas.
        - Output p reads the response at v = (T(t·p + r − c) + e − r)/t: the centre of the kernel stays over the same
          point of the pattern. The kernel itself is not turned, the image under it is.
        - 'bilinear' reads the four neighbours of a point. 'nearest' reads one pixel and rounds half away from zero.
        - Border 'zeros': a sample outside [−½, H−½] × [−½, W−½] is zero, and an output that would read outside of the
          responses, by the same rule, takes no part at this level; up to half a pixel beyond, edge pixels are
          clamped. 'clamp': the nearest edge pixel is read. 'reflect': the image is mirrored at the centres of its
          edge pixels, as `torch.nn.functional.pad` does it. Both take part everywhere.
        - A level that is too small for the kernel takes no part. A tie goes to the transform listed first.

    The gradient goes to the winning level only, and can be differentiated again. Quarter turns permute pixels and lose
    nothing; other rotations interpolate twice, as scales do.

    Args:
        input: images, of a floating-point type.
        weight: filters, shared by all transforms.
        bias: one number per filter, or None.
        stride, dilation: an integer or a pair (height, width).
        padding: an integer, a pair, 'valid' or 'same' (which needs a stride of 1).
        groups: blocks of channels that are convolved apart.
        transforms: made by `rotation`, `scaling`, `shear` and `affine`; distinct, the identity among them.
        interpolation: 'bilinear' or 'nearest'.
        border: 'zeros', 'clamp' or 'reflect'.
        return_winner: also return, for each output, the index in `transforms` of the level it came from.

    Returns:
        The output, or (output, winner) with winner a uint8 tensor of the output's shape. A channels_last input gives a
        channels_last output.

    Raises:
        TypeError: an argument of the wrong type, an integer tensor, or tensors of different types.
        ValueError: an argument that breaks its rule, shapes that do not fit, or tensors on different devices.
        RuntimeError: a call inside `torch.jit.trace`, or inside an exporter that uses it.

    Example:
        >>> from scaleconv import rotation
        >>> image, weight = torch.rand(1, 3, 32, 32), torch.rand(8, 3, 5, 5)
        >>> turns = [rotation(degrees) for degrees in (0, 90, 180, 270)]
        >>> output = ti_conv2d(image, weight, transforms=turns)
        >>> turned = ti_conv2d(torch.rot90(image, 1, (2, 3)), weight, transforms=turns)
        >>> torch.allclose(turned, torch.rot90(output, 1, (2, 3)), atol=1e-4)
        True
    """
    convolution, reading = (stride, padding, dilation, groups), (interpolation, border)
    return evaluate(check_ti_call, input, weight, bias, convolution, transforms, reading, return_winner)


def evaluate(
    check: Check,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    convolution: tuple[Any, ...],
    maps: Iterable[Any],
    others: tuple[Any, ...],
    return_winner: bool,
    axes: int = 2,
) -> Tensor | tuple[Tensor, Tensor]:
    """Check a call on images with so many axes and evaluate it.

    `check` gets the shapes, then stride, padding, dilation and groups, the scales or transforms, and the `others`.
    """
    refuse_jit_trace()
    check_flag("return_winner", return_winner)
    maps = tuple(maps) if isinstance(maps, Iterator) else maps  # which can be read but once
    input, weight, bias = _autocast(input), _autocast(weight), _autocast(bias)
    _check_tensors(input, weight, bias)
    settings = _settings(check, (input.shape, weight.shape, *convolution, maps, *others))
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"`bias` must hold one number per output channel (={weight.shape[0]}), got shape {tuple(bias.shape)}"
        )
    images = input if input.ndim == axes + 2 else input.unsqueeze(0)
    if axes == 1:
        images, weight = images.unsqueeze(2), weight.unsqueeze(2)
    output, winner = _evaluate(images, weight, bias, settings, return_winner)

    def as_given(result: Tensor) -> Tensor:
        result = result.squeeze(2) if axes == 1 else result
        return result.squeeze(0) if input.ndim == axes + 1 else result

    if winner is None or not return_winner:
        return as_given(output)
    order = competing_order(settings.identity, len(settings.matrices))
    winner = torch.tensor(order, dtype=torch.uint8, device=input.device)[winner.long()]  # as ONNX has it
    return as_given(output), as_given(winner)


def _evaluate(
    images: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, return_winner: bool
) -> tuple[Tensor, Tensor | None]:
    """Output and winner by the way that suits the tensors and whatever traces or transforms them."""
    if is_exporting() and has_fixed_size(images, settings):
        return fixed_size_conv(images, weight, bias, settings, return_winner)
    if needs_plain_operations(images, weight, bias, settings):
        return traceable_conv(images, weight, bias, settings)
    if is_eager(images, weight, bias):
        results: tuple[Tensor, Tensor] = custom_op.EagerTIConv2d.apply(images, weight, bias, settings)
        return results
    if not torch.compiler.is_compiling():
        flops.tell_counters()
    planned: tuple[Tensor, Tensor] = custom_op.ti_conv2d(images, weight, bias, *settings.arguments)
    return planned


def _settings(check: Check, call: tuple[Any, ...]) -> Settings:
    """Check the arguments, once for all calls that are alike."""
    if torch.compiler.is_compiling():  # the sizes may be symbolic, but all else is part of the graph
        return check(*call[:2], *map(_plain, call[2:]))
    inside = tuple([tuple(map(type, value)) for value in call[2:7] if isinstance(value, tuple)])
    try:
        return _check_once(check, inside, *call)
    except TypeError:  # a list has no hash; and an argument of a wrong type is to be named
        return check(*call)


@lru_cache(maxsize=1024, typed=True)
def _check_once(check: Check, inside: tuple[tuple[type, ...], ...], *call: Any) -> Settings:
    """The key of the cache holds the types of the arguments and of what is `inside` tuples: (1, 1) == (True, 1.0)."""
    return check(*call)


def _plain(value: Any) -> Any:
    """Plain numbers, alone, in a sequence or in a transform, for the symbolic ones of a compiler."""
    if isinstance(value, Transform):
        return Transform(_plain(value.matrix))
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
        if tensor.layout != torch.strided:
            raise TypeError(f"`{name}` must be dense, got the layout {tensor.layout}")
        if tensor.dtype != input.dtype:
            raise TypeError(f"`{name}` must have the type of `input` (={input.dtype}), got {tensor.dtype}")
        if tensor.device != input.device:
            raise ValueError(f"`{name}` must be on the device of `input` (={input.device}), got {tensor.device}")
