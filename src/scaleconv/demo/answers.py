"""Computes what the page shows of digits and scenes: from arrays and numbers to pictures and numbers.

Every function is pure and returns a dictionary for JSON. `routes` has checked the arguments. `filters` computes the
second tab.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import BACKGROUND, Uniform, make_scaled, make_scenes
from ..inspection import explain
from ..inspection.explain import LayerView
from . import rendering
from .pairs import Pair

Answer = dict[str, Any]

SCALES = tuple(step / 10 for step in range(3, 21))  # of the curve; the slider goes from the first to the last
START = 1.7  # the scale at which the page opens
SCENE = 96  # side of a scene; the networks were trained on smaller ones, and take any
SCENE_SCALES, MOST_DIGITS = (0.4, 2.2), 6
BOX, CANVAS = 20, 28  # pixels of a digit and of its image in MNIST


def offer(pair: Pair, each: int) -> list[Answer]:
    """The first `each` test digits of every class."""
    chosen = [int(index) for label in range(10) for index in (pair.labels == label).nonzero()[:each, 0]]
    return [
        {"index": index, "label": int(pair.labels[index]), "image": rendering.grey(pair.digits[index] / 255)}
        for index in chosen
    ]


@torch.no_grad()
def find_start(pair: Pair, offered: list[Answer]) -> Answer:
    """Of the digits offered, the one that the page opens with, and its scale.

    It is the one of which the invariant network is surer than the plain one by most, by the probability of its label.
    """
    indices, labels = ([entry[name] for entry in offered] for name in ("index", "label"))
    images = make_scaled(pair.digits[indices], START, pair.size, truncate="allow")
    invariant, plain = (
        network(images).softmax(1)[range(len(labels)), labels] for network in (pair.invariant, pair.plain)
    )
    return {"index": indices[int((invariant - plain).argmax())], "scale": START}


@torch.no_grad()
def classify(pair: Pair, digit: Tensor, label: int | None, scale: float) -> Answer:
    """Both networks on a digit (28, 28) uint8 at one scale, and the layers of the invariant one.

    A drawing has no label.
    """
    image = make_scaled(digit.unsqueeze(0), scale, pair.size, truncate="allow")
    confidence, named = pair.plain(image)[0].softmax(0).max(0)
    found = explain(pair.invariant, image)
    return {
        "image": rendering.grey(image[0, 0]),
        "truth": label,
        "plain": {"label": int(named), "confidence": float(confidence)},
        "invariant": {"label": int(found.prediction), "confidence": found.mean_confidence},
        "layers": [{**_winners(name, view), **_levels(view)} for name, view in found.layers.items()],
    }


def _winners(name: str, view: LayerView) -> Answer:
    """Which level won where, in the channel with the strongest output there."""
    names, colours = [f"×{scale:.2g}" for scale in view.scales], rendering.level_colours(view.scales)
    index = view.winner.gather(0, view.output.argmax(0, keepdim=True))[0]
    return {
        "name": name.rpartition(".")[2],
        "winners": rendering.winners(index, view.strength, colours),
        "legend": rendering.legend(names, colours, index),
    }


def _levels(view: LayerView) -> Answer:
    """The response of each level in the channel with the strongest output; level images where they have one channel."""
    colours = dict(zip(view.scales, rendering.level_colours(view.scales), strict=True))
    names = [f"×{level.scale:.2g}" for level in view.levels]
    images = [level.image if len(level.image) == 1 else None for level in view.levels]
    shown = rendering.levels(
        names, [colours[level.scale] for level in view.levels], images, [level.response for level in view.levels]
    )
    return {"channel": view.channel, "levels": shown}


@torch.no_grad()
def curve(pair: Pair, digit: Tensor, label: int | None) -> Answer:
    """Per scale of `SCALES`, the probability of one class and the predicted class, by both networks.

    The class is the digit's label. A drawing has none: the invariant network's prediction at scale 1 takes its place.
    """
    images = make_scaled(digit.expand(len(SCALES), -1, -1), torch.tensor(SCALES), pair.size, truncate="allow")
    plain, invariant = (network(images).softmax(1) for network in (pair.plain, pair.invariant))
    shown = int(invariant[SCALES.index(1.0)].argmax()) if label is None else label
    return {
        "class": shown,
        "known": label is not None,
        "scales": list(SCALES),
        "plain": {"chances": plain[:, shown].tolist(), "labels": plain.argmax(1).tolist()},
        "invariant": {"chances": invariant[:, shown].tolist(), "labels": invariant.argmax(1).tolist()},
    }


def centre(drawing: Tensor) -> Tensor:
    """A drawing (28, 28) uint8 in the format of MNIST: its longer side 20 pixels, its centre of mass in the middle.

    Raises:
        ValueError: nothing is drawn.
    """
    inked = drawing.nonzero()
    if not len(inked):
        raise ValueError("`drawing` must hold some ink: draw a digit first")
    (top, left), (bottom, right) = inked.amin(0).tolist(), inked.amax(0).tolist()
    cut = drawing[top : bottom + 1, left : right + 1].float()
    factor = BOX / max(cut.shape)
    size = [max(1, round(factor * length)) for length in cut.shape]
    cut = F.interpolate(cut[None, None], size, mode="bilinear", antialias=True)[0, 0]
    corner = []
    for axis, length in enumerate(size):
        ink = cut.sum(1 - axis)
        middle = float((ink * torch.arange(length)).sum() / ink.sum())
        corner.append(min(max(round((CANVAS - 1) / 2 - middle), 0), CANVAS - length))
    result = torch.zeros(CANVAS, CANVAS, dtype=torch.uint8)
    result[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]] = cut.round().byte()
    return result


@torch.no_grad()
def label_scene(pair: Pair, seed: int, digits: int, low: float, high: float) -> Answer:
    """A scene of at most so many digits, each at its own scale from `low` to `high`, labelled by both networks."""
    made = make_scenes(pair.digits, pair.labels, Uniform(low, high), 1, SCENE, digits=digits, pieces=0, seed=seed)
    image, truth = made.images, made.labels
    found = explain(pair.invariant, image)
    shown = [
        {"label": int(pair.labels[digit]), "scale": scale}
        for digit, scale in zip(made.digits[0].tolist(), made.scales[0].tolist(), strict=True)
        if digit >= 0
    ]
    colours = rendering.class_colours()
    return {
        "image": rendering.grey(made.images[0, 0]),
        "truth": rendering.classes(truth[0], colours),
        "digits": shown,
        "classes": [{"name": str(digit), "colour": colours[digit]} for digit in range(BACKGROUND)],
        "plain": _labelled(pair.plain(image)[0].argmax(0), truth[0]),
        "invariant": _labelled(found.prediction, truth[0]),
        "layers": [_winners(name, view) for name, view in found.layers.items()],
    }


def _labelled(predicted: Tensor, truth: Tensor) -> Answer:
    """Predictions in the colours of their classes, and the accuracy on the pixels of digits."""
    inked = truth != BACKGROUND
    right = int(((predicted == truth) & inked).sum()) / max(1, int(inked.sum()))
    return {"labels": rendering.classes(predicted, rendering.class_colours()), "right": right}
