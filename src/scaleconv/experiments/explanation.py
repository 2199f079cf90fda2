"""Pictures of what a network saw in one image, from a checkpoint: its prediction, and which scale won where.

`scaleconv explain` draws one image through all layers; beside the records of scenes, a few of them are drawn as the
networks labelled them. Numbers come from `scaleconv.explain`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import BACKGROUND, load_digits, parse_scales, read_image
from ..drawing import FONT, RESPONSES, SITE_WIDTH, make_figure, reach_of, save_figure, style
from ..inspection import Explanation, explain
from ..inspection.pictures import finish_panel, scale_bar, show_image, show_scales
from ..models import Classifier
from ..models.networks import Size
from ..nn import SIConv2d
from .checkpoint import load_checkpoint, load_run
from .methods import TITLES
from .settings import SceneData, Settings, brief
from .sources import compose, divide, images_of

MIXED = parse_scales("uniform:0.4,2.2")  # scales of the digits in the scenes that are drawn
SHOWN_LAYER = "stages.conv1"  # whose winners are drawn beside the scenes
COLOURS = 11  # of classes, the last one black: the background of scenes


@dataclass(frozen=True)
class Trained:
    """A network that a finished run has left, and the images it takes.

    Attributes:
        network: takes images in [0, 1], and knows the names of the classes.
        channels: of an image.
        size: its (height, width); None for any.
        fit: how an image of another size is brought to it, as for `load_folder`.
    """

    network: Classifier
    channels: int
    size: Size | None
    fit: str

    def read(self, path: Path) -> Tensor:
        """An image (C, H, W) in [0, 1], prepared like those the network was trained on."""
        return read_image(path, self.channels, self.size, self.fit)

    def explain(self, pixels: Tensor) -> Explanation:
        """What the network made of an image; layers have the names that they have without the `Classifier`."""
        found = explain(self.network, pixels)
        return replace(found, layers={name.removeprefix("network."): view for name, view in found.layers.items()})


def load_trained(path: Path) -> Trained:
    """The network of a finished run: one of the paper's, or one that was trained on images of your own.

    Args:
        path: its file of weights.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or of no network with a scale-invariant layer.
    """
    network, settings = load_network(path)
    if not any(isinstance(layer, SIConv2d) for layer in network.modules()):
        raise ValueError(f"`checkpoint` must be of a network with scale-invariant layers, got {path}, which has none")
    images, fit = images_of(settings.data)[0], getattr(settings.data, "fit", "crop")
    size = None if isinstance(settings.data, SceneData) else images.size  # a scene may have any
    return Trained(network, images.channels, size, fit)


def load_network(path: Path) -> tuple[Classifier, Settings]:
    """The network whose weights a finished run has left, and the settings of the run.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or of no network.
    """
    refusal = f"`checkpoint` must hold the weights of a finished run, from its folder weights, got {path}"
    if path.is_dir():
        weights = sorted([*path.glob("*.safetensors"), *path.glob("weights/*.safetensors")])
        such = f", and not one of its files, such as {weights[0]}" if weights else ""
        raise IsADirectoryError(f"{refusal}, a folder{such}")
    try:
        load_checkpoint(path)
    except ValueError:  # its message says to delete the file, which may be anything here
        raise ValueError(f"{refusal}, which is damaged or something else") from None
    try:
        return load_run(path)
    except ValueError as error:  # it speaks of arguments of its own
        raise ValueError(f"{refusal} ({brief(error)})") from None


def prediction_text(found: Explanation, classes: Sequence[str]) -> str:
    """The prediction in words.

    Example:
        >>> prediction_text(Explanation(torch.tensor(1), torch.tensor(0.91234), {}), ("cat", "dog"))
        'class dog, confidence 91.2 %'
    """
    if found.prediction.dim() == 0:
        return f"class {classes[int(found.prediction)]}, confidence {100 * found.mean_confidence:.1f} %"
    numbers, counts = found.prediction.unique(return_counts=True)
    shares = {classes[c]: 100 * n / found.prediction.numel() for c, n in zip(numbers, counts.tolist(), strict=True)}
    parts = [f"class {name} {share:.1f} %" for name, share in sorted(shares.items(), key=lambda entry: -entry[1])]
    return f"{', '.join(parts)} of the pixels, mean confidence {100 * found.mean_confidence:.1f} %"


def draw_explanation(
    pixels: Tensor, found: Explanation, classes: Sequence[str], title: str, paths: Sequence[Path]
) -> None:
    """A row for the image in [0, 1], its prediction and its pyramid; a row for each layer: its winners, and its levels.

    Raises:
        ImportError: matplotlib is not installed.
    """
    views, reach = found.layers, reach_of(found.scales)
    first = next(iter(views.values()))
    columns = 2 + max(len(view.levels) for view in views.values())
    figure = make_figure(1.7 * columns, 1.9 * (1 + len(views)) + 0.6)
    axes = figure.subplots(1 + len(views), columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    show_image(axes[0, 0], pixels, "image")
    _show_prediction(axes[0, 1], found, classes)
    extent = _largest([level.image for level in first.levels])
    for axis, level in zip(axes[0, 2:], first.levels, strict=False):
        show_image(axis, level.image, f"×{level.scale:.3g}")
        _centre(axis, level.image, extent)
    for row, (name, view) in zip(axes[1:], views.items(), strict=True):
        show_scales(row[0], view.winning_scale, reach, f"{name}: winning scale", view.strength)
        most = float(torch.cat([level.response.flatten() for level in view.levels]).abs().max())
        red: dict[str, Any] = {"cmap": RESPONSES, "vmin": -most, "vmax": most, "interpolation": "nearest"}
        row[1].imshow(view.output[view.channel].cpu().numpy(), **red)
        finish_panel(row[1], f"channel {view.channel}")
        extent = _largest([level.response for level in view.levels])
        for axis, level in zip(row[2:], view.levels, strict=False):
            axis.imshow(level.response.cpu().numpy(), **red)
            _centre(axis, level.response, extent)
            finish_panel(axis, f"response at ×{level.scale:.3g}")
    scale_bar(figure, axes[:, -1], found.scales, reach)
    save_figure(figure, title.replace("$", r"\$"), "", paths)  # names of files and classes are no formulas


def draw_predictions(results: Path, folder: Path, name: str, data_dir: Path | None = None) -> list[Path]:
    """Draw a scene for each point as the networks in a folder of results labelled it, if their weights are there.

    The name of the picture begins with `name`. The digits are the embedded ones, or those in `data_dir`.
    """
    points: dict[SceneData, dict[str, Classifier]] = {}  # by the training scenes, then by method
    for path in sorted((results / "weights").glob("*fcn-*-fold0-*.safetensors")):
        network, settings = load_network(path)
        if isinstance(settings.data, SceneData):
            points.setdefault(settings.data, {})[path.name.partition("-")[0]] = network
    pairs = {data: found for data, found in points.items() if set(found) == {"fcn", "si_fcn"}}
    if not pairs:
        return []
    figure = make_figure(SITE_WIDTH, 1.75 * len(pairs) + 0.5)
    axes = figure.subplots(len(pairs), 5, squeeze=False)
    for row, (data, found) in zip(axes, pairs.items(), strict=True):
        digits = load_digits(data.dataset, data.part or None, data_dir=data_dir)
        unseen = divide(digits.labels, data, 0).test
        scenes = compose(digits.images[unseen], digits.labels[unseen], MIXED, data, test=True, count=100)
        pick = _fullest(scenes.labels)
        pixels, labels = scenes.images[pick], scenes.labels[pick]
        show_image(row[0], pixels, f"scene; trained\nat {data.scales.partition(':')[2].replace(',', ' – ')}")
        _show_labels(row[1], labels, "labels")
        for axis, model in zip(row[2:], ("fcn", "si_fcn"), strict=False):
            with torch.no_grad():
                predicted = found[model](pixels.unsqueeze(0)).argmax(1)[0]
            right = 100 * float((predicted == labels)[labels != BACKGROUND].float().mean())
            _show_labels(axis, predicted, f"{TITLES[model]}: {right:.0f} %\nof digit pixels")
        view = explain(found["si_fcn"], pixels).layers[f"network.{SHOWN_LAYER}"]
        reach = reach_of(view.scales)
        heading = f"winning scale,\n{SHOWN_LAYER.rpartition('.')[2]}"
        show_scales(row[4], view.winning_scale, reach, heading, view.strength)
    path = folder / f"{name}-predictions.png"
    with style():
        scale_bar(figure, axes[:, -1], view.scales, reach)
        save_figure(figure, "Scenes of digits at different scales, labelled pixel by pixel", "", [path])
    return [path]


def _fullest(labels: Tensor) -> int:
    """The first of the scenes with the most classes, as an example that shows much."""
    classes = [len(scene.unique()) for scene in labels]
    return classes.index(max(classes))


def _show_prediction(axis: Any, found: Explanation, classes: Sequence[str]) -> None:
    """The class in large letters, or the labels of the pixels, each named at the middle of its pixels."""
    if not found.prediction.dim():
        name = classes[int(found.prediction)]
        axis.set_box_aspect(1)
        size = max(6, min(44, 160 / len(name)))  # points, so that the name is as wide as its axis at most
        axis.text(0.5, 0.55, name, fontsize=size, ha="center", va="center", parse_math=False)
        axis.text(0.5, 0.1, f"{100 * found.mean_confidence:.1f} % sure", fontsize=FONT, ha="center")
        finish_panel(axis, "prediction")
        return
    _show_labels(axis, found.prediction, f"prediction, {100 * found.mean_confidence:.0f} % sure")
    for number in found.prediction.unique().tolist():
        places = (found.prediction == number).nonzero().float()
        y, x = places[(places - places.mean(0)).square().sum(1).argmin()].tolist()  # a pixel of the class
        axis.text(x, y, classes[number], fontsize=FONT, ha="center", va="center", color="white", parse_math=False)


def _show_labels(axis: Any, labels: Tensor, title: str) -> None:
    """A colour for each class; the eleventh is black."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([f"C{number}" for number in range(COLOURS - 1)] + ["#111111"])
    axis.imshow((labels % COLOURS).cpu().numpy(), cmap=colours, vmin=0, vmax=COLOURS - 1, interpolation="nearest")
    finish_panel(axis, title)


def _largest(images: Sequence[Tensor]) -> tuple[int, int]:
    return max(image.shape[-2] for image in images), max(image.shape[-1] for image in images)


def _centre(axis: Any, image: Tensor, extent: tuple[int, int]) -> None:
    """Make the axis as large as the largest level, so that levels are seen at their own sizes."""
    y, x = ((size - 1) / 2 for size in image.shape[-2:])
    axis.set(xlim=(x - extent[1] / 2, x + extent[1] / 2), ylim=(y + extent[0] / 2, y - extent[0] / 2))
