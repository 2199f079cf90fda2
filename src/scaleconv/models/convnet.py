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

from ..ops.checks import check_choice

Convolution = Callable[[int, int, int], nn.Module]
POOLINGS = ("max", "root")
ROOT_EPSILON = 1e-12  # keeps the derivative of the root finite where all responses are 0


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
        pooling: 'max'; or 'root', in which `RootPool2d` takes the place of ReLU and max-pooling in both stages.

    Example:
        >>> sum(parameter.numel() for parameter in ConvNet().parameters())
        147524
    """

    def __init__(self, conv: Convolution = nn.Conv2d, shape: Shape = PAPER, *, pooling: str = "max") -> None:
        super().__init__()
        self.stages = make_stages(conv, shape, pooling)
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

    Deviation: in `ConvNet` the maximum pools them, as in all networks of the comparison; Le et al. have the root of the
    sum of squares, which is `pooling="root"`.

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


class RootPool2d(nn.Module):
    """Square-root pooling: the root of the sum of squares of each window, which do not overlap; (N, C, H, W).

    It is itself the non-linearity after a convolution: a ReLU before it would leave out half of what it sums.

    Args:
        size: side of the windows. They begin at the first pixel; the last ones may be smaller.

    Example:
        >>> RootPool2d(2)(torch.tensor([[[[3.0, -4.0, 2.0]]]]))
        tensor([[[[5., 2.]]]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        sums = F.avg_pool2d(input.square(), self.size, self.size, ceil_mode=True, divisor_override=1)
        return (sums + ROOT_EPSILON).sqrt()


def make_stages(conv: Convolution, shape: Shape, pooling: str = "max") -> nn.Sequential:
    check_choice("pooling", pooling, POOLINGS)

    def pool(size: int) -> nn.Module:
        return RootPool2d(size) if pooling == "root" else nn.MaxPool2d(size, size, ceil_mode=True)

    def activation() -> nn.Module:
        return nn.Identity() if pooling == "root" else nn.ReLU()

    return nn.Sequential(
        OrderedDict(
            conv1=conv(shape.channels, shape.maps[0], shape.kernel),
            relu1=activation(),
            pool1=pool(2),
            conv2=conv(shape.maps[0], shape.maps[1], 5),
            relu2=activation(),
            pool2=pool(3),
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
