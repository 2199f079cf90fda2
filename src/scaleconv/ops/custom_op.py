"""The layer as an operator that PyTorch knows: `torch.ops.scaleconv.ti_conv2d`.

To compilers it is one node whose result has the shape of a convolution's, so one compiled graph serves all sizes. What
PyTorch needs to know is here: the implementation, the shapes and strides of the results for tracing, the derivative,
the rules for `torch.vmap`, and how many floating-point operations it takes.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .call import Call
from .geometry import count_responses
from .levels import traceable_conv
from .macs import Macs, count_planned
from .plan import Plan, make_plan
from .scale_max import scale_max_backward, scale_max_forward
from .torch_private import active_dispatch_modes, is_eager

# Written out, because older versions of torch cannot read all of the annotations. `padding` is above, below, left,
# right; `matrices` holds four numbers for each map.
ARGUMENTS = (
    "int[] stride, int[] padding, int[] dilation, int groups, float[] matrices, str interpolation, str border, "
    "bool antialias"
)
FORWARD = f"(Tensor input, Tensor weight, Tensor? bias, {ARGUMENTS}) -> (Tensor, Tensor)"
BACKWARD = (
    f"(Tensor grad, Tensor input, Tensor weight, Tensor winner, {ARGUMENTS}, bool[] needed) -> (Tensor, Tensor, Tensor)"
)


def find_plan(input: Tensor, call: Call) -> Plan:
    """The plan for these images."""
    return make_plan(call.cropped if input.is_cpu else call, len(input), not input.is_cpu)


@torch.library.custom_op("scaleconv::ti_conv2d", mutates_args=(), schema=FORWARD)
def ti_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner as the place of its level in the order in which the maps compete."""
    return run_forward(input, weight, bias, Call.of(input.shape, weight.shape, *arguments))


