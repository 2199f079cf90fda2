"""Networks that handle scale at the input, not in every layer: hierarchical, input-pyramid ensemble, multi-column.

All run on an image pyramid. They differ in what the scales share and in how their results are combined. The rescaling
is that of the layer, as fixed matrices for square images of one size.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.call import DEFAULT_SCALES, check_scales
from ..ops.geometry import Axis
from ..ops.resampling import linear_map
from .convnet import PAPER, ConvNet, Convolution, Shape, initialise, last_map, make_classifier, make_stages


class HierarchicalConvNet(nn.Module):
    """The multi-scale network of Farabet et al.: the stages at every scale, the results side by side.

    Every level of the pyramid goes through the same two stages at its own size; each result is resized to that of
    scale 1 and all are concatenated before the fully connected layers. With n scales these have n times the inputs.

    Deviation: Farabet et al. take a Laplacian pyramid of three octaves; like the paper, this takes the scales of the
    network it is compared with.

    Args:
        conv, shape: as for `ConvNet`.
        scales: of the pyramid, 1 among them.
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        shape: Shape = PAPER,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
    ) -> None:
        super().__init__()
        self.scales = check_scales(scales)
        target = last_map(shape.size, shape.kernel)
        axis = Axis(shape.size, kernel=1, stride=1, padding=(0, 0), dilation=1)
        for index, scale in enumerate(self.scales):
            level = axis.level(scale)
            if level is None:
                raise ValueError(f"`scales` must leave at least a pixel of `size` (={shape.size}), got {scale}")
            self._keep(f"transform_{index}", linear_map(level.sources, axis.length).dense())
            self._keep(f"resize_{index}", _resize_matrix(last_map(level.size, shape.kernel), target))
        self.stages = make_stages(conv, shape)
        self.classifier = make_classifier(len(self.scales) * shape.maps[1] * target**2, shape)
        initialise(self)

    def _keep(self, name: str, matrix: Tensor) -> None:
        self.register_buffer(name, matrix.float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.cat(self.columns(images), dim=1))
        return logits

    def columns(self, images: Tensor) -> list[Tensor]:
        """The features of each level, which the classifier sees side by side."""
        return [self.column(images, index) for index in range(len(self.scales))]

    def column(self, images: Tensor, index: int) -> Tensor:
        transform, resize = (getattr(self, f"{name}_{index}").to(images.dtype) for name in ("transform", "resize"))
        level = images if self.scales[index] == 1 else transform @ images @ transform.mT
        response = self.stages(level)  # (N, M, h, h)
        resized: Tensor = resize @ response @ resize.mT
        return resized.flatten(1)


class PyramidEnsemble(nn.Module):
    """The ConvNet at every scale of the input, its class scores pooled over scale.

    Each level is the image rescaled about its centre on a canvas of the same size: enlarged ones lose their margin,
    shrunk ones repeat their edge. The parameters are those of one ConvNet.

    Args:
        conv, shape: as for `ConvNet`.
        scales: of the pyramid, 1 among them.
        pool: 'max' or 'mean' of the scores over scale.
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        shape: Shape = PAPER,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        pool: Literal["max", "mean"] = "max",
    ) -> None:
        super().__init__()
        if pool not in ("max", "mean"):
            raise ValueError(f"`pool` must be 'max' or 'mean', got {pool!r}")
        self.scales, self.pool = check_scales(scales), pool
        self.canvases: Tensor
        self.register_buffer("canvases", _canvas_matrices(self.scales, shape.size), persistent=False)
        self.network = ConvNet(conv, shape)

    def forward(self, images: Tensor) -> Tensor:
        levels = _canvas_levels(self.canvases, images)  # (S, N, 1, size, size)
        scores: Tensor = self.network(levels.flatten(0, 1))
        scores = scores.unflatten(0, levels.shape[:2])  # (S, N, classes)
        return scores.amax(0) if self.pool == "max" else scores.mean(0)


class MultiColumnConvNet(nn.Module):
    """A ConvNet of its own for every scale of the input, their log-probabilities averaged (paper, section 2).

    The levels are those of `PyramidEnsemble`; nothing is shared by the scales, so there are as many times the
    parameters of the ConvNet as there are scales.

    Deviation: the columns learn at once, from the loss of their average, and not one after the other.

    Args:
        conv, shape: as for `ConvNet`.
        scales: of the pyramid, 1 among them.
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        shape: Shape = PAPER,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
    ) -> None:
        super().__init__()
        self.scales = check_scales(scales)
        self.canvases: Tensor
        self.register_buffer("canvases", _canvas_matrices(self.scales, shape.size), persistent=False)
        self.columns = nn.ModuleList(ConvNet(conv, shape) for _ in self.scales)

    def forward(self, images: Tensor) -> Tensor:
        levels = _canvas_levels(self.canvases, images)  # (S, N, 1, size, size)
        scores = [column(level).log_softmax(1) for column, level in zip(self.columns, levels, strict=True)]
        return torch.stack(scores).mean(0)


def _canvas_matrices(scales: tuple[float, ...], size: int) -> Tensor:
    """For each scale the matrix that rescales a line about its centre onto the same length: (S, size, size)."""
    centre = (size - 1) / 2
    centred = [pixel - centre for pixel in range(size)]
    return torch.stack([linear_map([u / scale + centre for u in centred], size).dense() for scale in scales]).float()


def _canvas_levels(canvases: Tensor, images: Tensor) -> Tensor:
    """The pyramid (S, N, 1, size, size) of images (N, 1, size, size)."""
    matrices = canvases.to(images.dtype).unsqueeze(1)  # (S, 1, size, size)
    return (matrices @ images.squeeze(1) @ matrices.mT).unsqueeze(2)


def _resize_matrix(length: int, size: int) -> Tensor:
    """Bilinear resizing of a line, pixel areas to pixel areas: (size, length)."""
    return linear_map([(pixel + 0.5) * length / size - 0.5 for pixel in range(size)], length).dense()
