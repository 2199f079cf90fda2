"""A picture of what an RBM learned: its filters, beside images drawn from it."""

from pathlib import Path

import torch
from torch import Tensor

from ..data.atomic import atomic_path

GAP = 1  # pixels between two tiles


def draw_filters(filters: Tensor, samples: Tensor, title: str, path: Path, *, columns: int = 10) -> None:
    """Write a picture of filters, dark where they are negative, beside samples.

    Args:
        filters: (J, height, width), each scaled by its own largest value, so that weak ones can be seen too.
        samples: (N, height, width) in [0, 1].
        title: above the filters.
        path: its ending names the format, such as `.png`.
        columns: tiles in a row.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing to draw.
    """
    for name, tiles in (("filters", filters), ("samples", samples)):
        if tiles.dim() != 3 or 0 in tiles.shape:
            raise ValueError(f"`{name}` must be of shape (N, height, width), none of them 0, got {tuple(tiles.shape)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'scaleconv[figures]'") from None
    largest = filters.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(filters.dtype).tiny)
    panels = [
        (title, tile(filters / largest, columns, 1.0), "RdBu_r", -1),
        ("samples", tile(samples, columns, 1.0), "gray", 0),
    ]
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    for axis, (heading, sheet, colours, lowest) in zip(figure.subplots(1, 2), panels, strict=True):
        axis.imshow(sheet.cpu().numpy(), cmap=colours, vmin=lowest, vmax=1, interpolation="nearest")
        axis.set_title(heading)
        axis.set_axis_off()
    with atomic_path(path) as part:
        figure.savefig(part, dpi=130, format=path.suffix.removeprefix("."))


def tile(images: Tensor, columns: int, frame: float) -> Tensor:
    """Lay images (N, H, W) out in rows, a line of the value `frame` between them; the last row is filled with it."""
    count, height, width = images.shape
    rows = -(-count // columns)
    sheet = torch.full((rows * columns, height + GAP, width + GAP), frame, dtype=images.dtype, device=images.device)
    sheet[:count, :height, :width] = images
    lines = sheet.view(rows, columns, height + GAP, width + GAP).transpose(1, 2)
    return lines.reshape(rows * (height + GAP), -1)[:-GAP, :-GAP]
