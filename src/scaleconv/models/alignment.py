"""The scale-invariant layer with other rules for alignment and borders, for experiments that ask if those matter.

Plain operations, for square images, of stride 1 without padding. `SIConv2d` is the layer for every other purpose: this
one is several times slower, and nothing but the items `alignment` and `unfamiliar` uses it.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.call import DEFAULT_SCALES, check_scales
from ..ops.geometry import SLACK, Axis, AxisLevel
from ..ops.resampling import linear_map

ALIGNMENTS = ("exact", "up", "down")
BORDERS = ("absent", "zeros", "clamp")


class AlignedSIConv2d(nn.Conv2d):
    """The scale-invariant layer with other rules for alignment and borders; the defaults are those of `SIConv2d`.

    Resampling and convolution are linear, so every level is the convolution, with a stride of the kernel, of the
    patches that the output positions see.

    Args:
        in_channels, out_channels, kernel_size: as of `Conv2d`.
        scales: of the levels.
        align: 'exact' keeps the centres of kernels in correspondence. 'up' and 'down' bring a response back by the
            inverse scale to a whole number of pixels, and crop or pad its leading side by whole pixels too, half a
            pixel rounded up or down. 'up' is what the authors' later code does (`CropCenter` in transformation.cpp of
            github.com/akanazawa/si-convnet).
        border: what a level gives where it does not reach. 'absent' takes no part in the maximum, as in that code;
            'zeros' is 0, which footnote 2 of the paper may mean; 'clamp' repeats the edge of its responses.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        align: str = "exact",
        border: str = "absent",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size)
        for name, value, known in (("align", align, ALIGNMENTS), ("border", border, BORDERS)):
            if value not in known:
                raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")
        self.scales, self.align, self.border = check_scales(scales), align, border
        self._made: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}

    def forward(self, input: Tensor) -> Tensor:
        result = super().forward(input)
        for patches, reached in self._levels(input):
            seen = patches @ input @ patches.mT  # (N, C, outputs · kernel, outputs · kernel)
            aligned = F.conv2d(seen, self.weight, self.bias, stride=self.kernel_size)
            outside = 0.0 if self.border == "zeros" else -math.inf
            result = torch.maximum(result, aligned.where(reached, outside))
        return result

    def _levels(self, input: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each scale but 1 what takes an image to its patches, and which outputs it reaches; square images only."""
        key = (input.shape[2], input.device, input.dtype)
        if key not in self._made:
            axis = Axis(input.shape[2], self.kernel_size[0], stride=1, padding=(0, 0), dilation=1)
            made = []
            for scale in self.scales:
                level = axis.level(scale)
                if scale != 1 and level is not None:
                    patches, reached = self._level(axis, level, scale)
                    made.append((patches.to(input), reached.to(input.device)))
            self._made[key] = made
        return self._made[key]

    def _level(self, axis: Axis, level: AxisLevel, scale: float) -> tuple[Tensor, Tensor]:
        targets = self._targets(axis, level, scale)
        inside = [-0.5 - SLACK <= v <= level.response_size - 0.5 + SLACK for v in targets]
        reached = torch.tensor([self.border == "clamp" or each for each in inside])
        align = linear_map(targets, level.response_size).dense()  # (outputs, responses)
        transform = linear_map(level.sources, axis.length).dense()  # (samples, length)
        shifted = [align @ transform[tap : tap + level.response_size] for tap in range(axis.kernel)]
        patches = torch.stack(shifted, dim=1).flatten(0, 1)  # (outputs · kernel, length)
        return patches, reached.unsqueeze(1) & reached

    def _targets(self, axis: Axis, level: AxisLevel, scale: float) -> list[float]:
        """Where each output reads the response; what lies beyond its edges is clamped or left out."""
        responses, outputs = level.response_size, axis.output_size
        if self.align == "exact":
            offset = 0.0
        else:
            size = math.floor(responses / scale + SLACK)  # of the response, brought back
            margin = abs(size - outputs) / 2  # what is cropped or padded on either side
            rounded = math.ceil(margin) if self.align == "up" else math.floor(margin)
            offset = rounded - margin if size > outputs else margin - rounded
        return [scale * (p + offset - (outputs - 1) / 2) + (responses - 1) / 2 for p in range(outputs)]
