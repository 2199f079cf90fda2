"""The convolution of a canvas, and its transposes: what leads to the gradients of the canvas and of the weight.

PyTorch's own convolution is called (cuDNN, oneDNN), with two exceptions: patches are multiplied as matrices, and a GPU
has Triton kernels for depthwise layers. For scale 1 the input itself is convolved here. Pixels are (N, H, W, C), images
(N, C, H, W).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Call
from .geometry import Axis
from .plan import Canvas, Plan
from .torch_private import tf32_of_convolutions


def to_pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C)."""
    return images.permute(0, 2, 3, 1).contiguous()


def to_images(pixels: Tensor) -> Tensor:
    """(N, H, W, C) as (N, C, H, W) in channels_last."""
    return pixels.permute(0, 3, 1, 2)


def _in_safe_layout(stride: Sequence[int], *tensors: Tensor) -> Sequence[Tensor]:
    """The tensors in a layout that PyTorch computes rightly.

    With a stride of (1, n), oneDNN leaves outputs of one channel in channels_last unwritten, in float32 on a CPU.
    """
    if stride[0] == 1 < stride[1]:
        return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
    return [_with_usual_strides(tensor) if 1 in (tensor.shape[0], *tensor.shape[2:]) else tensor for tensor in tensors]


def _with_usual_strides(tensor: Tensor) -> Tensor:
    """The same tensor (N, C, H, W), contiguous or in channels_last.

    Along an axis of length 1, the batch among them, a contiguous tensor may have any stride. PyTorch's own convolutions
    read it, and give gradients of other pixels; a view has the stride that follows from the shape.
    """
    pixels = tensor.permute(0, 2, 3, 1)
    if pixels.is_contiguous():
        return to_images(pixels.view(pixels.shape))
    return tensor.contiguous().view(tensor.shape)


