"""Writes a result: one JSON file, tables in Markdown, a figure, and tables on the terminal."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..data.atomic import atomic_path
from .figures import draw_layers
from .runner import Result
from .tables import Sheet, footnotes, layer_sheet, sheets

WIDEST_TABLE = 180  # columns of text


def write_report(result: Result, folder: Path) -> list[Path]:
    """Write NAME.json, NAME.md and, if layers were measured, NAME.png and NAME.svg; each whole or not at all."""
    name = result.settings["name"]
    texts = {
        folder / f"{name}.json": json.dumps(result.as_dict(), indent=1, allow_nan=False) + "\n",
        folder / f"{name}.md": markdown(result),
    }
    for path, text in texts.items():
        with atomic_path(path) as part:
            part.write_text(text, encoding="utf-8")
    pictures = [folder / f"{name}.{kind}" for kind in ("png", "svg")] if any(row.both for row in result.rows) else []
    for path in pictures:
        draw_layers(result.rows, path)
    return [*texts, *pictures]


def markdown(result: Result) -> str:
    """The page: ratios, every layer, networks, and how they were measured."""
    parts = [sheet.markdown() for sheet in sheets(result)]
    if result.rows:
        parts.insert(1, layer_sheet(result.rows).markdown())
    return "\n".join([f"# Benchmark on {result.environment['device']}", "", *parts, *footnotes(result), ""])


def print_result(result: Result) -> None:
    """Print the tables; where a terminal is narrower than a table, its lines wrap, and no number is cut off."""
    terminal = Console()
    wide = Console(width=max(terminal.width, WIDEST_TABLE))
    for sheet in sheets(result):
        wide.print(_terminal_table(sheet))
    for note in footnotes(result):
        (terminal if sys.stdout.isatty() else wide).print(Text(note))


def failures(result: Result) -> list[str]:
    """A line for each layer and network that could not be measured."""
    layers = [
        f"{row.layer} ({row.scales} scales) on {row.shape}, {row.dtype}, {row.layout}: {row.error}"
        for row in result.rows
        if row.error
    ]
    networks = [
        f"{row.network} ({row.variant}), {row.task}, {row.dtype}, {row.layout}: {row.error}"
        for row in result.steps
        if row.error
    ]
    return layers + networks


def _terminal_table(sheet: Sheet) -> Table:
    table = Table(title=Text(sheet.title), title_justify="left")
    for column, name in enumerate(sheet.header):
        table.add_column(name, justify="left" if column < 3 else "right")
    for line in sheet.lines:
        table.add_row(*line)
    return table
