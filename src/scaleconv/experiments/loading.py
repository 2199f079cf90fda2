"""Reads an item's TOML file into its dataclasses.

A file holds the paper's protocol; its `[presets.*]` tables change what they name. `base` names an item whose settings
it takes over. `[[points]]` change settings once more, each for itself. The overrides of the command line come last and
reach every point. A key that no dataclass has is an error, and so is a value of the wrong kind.
"""

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from typing import Any

from .config import Experiment, Settings
from .cost import CostStudy
from .schema import build

SECTIONS = tuple(field.name for field in fields(Settings))
TRAINED = ("training", "rbm", "si_rbm")  # sections with a number of epochs
Table = dict[str, Any]

# In the order in which they are run: the later ones take networks of the earlier ones.
ITEMS = ("table1", "fig3", "fig4a", "fig4b", "fig5a", "fig5b", "cost", "winners", "equivariance", "scales", "recipes")
APART = ("scales", "recipes")  # how settings were found: not run with all


def load_item(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Experiment | CostStudy:
    """Read an item's file, apply a preset, then overrides such as {"training.epochs": 3}.

    The override `epochs` is of all that is trained, whatever the method.

    Raises:
        ValueError: an unknown item, preset or key, or a value of the wrong kind.
    """
    table = _preset(item, preset)
    changes = _nested(overrides or {})
    where = f"{item}.toml"
    if item == "cost":
        _merge(table, changes)
        return build(CostStudy, {**table, "item": item, "preset": preset}, where)
    if "epochs" in changes:
        epochs = changes.pop("epochs")
        changes = _merge({section: {"epochs": epochs} for section in TRAINED}, changes)
    points = changes.pop("points", table.pop("points", [{}]))
    _merge(table, changes)
    base = {section: table.pop(section, {}) for section in SECTIONS}
    build(Settings, base, where)  # refused here, by name, rather than at each point
    for section in SECTIONS:
        changes.setdefault(section, {})
    table["points"] = [_point(point, base, {key: changes[key] for key in SECTIONS}, where) for point in points]
    return build(Experiment, {**table, "item": item, "preset": preset}, where)


def load_experiment(item: str, preset: str = "paper", overrides: Mapping[str, Any] | None = None) -> Experiment:
    """As `load_item`, for an item that trains networks."""
    if item == "cost" or not isinstance(loaded := load_item(item, preset, overrides), Experiment):
        raise ValueError(f"`item` must be one that trains networks, got {item!r}")
    return loaded


def folder_name(item: str, preset: str) -> str:
    """Where the records of an item lie unless someone names another folder."""
    return item if preset == "paper" else f"{item}-{preset}"


def parse_override(text: str) -> tuple[str, Any]:
    """Read `training.epochs=3` as a key and a TOML value; what is no TOML value is taken as text."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"`set` must be KEY=VALUE, such as training.epochs=3, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _preset(item: str, preset: str) -> Table:
    table, presets = _read(item)
    if preset not in presets:
        raise ValueError(f"`preset` must be one of {', '.join(presets)}, got {preset!r}")
    return _merge(table, presets[preset])


def _read(item: str) -> tuple[Table, Table]:
    """A file and its presets, both on top of the settings of the item it is based on."""
    if item not in ITEMS:
        raise ValueError(f"`item` must be one of {', '.join(ITEMS)}, got {item!r}")
    path = resources.files("scaleconv").joinpath("configs").joinpath(f"{item}.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    presets = table.pop("presets", {})
    if "base" not in table:
        return table, presets
    base, base_presets = _read(table.pop("base"))
    inherited = {name: _merge(_settings(base_presets.get(name, {})), preset) for name, preset in presets.items()}
    return _merge(_settings(base), table), inherited


def _settings(table: Table) -> Table:
    return {key: value for key, value in table.items() if key in SECTIONS}


def _point(point: Any, base: Table, changes: Table, where: str) -> Table:
    if not isinstance(point, Mapping) or not isinstance(point.get("set", {}), Mapping):
        raise ValueError(f"`points` in {where} must be tables with a table `set`, got {point!r}")
    settings = _merge(_merge(copy.deepcopy(base), _nested(point.get("set", {}))), changes)
    return {**{key: value for key, value in point.items() if key != "set"}, "settings": settings}


def _nested(flat: Mapping[str, Any]) -> Table:
    table: Table = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        change: Table = {last: value}
        for parent in reversed(parents):
            change = {parent: change}
        _merge(table, change)
    return table


def _merge(table: Table, change: Mapping[str, Any]) -> Table:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = copy.deepcopy(value)
    return table
