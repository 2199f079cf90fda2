"""A picture of what an RBM learned: its filters, beside images drawn from it.

Drawn from the weights of a finished run, with the settings that lie beside them; without weights there is no picture.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..models.unsupervised import STEPS
from .checkpoint import load_checkpoint
from .figures import make_figure, save_figure
from .titles import TITLES

GAP = 1  # pixels between two tiles
SHOWN = 100  # filters, the first ones and not the best


def draw_learned(results: Path, folder: Path, name: str) -> list[Path]:
    """Draw what the RBMs of an experiment learned, each by its first run whose weights are there.

    Args:
        results: folder of the experiment.
        folder: of the pictures.
        name: how their names begin.
    """
    written = []
    for model in ("rbm", "si_rbm"):
        for weights in sorted((results / "weights").glob(f"{model}-*.safetensors"))[:1]:
            found = load_checkpoint(weights)
            size = (found.run["config"]["data"]["size"],) * 2
            filters, samples = (found.tensors[part].unflatten(-1, size) for part in ("rbm.weight", "samples"))
            shown = filters[:SHOWN]
            title = f"{TITLES[model]}, fold {found.run['fold']}: the first {len(shown)} of {len(filters)} filters"
            path = folder / f"{name}-{model}.png"  # it is all pixels: an SVG would only wrap them
            draw_filters(shown, samples, title, [path])
            written.append(path)
    return written


def draw_filters(filters: Tensor, samples: Tensor, title: str, paths: Sequence[Path], *, columns: int = 10) -> None:
    """Write a picture of filters, red where they are positive and blue where negative, beside samples.

    Args:
        filters: (J, height, width), each scaled by its own largest value, so that weak ones can be seen too.
        samples: (N, height, width) in [0, 1], as `train_unsupervised` draws them.
        title: above both.
        paths: their endings name the formats, such as `.png`.
        columns: tiles in a row.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing to draw.
    """
    for name, tiles in (("filters", filters), ("samples", samples)):
        if tiles.dim() != 3 or 0 in tiles.shape:
            raise ValueError(f"`{name}` must be of shape (N, height, width), none of them 0, got {tuple(tiles.shape)}")
    largest = filters.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(filters.dtype).tiny)
    panels = [
        ("filters", tile(filters / largest, columns, 0.0), "RdBu_r", -1),
        (f"samples, {STEPS} Gibbs steps from test digits", tile(samples, columns, 1.0), "gray", 0),
    ]
    figure = make_figure(12, 6.4)
    for axis, (heading, sheet, colours, lowest) in zip(figure.subplots(1, 2), panels, strict=True):
        axis.imshow(sheet.cpu().numpy(), cmap=colours, vmin=lowest, vmax=1, interpolation="nearest")
        axis.set_title(heading)
        axis.set_axis_off()
    save_figure(figure, title, "", paths)


def tile(images: Tensor, columns: int, frame: float) -> Tensor:
    """Lay images (N, H, W) out in rows, a line of the value `frame` between them; the last row is filled with it."""
    count, height, width = images.shape
    rows = -(-count // columns)
    sheet = torch.full((rows * columns, height + GAP, width + GAP), frame, dtype=images.dtype, device=images.device)
    sheet[:count, :height, :width] = images
    lines = sheet.view(rows, columns, height + GAP, width + GAP).transpose(1, 2)
    return lines.reshape(rows * (height + GAP), -1)[:-GAP, :-GAP]
