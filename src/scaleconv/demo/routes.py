"""What the browser may ask: checks the fields of each request, and calls what computes the answer.

A request is JSON from anyone who can reach the port. A field of another type or outside of its range is a `ValueError`
that names the field, the rule and the value.
"""

import base64
import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import answers, filters
from .answers import MOST_DIGITS, SCALES, SCENE_SCALES, Answer
from .filters import PATCH, TRANSFORMS
from .pairs import Pair
from .uploads import LEAST, SIDE

Fields = dict[str, Any]
Pairs = dict[str, Pair]
Number = TypeVar("Number", int, float)

OFFERED = {"digits": 3, "photographs": 1}  # pairs that name an image, and how many of each class the page offers
START = 1.6  # the scale at which the tab of digits opens; that of photographs finds its own among those measured


def offer(_: Fields, pairs: Pairs) -> Answer:
    layers = filters.find_layers(pairs).items()
    offered = {name: answers.offer(pairs[name], each) for name, each in OFFERED.items()}
    scales = {"digits": [START], "photographs": pairs["photographs"].accuracy.scales}
    return {
        "offered": offered,
        "start": {name: answers.find_start(pairs[name], images, scales[name]) for name, images in offered.items()},
        "examples": filters.examples(pairs["scenes"]),
        "trained": {name: pair.trained for name, pair in pairs.items()},
        "accuracy": {name: asdict(pair.accuracy) for name, pair in pairs.items()},
        "layers": [{"name": name, "title": layer.title, "filters": layer.gallery()} for name, layer in layers],
    }


def classify(fields: Fields, pairs: Pairs) -> Answer:
    return answers.classify(*subject(fields, pairs), number(fields, "scale", SCALES[0], SCALES[-1]))


def curve(fields: Fields, pairs: Pairs) -> Answer:
    return answers.curve(*subject(fields, pairs))


def respond(fields: Fields, pairs: Pairs) -> Answer:
    height, width = (number(fields, name, LEAST, SIDE) for name in ("height", "width"))
    image, by = pixels(fields, "pixels", height, width) / 255, choice(fields, "by", TRANSFORMS)
    if "patch" in fields:
        return filters.apply_patch(pixels(fields, "patch", PATCH, PATCH) / 255, image, by)
    layers = filters.find_layers(pairs)
    layer = layers[choice(fields, "layer", layers)]
    return filters.apply_layer(layer, number(fields, "filter", 0, layer.filters - 1), image, by)


def label_scene(fields: Fields, pairs: Pairs) -> Answer:
    low = number(fields, "low", *SCENE_SCALES)
    high = number(fields, "high", low, SCENE_SCALES[1])
    seed, digits = number(fields, "seed", 0, 10**6), number(fields, "digits", 1, MOST_DIGITS)
    return answers.label_scene(pairs["scenes"], seed, digits, low, high)


ROUTES: dict[str, Callable[[Fields, Pairs], Answer]] = {
    "/offer": offer,
    "/classify": classify,
    "/curve": curve,
    "/filter": respond,
    "/scene": label_scene,
}


def answer_json(path: str, pairs: Pairs, body: bytes) -> Answer:
    """The answer to a request, which is a JSON object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the request must be a JSON object, got {body[:80]!r}")
    return ROUTES[path](fields, pairs)


def subject(fields: Fields, pairs: Pairs) -> tuple[Pair, Tensor, int | None]:
    """The pair that is asked, and an image: of the visitor's own, or one that is offered, with its label."""
    pair = pairs[choice(fields, "pair", OFFERED)]
    if "pixels" in fields:
        own = pixels(fields, "pixels", *pair.images.shape[1:])
        return pair, answers.centre(own) if own.dim() == 2 else own, None
    index = number(fields, "index", 0, len(pair.images) - 1)
    return pair, pair.images[index], int(pair.labels[index])


def number(fields: Fields, name: str, low: Number, high: Number) -> Number:
    """A number from `low` to `high`, whole if they are."""
    value: Any = fields.get(name)
    if type(value) not in (int, type(low)) or not low <= value <= high:  # as NaN is not
        kind = "whole number" if isinstance(low, int) else "number"
        raise ValueError(f"`{name}` must be a {kind} from {low} to {high}, got {value!s:.80}")
    return type(low)(value)


def choice(fields: Fields, name: str, known: Collection[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {value!s:.80}")
    return value


def pixels(fields: Fields, name: str, *shape: int) -> Tensor:
    """An image of this shape, uint8, sent row by row in base64."""
    value = fields.get(name)
    try:
        found = bytearray(base64.b64decode(value or "", validate=True))
    except (ValueError, TypeError):
        found = bytearray()
    if len(found) != prod(shape):
        raise ValueError(f"`{name}` must be {'×'.join(map(str, shape))} bytes in base64, got {value!s:.80}")
    return torch.frombuffer(found, dtype=torch.uint8).reshape(shape)
