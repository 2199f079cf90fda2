"""The scale-invariant layer in the order of the paper, by plain operations: rescale, convolve, align, take the maximum.

It shows what the layer costs when written so, and takes other rules for alignment, borders and responses, for
experiments that ask if those matter. `SIConv2d` is the layer for every other purpose: this one is several times slower.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ops.call import DEFAULT_SCALES, check_scales, make_call
from ..ops.checks import check_choice
from ..ops.geometry import SLACK, Axis, is_inside
from ..ops.resampling import linear_map

ALIGNMENTS = ("exact", "up", "down")
BORDERS = ("absent", "zeros", "clamp")
NORMALISED = ("none", "map", "level")
VARIANCE_EPSILON = 1e-5


class AxisMatrices(NamedTuple):
    """One axis of a level: what rescales it, (h, H); what aligns its responses, (H0, h'); the outputs it reaches."""

    sample: Tensor
    align: Tensor
    reached: Tensor


class DirectSIConv2d(nn.Conv2d):
    """The scale-invariant layer, every level rescaled and convolved whole; autograd does the rest.

    The matrices of an image size are kept. The defaults of `align`, `border` and `normalise` are the rules of
    `SIConv2d`.

    Args:
        in_channels, out_channels, kernel_size, convolution: as of `Conv2d`.
        scales: of the levels.
        align: 'exact' keeps the centres of kernels in correspondence. 'up' and 'down' bring a response back by the
            inverse scale to a whole number of pixels, and crop or pad its leading side by whole pixels too, half a
            pixel rounded up or down. 'up' is what the authors' later code does (`CropCenter` in transformation.cpp of
            github.com/akanazawa/si-convnet).
        border: what a level gives where it does not reach. 'absent' takes no part in the maximum, as in that code;
            'zeros' is 0, which footnote 2 of the paper may mean; 'clamp' repeats the edge of its responses.
        normalise: responses of a level, before the bias is added and they are aligned: 'none'; 'map' brings each map of
            each image to mean 0 and variance 1; 'level' does so with all maps of a level at once. The caption of Figure
            1 of the paper says that responses are normalised, and not how; these are the two ways of Caffe's MVN layer.

    Example:
        >>> DirectSIConv2d(3, 8, 3, padding=1, scales=(0.5, 1, 2))(torch.rand(2, 3, 12, 9)).shape
        torch.Size([2, 8, 12, 9])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        align: str = "exact",
        border: str = "absent",
        normalise: str = "none",
        **convolution: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, **convolution)
        check_choice("align", align, ALIGNMENTS)
        check_choice("border", border, BORDERS)
        check_choice("normalise", normalise, NORMALISED)
        self.scales, self.align, self.border, self.normalise = check_scales(scales), align, border, normalise
        self._made: dict[tuple[object, ...], list[tuple[AxisMatrices, AxisMatrices]]] = {}

    def forward(self, input: Tensor) -> Tensor:
        result = self._respond(input)
        outside = 0.0 if self.border == "zeros" else -math.inf
        for rows, columns in self._levels(input):
            response = self._respond(rows.sample @ input @ columns.sample.mT)  # (N, M, h', w')
            aligned = rows.align @ response @ columns.align.mT  # (N, M, H0, W0)
            result = torch.maximum(result, aligned.where(rows.reached.unsqueeze(1) & columns.reached, outside))
        return result

    def _respond(self, level: Tensor) -> Tensor:
        """The responses to a level, normalised."""
        if self.normalise == "none":
            return super().forward(level)
        response = self._conv_forward(level, self.weight, None)
        over = (2, 3) if self.normalise == "map" else (1, 2, 3)
        variance, mean = torch.var_mean(response, over, correction=0, keepdim=True)
        normal: Tensor = (response - mean) * (variance + VARIANCE_EPSILON).rsqrt()
        return normal if self.bias is None else normal + self.bias.view(-1, 1, 1)

    def _levels(self, input: Tensor) -> list[tuple[AxisMatrices, AxisMatrices]]:
        """The matrices of rows and columns of each level but scale 1."""
        key = (input.shape[-2:], input.device, input.dtype)
        if key not in self._made:
            convolution = (self.stride, self.padding, self.dilation, self.groups)
            height, width = make_call(input.shape, self.weight.shape, *convolution, self.scales).axes
            levels = [(self._along(height, s, input), self._along(width, s, input)) for s in self.scales if s != 1]
            self._made[key] = [(rows, columns) for rows, columns in levels if rows and columns]
        return self._made[key]

    def _along(self, axis: Axis, scale: float, input: Tensor) -> AxisMatrices | None:
        """The matrices of a level along one axis; None if it is too small for the kernel."""
        level = axis.level(scale, "clamp")  # with targets for all outputs
        if level is None:
            return None
        targets, responses, outputs = level.targets, level.response_size, axis.output_size
        if self.align != "exact":
            size = math.floor(responses / scale + SLACK)  # of the response, brought back
            margin = abs(size - outputs) / 2  # what is cropped or padded on either side
            rounded = math.ceil(margin) if self.align == "up" else math.floor(margin)
            offset = rounded - margin if size > outputs else margin - rounded
            targets = tuple(scale * (p + offset - (outputs - 1) / 2) + (responses - 1) / 2 for p in range(outputs))
        reached = torch.tensor([self.border == "clamp" or is_inside(target, responses) for target in targets])
        sample, align = linear_map(level.sources, axis.length), linear_map(targets, responses)
        return AxisMatrices(sample.dense().to(input), align.dense().to(input), reached.to(input.device))
