"""The layer as an operator that PyTorch knows: `torch.ops.scaleconv.ti_conv2d`.

To compilers it is one node whose result has the shape of a convolution's, so one compiled graph serves all sizes. What
PyTorch needs to know is here: the implementation, the shapes and strides of the results for tracing, the derivative,
the rules for `torch.vmap`, and how many operations it takes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .dispatch import is_eager
from .geometry import count_responses
from .macs import Macs, count_planned
from .plan import Plan, make_plan
from .scale_max import scale_max_backward, scale_max_forward
from .signature import Settings, Signature
from .traceable import traceable_conv

# Written out, because older versions of torch cannot read all of the annotations.
SETTINGS = (
    "int[] stride, int[] padding, int[] dilation, int groups, float[] matrices, str interpolation, str border, "
    "bool antialias"
)
FORWARD = f"(Tensor input, Tensor weight, Tensor? bias, {SETTINGS}) -> (Tensor, Tensor)"
BACKWARD = (
    f"(Tensor grad, Tensor input, Tensor weight, Tensor winner, {SETTINGS}, bool[] needed) -> (Tensor, Tensor, Tensor)"
)


@lru_cache(maxsize=1024)
def find_plan(images: torch.Size, weight: torch.Size, settings: Settings, gpu: bool) -> Plan:
    """The plan of a call, from the cache if there was one like it."""
    return make_plan(Signature.of(tuple(images[1:]), tuple(weight), settings), settings.antialias, images[0], gpu)


def _find_plan(input: Tensor, weight: Tensor, arguments: Sequence[Any]) -> Plan:
    return find_plan(input.shape, weight.shape, Settings.of_arguments(*arguments), not input.is_cpu)


@torch.library.custom_op("scaleconv::ti_conv2d", mutates_args=(), schema=FORWARD)
def ti_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    matrices: list[float],
    interpolation: str,
    border: str,
    antialias: bool,
) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner as the place of its level in the order in which the maps compete.

    `padding` is above, below, left, right; `matrices` holds four numbers for each map.
    """
    arguments = (stride, padding, dilation, groups, matrices, interpolation, border, antialias)
    return run_forward(input, weight, bias, _find_plan(input, weight, arguments))


def run_forward(input: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor]:
    """Output in the layout that `conv2d` gives it, and winner in channels_last."""
    with torch.cuda.device_of(input):  # Triton launches on the current GPU, whichever the tensors are on
        output, winner = scale_max_forward(input, weight, bias, plan)
    if not (is_channels_last(input) or is_channels_last(weight)):
        output = output.clone(memory_format=torch.contiguous_format)
    return output, winner


def run_backward(
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, plan: Plan, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the input, the weight and the bias, laid out as those; None where not needed."""
    grads: list[Tensor | None] = [None, None, None]
    if needed[0] or needed[1]:
        with torch.cuda.device_of(input):
            to_input, to_weight = scale_max_backward(grad, input, weight, winner, plan, needed)
        if to_input is not None:
            grads[0] = _like(to_input, input)
        if to_weight is not None:
            grads[1] = _like(to_weight, weight)
    if needed[2]:  # whichever level won, the bias was added to it once
        grads[2] = grad.sum((0, 2, 3))
    return grads


def is_channels_last(tensor: Tensor) -> bool:
    """Whether PyTorch takes (N, C, H, W) for channels_last: by its strides, from the innermost axis outwards.

    A contiguous 1×1 map is none, though the channels are innermost in memory there.
    """
    least = 0
    for axis in (1, 3, 2, 0):
        length, stride = tensor.shape[axis], tensor.stride(axis)
        if length == 0 or stride < least or (axis == 0 and least == tensor.stride(1)):
            return False
        least = stride * length if length > 1 else stride
    return True


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """The same numbers, laid out as the other tensor would be copied."""
    copy = torch.empty_like(other)
    return tensor if tensor.stride() == copy.stride() else copy.copy_(tensor)


@ti_conv2d.register_fake
def _(input, weight, bias, stride, padding, dilation, groups, matrices, interpolation, border, antialias):  # type: ignore[no-untyped-def]
    images, filters = input.shape[0], weight.shape[0]
    height, width = (
        count_responses(
            input.shape[2 + i], weight.shape[2 + i], stride[i], dilation[i], padding[2 * i] + padding[2 * i + 1]
        )
        for i in (0, 1)
    )
    winner = input.new_empty((images, height, width, filters), dtype=torch.uint8).permute(0, 3, 1, 2)
    if is_channels_last(input) or is_channels_last(weight):
        return input.new_empty((images, height, width, filters)).permute(0, 3, 1, 2), winner
    return input.new_empty((images, filters, height, width)), winner


@torch.library.custom_op("scaleconv::ti_conv2d_backward", mutates_args=(), schema=BACKWARD)
def ti_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    winner: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    matrices: list[float],
    interpolation: str,
    border: str,
    antialias: bool,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of the weight and of the bias; without elements where they are not needed."""
    arguments = (stride, padding, dilation, groups, matrices, interpolation, border, antialias)
    plan = _find_plan(input, weight, arguments)
    grads = run_backward(grad, input, weight, winner, plan, needed)
    first, second, third = (weight.new_empty(0) if each is None else each for each in grads)
    return first, second, third


@ti_conv2d_backward.register_fake
def _(grad, input, weight, winner, *settings):  # type: ignore[no-untyped-def]
    needed = settings[-1]
    return (
        torch.empty_like(input) if needed[0] else weight.new_empty(0),
        torch.empty_like(weight) if needed[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0] if needed[2] else 0),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, _, *ctx.arguments = inputs
    ctx.save_for_backward(input, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor | None, ...]:
    input, weight, winner = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:3])
    grads: list[Tensor | None] = [None, None, None]
    if torch.is_grad_enabled():  # to be differentiated again
        grads = differentiable_backward(grad, input, weight, Settings.of_arguments(*ctx.arguments), needed)
    elif any(needed):
        every = ti_conv2d_backward(grad, input, weight, winner, *ctx.arguments, needed)
        grads = [one if wanted else None for one, wanted in zip(every, needed, strict=True)]
    return *grads, *(None for _ in ctx.arguments)


