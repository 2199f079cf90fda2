"""Stand-in until the layer with other rules has its file."""

from .alignment import AlignedSIConv2d as DirectSIConv2d

__all__ = ["DirectSIConv2d"]
