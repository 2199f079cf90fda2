"""Tables to dataclasses, for configurations and records: every key must be a field, every value of the field's kind."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def build(kind: type[T], table: Any, where: str) -> T:
    """Make a dataclass of a table.

    Raises:
        ValueError: an unknown or missing key, or a value of the wrong kind; the message begins with the key.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {table!r}")
    hints = get_type_hints(kind)
    if unknown := sorted(set(table) - set(hints)):
        raise ValueError(f"`{unknown[0]}` in {where} is unknown: it must be one of {', '.join(hints)}")
    optional = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}  # type: ignore[arg-type]
    if missing := sorted(set(hints) - optional - set(table)):
        raise ValueError(f"`{missing[0]}` in {where} is missing")
    return kind(**{key: _convert(value, hints[key], key, where) for key, value in table.items()})


def _convert(value: Any, kind: Any, key: str, where: str) -> Any:
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _convert(value, inner[0], key, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, f"{where}, [{key}]")
    if origin is dict and isinstance(value, Mapping):
        return {name: _convert(item, inner[1], f"{key}.{name}", where) for name, item in value.items()}
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(_convert(item, inner[0], key, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    name = kind.__name__ if isinstance(kind, type) and origin is None else str(kind)
    raise ValueError(f"`{key}` in {where} must be {name}, got {value!r}")
