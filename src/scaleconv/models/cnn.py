"""The networks on which the later literature compares methods for scale, and its layer in cropped form.

Three stages of convolution, ReLU, max-pooling and BatchNorm, then two fully connected layers; 494,549 parameters,
whatever the convolution. The sizes are those of Sosnovik, Szmaja and Smeulders, "Scale-Equivariant Steerable
Networks", 2020 (github.com/ISosnovik/sesn), where the paper's layer was compared in the form of `CroppedSIConv2d`.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..ops.call import check_scales
from .convnet import Convolution

PIXEL_DEVIATION = 0.2161  # of MNIST-Scale, as the literature has it
MAPS = (32, 63, 95)
HIDDEN = 256
STIR_MAPS = (16, 32)
CROPPED_SCALES = (0.3, 0.45, 0.67, 1.0, 1.49, 2.23, 3.33)  # with which the re-implementations were compared


class ScaleCNN(nn.Module):
    """conv 7×7 → ReLU → max-pool → BatchNorm, three times; then fully connected → BatchNorm → ReLU → dropout → classes.

    Args:
        conv: makes a convolution from (in_channels, out_channels, kernel_size, padding=…).
        size: side of the images, 28 or 56. The last pooling leaves 2×2 of either.
        maps: of the three stages.
        hidden: units of the fully connected layer.
        dropout: share of these units that training leaves out.
        classes: outputs.
        channels: of the images.

    Example:
        >>> sum(parameter.numel() for parameter in ScaleCNN().parameters())
        494549
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        size: int = 28,
        maps: tuple[int, int, int] = MAPS,
        *,
        hidden: int = HIDDEN,
        dropout: float = 0.7,
        classes: int = 10,
        channels: int = 1,
    ) -> None:
        super().__init__()
        if size % 28:
            raise ValueError(f"`size` must be a multiple of 28 for this network, got {size}")
        pools = (nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(size // 7, padding=2))
        stages: list[nn.Module] = []
        for inner, outer, pool in zip((channels, *maps), maps, pools, strict=False):
            stages += [conv(inner, outer, 7, padding=3), nn.ReLU(), pool, nn.BatchNorm2d(outer)]  # type: ignore[call-arg]
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Sequential(
            nn.Linear(4 * maps[-1], hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(images / PIXEL_DEVIATION)  # (N, M, 2, 2)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


class DeepScaleCNN(nn.Module):
    """Convolutions of 3×3, two to a stage, BatchNorm before each ReLU, and the maximum of each last map; for any size.

    Fewer parameters than `ScaleCNN`, and twice its layers. Its output depends neither on the amount of background
    around a digit nor on the position of the digit.

    Args:
        maps: of the three stages.
        dropout: share of the last maps that training leaves out.
        classes: outputs.
        channels: of the images.

    Example:
        >>> sum(parameter.numel() for parameter in DeepScaleCNN().parameters())
        459226
    """

    def __init__(
        self,
        maps: tuple[int, int, int] = (48, 96, 144),
        *,
        dropout: float = 0.3,
        classes: int = 10,
        channels: int = 1,
    ) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        inner = channels
        for stage, outer in enumerate(maps):
            for _ in range(2):
                stages += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
                inner = outer
            if stage < len(maps) - 1:
                stages.append(nn.MaxPool2d(2))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(maps[-1], classes))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(images / PIXEL_DEVIATION)
        logits: Tensor = self.classifier(features.amax((2, 3)))
        return logits


class GlobalMaxCNN(nn.Module):
    """conv 7×7 → ReLU → conv 7×7 → ReLU → maximum over all positions → classes, for images of any size.

    The network of STIR (Altstidl and others, 2022, github.com/taltstidl/scale-equivariant-cnn): with its 16 and 32 maps
    and the 36 classes of its icons it has 27,108 parameters.

    Args:
        maps: of the two convolutions.
        classes: outputs.
        channels: of the images.

    Example:
        >>> sum(parameter.numel() for parameter in GlobalMaxCNN(classes=36).parameters())
        27108
    """

    def __init__(self, maps: tuple[int, int] = STIR_MAPS, *, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, maps[0], 7), nn.Conv2d(*maps, 7)
        self.classifier = nn.Linear(maps[1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv2(self.conv1(images).relu()).relu()
        logits: Tensor = self.classifier(features.amax((2, 3)))
        return logits


class CroppedSIConv2d(nn.Conv2d):
    """The scale-invariant layer as the well-known re-implementations compute it; for comparison only.

    Like those of the SESN and STIR code, and unlike the paper's layer, it crops an enlarged image to the size of its
    input before it convolves, pads a shrunk one by zeros, crops and pads the response in the same way on the way back,
    and lets the zeros take part in the maximum. Corners of images lie on corners (`align_corners=True`), so centres are
    off by up to half a pixel where sizes are rounded.

    Resampling, cropping and padding are linear along each axis: one matrix for all three. Of a shrunk level only the
    rows and columns inside its frame are computed. Square images, of stride 1, with padding that keeps their size.

    Args:
        in_channels, out_channels, kernel_size: as of `Conv2d`; the kernel must be odd.
        padding: `kernel_size // 2`.
        scales: of the levels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        padding: int,
        scales: Iterable[float] = CROPPED_SCALES,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=padding)
        if 2 * padding + 1 != kernel_size:
            raise ValueError(f"`padding` must be half of an odd kernel_size (={kernel_size}), got {padding}")
        self.scales = check_scales(scales)
        self._made: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}

    def forward(self, input: Tensor) -> Tensor:
        aligned = []
        for there, back in self._maps(input):
            response = super().forward(_resample(there, input))
            aligned.append(_resample(back, response))
        return torch.stack(aligned).amax(0)

    def _maps(self, input: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each scale the matrices there (h, H) and back (H, h), h being the length of the level in its frame."""
        length = input.shape[3]
        key = (length, input.device, input.dtype)
        if key not in self._made:
            self._made[key] = []
            for scale in self.scales:
                there, back = cropped_resize(length, scale), cropped_resize(length, 1 / scale)
                used = (there.any(1) | back.any(0)).nonzero()
                inside = slice(int(used.min()), int(used.max()) + 1)
                self._made[key].append((there[inside].to(input), back[:, inside].to(input)))
        return self._made[key]


def _resample(matrix: Tensor, images: Tensor) -> Tensor:
    """Apply a matrix (h, H) to both axes of images (N, C, H, H): (N, C, h, h), channels last in memory."""
    pixels = images.permute(0, 2, 3, 1)  # (N, H, H, C)
    rows = (matrix @ pixels.flatten(2)).unflatten(2, pixels.shape[2:])  # (N, h, H, C)
    resampled: Tensor = matrix @ rows
    return resampled.permute(0, 3, 1, 2)


def cropped_resize(length: int, scale: float) -> Tensor:
    """The matrix that resizes an axis by corners, and crops or pads the result to its length; (length, length)."""
    resized = math.floor(length * scale)
    matrix = torch.zeros(length, length)
    margin = (length - resized) // 2  # in front; below 0 it crops
    for q in range(max(0, margin), min(length, margin + resized)):
        u = (q - margin) * (length - 1) / (resized - 1) if resized > 1 else 0.0
        left = min(math.floor(u), length - 2)
        matrix[q, left], matrix[q, left + 1] = left + 1 - u, u - left
    return matrix
