"""Networks for dense prediction, a score per class and pixel; their convolution is an argument.

`FullyConvolutional` is the smallest that distinguishes digits: four convolutions. `UNet` (Ronneberger, Fischer and
Brox, 2015) has a larger receptive field, through halved images, and keeps the detail by skip connections. Both take
images of any size and return scores of that size. The paper has no dense prediction.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .convnet import PAPER, Shape

PaddedConvolution = Callable[..., nn.Module]


class FullyConvolutional(nn.Module):
    """conv → max-pool 2/2 → three times conv 5×5 → conv 1×1, enlarged to the size of the image.

    Each convolution but the last is followed by BatchNorm and ReLU.

    Shapes: images (N, channels, H, W) → scores (N, classes, H, W).

    With a first kernel of 7×7 the receptive field is 32×32 pixels: a digit at scale 1, and half of one at scale 2.

    Args:
        conv: makes a convolution from (in_channels, out_channels, kernel_size, padding=…).
        shape: `maps` are those of the first convolution and of the other three, `kernel` is that of the first.
        channels: of the images, if not those of the shape.

    Example:
        >>> FullyConvolutional(shape=Shape(classes=11))(torch.rand(2, 1, 30, 41)).shape
        torch.Size([2, 11, 30, 41])
    """

    def __init__(
        self, conv: PaddedConvolution = nn.Conv2d, shape: Shape = PAPER, *, channels: int | None = None
    ) -> None:
        super().__init__()
        first, rest = shape.maps
        self.stages = nn.Sequential()
        before = channels or shape.channels
        for number, (maps, kernel) in enumerate([(first, shape.kernel), (rest, 5), (rest, 5), (rest, 5)], start=1):
            convolution = conv(before, maps, kernel, padding=kernel // 2, bias=False)
            named = {"conv": convolution, "norm": nn.BatchNorm2d(maps), "relu": nn.ReLU()}
            if number == 1:
                named["pool"] = nn.MaxPool2d(2, 2, ceil_mode=True)
            for name, module in named.items():
                self.stages.add_module(f"{name}{number}", module)
            before = maps
        self.scores = nn.Conv2d(rest, shape.classes, 1)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return _enlarge(self.scores(self.stages(images)), images)  # (N, classes, H, W)


class UNet(nn.Module):
    """Two convolutions 3×3 at each of three sizes on the way down, and again on the way up.

    Shapes: images (N, channels, H, W) → scores (N, classes, H, W); H and W at least 4.

    Args:
        conv: makes a convolution from (in_channels, out_channels, kernel_size, padding=…).
        shape: `maps` are those at full and at half size; a quarter has twice the latter.
        channels: of the images, if not those of the shape.

    Example:
        >>> UNet(shape=Shape(maps=(8, 16), classes=11))(torch.rand(2, 1, 30, 41)).shape
        torch.Size([2, 11, 30, 41])
    """

    def __init__(
        self, conv: PaddedConvolution = nn.Conv2d, shape: Shape = PAPER, *, channels: int | None = None
    ) -> None:
        super().__init__()
        full, half = shape.maps
        quarter = 2 * half
        self.down1 = _block(conv, channels or shape.channels, full)
        self.down2 = _block(conv, full, half)
        self.bottom = _block(conv, half, quarter)
        self.up2 = _block(conv, quarter + half, half)
        self.up1 = _block(conv, half + full, full)
        self.scores = nn.Conv2d(full, shape.classes, 1)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        full = self.down1(images)  # (N, M, H, W)
        half = self.down2(F.max_pool2d(full, 2))  # (N, M', H/2, W/2)
        quarter = self.bottom(F.max_pool2d(half, 2))  # (N, 2M', H/4, W/4)
        half = self.up2(torch.cat([_enlarge(quarter, half), half], 1))
        full = self.up1(torch.cat([_enlarge(half, full), full], 1))
        scores: Tensor = self.scores(full)  # (N, classes, H, W)
        return scores


def _block(conv: PaddedConvolution, channels: int, maps: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=conv(channels, maps, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=conv(maps, maps, 3, padding=1),
            relu2=nn.ReLU(),
        )
    )


def _enlarge(maps: Tensor, target: Tensor) -> Tensor:
    """Interpolate maps linearly to the height and width of `target`."""
    return F.interpolate(maps, target.shape[2:], mode="bilinear")


def _initialise(network: nn.Module) -> None:
    """Gaussian weights whose deviation keeps the size of the activations (He et al., 2015); biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
