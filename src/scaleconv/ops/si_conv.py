"""The locally scale-invariant convolution: `ti_conv2d` for scales, over one, two or three axes (paper, section 3).

The contract is here; `ti_conv` evaluates it, and `scaleconv.nn` only owns the parameters.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, overload

from torch import Tensor

from .signature import DEFAULT_SCALES, Padding, Size, check_si_call
from .ti_conv import evaluate


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
    return _evaluate(input, weight, bias, (stride, padding, dilation, groups), scales, antialias, return_winner, 2)


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
    return _evaluate(input, weight, bias, (stride, padding, dilation, groups), scales, antialias, return_winner, 1)


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
    return _evaluate(input, weight, bias, (stride, padding, dilation, groups), scales, antialias, return_winner, 3)


def _evaluate(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    convolution: tuple[Any, ...],
    scales: Iterable[float],
    antialias: bool,
    return_winner: bool,
    axes: int,
) -> Tensor | tuple[Tensor, Tensor]:
    others = (antialias, axes)
    return evaluate(check_si_call, input, weight, bias, convolution, scales, others, return_winner, axes)
