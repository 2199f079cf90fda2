"""Convolution with partially untied weights, which takes the place of `Conv2d` in `ConvNet` (paper, section 2).

Plain operations, stride 1, no padding. Networks with this layer have to learn invariance, at the price of more
parameters; they are compared with networks that have it built in.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class TiledConv2d(nn.Conv2d):
    """Convolution with partially untied weights, after Le et al., *Tiled convolutional neural networks* (2010).

    Outputs `tile` rows or columns apart share a filter, neighbours do not: tile² filters for each map. Followed by
    pooling, each pooled unit sees several filters of its map, and may learn to be invariant to what they differ in.

    Deviation: in `ConvNet` the maximum pools them, as in all networks of the comparison, and not the root of the sum of
    squares.

    Args:
        in_channels, out_channels, kernel_size: as of `Conv2d`.
        tile: 1 is plain convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, tile: int = 2) -> None:
        super().__init__(in_channels, tile**2 * out_channels, kernel_size)
        self.tile = tile

    def forward(self, input: Tensor) -> Tensor:
        tile, kernel = self.tile, self.kernel_size[0]
        weights = self.weight.chunk(tile**2)
        biases = self.bias.chunk(tile**2) if self.bias is not None else (None,) * tile**2
        size = [length - kernel + 1 for length in input.shape[2:]]
        output = input.new_empty(len(input), len(weights[0]), *size)
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            row, column = divmod(place, tile)
            if row < size[0] and column < size[1]:
                part = F.conv2d(input[:, :, row:, column:], weight, bias, stride=tile)
                output[:, :, row::tile, column::tile] = part
        return output
