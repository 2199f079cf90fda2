"""ResNet-18 (He et al., 2016), for images of any size and number of channels, with random weights.

The layers are those of the published network; their names are not, so published weights do not load.
"""

from torch import Tensor, nn
from torch.nn import functional as F

STAGES = (64, 128, 256, 512)
CLASSES = 1000  # of ImageNet


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the size changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(input)))))
        return F.relu(output + self.shortcut(input))


def make_resnet18(channels: int = 3, classes: int = CLASSES, *, small: bool = False) -> nn.Sequential:
    """The network.

    Args:
        channels: of the images.
        classes: outputs.
        small: for images of up to 64 pixels: the first convolution is 3×3 at every pixel, without pooling after it,
            where the usual one leaves a sixteenth of the pixels.

    Example:
        >>> sum(parameter.numel() for parameter in make_resnet18().parameters())
        11689512
    """
    if small:
        stem = [nn.Conv2d(channels, STAGES[0], 3, padding=1, bias=False), nn.BatchNorm2d(STAGES[0]), nn.ReLU()]
    else:
        stem = [nn.Conv2d(channels, STAGES[0], 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(STAGES[0])]
        stem += [nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    blocks = []
    before = STAGES[0]
    for width in STAGES:
        stride = 1 if width == before else 2
        blocks += [ResidualBlock(before, width, stride), ResidualBlock(width, width, 1)]
        before = width
    return nn.Sequential(*stem, *blocks, *make_head(before, classes))


def make_head(channels: int, classes: int) -> list[nn.Module]:
    """The mean over all positions, then a linear classifier: takes maps of any size."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
