"""The maximum over levels, forward and backward (paper, appendix A): what runs when a plan is executed.

Each canvas is sampled, convolved, aligned, and competes with the output so far. A level is linear in the input and in
the weight, and the maximum passes a gradient on to the level that won. So the winners are all that the backward pass
needs beside the input and the weight; it samples the canvases again. A canvas is made for some images at a time, which
bounds the memory. No sizes are decided here, and no resampling is done: `cpu` and `triton` have the steps.
"""

from collections.abc import Iterator, Sequence
from math import prod
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from . import cpu
from .convolution import conv2d, conv2d_backward, convolve, sampled_grad, to_images, to_pixels, weight_grad
from .plan import Canvas, Plan

CPU_CHUNK = 6 * 2**20  # bytes of a canvas and its responses that stay in a cache
GPU_CHUNK = 2**26  # bytes that they may take on a GPU however small the layer is


def scale_max_forward(input: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor]:
    """Output (N, M, H0, W0), and the winner by the codes of the levels, both in channels_last.

    Neither is a view of a tensor that was made here: autograd forbids to change such a one in place.
    """
    steps, call, pixels, weight = _steps(plan), plan.call, _pixels(input, plan), _laid_out(weight, plan)
    if plan.planar:
        result = pixels.new_empty((call.out_channels, *call.output_size, len(input)))  # and so it is copied in the end
    elif plan.identity is None:
        shape = (len(input), call.out_channels, *call.output_size)
        result = torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=torch.channels_last)
    else:
        result = conv2d(to_images(pixels) if plan.canvases else input, weight, None, call)
        result = result.contiguous(memory_format=torch.channels_last)
    won = torch.empty_like(result, dtype=torch.uint8)
    output, winner = (each if plan.planar else to_pixels(each) for each in (result, won))
    if plan.identity is not None:
        winner.fill_(plan.identity)
    for canvas in plan.canvases:
        for some in _chunks(pixels, canvas, plan):
            response = convolve(steps.sample(pixels[some], canvas), weight, canvas, plan)
            part = slice(None) if plan.planar else some  # of the images, which are innermost there
            steps.compete(response, canvas, output[part], winner[part])
    if plan.planar:
        result, won = (each.permute(3, 0, 1, 2).clone(memory_format=torch.channels_last) for each in (result, won))
    if bias is not None:  # which does not change the winner
        result += bias[:, None, None]
    return result, won


def scale_max_backward(
    grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, plan: Plan, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the input and of the weight, each None if it is not needed."""
    steps, call, pixels, taps = _steps(plan), plan.call, _pixels(input, plan), weight.shape[2:]
    weight = _laid_out(weight, plan)
    sent = _pixels(grad, plan)
    won = steps.to_compare(_pixels(winner, plan), sent)
    to_input = to_weight = None
    if plan.identity is not None:
        share = steps.mask_by_winner(sent, won, plan.identity) if plan.canvases else sent
        to_input, to_weight = conv2d_backward(to_images(share), to_images(pixels), weight, call, needed)
    elif needed[0]:
        to_input = torch.empty_like(pixels)
    for number, canvas in enumerate(plan.canvases):
        start = plan.identity is None and number == 0
        for some in _chunks(pixels, canvas, plan):
            share = steps.spread(sent, won, canvas) if plan.planar else steps.spread(sent[some], won[some], canvas)
            if needed[1]:
                by_weight = weight_grad(share, steps.sample(pixels[some], canvas), weight, canvas, plan)
                to_weight = by_weight if to_weight is None else to_weight + by_weight
            if to_input is not None:
                steps.collect(sampled_grad(share, weight, canvas, plan), canvas, to_input[some], start=start)
    if needed[1] and to_weight is None:  # there are no images
        to_weight = torch.zeros_like(weight)
    if to_weight is not None and to_weight.shape[2:] != taps:  # no gradient reaches the others
        high, wide = ((all_ - kept) // 2 for all_, kept in zip(taps, to_weight.shape[2:], strict=True))
        to_weight = F.pad(to_weight, (wide, wide, high, high))
    if to_input is not None:
        to_input = to_input.permute(3, 0, 1, 2) if plan.planar else to_images(to_input)
    return to_input, to_weight


def _steps(plan: Plan) -> ModuleType:
    if not plan.gpu:
        return cpu
    from .triton import steps

    return steps


def _chunks(pixels: Tensor, canvas: Canvas, plan: Plan) -> Iterator[slice]:
    """Images to take at a time: about equally many, and all of them in the layout CHWN."""
    images = len(pixels)
    if plan.planar:
        return iter([slice(0, images)])
    per_image = canvas.elements(plan.call) * pixels.element_size()
    outputs = prod(plan.call.output_size) * plan.call.out_channels
    both = pixels.nbytes + images * outputs * pixels.element_size()
    taps = plan.call.height.kernel * plan.call.width.kernel * plan.call.in_channels // plan.call.groups
    weight = taps * plan.call.out_channels * pixels.element_size()  # which every chunk reads anew
    allowed = max(GPU_CHUNK, 2 * both) if plan.gpu else max(CPU_CHUNK, 2 * weight)
    step = max(1, -(-images // max(1, -(-images * per_image // allowed))))
    return (slice(first, min(first + step, images)) for first in range(0, images, step))


def _laid_out(weight: Tensor, plan: Plan) -> Tensor:
    """The taps that the plan has, in the layout of the canvases, into which a library would bring them at each call."""
    kept = plan.call.height.kernel, plan.call.width.kernel
    high, wide = ((taps - each) // 2 for taps, each in zip(weight.shape[2:], kept, strict=True))
    weight = weight[:, :, high : high + kept[0], wide : wide + kept[1]]
    if plan.planar or not plan.canvases:
        return weight
    return weight.contiguous(memory_format=torch.channels_last)


def _pixels(images: Tensor, plan: Plan) -> Tensor:
    """(N, C, H, W) in the layout of the plan, contiguous: (N, H, W, C) or (C, H, W, N)."""
    return images.permute(1, 2, 3, 0).contiguous() if plan.planar else to_pixels(images)
