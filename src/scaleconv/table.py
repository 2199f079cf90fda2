"""Tables of text, for a terminal, as Markdown and as HTML. The only renderer of tables in the package.

A table that is wider than the terminal is split into several, each with the columns that name its rows. No cell is cut.
"""

import shutil
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

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
        return "\n".join(markdown_row(row) for row in (self.header, ["---"] * len(self.header), *self.rows))

    def html(self, classes: Collection[str] = ()) -> str:
        """The table as HTML, its title as the caption; a cell that is one of the words `classes` has it as its class.

        Example:
            >>> print(Table("", ("claim", "verdict"), [("3 < 4", "same")]).html(classes={"same"}))
            <table>
            <thead><tr><th scope="col">claim</th><th scope="col">verdict</th></tr></thead>
            <tbody>
            <tr><th scope="row">3 &lt; 4</th><td class="same">same</td></tr>
            </tbody>
            </table>
        """
        caption = f"<caption>{escape(self.title)}</caption>\n" if self.title else ""
        header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.header)
        lines = []
        for row in self.rows:
            names = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in row[: self.labels])
            kinds = [f' class="{cell}"' if cell in classes else "" for cell in row[self.labels :]]
            cells = zip(kinds, row[self.labels :], strict=True)
            lines.append(f"<tr>{names}{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in cells)}</tr>\n")
        body = f"<tbody>\n{''.join(lines)}</tbody>"
        return f"<table>\n{caption}<thead><tr>{header}</tr></thead>\n{body}\n</table>"

    def text(self, width: int) -> str:
        """The table for a terminal: headings are wrapped, cells are not, and columns that do not fit go below.

        Example:
            >>> print(Table("Errors", ("method", "test error"), [("ConvNet", "3.50 ± 0.08")]).text(80))
            Errors
            method    test error
            ────────────────────
            ConvNet  3.50 ± 0.08
        """
        columns: list[Column] = list(zip(self.header, *self.rows, strict=True))
        names, others = columns[: self.labels], columns[self.labels :]
        wrap = _width(columns, wrap=False) > width
        blocks = [[*names, *others[:1]]]
        for column in others[1:]:
            if _width([*blocks[-1], column], wrap) > width:
                blocks.append([*names])
            blocks[-1].append(column)
        title = f"{wrapped(self.title, width)}\n" if self.title else ""
        return title + "\n\n".join(_block(block, self.labels, wrap) for block in blocks)


def wrapped(text: str, width: int) -> str:
    """Text on lines of a width, broken between words only: never inside a number."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def terminal_width() -> int:
    """Columns of the terminal; where the output is a file or a pipe, `$COLUMNS` or 200."""
    return shutil.get_terminal_size((WIDE, 24)).columns


def _heading(column: Column) -> str:
    """The heading; where it is wrapped, a slash stays with what follows it."""
    return column[0].replace("/ ", "/\N{NO-BREAK SPACE}")


def _column_width(column: Column, wrap: bool) -> int:
    """The width of the widest cell; a heading that may be wrapped counts with its longest word."""
    heading = _heading(column)
    return max(map(len, [*(heading.split(" ") if wrap else [heading]), *column[1:]]))


def _width(columns: Sequence[Column], wrap: bool) -> int:
    return sum(_column_width(column, wrap) for column in columns) + len(GAP) * (len(columns) - 1)


def _block(columns: Sequence[Column], labels: int, wrap: bool) -> str:
    """Columns side by side, with a line under the headings."""
    widths = [_column_width(column, wrap) for column in columns]
    left = [k < labels or _is_words(column) for k, column in enumerate(columns)]
    headings = [wrapped(_heading(column), width).splitlines() for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    lines = [[""] * (height - len(heading)) + heading for heading in headings]
    texts = []
    for row in [*zip(*lines, strict=True), *zip(*(column[1:] for column in columns), strict=True)]:
        cells = [f"{cell:{'<' if start else '>'}{width}}" for cell, width, start in zip(row, widths, left, strict=True)]
        texts.append(GAP.join(cells).rstrip().replace("\N{NO-BREAK SPACE}", " "))
    return "\n".join([*texts[:height], "─" * _width(columns, wrap), *texts[height:]])


def _is_words(column: Column) -> bool:
    return all(cell[0].isalpha() for cell in column[1:] if cell)