def run_forward(input: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
    """Output in the layout that `conv2d` gives it, and winner in channels_last."""
    with torch.cuda.device_of(input):  # Triton launches on the current GPU, whichever the tensors are on
        output, winner = scale_max_forward(input, weight, bias, find_plan(input, call))
    if not (is_channels_last(input) or is_channels_last(weight)):
        output = output.clone(memory_format=torch.contiguous_format)
    return output, winner


def run_backward(
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, call: Call, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the input, the weight and the bias, laid out as those; None where not needed."""
    grads: list[Tensor | None] = [None, None, None]
    if needed[0] or needed[1]:
        with torch.cuda.device_of(input):
            found = scale_max_backward(grad, input, weight, winner, find_plan(input, call), needed)
        pairs = zip(found, (input, weight), strict=True)
        grads[:2] = [None if each is None else _laid_out_as(tensor, each) for each, tensor in pairs]
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


def _laid_out_as(model: Tensor, tensor: Tensor) -> Tensor:
    """The tensor with the strides that a copy of the model would have."""
    copy = torch.empty_like(model)
    return tensor if tensor.stride() == copy.stride() else copy.copy_(tensor)


@ti_conv2d.register_fake
def _(input, weight, bias, stride, padding, dilation, *_):  # type: ignore[no-untyped-def]
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
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of the weight and of the bias; without elements where they are not needed."""
    *settings, needed = arguments
    grads = run_backward(grad, input, weight, winner, Call.of(input.shape, weight.shape, *settings), needed)
    first, second, third = (weight.new_empty(0) if each is None else each for each in grads)
    return first, second, third


@ti_conv2d_backward.register_fake
def _(grad, input, weight, winner, *arguments):  # type: ignore[no-untyped-def]
    needed = arguments[-1]
    return (
        torch.empty_like(input) if needed[0] else weight.new_empty(0),
        torch.empty_like(weight) if needed[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0] if needed[2] else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, _, *arguments = inputs
    ctx.call = arguments[0] if len(arguments) == 1 else Call.of(input.shape, weight.shape, *arguments)
    ctx.absent = [None] * len(arguments)
    ctx.save_for_backward(input, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _winner: Tensor) -> tuple[Tensor | None, ...]:
    input, weight, winner = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:3])
    grads: list[Tensor | None] = [None, None, None]
    if torch.is_grad_enabled():  # to be differentiated again
        grads = _differentiable_backward(grad, input, weight, ctx.call, needed)
    elif is_eager(grad, input, weight):
        grads = run_backward(grad, input, weight, winner, ctx.call, needed)
    elif any(needed):  # a compiler traces, gradients are a batch, or somebody counts
        every = ti_conv2d_backward(grad, input, weight, winner, *ctx.call.arguments, needed)
        grads = [one if wanted else None for one, wanted in zip(every, needed, strict=True)]
    return *grads, *ctx.absent


def _differentiable_backward(
    grad: Tensor, input: Tensor, weight: Tensor, call: Call, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by operations that can be differentiated themselves."""
    output, _ = traceable_conv(input, weight, None, call)
    wanted = [tensor for tensor, want in zip((input, weight), needed, strict=False) if want]
    found = iter(torch.autograd.grad(output, wanted, grad, create_graph=True) if wanted else ())
    return [next(found) if want else None for want in needed[:2]] + [grad.sum((0, 2, 3)) if needed[2] else None]


ti_conv2d.register_autograd(_differentiate, setup_context=_save)


class EagerTIConv2d(torch.autograd.Function):
    """The operator for tensors that nothing traces or transforms.

    Through the dispatcher, a small layer takes longer and the first call imports all of the compiler.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
        results = run_forward(input, weight, bias, call)
        _save(ctx, (input, weight, bias, call), results)
        return results

    backward = staticmethod(_differentiate)


@ti_conv2d.register_vmap
def _(info, in_dims, input, weight, bias, stride, padding, dilation, groups, *levels):  # type: ignore[no-untyped-def]
    """Images of a batch of calls join one batch; filters of a batch of calls become groups."""
    count, along = info.batch_size, (stride, padding, dilation)
    if in_dims[1] is None and in_dims[2] is None:
        images = input.movedim(in_dims[0], 0).flatten(0, 1)
        results = ti_conv2d(images, weight, bias, *along, groups, *levels)
        return tuple(result.unflatten(0, (count, -1)) for result in results), (0, 0)

    def every(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    images = every(input, in_dims[0]).transpose(0, 1).flatten(1, 2)  # (N, calls · C, H, W)
    filters = every(weight, in_dims[1]).flatten(0, 1)
    biases = None if bias is None else every(bias, in_dims[2]).flatten(0, 1)
    results = ti_conv2d(images, filters, biases, *along, count * groups, *levels)
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


COUNTER = "torch.utils.flop_counter"


def register_flop_formulas() -> None:
    """Tell `FlopCounterMode` and its users how to count the operators; also a counter that counts already.

    To import the counter imports Triton, 70 MB of it. So this does nothing unless somebody else has imported it, and is
    called whenever somebody may count.
    """
    if COUNTER not in sys.modules or torch.ops.scaleconv.ti_conv2d in sys.modules[COUNTER].flop_registry:
        return
    formulas = {torch.ops.scaleconv.ti_conv2d: _flops_forward, torch.ops.scaleconv.ti_conv2d_backward: _flops_backward}
    for operator, formula in formulas.items():
        sys.modules[COUNTER].register_flop_formula(operator, get_raw=True)(formula)
    for mode in active_dispatch_modes():
        known = getattr(getattr(mode, "counter", None), "flop_registry", None)  # a copy of what was there when it began
        if isinstance(known, dict):
            known.update(formulas)


def _flops_forward(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any, out_val: Any = None) -> int:
    """Two operations for each multiply-accumulate, as for PyTorch's own convolution."""
    return 2 * len(input) * _macs(input, weight, arguments).total


def _flops_backward(grad: Tensor, input: Tensor, weight: Tensor, *arguments: Any, out_val: Any = None) -> int:
    _winner, *settings, needed = arguments
    return 2 * len(input) * _macs(input, weight, settings).backward(*needed[:2])


def _macs(input: Tensor, weight: Tensor, arguments: Sequence[Any]) -> Macs:
    return count_planned(Call.of(input.shape, weight.shape, *arguments), len(input), not input.is_cpu)
