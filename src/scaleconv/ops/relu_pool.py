"""ReLU and max-pooling as one operator that PyTorch knows: each value is read once, each gradient written once."""

from typing import Any

import torch
from torch import Tensor

LARGEST_KERNEL = 15  # the place of a winner within its window, and that of none, take a byte


@torch.library.custom_op(
    "scaleconv::relu_pool", mutates_args=(), schema="(Tensor input, int kernel) -> (Tensor, Tensor)"
)
def relu_pool(input: Tensor, kernel: int) -> tuple[Tensor, Tensor]:
    """`F.max_pool2d(F.relu(input), kernel, kernel, ceil_mode=True)` in channels_last, and its winners.

    Runs where the fused kernels do. Ties and NaNs are settled as they are there.

    Args:
        input: (N, C, H, W); fastest in channels_last.
        kernel: side and stride of the windows, which are cut where they reach over the edge.

    Returns:
        The output (N, C, ⌈H / kernel⌉, ⌈W / kernel⌉); and for each the place of the winner, counted along the rows
        of an uncut window, or 255 where nothing is positive and so nothing learns.

    Raises:
        ValueError: a kernel that breaks its rule, or an image without pixels.
    """
    from .kernels.relu_pool import pool

    _check(input, kernel)
    output, winner = _results(input, kernel)
    pool(_pixels(input), output.permute(0, 2, 3, 1), winner.permute(0, 2, 3, 1), kernel)
    return output, winner


@relu_pool.register_fake
def _(input, kernel):  # type: ignore[no-untyped-def]
    _check(input, kernel)
    return _results(input, kernel)


@torch.library.custom_op(
    "scaleconv::relu_pool_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor winner, int kernel, SymInt height, SymInt width) -> Tensor",
)
def relu_pool_backward(grad: Tensor, winner: Tensor, kernel: int, height: int, width: int) -> Tensor:
    """The gradient of the input (N, C, height, width), in channels_last."""
    from .kernels.relu_pool import spread

    result = _empty(grad, height, width, grad.dtype)
    spread(_pixels(grad), _pixels(winner), result.permute(0, 2, 3, 1), kernel)
    return result


@relu_pool_backward.register_fake
def _(grad, winner, kernel, height, width):  # type: ignore[no-untyped-def]
    return _empty(grad, height, width, grad.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, ctx.kernel = inputs
    ctx.size = input.shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor, None]:
    return relu_pool_backward(grad, *ctx.saved_tensors, ctx.kernel, *ctx.size), None


relu_pool.register_autograd(_differentiate, setup_context=_keep)


@relu_pool.register_vmap
def _(info, in_dims, input, kernel):  # type: ignore[no-untyped-def]
    results = relu_pool(input.movedim(in_dims[0], 0).flatten(0, 1), kernel)
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0, 0)


def _check(input: Tensor, kernel: int) -> None:
    if not 1 <= kernel <= LARGEST_KERNEL:
        raise ValueError(f"`kernel` must be from 1 to {LARGEST_KERNEL}, got {kernel}")
    if input.ndim != 4 or 0 in input.shape[1:]:
        raise ValueError(f"`input` must be of shape (N, C, H, W) with pixels, got {tuple(input.shape)}")


def _results(input: Tensor, kernel: int) -> tuple[Tensor, Tensor]:
    height, width = (-(-length // kernel) for length in input.shape[2:])
    return _empty(input, height, width, input.dtype), _empty(input, height, width, torch.uint8)


def _empty(like: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    return like.new_empty((like.shape[0], height, width, like.shape[1]), dtype=dtype).permute(0, 3, 1, 2)


def _pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return images.permute(0, 2, 3, 1).contiguous()
