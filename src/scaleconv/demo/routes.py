"""What the browser may ask: checks the fields of each request, and calls what computes the answer.

A request is JSON from anyone who can reach the port. A field of another type or outside of its range is a `ValueError`
that names the field, the rule and the value.
"""

import base64
import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import answers, filters
from .answers import CANVAS, MOST_DIGITS, SCALES, SCENE_SCALES, Answer
from .filters import LEAST, PATCH, SIDE, TRANSFORMS
from .pairs import Pair

Fields = dict[str, Any]
Pairs = dict[str, Pair]
Number = TypeVar("Number", int, float)


def offer(_: Fields, pairs: Pairs) -> Answer:
    layers, digits = filters.find_layers(pairs).items(), answers.offer(pairs["digits"], each=3)
    return {
        "digits": digits,
        "start": answers.find_start(pairs["digits"], digits),
        "examples": filters.examples(pairs["scenes"]),
        "trained": {name: pair.trained for name, pair in pairs.items()},
        "layers": [{"name": name, "title": layer.title, "filters": layer.gallery()} for name, layer in layers],
    }


def classify(fields: Fields, pairs: Pairs) -> Answer:
    scale = number(fields, "scale", SCALES[0], SCALES[-1])
    return answers.classify(pairs["digits"], *digit(fields, pairs["digits"]), scale)


def curve(fields: Fields, pairs: Pairs) -> Answer:
    return answers.curve(pairs["digits"], *digit(fields, pairs["digits"]))


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
    "/digit": classify,
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


def digit(fields: Fields, pair: Pair) -> tuple[Tensor, int | None]:
    """The digit (28, 28) that was drawn; or picked by its index, with its label."""
    if "drawing" in fields:
        return answers.centre(pixels(fields, "drawing", CANVAS, CANVAS)), None
    index = number(fields, "index", 0, len(pair.digits) - 1)
    return pair.digits[index], int(pair.labels[index])


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


def pixels(fields: Fields, name: str, height: int, width: int) -> Tensor:
    """(height, width) uint8, sent row by row in base64."""
    value = fields.get(name)
    try:
        found = bytearray(base64.b64decode(value or "", validate=True))
    except (ValueError, TypeError):
        found = bytearray()
    if len(found) != height * width:
        raise ValueError(f"`{name}` must be {height}×{width} bytes in base64, got {value!s:.80}")
    return torch.frombuffer(found, dtype=torch.uint8).reshape(height, width)
