"""The scale-invariant RBM: the transform-invariant machine of Sohn and Lee (2012) with scales for transforms.

Everything but the transforms is the RBM's, so with the single scale 1 it is the RBM. The transforms are fixed linear
maps, applied to the images of a batch once for all hidden units.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..ops.call import check_scales
from ..ops.geometry import SLACK
from ..ops.resampling import linear_map
from .boltzmann import Identity, Rescaling
from .contrastive import Recipe
from .images import check_size
from .rbm import RBM

# No scale below 1: the digits of MNIST-Scale are shrunk, and enlarging undoes that.
ENLARGING_SCALES: tuple[float, ...] = tuple(2 ** (k / 3) for k in range(6))


class SIRBM(RBM):
    """Transform-invariant RBM with scale transforms: a hidden unit looks for its filter at every scale, and finds it at
    one of them or not at all.

        p(h_{j,s}=1 | v) = exp(w_jᵀ T_s v + b_{j,s}) / (1 + Σ_{s'} exp(w_jᵀ T_{s'} v + b_{j,s'}))
        p(v_i=1 | h)     = σ( Σ_{j,s} (T_sᵀ w_j)_i h_{j,s} + c_i )

    Convention: T_s rescales the image about its centre onto the canvas of the filter: pixel q of the canvas reads the
    image at u = (q − (D−1)/2)/s + (H−1)/2 on each axis, linear between neighbours, edge pixels clamped for half a pixel
    as in `si_conv2d`, and zero beyond. So an enlarged image is cropped and a shrunk one is framed by zeros, both at
    the centre; where the canvas and the level of the pyramid differ by an even number of pixels, T_s is exactly that
    level.

    Args:
        hidden: number of hidden units.
        size: of the images, one number or (height, width).
        recipe: how it is trained.
        scales: 1 among them.
        filter_size: of the filters; by default that of the images.
        seed: of the weights, the batches and the chains.
    """

    def __init__(
        self,
        hidden: int,
        size: int | tuple[int, int],
        recipe: Recipe | None = None,
        *,
        scales: Iterable[float] = ENLARGING_SCALES,
        filter_size: int | tuple[int, int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(hidden, recipe, seed=seed)
        self.scales = check_scales(scales)
        self.size = check_size("size", size)
        self.filter_size = self.size if filter_size is None else check_size("filter_size", filter_size)

    def _make_transform(self, images: Tensor, name: str = "images") -> Identity | Rescaling:
        if images.shape[-1] != self.size[0] * self.size[1]:
            raise ValueError(f"`{name}` must have {self.size[0]}×{self.size[1]} pixels, got {images.shape[-1]}")
        rows, columns = (
            torch.stack([canvas_matrix(scale, self.size[axis], self.filter_size[axis]) for scale in self.scales])
            for axis in (0, 1)
        )
        return Rescaling(rows.to(images), columns.to(images))


def canvas_matrix(scale: float, length: int, size: int) -> Tensor:
    """T_s along one axis, from an image of this length to a canvas of this size, in float64: (size, length)."""
    sources = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2) / scale + (length - 1) / 2
    covered = (sources >= -0.5 - SLACK) & (sources <= length - 0.5 + SLACK)
    return linear_map(sources.tolist(), length).dense() * covered.unsqueeze(1)
