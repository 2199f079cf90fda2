import torch
from .augment import Placement, place, place_masks
def rescale(images, scales, size=None, *, shift=None, flip=None, interpolation="bilinear", antialias, border):
    if border=="zeros":
        from .scaled import make_scaled
        return make_scaled(images, scales, tuple(images.shape[-2:]), interpolation, antialias, truncate="allow")
    n=len(images)
    z=torch.zeros(n,dtype=torch.float64)
    return place(images, Placement(torch.as_tensor(scales,dtype=torch.float64).expand(n).cpu(), torch.stack([z,z],1) if shift is None else shift.cpu(), z.bool() if flip is None else flip.cpu()))
def rescale_masks(masks, scales, *, shift=None, flip=None):
    n=len(masks); z=torch.zeros(n,dtype=torch.float64)
    return place_masks(masks, Placement(torch.as_tensor(scales,dtype=torch.float64).expand(n), torch.stack([z,z],1) if shift is None else shift, z.bool() if flip is None else flip))
