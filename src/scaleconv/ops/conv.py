"""The locally scale-invariant convolution and its general form: transform, convolve, align, pool (paper, section 3).

The contract of the functions is here, the checks of their tensors, and who evaluates a call. `scaleconv.nn` only owns
the parameters. A call is planned by `plan` and executed by `scale_max`, or taken apart by `levels` for whatever
traces or transforms it.
"""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeVar, overload

import torch
from torch import Tensor

from . import custom_op
from .call import DEFAULT_SCALES, Call, Padding, Size, find_call
from .checks import check_flag
from .fixed_size import fixed_size_conv
from .geometry import competing_order
from .levels import traceable_conv
from .torch_private import has_known_lengths, is_eager, is_exporting, under_functional_derivative
from .transforms import Transform

AnyTensor = TypeVar("AnyTensor", Tensor, Tensor | None)
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"


class SIConvolution(Protocol):
    """The type of all three functions: they return a tensor, or with `return_winner` a pair of them."""

    @overload
    def __call__(
        self,
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
    def __call__(
        self,
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


def _typed(function: Callable[..., Any]) -> SIConvolution:
    return function


@_typed
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

    Convention, for an axis of length H with kernel K, stride t, padding P and dilation d, the same for both axes:
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
    differentiated again, in reverse and in forward mode. `scales=(1,)` is `conv2d`, bit for bit; on a CPU, only to
    rounding in the corners in which that of PyTorch can be wrong (docs/reliability.md). A NaN or an infinity reaches
    every output that sees it, and no other.

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
        >>> import torch
        >>> image, weight = torch.rand(1, 3, 32, 32), torch.rand(8, 3, 5, 5)
        >>> si_conv2d(image, weight, padding=2).shape
        torch.Size([1, 8, 32, 32])
        >>> output, winner = si_conv2d(image, weight, scales=(1, 0.5, 2), return_winner=True)
        >>> winner.dtype, bool((output >= torch.nn.functional.conv2d(image, weight)).all())
        (torch.uint8, True)
    """
    arguments = (stride, padding, dilation, groups, scales, antialias)
    return _evaluate(input, weight, bias, *arguments, axes=2, return_winner=return_winner)


@_typed
def si_conv1d(
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
    """`si_conv2d` for signals: the same equations along one axis, by the same plan.

    Shapes:
        input (N, C, L) or (C, L), weight (M, C / groups, K), bias (M) → output (N, M, L0) or (M, L0), with L0 that of
        `conv1d`.

    Args, Returns, Raises: as for `si_conv2d`, with one number where that has a pair.

    Example:
        >>> import torch
        >>> si_conv1d(torch.rand(2, 3, 100), torch.rand(8, 3, 5), padding=2).shape
        torch.Size([2, 8, 100])
    """
    arguments = (stride, padding, dilation, groups, scales, antialias)
    return _evaluate(input, weight, bias, *arguments, axes=1, return_winner=return_winner)


@_typed
def si_conv3d(
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
    """`si_conv2d` for volumes: the same equations along three axes.

    It is evaluated in the paper's order by plain PyTorch operations: every level is rescaled and convolved whole.

    Shapes:
        input (N, C, D, H, W) or (C, D, H, W), weight (M, C / groups, Kd, Kh, Kw), bias (M) → output
        (N, M, D0, H0, W0) or (M, D0, H0, W0), with D0, H0 and W0 those of `conv3d`.

    Args, Returns, Raises: as for `si_conv2d`, with three numbers (depth, height, width) where that has a pair.

    Example:
        >>> import torch
        >>> si_conv3d(torch.rand(1, 2, 8, 9, 10), torch.rand(4, 2, 3, 3, 3), scales=(1, 0.7)).shape
        torch.Size([1, 4, 6, 7, 8])
    """
    arguments = (stride, padding, dilation, groups, scales, antialias)
    return _evaluate(input, weight, bias, *arguments, axes=3, return_winner=return_winner)


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
        input, weight, bias, stride, padding, dilation, groups: as for `si_conv2d`.
        transforms: made by `rotation`, `scaling`, `shear` and `affine`; distinct, the identity among them.
        interpolation: 'bilinear' or 'nearest'.
        border: 'zeros', 'clamp' or 'reflect'.
        return_winner: also return, for each output, the index in `transforms` of the level it came from.

    Returns, Raises: as for `si_conv2d`.

    Example:
        >>> from scaleconv import rotation
        >>> image, weight = torch.rand(1, 3, 32, 32), torch.rand(8, 3, 5, 5)
        >>> turns = [rotation(degrees) for degrees in (0, 90, 180, 270)]
        >>> output = ti_conv2d(image, weight, transforms=turns)
        >>> turned = ti_conv2d(torch.rot90(image, 1, (2, 3)), weight, transforms=turns)
        >>> torch.allclose(turned, torch.rot90(output, 1, (2, 3)), atol=1e-4)
        True
    """
    arguments = (stride, padding, dilation, groups)
    transforms = () if transforms is None else transforms
    reading: dict[str, Any] = {"interpolation": interpolation, "border": border}
    return _evaluate(input, weight, bias, *arguments, return_winner=return_winner, transforms=transforms, **reading)


def _evaluate(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *arguments: Any,
    return_winner: bool,
    axes: int = 2,
    **levels: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Check a call on images with so many axes and evaluate it; `arguments` and `levels` are those of `make_call`."""
    refuse_jit_trace()
    check_flag("return_winner", return_winner)
    input, weight, bias = _autocast(input), _autocast(weight), _autocast(bias)
    _check_tensors(input, weight, bias)
    call = find_call(input.shape, weight.shape, *arguments, axes=axes, **levels)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"`bias` must hold one number per output channel (={weight.shape[0]}), got shape {tuple(bias.shape)}"
        )
    images = input if input.ndim == axes + 2 else input.unsqueeze(0)
    if axes == 1:
        images, weight = images.unsqueeze(2), weight.unsqueeze(2)
    output, winner = _run(images, weight, bias, call, return_winner)

    def as_given(result: Tensor) -> Tensor:
        result = result.squeeze(2) if axes == 1 else result
        return result.squeeze(0) if input.ndim == axes + 1 else result

    if winner is None or not return_winner:
        return as_given(output)
    order = competing_order(call.identity, len(call.matrices))
    winner = torch.tensor(order, dtype=torch.uint8, device=input.device)[winner.long()]  # as ONNX has it
    return as_given(output), as_given(winner)


def _run(
    images: Tensor, weight: Tensor, bias: Tensor | None, call: Call, return_winner: bool
) -> tuple[Tensor, Tensor | None]:
    """Output and winner by the way that suits the tensors and whatever traces or transforms them."""
    if is_exporting() and images.ndim == 4 and not call.mixes_axes and has_known_lengths(images.shape[2:]):
        return fixed_size_conv(images, weight, bias, call, return_winner)
    if _needs_plain_operations(images, weight, bias, call):
        return traceable_conv(images, weight, bias, call)
    if is_eager(images, weight, bias):
        results: tuple[Tensor, Tensor] = custom_op.EagerTIConv2d.apply(images, weight, bias, call)
        return results
    if not torch.compiler.is_compiling():
        custom_op.register_flop_formulas()
    planned: tuple[Tensor, Tensor] = custom_op.ti_conv2d(images, weight, bias, *call.arguments)
    return planned


def _needs_plain_operations(images: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> bool:
    """Whether plain operations are to evaluate a call.

    One map alone is a convolution, and volumes have no plan. Exporters, derivatives in forward mode, `torch.func.grad`
    and devices without kernels of ours need them. A GPU needs them for float64, and for clamped borders of maps that
    mix the axes: an edge pixel is read so often there that tables of who reads it would not fit.
    """
    if len(call.matrices) == 1 or images.ndim == 5 or is_exporting():
        return True
    if not (images.is_cpu or (images.is_cuda and HAS_TRITON and images.dtype in KERNEL_TYPES)):
        return True
    if images.is_cuda and call.reading.border == "clamp" and call.mixes_axes:
        return True
    if torch.compiler.is_compiling():
        return False
    if images.is_cuda and not _runs_our_kernels(images.device):
        return True
    return under_functional_derivative(images, weight, bias)


@lru_cache(maxsize=64)
def _runs_our_kernels(device: torch.device) -> bool:
    """Whether the kernels were made for such a GPU: compute capability 8.0 or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def refuse_jit_trace() -> None:
    """Say what to use instead of `torch.jit.trace`, which would keep the sizes of its example as constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(
            "torch.jit.trace and torch.onnx.export(dynamo=False) cannot take a scale-invariant layer; "
            "use torch.export.export, torch.onnx.export(dynamo=True) or torch.compile"
        )


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