def conv2d(images: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    safe = safe_arguments(call)
    images, weight = _in_safe_layout(safe.stride, safe.seen(images), weight)
    return F.conv2d(images, weight, bias, safe.stride, safe.padding, safe.dilation, call.groups)


def conv2d_backward(
    grad: Tensor, images: Tensor, weight: Tensor, call: Call, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the images as pixels (N, H, W, C), and of the weight."""
    safe = safe_arguments(call)
    grad, seen, weight = _in_safe_layout(safe.stride, grad, safe.seen(images), weight)
    to_seen, to_weight, _ = torch.ops.aten.convolution_backward(
        grad, seen, weight, None, safe.stride, safe.padding, safe.dilation, False, [0, 0], call.groups,
        [*needed[:2], False],
    )  # fmt: skip
    return to_pixels(safe.to_images(to_seen, images)) if needed[0] else None, to_weight


@dataclass(frozen=True)
class SafeArguments:
    """The arguments with which PyTorch's convolution of the images is right.

    A stride matters along an axis only where there are several taps and several outputs. Elsewhere the pixels that
    are read are picked here and the stride is 1: that is less to read, and oneDNN has errors in these corners. With
    one column of outputs and a stride of (1, n) it leaves outputs unwritten, and with padding of its own weights in
    bfloat16; the gradient of a strided 1×1 filter in channels_last writes beyond its memory if there are few channels.
    Where a tap reads padding alone, its weights are left unwritten in bfloat16, or the process crashes.
    """

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    framed: list[int]  # padding by us, in the order of `F.pad`
    picked: tuple[slice, slice]

    def seen(self, images: Tensor) -> Tensor:
        padded = F.pad(images, self.framed) if any(self.framed) else images
        return padded[..., self.picked[0], self.picked[1]]

    def to_images(self, to_seen: Tensor, images: Tensor) -> Tensor:
        """The gradient of the images from that of `seen`."""
        (left, right, above, below), (height, width) = self.framed, images.shape[2:]
        if to_seen.shape[2:] == (height + above + below, width + left + right):
            to_padded = to_seen
        else:
            to_padded = to_seen.new_zeros((*images.shape[:2], height + above + below, width + left + right))
            to_padded[..., self.picked[0], self.picked[1]] = to_seen
        return to_padded[..., above : above + height, left : left + width]


@lru_cache(maxsize=1024)
def safe_arguments(call: Call) -> SafeArguments:
    axes = (call.height, call.width)
    steps = [axis.stride if axis.stride_matters(axis.output_size) else 1 for axis in axes]
    framed = steps[0] == 1 < steps[1] or any(axis.has_blind_taps for axis in axes)
    high, wide = (_along(axis, framed=framed) for axis in axes)
    dilation = [axis.dilation for axis in axes]
    return SafeArguments([high[0], wide[0]], [high[1], wide[1]], dilation, [*wide[2], *high[2]], (high[3], wide[3]))


def _along(axis: Axis, *, framed: bool) -> tuple[int, int, tuple[int, int], slice]:
    """Stride and padding that are left to the library, padding by us, all of it if `framed`, and the pixels to pick."""
    if axis.stride == 1 or axis.stride_matters(axis.output_size):
        if framed:
            return axis.stride, 0, axis.padding, slice(None)
        return axis.stride, axis.padding[0], (0, axis.padding[1] - axis.padding[0]), slice(None)
    last = axis.stride * (axis.output_size - 1) + axis.reach
    return 1, 0, axis.padding, slice(0, last + 1, axis.stride if axis.kernel == 1 else 1)


def convolve(sampled: Tensor, weight: Tensor, canvas: Canvas, plan: Plan) -> Tensor:
    """Responses of a canvas, (N, h', w', M) in the layout of the plan."""
    groups = plan.call.groups
    if canvas.planar:
        with tf32_of_convolutions():
            patches = _matrices(sampled, groups, len(sampled) * math.prod(canvas.taps or ()))
            response = torch.bmm(_filter_columns(weight, groups).mT, patches)  # (groups, M / groups, positions)
        return response.view(len(weight), *canvas.response, sampled.shape[3])
    if canvas.taps:
        return to_pixels(F.conv2d(to_images(sampled), _taps_as_channels(weight)))
    if plan.gpu and plan.call.depthwise:
        depthwise: Tensor = _kernels().depthwise(sampled, weight, canvas.stride, canvas.dilation)
        return depthwise
    images, weight = _in_safe_layout(canvas.stride, to_images(sampled), weight)
    return to_pixels(F.conv2d(images, weight, None, canvas.stride, 0, canvas.dilation, groups))


def sampled_grad(grad: Tensor, weight: Tensor, canvas: Canvas, plan: Plan) -> Tensor:
    """The gradient of a sampled canvas from that of its responses."""
    groups = plan.call.groups
    if canvas.planar:
        with tf32_of_convolutions():
            to_sampled = torch.bmm(_filter_columns(weight, groups), _matrices(grad, groups, len(grad)))
        return to_sampled.view(canvas.shape(plan.call.in_channels, grad.shape[3]))
    if canvas.taps:
        return to_pixels(F.conv_transpose2d(to_images(grad), _taps_as_channels(weight)))
    if plan.gpu and plan.call.depthwise:
        depthwise: Tensor = _kernels().depthwise_input_grad(grad, weight, canvas.size, canvas.stride, canvas.dilation)
        return depthwise
    reach = [d * (k - 1) for d, k in zip(canvas.dilation, weight.shape[2:], strict=True)]
    beyond = [
        length - (count - 1) * t - far - 1
        for length, count, t, far in zip(canvas.size, canvas.response, canvas.stride, reach, strict=True)
    ]
    images, weight = _in_safe_layout(canvas.stride, to_images(grad), weight)
    return to_pixels(F.conv_transpose2d(images, weight, None, canvas.stride, 0, beyond, groups, canvas.dilation))


def weight_grad(grad: Tensor, sampled: Tensor, weight: Tensor, canvas: Canvas, plan: Plan) -> Tensor:
    """The gradient of the weight from that of the responses of a canvas."""
    groups = plan.call.groups
    if canvas.planar:
        with tf32_of_convolutions():
            patches = _matrices(sampled, groups, len(sampled) * math.prod(canvas.taps or ()))
            both = zip(patches, _matrices(grad, groups, len(grad)), strict=True)
            return torch.cat([(patch @ sent.mT).mT for patch, sent in both]).view(weight.shape)
    if plan.gpu and plan.call.depthwise:
        depthwise: Tensor = _kernels().depthwise_weight_grad(grad, sampled, weight, canvas.stride, canvas.dilation)
        return depthwise
    filters, stride = (_taps_as_channels(weight), (1, 1)) if canvas.taps else (weight, canvas.stride)
    sent, seen, filters = _in_safe_layout(stride, to_images(grad), to_images(sampled), filters)
    to_weight: Tensor
    _, to_weight, _ = torch.ops.aten.convolution_backward(
        sent, seen, filters, None, stride, [0, 0], canvas.dilation, False, [0, 0], groups, [False, True, False]
    )
    if canvas.taps:
        to_weight = to_weight.reshape(len(weight), *canvas.taps, weight.shape[1]).permute(0, 3, 1, 2)
    return to_weight


def _taps_as_channels(weight: Tensor) -> Tensor:
    """(M, C, Kh, Kw) as (M, Kh · Kw · C, 1, 1)."""
    return weight.permute(0, 2, 3, 1).flatten(1)[:, :, None, None]


def _matrices(tensor: Tensor, groups: int, rows: int) -> Tensor:
    """A weight (M, …) or planes (C, H, W, N) as matrices with so many rows in all, one for each group."""
    return tensor.reshape(groups, rows // groups, tensor.numel() // rows)


def _filter_columns(weight: Tensor, groups: int) -> Tensor:
    """The weight as matrices (groups, taps, M / groups), whose rows begin where a GPU reads fast."""
    return _matrices(weight, groups, len(weight)).mT.contiguous()


def _kernels() -> ModuleType:
    from .triton import depthwise

    return depthwise
