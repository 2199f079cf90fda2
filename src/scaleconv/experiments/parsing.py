"""Makes dataclasses of what a file holds: a TOML file, a record, a checkpoint. Nothing in it is trusted.

Keys and types are checked here, values by the dataclass. A message names the key in backticks, the rule and the value.
"""

import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

LARGEST_FLOAT = int(sys.float_info.max)
LONGEST_REASON = 300  # characters


def build(kind: type[T], table: Any, where: str) -> T:
    """Make a dataclass of a table: of a TOML file, a record or a checkpoint.

    Raises:
        ValueError: an unknown or missing key, or a value of the wrong kind; the message begins with the key.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {brief(repr(table))}")
    hints = _type_hints(kind)  # type: ignore[arg-type]
    if unknown := sorted(set(table) - set(hints)):
        raise ValueError(f"`{brief(unknown[0])}` in {where} is unknown: it must be one of {', '.join(hints)}")
    optional = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}  # type: ignore[arg-type]
    if missing := sorted(set(hints) - optional - set(table)):
        raise ValueError(f"`{missing[0]}` in {where} is missing")
    values = {key: _convert(value, hints[key], key, where) for key, value in table.items()}
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:  # a value breaks a rule of the dataclass
        raise ValueError(f"{brief(error)}, in {where}") from None


@cache
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    """Kept, since a history builds the same class hundreds of times."""
    return get_type_hints(kind)


def _convert(value: Any, kind: Any, key: str, where: str) -> Any:
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _convert(value, inner[0], key, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else build(kind, value, f"{where}, [{key}]")
    if origin is dict and isinstance(value, Mapping):
        return {name: _convert(item, inner[1], f"{key}.{name}", where) for name, item in value.items()}
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(_convert(item, inner[0], key, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT:
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    name = kind.__name__ if isinstance(kind, type) and origin is None else str(kind)
    raise ValueError(f"`{brief(key)}` in {where} must be {name}, got {brief(repr(value))}")


def brief(reason: object) -> str:
    """Why a file is refused, as one line of bounded length: a damaged file may hold anything, and messages quote it.

    Example:
        >>> brief("`a\\nb` is unknown: " + 1000 * "x")[:20]
        '`a b` is unknown: xx'
    """
    line = " ".join(str(reason)[: 2 * LONGEST_REASON].split())
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + "…"
