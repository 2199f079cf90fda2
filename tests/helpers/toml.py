"""Tables as TOML, which the standard library only reads."""

import json
import math


def to_toml(table):
    """A file that says the same; tables inside are written inline, and what TOML lacks is text."""
    return "".join(f"{_text(key)} = {_value(value)}\n" for key, value in table.items())


def _value(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf"}.get(value, "nan")
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text):
    return json.dumps(text)  # the same rules for what is quoted
