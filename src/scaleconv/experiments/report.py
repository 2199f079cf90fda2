"""The outcome of an experiment as people read it: terminal table, Markdown, CSV and a picture, all from records."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..data.atomic import atomic_path
from .config import Experiment
from .figures import draw_errors
from .records import Record
from .tables import cells, comma_separated, footnotes, header, make_rows, markdown


def terminal_table(experiment: Experiment, records: Sequence[Record]) -> Table:
    """The table for a terminal."""
    table = Table(
        title=Text(experiment.title),
        caption=Text("\n".join(footnotes(records))),
        title_justify="left",
        caption_justify="left",
    )
    for column, name in enumerate(header(experiment)):
        table.add_column(name, justify="left" if column == 0 else "right", no_wrap=True)
    for row in make_rows(records, experiment.paper, experiment.baseline):
        table.add_row(*cells(row))
    return table


def print_table(experiment: Experiment, records: Sequence[Record]) -> None:
    """Print the table; a terminal knows its width, a file should not be folded at 80."""
    Console(width=None if sys.stdout.isatty() else 120).print(terminal_table(experiment, records))


def write_report(experiment: Experiment, records: Sequence[Record], folder: Path) -> list[Path]:
    """Write table.md, table.csv and error.png beside the records."""
    rows = make_rows(records, experiment.paper, experiment.baseline)
    texts = {
        folder / "table.md": markdown(rows, experiment, footnotes(records)),
        folder / "table.csv": comma_separated(rows),
    }
    for path, text in texts.items():
        with atomic_path(path) as part:
            part.write_text(text, encoding="utf-8")
    draw_errors(records, experiment.title, folder / "error.png")
    return [*texts, folder / "error.png"]
