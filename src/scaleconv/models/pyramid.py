"""Networks that handle scale at the input, not in every layer: hierarchical and multi-column.

Both run on an image pyramid, rescaled as by the layer. They differ in what the scales share and in how their results
are combined. A third such network, the input-pyramid ensemble, is `ScaleInvariant(ConvNet(), size="input")`.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..ops.call import DEFAULT_SCALES, check_scales
from ..ops.levels import level_size, rescale
from ..ops.resampling import linear_map
from .convnet import PAPER, ConvNet, Convolution, Shape, initialise, last_map, make_classifier, make_stages


class HierarchicalConvNet(nn.Module):
    """The multi-scale network of Farabet et al.: the stages at every scale, the results side by side.

    Every level of the pyramid goes through the same two stages at its own size; each result is resized to that of
    scale 1 and all are concatenated before the fully connected layers. With n scales these have n times the inputs.

    Deviation: Farabet et al. take a Laplacian pyramid of three octaves, with contrasts normalised; like the paper, this
    takes the scales of the network it is compared with, and by default the images themselves.

    Args:
        conv, shape: as for `ConvNet`.
        scales: of the pyramid, 1 among them.
        laplacian: take from each level, but the smallest, the next smaller one brought to its size.
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        shape: Shape = PAPER,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        laplacian: bool = False,
    ) -> None:
        super().__init__()
        self.scales, self.laplacian = check_scales(scales), laplacian
        target = last_map(shape.size, shape.kernel)
        for index, scale in enumerate(self.scales):
            size, _ = level_size((shape.size, shape.size), scale)
            if size < 1:
                raise ValueError(f"`scales` must leave at least a pixel of `size` (={shape.size}), got {scale}")
            length = last_map(size, shape.kernel)
            sources = [(pixel + 0.5) * length / target - 0.5 for pixel in range(target)]  # bilinear, of pixel areas
            self.register_buffer(f"resize_{index}", linear_map(sources, length).dense().float(), persistent=False)
        self.stages = make_stages(conv, shape)
        self.classifier = make_classifier(len(self.scales) * shape.maps[1] * target**2, shape)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features = []
        for index, level in enumerate(self.levels(images)):
            resize = getattr(self, f"resize_{index}").to(images.dtype)
            response = self.stages(level)  # (N, M, h, h)
            features.append((resize @ response @ resize.mT).flatten(1))
        logits: Tensor = self.classifier(torch.cat(features, dim=1))
        return logits

    def levels(self, images: Tensor) -> list[Tensor]:
        """The pyramid, in the order of the scales."""
        sizes = {scale: level_size(images.shape[2:], scale) for scale in self.scales}
        found = {scale: images if scale == 1 else rescale(images, scale, sizes[scale]) for scale in self.scales}
        if self.laplacian:
            ordered = sorted(self.scales)
            smaller = {scale: rescale(found[below], scale / below, sizes[scale]) for below, scale in pairwise(ordered)}
            found = {scale: level - smaller[scale] if scale in smaller else level for scale, level in found.items()}
        return [found[scale] for scale in self.scales]


class MultiColumnConvNet(nn.Module):
    """A ConvNet of its own for every scale of the input, their log-probabilities averaged (paper, section 2).

    Each level is the image rescaled about its centre, of the size of the image: an enlarged one loses its margin, a
    shrunk one repeats its edge. Nothing is shared by the scales, so there are as many times the parameters of the
    ConvNet as there are scales.

    Deviation: by default the columns learn from the loss of their average; the paper describes columns that learn
    independently, which is `independent=True`.

    Args:
        conv, shape: as for `ConvNet`.
        scales: of the pyramid, 1 among them.
        independent: each column has a loss of its own. In training the output is then (columns, N, classes).
    """

    def __init__(
        self,
        conv: Convolution = nn.Conv2d,
        shape: Shape = PAPER,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        independent: bool = False,
    ) -> None:
        super().__init__()
        self.scales, self.independent = check_scales(scales), independent
        self.columns = nn.ModuleList(ConvNet(conv, shape) for _ in self.scales)

    def forward(self, images: Tensor) -> Tensor:
        levels = [rescale(images, scale, images.shape[2:]) for scale in self.scales]
        scores = [column(level).log_softmax(1) for column, level in zip(self.columns, levels, strict=True)]
        return torch.stack(scores) if self.independent and self.training else torch.stack(scores).mean(0)
