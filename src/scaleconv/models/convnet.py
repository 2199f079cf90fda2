"""The paper's network, its convolution an argument: ConvNet and SI-ConvNet are the same code.

Two stages of convolution, ReLU and max-pooling, then two fully connected layers (paper, appendix C). Beside it are two
networks of the paper's section 2 that learn invariance in other ways: one with tiled convolutions, one whose classifier
sees both stages.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Convolution = Callable[[int, int, int], nn.Module]


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Attributes:
        maps: feature maps of the two stages.
        kernel: side of the first kernel; the paper takes 7 for 28×28 images and 9 for 40×40.
        size: side of the images.
        hidden: units of the fully connected layer.
        classes: outputs.
        channels: of the images.
    """

    maps: tuple[int, int] = (36, 64)
    kernel: int = 7
    size: int = 28
    hidden: int = 150
    classes: int = 10
    channels: int = 1


PAPER = Shape()


class ConvNet(nn.Module):
    """conv → ReLU → max-pool 2/2 → conv 5×5 → ReLU → max-pool 3/3 → fully connected → ReLU → classes.

    Pooling rounds up, as Caffe's does: on 28×28 images the last map is 3×3.

    Args:
        conv: makes a convolution from (in_channels, out_channels, kernel_size).
        shape: the sizes.

    Example:
        >>> sum(parameter.numel() for parameter in ConvNet().parameters())
        147524
    """

    def __init__(self, conv: Convolution = nn.Conv2d, shape: Shape = PAPER) -> None:
        super().__init__()
        self.stages = make_stages(conv, shape)
        self.classifier = make_classifier(shape.maps[1] * last_map(shape.size, shape.kernel) ** 2, shape)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(images)  # (N, M, 3, 3)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


class MultiStageConvNet(nn.Module):
    """A ConvNet whose classifier sees both stages, as Sermanet and LeCun have it for traffic signs (paper, section 2).

    The first stage is pooled once more, to the size of the second, before it joins that.

    Args:
        conv, shape: as for `ConvNet`.
    """

    def __init__(self, conv: Convolution = nn.Conv2d, shape: Shape = PAPER) -> None:
        super().__init__()
        side = last_map(shape.size, shape.kernel)
        self.stages = make_stages(conv, shape)
        self.pool = nn.AdaptiveMaxPool2d(side)
        self.classifier = make_classifier(sum(shape.maps) * side**2, shape)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        first = self.stages[:3](images)
        second = self.stages[3:](first)
        features = torch.cat([self.pool(first), second], dim=1)  # (N, both maps, 3, 3)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


class TiledConv2d(nn.Conv2d):
    """Convolution with partially untied weights, after Le et al., *Tiled convolutional neural networks* (2010).

    Outputs `tile` rows or columns apart share a filter, neighbours do not: tile² filters for each map. Followed by
    pooling, each pooled unit sees several filters of its map, and may learn to be invariant to what they differ in.
    Stride 1, no padding.

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


def make_stages(conv: Convolution, shape: Shape) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=conv(shape.channels, shape.maps[0], shape.kernel),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2, 2, ceil_mode=True),
            conv2=conv(shape.maps[0], shape.maps[1], 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(3, 3, ceil_mode=True),
        )
    )


def make_classifier(features: int, shape: Shape) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(fc1=nn.Linear(features, shape.hidden), relu3=nn.ReLU(), fc2=nn.Linear(shape.hidden, shape.classes))
    )


def last_map(size: int, kernel: int) -> int:
    """Side of the map that two stages leave of an image of this size."""
    pooled = -(-(size - kernel + 1) // 2)
    responses = pooled - 4
    if size < kernel or responses < 1:
        raise ValueError(f"`size` (={size}) must leave at least one response after kernels of {kernel} and 5")
    return -(-(responses - 3) // 3) + 1 if responses > 3 else 1


def initialise(network: nn.Module) -> None:
    """Gaussian weights, std 0.01 in convolutions and 0.1 in fully connected layers; biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            with torch.no_grad():
                module.weight.normal_(0, 0.01 if isinstance(module, nn.Conv2d) else 0.1)
                if module.bias is not None:
                    module.bias.zero_()
