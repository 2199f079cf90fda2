from .alignment import AlignedSIConv2d as DirectSIConv2d
