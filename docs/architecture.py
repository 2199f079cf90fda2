"""Draws the rooms of the package and which of them import which, for docs/architecture.md.

    python docs/architecture.py [docs/figures/architecture.svg]

The modules of a room and the arrows are read from the sources. Only the places of the boxes are written down here.
"""

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

SOURCES = Path(__file__).parents[1] / "src" / "scaleconv"
PICTURE = Path(__file__).parent / "figures" / "architecture.svg"
FRONT_DOORS = ("__init__", "__main__", "_start")

# Left, bottom, width and height of a box, from the top floor down; and what the room is for.
ROOMS = {
    "cli": ((0.0, 11.75, 12.0, 0.85), "the command “scaleconv”: parses, calls, prints"),
    "demo": ((0.0, 10.4, 12.0, 0.85), "a page in the browser: digits, filters, scenes"),
    "bench": ((0.0, 9.05, 12.0, 0.85), "time and memory of the layer beside plain convolutions"),
    "experiments": ((0.0, 7.3, 12.0, 1.35), "training and comparing: settings, records, tables, figures"),
    "inspection": ((0.0, 5.85, 5.5, 1.1), "a network seen: cost, winners"),
    "models": ((0.0, 4.0, 5.5, 1.35), "the networks and RBMs of the paper"),
    "data": ((6.5, 4.0, 5.5, 2.95), "MNIST-Scale, scenes, folders of images"),
    "nn": ((0.0, 2.4, 5.5, 1.1), "Modules: parameters and one call into ops"),
    "metrics": ((6.5, 2.4, 5.5, 1.1), "measures of networks, and the timer"),
    "ops": ((0.0, 0.0, 5.5, 1.9), "the layer: pure functions on tensors"),
    "table": ((6.5, 1.35, 5.5, 0.55), "tables as text, Markdown, HTML"),
}
LEGEND = """An arrow means “imports”, in the colour of the room it starts from.
Red is the core: it needs torch, and nothing else."""
CORE = ("nn", "ops")  # on torch alone
COLOURS = {
    "cli": "#777777",
    "demo": "#0b7a8a",
    "bench": "#4477aa",
    "experiments": "#aa7700",
    "inspection": "#aa3377",
    "metrics": "#4477aa",
    "models": "#228833",
    "nn": "#228833",
}
# Arrows that pass a floor run down a lane of the room they start from: beside the boxes, or in the middle.
LEFT = {"cli": -1.4, "demo": -1.05, "bench": -0.7, "models": -0.35}
MIDDLE = {"experiments": 6.2, "inspection": 5.8}
RIGHT = {"cli": 13.2, "demo": 12.8, "bench": 12.4}
LETTERS = 9.2  # that fit on a unit of width


def imported_by(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether at the top of the file) of everything a file imports, ours as absolute names."""
    package = ["scaleconv", *path.relative_to(SOURCES).parts[:-1]]
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "scaleconv" else [module]
            for name in names:
                yield name, id(node) in top


def room_of(path: Path) -> str:
    """The folder of `src/scaleconv` that a file is in; a file beside the folders is a room of its own."""
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


def modules_by_room() -> dict[str, list[str]]:
    """The modules of every room, without the front doors of packages; those of a folder in the room come last."""
    rooms: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        if path.stem not in FRONT_DOORS:
            within = path.relative_to(SOURCES).with_suffix("").parts[1:]
            rooms.setdefault(room_of(path), []).extend(["/".join(within)] if within else [])
    return rooms


def room_imports() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second."""
    pairs = set()
    for path in SOURCES.rglob("*.py"):
        for module, _ in imported_by(path):
            package, _, name = module.partition(".")
            pair = (room_of(path), name.partition(".")[0])
            if package == "scaleconv" and pair[0] not in FRONT_DOORS and pair[1] in ROOMS and pair[0] != pair[1]:
                pairs.add(pair)
    return pairs


def route(start: str, end: str, pairs: set[tuple[str, str]]) -> list[tuple[float, float]]:
    """The corners of an arrow: straight down to the next floor, else out to a lane, down, and into the box."""
    (left, bottom, width, height), (to_left, to_bottom, to_width, to_height) = ROOMS[start][0], ROOMS[end][0]
    if 0.3 < bottom - to_bottom - to_height < 0.7:
        x = max(left, to_left) + min(width, to_width) / 2
        return [(x, bottom), (x, to_bottom + to_height)]
    entering = sorted((room for room, target in pairs if target == end), key=list(ROOMS).index)
    y = to_bottom + to_height * (entering.index(start) + 1) / (len(entering) + 1)
    if start in MIDDLE:
        lane = MIDDLE[start]
        begin = [(lane, bottom)] if lane < left + width else [(left + width, bottom + height / 2)]
        turn = [] if lane < left + width else [(lane, bottom + height / 2)]
        return [*begin, *turn, (lane, y), (to_left if to_left > 6 else to_left + to_width, y)]
    if to_left == 0 and start in LEFT and to_width < 12:
        return [(left, bottom + height / 2), (LEFT[start], bottom + height / 2), (LEFT[start], y), (to_left, y)]
    edge, above = to_left + to_width, bottom + 0.75 * height  # clear of an arrow that enters at half the height
    return [(left + width, above), (RIGHT[start], above), (RIGHT[start], y), (edge, y)]


def draw(path: Path) -> None:
    """Write the picture; in an SVG file, the identifiers of its parts say what they show."""
    pairs, modules = room_imports(), modules_by_room()
    figure = Figure(figsize=(11.0, 9.3))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-1.65, 13.5), ylim=(-0.2, 12.85))
    axis.axis("off")
    for start, end in sorted(pairs):
        *corners, last = route(start, end, pairs)
        style: dict[str, Any] = {"color": COLOURS[start], "linewidth": 1.5}
        axis.plot(*zip(*corners, strict=True), solid_joinstyle="round", **style)
        arrow = FancyArrowPatch(corners[-1], last, mutation_scale=10, shrinkA=0, shrinkB=1.5, **style)
        arrow.set(arrowstyle="-|>,head_width=0.22,head_length=0.4", gid=f"{start}-imports-{end}")
        axis.add_patch(arrow)
    for room, ((left, bottom, width, height), purpose) in ROOMS.items():
        face, edge = ("#fff1ec", "#cc3311") if room in CORE else ("#f4f6f8", "#8a94a0")
        box = FancyBboxPatch((left, bottom), width, height, "round,pad=0,rounding_size=0.1", zorder=3)
        held = modules.get(room, [])
        box.set(facecolor=face, edgecolor=edge, linewidth=1.2, gid="-".join([room, "holds", *held]))
        axis.add_patch(box)
        top = bottom + height - 0.28
        name = axis.text(left + 0.2, top, room, weight="bold", va="center", fontsize=12, zorder=4)
        beside: dict[str, Any] = {"xycoords": name, "xytext": (9, 0), "textcoords": "offset points", "va": "center"}
        axis.annotate(purpose, (1, 0.5), **beside, fontsize=9.5, color="#333333", zorder=4)
        lines = textwrap.fill("  ".join(held), int(width * LETTERS), break_long_words=False, break_on_hyphens=False)
        listed = axis.text(left + 0.2, top - 0.25, lines, va="top", fontsize=8.5, color="#667080", zorder=4)
        listed.set(family="monospace", linespacing=1.5)
    axis.text(6.6, 0.6, LEGEND, va="center", fontsize=9, color="#333333", linespacing=1.6)
    with matplotlib.rc_context({"svg.hashsalt": "architecture"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
