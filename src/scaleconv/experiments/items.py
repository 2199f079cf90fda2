"""Reads an item's TOML file into its dataclass.

Every file in `configs/` is an item, named after the file. It holds the paper's protocol; its `[presets.*]` tables
change what they name. `base` names an item whose settings it takes over. `[[points]]` change settings once more, each
for itself. The overrides of the command line come last and reach every point. A key that no dataclass has is an error,
and so is a value of the wrong kind.

Two keys are for this module only: `order`, the item's place among the others, and `search = true` for an item that
compares settings or readings of the paper, and is not run with all.
"""

import copy
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from .config import Settings
from .experiment import Experiment, Item
from .parsing import brief, build

SECTIONS = tuple(field.name for field in fields(Settings))
TRAINED = ("training", "rbm", "si_rbm")  # sections with a number of epochs
LAST = 1000  # the place of an item that names none
TomlTable = dict[str, Any]

# Items that are no `Experiment`: the class that their file is read into.
STUDIES: dict[str, type[Any]] = {}


def read_items(folder: Traversable) -> dict[str, TomlTable]:
    """All files, in the order in which items are run: the later ones use networks of the earlier ones."""
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    files = {name.removesuffix(".toml"): _read_file(folder.joinpath(name)) for name in names}
    for item in files:
        bases = [item]
        while "base" in (table := files[bases[-1]]):
            base = table["base"]
            if base not in files or base in bases:
                raise ValueError(f"`base` in {bases[-1]}.toml must be an item that is not based on it, got {base!r}")
            bases.append(base)
    return dict(sorted(files.items(), key=lambda entry: (entry[1].get("order", LAST), entry[0])))


def _read_file(file: Traversable) -> TomlTable:
    """A file whose own keys, those that no dataclass has, are of their kinds."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not valid TOML ({brief(error)})") from None
    presets = table.get("presets", {})
    if not (isinstance(presets, dict) and all(isinstance(preset, dict) for preset in presets.values())):
        raise ValueError(f"`presets` in {file.name} must be tables by name, got {brief(presets)}")
    for key, kind, default in (("order", int, LAST), ("base", str, "")):
        if not isinstance(table.get(key, default), kind):
            raise ValueError(f"`{key}` in {file.name} must be {kind.__name__}, got {brief(table[key])}")
    return table


CONFIGS = resources.files("scaleconv").joinpath("configs")
_FILES = read_items(CONFIGS)
ITEMS = tuple(_FILES)
SEARCHES = tuple(name for name, table in _FILES.items() if table.get("search"))


def load_item(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Item:
    """Read an item's file, apply a preset, then overrides such as {"training.epochs": 3}.

    The override `epochs` is of all that is trained, whatever the method.

    Returns:
        An `Experiment`, or the class in `STUDIES`.

    Raises:
        ValueError: an unknown item, preset or key, or a value of the wrong kind.
    """
    table = _with_preset(item, preset)
    changes = _nested(overrides or {})
    where = f"{item}.toml"
    if item in STUDIES:
        _merge(table, changes)
        study: Item = build(STUDIES[item], {**table, "item": item, "preset": preset}, where)
        return study
    if "epochs" in changes:
        epochs = changes.pop("epochs")
        changes = _merge({section: {"epochs": epochs} for section in TRAINED}, changes)
    points = changes.pop("points", table.pop("points", [{}]))
    if not isinstance(points, list):
        raise ValueError(f"`points` in {where} must be a list of tables, got {brief(points)}")
    _merge(table, changes)
    base = {section: table.pop(section, {}) for section in SECTIONS}
    build(Settings, base, where)  # refused here, by name, rather than at each point
    changed = {section: changes.get(section, {}) for section in SECTIONS}
    table["points"] = [_point(point, base, changed, where) for point in points]
    return build(Experiment, {**table, "item": item, "preset": preset}, where)


def load_experiment(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Experiment:
    """As `load_item`, for an item that trains networks."""
    if item in STUDIES or not isinstance(loaded := load_item(item, preset, overrides), Experiment):
        raise ValueError(f"`item` must be one that trains networks, got {item!r}")
    return loaded


def folder_name(item: str, preset: str) -> str:
    """The folder of an item's records unless someone names another."""
    return item if preset == "paper" else f"{item}-{preset}"


def check_name(name: str) -> str:
    """Refuse the name of a folder that would lie outside the directory of the results.

    Example:
        >>> check_name("table1-quick")
        'table1-quick'
    """
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ValueError(
            f"`name` must be a folder's name of letters, digits, '.', '_', '+' and '-' that begins with a letter "
            f"or a digit, got {name!r}"
        )
    return name


def parse_override(text: str) -> tuple[str, Any]:
    """Read `training.epochs=3` as a key and a TOML value; what is no TOML value is taken as text."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"`set` must be KEY=VALUE, such as training.epochs=3, got {text!r}")
    if re.search(r"[\r\n]", text):
        raise ValueError(f"`set` must be one KEY=VALUE on one line; give --set twice to set two keys, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _with_preset(item: str, preset: str) -> TomlTable:
    table, presets = _read(item)
    if preset not in presets:
        raise ValueError(f"`preset` must be one of {brief(', '.join(presets))}, got {preset!r}, in {item}.toml")
    return _merge(table, presets[preset])


def _read(item: str) -> tuple[TomlTable, TomlTable]:
    """A file and its presets, both on top of the settings of the item it is based on."""
    if item not in _FILES:
        raise ValueError(f"`item` must be one of {', '.join(ITEMS)}, got {item!r}")
    table = {key: copy.deepcopy(value) for key, value in _FILES[item].items() if key not in ("order", "search")}
    presets = table.pop("presets", {})
    if "base" not in table:
        return table, presets
    base, base_presets = _read(table.pop("base"))
    inherited = {name: _merge(_settings(base_presets.get(name, {})), preset) for name, preset in presets.items()}
    return _merge(_settings(base), table), inherited


def _settings(table: TomlTable) -> TomlTable:
    return {key: value for key, value in table.items() if key in SECTIONS}


def _point(point: Any, base: TomlTable, changes: TomlTable, where: str) -> TomlTable:
    if not isinstance(point, Mapping) or not isinstance(point.get("set", {}), Mapping):
        raise ValueError(f"`points` in {where} must be tables with a table `set`, got {brief(point)}")
    settings = _merge(_merge(copy.deepcopy(base), _nested(point.get("set", {}))), changes)
    return {**{key: value for key, value in point.items() if key != "set"}, "settings": settings}


def _nested(flat: Mapping[str, Any]) -> TomlTable:
    table: TomlTable = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        change: TomlTable = {last: value}
        for parent in reversed(parents):
            change = {parent: change}
        _merge(table, change)
    return table


def _merge(table: TomlTable, change: Mapping[str, Any]) -> TomlTable:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = copy.deepcopy(value)
    return table
