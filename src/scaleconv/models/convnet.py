"""The paper's network, its convolution an argument: ConvNet and SI-ConvNet are the same code.

Two stages of convolution, ReLU and max-pooling, then two fully connected layers (paper, appendix C). The
hierarchical network runs the stages alone, at several sizes.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
        second: makes the second convolution, if not `conv`.

    Example:
        >>> sum(parameter.numel() for parameter in ConvNet().parameters())
        147524
    """

    def __init__(self, conv: Convolution = nn.Conv2d, shape: Shape = PAPER, second: Convolution | None = None) -> None:
        super().__init__()
        self.stages = make_stages(conv, shape, second)
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


def make_stages(conv: Convolution, shape: Shape, second: Convolution | None = None) -> nn.Sequential:
    """The two convolutional stages; `second` makes the convolution of the second, if not `conv`."""
    return nn.Sequential(
        OrderedDict(
            conv1=conv(shape.channels, shape.maps[0], shape.kernel),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2, 2, ceil_mode=True),
            conv2=(second or conv)(shape.maps[0], shape.maps[1], 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(3, 3, ceil_mode=True),
        )
    )


def make_classifier(features: int, shape: Shape) -> nn.Sequential:
    """The two fully connected layers."""
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
