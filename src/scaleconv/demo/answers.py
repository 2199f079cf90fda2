"""Computes what the page shows of digits, photographs and scenes: from arrays and numbers to pictures and numbers.

Every function is pure and returns a dictionary for JSON. `routes` has checked the arguments. `filters` computes the
second tab.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import BACKGROUND, Uniform, make_scaled, make_scenes
from ..data.rescale import rescale
from ..inspection import explain
from ..inspection.explain import LayerView
from ..nn.layers import SIConv2d
from ..nn.observe import find_layers, watching, winner_of
from . import rendering
from .pairs import Pair

Answer = dict[str, Any]

SCALES = tuple(step / 10 for step in range(3, 21))  # of the curve; the slider goes from the first to the last
SCENE = 96  # side of a scene; the networks were trained on smaller ones, and take any
SCENE_SCALES, MOST_DIGITS = (0.4, 2.2), 6
BOX, CANVAS = 20, 28  # pixels of a digit and of its image in MNIST


def offer(pair: Pair, each: int) -> list[Answer]:
    """The first `each` images of every class that the page offers of a pair."""
    chosen = [int(index) for label in pair.labels.unique() for index in (pair.labels == label).nonzero()[:each, 0]]
    return [
        {
            "index": index,
            "label": pair.plain.classes[int(pair.labels[index])],
            "image": rendering.picture(pair.images[index] / 255),
        }
        for index in chosen
    ]


@torch.no_grad()
def find_start(pair: Pair, offered: list[Answer], scales: Sequence[float]) -> Answer:
    """Of the images offered, the one that the tab opens with, and at which of the scales.

    There the plain network is wrong, the invariant one is right, and by most the surer of the label. Where they agree
    on every image at every scale, it is the one of which the invariant network is surer by most.
    """
    opening = [(entry["index"], scale) for entry in offered for scale in scales]
    indices = [index for index, _ in opening]
    labels, each = pair.labels[indices], range(len(opening))
    images = bring_to(pair, pair.images[indices], torch.tensor([scale for _, scale in opening]))
    invariant, plain = (network(images).softmax(1) for network in (pair.invariant, pair.plain))
    ahead = invariant[each, labels] - plain[each, labels]
    disagree = (invariant.argmax(1) == labels) & (plain.argmax(1) != labels)
    index, scale = opening[int((ahead + 2 * disagree).argmax())]  # which is from -1 to 1, and else from 1 to 3
    return {"index": index, "scale": scale}


def bring_to(pair: Pair, images: Tensor, scales: Tensor | float) -> Tensor:
    """Images at scales, as the networks of a pair were trained on them: float32 of the pair's size.

    Digits (N, 28, 28) are on a black canvas. Photographs (N, 3, H, H) fill theirs at scale 1, and repeat their edge.
    """
    if images.dim() == 3:
        return make_scaled(images, scales, pair.size, truncate="allow")
    return rescale(images, pair.size / images.shape[-1] * scales, pair.size, antialias=True, border="edge")


@torch.no_grad()
def classify(pair: Pair, image: Tensor, label: int | None, scale: float) -> Answer:
    """Both networks on an image, as `bring_to` takes it, at one scale; and the layers of the invariant one.

    An image of the visitor's own has no label.
    """
    shown, classes = bring_to(pair, image.unsqueeze(0), scale), pair.plain.classes
    confidence, named = pair.plain(shown)[0].softmax(0).max(0)
    found = explain(pair.invariant, shown)
    return {
        "image": rendering.picture(shown[0, 0] if len(shown[0]) == 1 else shown[0]),
        "truth": None if label is None else classes[label],
        "plain": {"label": classes[int(named)], "confidence": float(confidence)},
        "invariant": {"label": classes[int(found.prediction)], "confidence": found.mean_confidence},
        "layers": [
            {**_winners(name, view.scales, view.output, view.winner), **_levels(view)}
            for name, view in found.layers.items()
        ],
    }


def _winners(name: str, scales: Sequence[float], output: Tensor, winner: Tensor) -> Answer:
    """Which level won where, in the channel with the strongest output there; output and winner are (M, H, W)."""
    names, colours = [f"×{scale:.2g}" for scale in scales], rendering.level_colours(scales)
    strength, channel = output.max(0)
    index = winner.gather(0, channel.unsqueeze(0))[0]
    return {
        "name": name.removeprefix("network.").removeprefix("stages."),
        "winners": rendering.winners(index, strength, colours),
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
def curve(pair: Pair, image: Tensor, label: int | None) -> Answer:
    """Per scale of `SCALES`, the probability of one class and the predicted class, by both networks.

    The class is the image's label. An image of the visitor's own has none: what the invariant network names at scale 1
    takes its place.
    """
    shown = bring_to(pair, image.expand(len(SCALES), *image.shape), torch.tensor(SCALES))
    plain, invariant = (network(shown).softmax(1) for network in (pair.plain, pair.invariant))
    followed = int(invariant[SCALES.index(1.0)].argmax()) if label is None else label
    return {
        "class": pair.plain.classes[followed],
        "known": label is not None,
        "scales": list(SCALES),
        "plain": _over_scales(plain, followed, pair),
        "invariant": _over_scales(invariant, followed, pair),
    }


def _over_scales(chances: Tensor, followed: int, pair: Pair) -> Answer:
    labels = [pair.plain.classes[label] for label in chances.argmax(1).tolist()]
    return {"chances": chances[:, followed].tolist(), "labels": labels}


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
    made = make_scenes(pair.images, pair.labels, Uniform(low, high), 1, SCENE, digits=digits, pieces=0, seed=seed)
    image, truth = made.images, made.labels
    layers: list[Answer] = []

    def keep(name: str, layer: SIConv2d, given: Tensor, output: Tensor) -> None:
        layers.append(_winners(name, layer.scales, output[0], winner_of(layer, given)[0]))

    plain = pair.plain(image)[0].argmax(0)
    with watching(find_layers(pair.invariant), keep):  # `explain` would compute the responses of all levels too
        invariant = pair.invariant(image)[0].argmax(0)
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
        "plain": _labelled(plain, truth[0]),
        "invariant": _labelled(invariant, truth[0]),
        "layers": layers,
    }


def _labelled(predicted: Tensor, truth: Tensor) -> Answer:
    """Predictions in the colours of their classes, and the accuracy on the pixels of digits."""
    inked = truth != BACKGROUND
    right = int(((predicted == truth) & inked).sum()) / max(1, int(inked.sum()))
    return {"labels": rendering.classes(predicted, rendering.class_colours()), "right": right}