def differentiable_backward(
    grad: Tensor, input: Tensor, weight: Tensor, settings: Settings, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by operations that can be differentiated themselves."""
    output, _ = traceable_conv(input, weight, None, settings)
    wanted = [tensor for tensor, want in zip((input, weight), needed, strict=False) if want]
    found = iter(torch.autograd.grad(output, wanted, grad, create_graph=True) if wanted else ())
    return [next(found) if want else None for want in needed[:2]] + [grad.sum((0, 2, 3)) if needed[2] else None]


ti_conv2d.register_autograd(_differentiate, setup_context=_keep)


class EagerTIConv2d(torch.autograd.Function):
    """What the operator does, for tensors that nothing traces or transforms, without the time of the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings
    ) -> tuple[Tensor, Tensor]:
        ctx.plan, ctx.settings = find_plan(input.shape, weight.shape, settings, not input.is_cpu), settings
        output, winner = run_forward(input, weight, bias, ctx.plan)
        ctx.save_for_backward(input, weight, winner)
        ctx.mark_non_differentiable(winner)
        return output, winner

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, winner = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # to be differentiated again
            grads = differentiable_backward(grad, input, weight, ctx.settings, needed)
        elif is_eager(grad, input, weight):
            grads = run_backward(grad, input, weight, winner, ctx.plan, needed)
        else:  # a batch of gradients, or somebody counts
            every = ti_conv2d_backward(grad, input, weight, winner, *ctx.settings.arguments, list(needed))
            grads = [one if wanted else None for one, wanted in zip(every, needed, strict=True)]
        return *grads, None


@lru_cache(maxsize=1024)
def _count(plan: Plan) -> Macs:
    return count_planned(plan)


@register_flop_formula(torch.ops.scaleconv.ti_conv2d, get_raw=True)
def _(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any, out_val: Any = None) -> int:
    """Floating-point operations of a call: two for each multiply-accumulate, as for PyTorch's own convolution."""
    return 2 * len(input) * _count(_find_plan(input, weight, arguments)).total


@register_flop_formula(torch.ops.scaleconv.ti_conv2d_backward, get_raw=True)
def _(grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, *arguments: Any, out_val: Any = None) -> int:
    *settings, needed = arguments
    return 2 * len(input) * _count(_find_plan(input, weight, settings)).backward(*needed[:2])


@ti_conv2d.register_vmap
def _(info, in_dims, input, weight, bias, stride, padding, dilation, groups, *others):  # type: ignore[no-untyped-def]
    """Images of a batch of calls join one batch; filters of a batch of calls become groups."""
    count, settings = info.batch_size, (stride, padding, dilation)
    if in_dims[1] is None and in_dims[2] is None:
        images = input.movedim(in_dims[0], 0).flatten(0, 1)
        results = ti_conv2d(images, weight, bias, *settings, groups, *others)
        return tuple(result.unflatten(0, (count, -1)) for result in results), (0, 0)

    def every(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    images = every(input, in_dims[0]).transpose(0, 1).flatten(1, 2)  # (N, calls · C, H, W)
    filters = every(weight, in_dims[1]).flatten(0, 1)
    biases = None if bias is None else every(bias, in_dims[2]).flatten(0, 1)
    results = ti_conv2d(images, filters, biases, *settings, count * groups, *others)
    return tuple(result.unflatten(1, (count, -1)) for result in results), (1, 1)


@ti_conv2d_backward.register_vmap
def _(info, in_dims, grad, input, weight, winner, *arguments):  # type: ignore[no-untyped-def]
    """One call after the other: each has a gradient of the weight of its own."""
    tensors = [
        [tensor] * info.batch_size if dim is None else tensor.movedim(dim, 0).unbind()
        for tensor, dim in zip((grad, input, weight, winner), in_dims, strict=False)
    ]
    results = [ti_conv2d_backward(*one, *arguments) for one in zip(*tensors, strict=True)]
    return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0, 0, 0)
