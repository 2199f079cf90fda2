"""The outcome of an item as people read it: terminal table, Markdown, CSV and figure, all from records."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..data.atomic import atomic_path
from . import panel_tables, tables
from .config import Experiment
from .cost import CostStudy
from .figures import FORMATS, draw_errors, draw_panels
from .filters import draw_learned
from .notes import footnotes
from .panels import is_table, make_panels
from .records import Record

Item = Experiment | CostStudy


def terminal_tables(item: Item, records: Sequence[Record]) -> list[Table]:
    """The tables for a terminal: one, or one for each panel."""
    if isinstance(item, Experiment) and is_table(item):
        rows = tables.make_rows(records, item.paper, item.baseline)
        return [_terminal(item.title, tables.header(item), [tables.cells(row) for row in rows])]
    found = []
    for panel in make_panels(item, records):
        title = ": ".join(part for part in (item.title, panel.title, panel.y) if part)
        found.append(_terminal(title, panel_tables.header(panel), panel_tables.rows(panel)))
    return found


def print_table(item: Item, records: Sequence[Record]) -> None:
    """Print the tables and notes; a terminal knows its width, a file should not be folded at 80."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(Group(*terminal_tables(item, records), Text("\n".join(footnotes(item, records)), style="italic")))


def print_json(item: Item, records: Sequence[Record]) -> None:
    """Mean, std and n per model, and at each point where there are any, as JSON."""
    is_curve = not is_table(item)
    found = panel_tables.as_json(make_panels(item, records)) if is_curve else tables.summaries(records)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def markdown(item: Item, records: Sequence[Record]) -> str:
    """The tables of an item as Markdown, with the notes under them."""
    if isinstance(item, Experiment) and is_table(item):
        text = tables.markdown(tables.make_rows(records, item.paper, item.baseline), item)
    else:
        text = panel_tables.markdown(make_panels(item, records))
    return "\n".join([text, "", *footnotes(item, records), ""])


def comma_separated(item: Item, records: Sequence[Record]) -> str:
    """The tables of an item as CSV."""
    if isinstance(item, Experiment) and is_table(item):
        return tables.comma_separated(tables.make_rows(records, item.paper, item.baseline))
    return panel_tables.comma_separated(make_panels(item, records))


def draw(item: Item, records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Draw the figure of an item into a folder, in every format."""
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    if is_table(item):
        draw_errors(records, item.title, item.claim, paths)
    else:
        draw_panels(make_panels(item, records), item.title, item.claim, paths)
    return paths


def write_report(item: Item, records: Sequence[Record], folder: Path) -> list[Path]:
    """Write table.md, table.csv, the figure and what RBMs learned, if any did, beside the records."""
    texts = {
        folder / "table.md": f"# {item.title}\n\n{markdown(item, records)}",
        folder / "table.csv": comma_separated(item, records),
    }
    for path, text in texts.items():
        with atomic_path(path) as part:
            part.write_text(text, encoding="utf-8")
    learned = draw_learned(folder, folder, "filters") if is_table(item) else []
    return [*texts, *draw(item, records, folder, "figure"), *learned]


def _terminal(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for column, name in enumerate(header):
        table.add_column(name, justify="left" if column == 0 else "right", no_wrap=len(header) <= 7)
    for row in rows:
        table.add_row(*row)
    return table
