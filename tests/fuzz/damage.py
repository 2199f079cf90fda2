"""Ways to damage a file, and a table that is stored in one."""

import copy
import gzip
import struct
from functools import cache

BOMB = 2**26  # bytes that a gzip bomb unpacks to
NAMES = ("", "x", "cpu", "1e999", "\u001b[31m", "a\nb", "\ud800", "Infinity", "os:system", "../x", "0" * 5000)
NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**64), 10**400, 0.0, -0.0, 0.1, 1e308, float("nan"), float("inf"))
EMPTY = (None, True, False, [], {}, [[]], [None], {"": None})
DEPTH = 100_000
SMALL = ("truncated", "flipped", "swapped", "grafted", "digit", "removed")  # hardest to notice, so drawn more often


def write_damaged(dice, path, data, other):
    """Write bytes to a file, damaged in one of many ways; `other` is a whole file of the same or another kind."""
    kind = dice.choice([*DAMAGES, "directory", *3 * SMALL])
    if kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(DAMAGES[kind](dice, bytes(data), bytes(other)))
    return kind


def _flip(dice, data, _):
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 8])):
        changed[_place(dice, data)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _place(dice, data):
    """Headers, in the first bytes, are hit more often than their share."""
    return dice.randrange(min(len(data), 400)) if dice.random() < 0.5 else dice.randrange(len(data))


def _swap(dice, data, _):
    size = dice.choice([1, 2, 4, 8, 100])
    first, second = sorted((_place(dice, data), _place(dice, data)))
    a, b = data[first : first + size], data[second : second + size]
    return data[:first] + b + data[first + len(a) : second] + a + data[second + len(b) :]


def _graft(dice, data, other):
    at, size = _place(dice, data), dice.choice([1, 4, 16, 400])
    start = dice.randrange(max(1, len(other)))
    return data[:at] + other[start : start + size] + data[at + size :]


def _huge(dice, data, _):
    """A length that no file has, at a place where one may stand."""
    length = dice.choice([struct.pack("<Q", n) for n in (2**63, 2**40, 2**31, 10**8)] + [b"\xff\xff\xff\xff"])
    at = dice.choice([0, 4, 8, 12, 16, _place(dice, data)])
    return data[:at] + length + data[at + len(length) :]


def _digit(dice, data, _):
    """Another digit in a text or a header."""
    places = [at for at, byte in enumerate(data[:4000]) if 48 <= byte <= 57]
    if not places:
        return data[:-1]
    at = dice.choice(places)
    return data[:at] + str(dice.randrange(10)).encode() * dice.choice([1, 1, 2, 300]) + data[at + 1 :]


@cache
def _bomb():
    return gzip.compress(bytes(BOMB), 9)


DAMAGES = {
    "truncated": lambda dice, data, _: data[: _place(dice, data)],
    "flipped": _flip,
    "swapped": _swap,
    "grafted": _graft,
    "huge": _huge,
    "digit": _digit,
    "removed": lambda dice, data, _: data[: (at := _place(dice, data))] + data[at + dice.choice([1, 2, 8, 64]) :],
    "repeated": lambda dice, data, _: data + data[: dice.choice([1, 100, len(data)])],
    "longer": lambda dice, data, _: data + dice.randbytes(dice.choice([1, 2, 1000, 2**20])),
    "other": lambda dice, data, other: other,
    "joined": lambda dice, data, other: data[: _place(dice, data)] + other,
    "empty": lambda dice, data, _: b"",
    "noise": lambda dice, data, _: dice.randbytes(dice.choice([1, 10, 1000, len(data)])),
    "nested": lambda dice, data, _: dice.choice([b"[", b'{"a":', b"a = [", b"{"]) * DEPTH,
    "text": lambda dice, data, _: dice.choice([b"null", b"{}", b"[]", b"NaN", b"\xef\xbb\xbf{}", b"0" * 10**5]),
    "packed": lambda dice, data, _: gzip.compress(data),
    "bomb": lambda dice, data, _: _bomb() if dice.random() < 0.1 else _bomb()[: dice.randrange(len(_bomb()))],
    "pickle": lambda dice, data, _: b"\x80\x04cos\nsystem\n(S'exit 7'\ntR.",
}


def damaged_table(dice, table):
    """A table of JSON or TOML with one value, or key, that it should not have."""
    table = copy.deepcopy(table)
    places = list(_places(table))
    holder, key = dice.choice(places)
    kind = dice.choice(["value", "value", "value", "gone", "other", "renamed", "near"])
    value = holder[key]
    if kind == "gone":
        del holder[key]
    elif kind == "other":
        other, name = dice.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif kind == "renamed" and isinstance(holder, dict):
        holder[dice.choice(NAMES[:6])] = holder.pop(key)
    elif kind == "near" and isinstance(value, int | float):
        holder[key] = value + dice.choice([-1, 1, 0.5, 1e-3]) * dice.choice([1, 1000])
    else:
        holder[key] = copy.deepcopy(dice.choice([*NAMES, *NUMBERS, *EMPTY]))
    return table


def _places(table):
    """Every value in a table, as what holds it and its key there."""
    for key in list(table) if isinstance(table, dict) else range(len(table)):
        yield table, key
        if isinstance(table[key], dict | list):
            yield from _places(table[key])
