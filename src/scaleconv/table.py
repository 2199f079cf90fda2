"""Tables of text, for a terminal and as Markdown. The only renderer of tables in the package.

A table that is wider than the terminal is split into several, each with the columns that name its rows. No cell is cut.
Written by hand, because results of `scaleconv.inspection` print as tables where torch alone is installed.
"""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "  # between two columns
WIDE = 200  # columns of a file or a pipe, which have no width of their own

Column = tuple[str, ...]  # the heading, then the cells


@dataclass(frozen=True)
class Table:
    """Cells of text under a heading.

    Attributes:
        title: the line above; may be empty.
        header: the headings of the columns.
        rows: one cell for each heading.
        labels: how many of the first columns name a row. They and columns of words are aligned to the left.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    labels: int = 1

    def markdown(self) -> str:
        """The table as Markdown, without its title."""
        lines = (self.header, ["---"] * len(self.header), *self.rows)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def text(self, width: int) -> str:
        """The table for a terminal: headings are wrapped, cells are not, and columns that do not fit go below.

        Example:
            >>> print(Table("Errors", ("method", "test error"), [("ConvNet", "3.50 ± 0.08")]).text(80))
            Errors
            method    test error
            ────────────────────
            ConvNet  3.50 ± 0.08
        """
        # A slash in a heading stays with what follows it.
        header = [heading.replace("/ ", "/\N{NO-BREAK SPACE}") for heading in self.header]
        columns: list[Column] = list(zip(header, *self.rows, strict=True))
        names, values = columns[: self.labels], columns[self.labels :]
        wrap = _line_width(columns, wrap=False) > width
        blocks = [[*names, *values[:1]]]
        for column in values[1:]:
            if _line_width([*blocks[-1], column], wrap) > width:
                blocks.append([*names])
            blocks[-1].append(column)
        title = f"{wrapped(self.title, width)}\n" if self.title else ""
        return title + "\n\n".join(_block(block, self.labels, wrap) for block in blocks)


def wrapped(text: str, width: int) -> str:
    """Text on lines of a width, broken between words only: never inside a number."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def terminal_width() -> int:
    """Columns of the terminal; where the output is a file or a pipe, `$COLUMNS` or 200."""
    return shutil.get_terminal_size((WIDE, 24)).columns


def _column_width(column: Column, wrap: bool) -> int:
    """The width of the widest cell; a heading that may be wrapped counts with its longest word."""
    return max(map(len, [*(column[0].split(" ") if wrap else column[:1]), *column[1:]]))


def _line_width(columns: Sequence[Column], wrap: bool) -> int:
    return sum(_column_width(column, wrap) + len(GAP) for column in columns) - len(GAP)


def _block(columns: Sequence[Column], labels: int, wrap: bool) -> str:
    """Columns side by side, with a line under the headings."""
    widths = [_column_width(column, wrap) for column in columns]
    headings = [wrapped(column[0], width).splitlines() for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    drawn = []
    for place, (column, heading, width) in enumerate(zip(columns, headings, widths, strict=True)):
        left = place < labels or all(cell[0].isalpha() for cell in column[1:] if cell)
        cells = (*[""] * (height - len(heading)), *heading, *column[1:])
        drawn.append([f"{cell:{'<' if left else '>'}{width}}" for cell in cells])
    lines = [GAP.join(cells).rstrip().replace("\N{NO-BREAK SPACE}", " ") for cells in zip(*drawn, strict=True)]
    return "\n".join([*lines[:height], "─" * _line_width(columns, wrap), *lines[height:]])
