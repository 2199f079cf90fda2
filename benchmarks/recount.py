"""Recompute every "mean ± standard deviation" and every relative change in the tables of the pages, from the records.

A second implementation, which shares no code with the package: it reads `results/*.jsonl` and the tables as a reader
would. A cell is wrong if its number is not that of the records, rounded to the digits that it shows. Run it from the
root of the repository: `python benchmarks/recount.py`. It prints how many cells it has recomputed on each page, those
that are wrong, and those that it does not know, and fails if one is wrong.

In blocks of `scaleconv report`, between `<!-- begin … -->` and `<!-- end … -->`, a cell has one place in the records.
Tables that people wrote name no records: there a cell must be the mean and deviation of some group of runs whose method
or label stands in its row.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose, isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
TITLES = {
    "RBM": "rbm",
    "Scale-invariant RBM": "si_rbm",
    "ConvNet": "convnet",
    "Hierarchical ConvNet": "hierarchical",
    "SI-ConvNet": "si_convnet",
    "the same with `SIConv2d`": "si_convnet",
    "Input-pyramid ensemble": "ensemble",
    "Tiled ConvNet": "tiled",
    "Multi-stage ConvNet": "multi_stage",
    "Multi-column ConvNet": "multi_column",
    "ConvNet, scale augmentation": "augmented",
    "FCN": "fcn",
    "SI-FCN": "si_fcn",
    "CNN": "cnn",
    "CNN, cropped layers": "cropped_cnn",
    "SI-CNN": "si_cnn",
    "ScaleInvariant(CNN)": "pyramid_cnn",
    "Deep CNN": "deep_cnn",
    "ScaleInvariant(deep CNN)": "pyramid_deep_cnn",
    "STIR CNN": "stir_cnn",
    "SI-STIR CNN": "si_stir_cnn",
    "ScaleInvariant(STIR CNN)": "pyramid_stir_cnn",
    "Softmax on pixels": "pixels",
    "plain": "plain",
    "plain + scale augmentation": "plain-scale",
    "late": "late",
    "late + scale augmentation": "late-scale",
    "converted": "converted",
    "converted + scale augmentation": "converted-scale",
    "pyramid": "pyramid",
    "pyramid + scale augmentation": "pyramid-scale",
    "Conv2d": "conv2d",
    "paper's formula": "formula",
    "direct order": "direct",
    "SIConv2d": "si_conv2d",
}
CELL = re.compile(r"(−?[\d,]+\.\d+)(?: ± (\d+\.\d+))?")
CHANGE = re.compile(r"([+−]?)(\d+\.\d+) %")
OF_CHANGE = re.compile(r"(?:(.+): )?error vs (.+)")
PUBLISHED = re.compile(r"\b(paper|published)\b")  # in the name of a column with numbers of others
CHOICE = ("held_out_loss", "held_out_error")  # of a classifier's penalty: no measure of a run

Record = dict[str, Any]
Folds = dict[tuple[int, int], float]  # a number for each fold and seed


@dataclass
class Table:
    """A table of a page.

    Attributes:
        item: of the block that it is in, if it has records; else empty.
        caption: the bold line above it.
        before: the paragraph above it.
        line: number of its first line.
        rows: cells, the header first.
    """

    item: str
    caption: str
    before: str
    line: int
    rows: list[list[str]]


@dataclass
class Finding:
    """A cell that was looked at: wrong where what it should be is told, unknown where nothing is."""

    page: str
    line: int
    cell: str
    right: bool | None
    expected: str = ""


def read_tables(text: str) -> Iterator[Table]:
    """The tables of a page, in its order."""
    item = named = caption = before = ""
    table: Table | None = None
    last = False  # whether the line before was text
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if table is None:
                table = Table(item, caption, before, number, [cells])
            elif set("".join(cells)) - set("-: "):
                table.rows.append(cells)
            else:
                table.rows.append([])  # keeps the numbers of lines
            last = False
            continue
        if table is not None:
            yield table
            table, caption = None, ""
        if begun := re.match(r"<!-- begin (\S+) -->", line):
            named, item, caption = begun[1], "", ""
        elif line.startswith("<!-- end"):
            item = named = ""
        elif line.startswith("Records: `") and named:
            item = line.split("`")[1]
        elif found := re.fullmatch(r"\*\*(.+)\*\*", line):
            caption = found[1]
        elif line:
            before = f"{before} {line}".strip() if last else line
        last = bool(line)


def read_records(folder: Path) -> dict[str, list[Record]]:
    """All records, by the name of their file."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.jsonl")}
    return {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}


def shown_number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def agrees(shown: str, value: float) -> bool:
    """Whether a number rounds to the one that is shown."""
    digits = len(shown.partition(".")[2])
    return abs(shown_number(shown) - value) <= 0.5 * 10.0**-digits + 1e-9


def spread(folds: Folds) -> float | None:
    return stdev(folds.values()) if len(folds) > 1 else None


class Block:
    """The records behind a table of `scaleconv report`, by row and column."""

    def __init__(self, table: Table, records: list[Record]) -> None:
        caption = re.sub(r", \d+ of \d+ points$", "", table.caption)
        panel = caption.rpartition(": ")[0]
        timed = [each for record in records for each in record["config"].get("cost", {}).get("layers", [])]
        layers = {each["title"]: each["name"] for each in timed}
        if panel in layers:
            records = [record for record in records if record["point"] == layers[panel]]
            panel = caption.rpartition(": ")[2]
        elif panel in {record["label"] for record in records}:
            records, panel = [record for record in records if record["label"] == panel], ""
        self.panel, self.records, self.axis = panel, records, table.rows[0][0]

    def folds(self, column: str, row: str) -> Folds | None:
        """The numbers of a cell; None if its column or row is not in the records."""
        model, series = self._column(column)
        found: Folds = {}
        for record in self.records:
            if model is None or record["model"] == model:
                values = self._values(record, series)
                chosen = [value for (label, x), value in values.items() if self._is_row(record, row, label, x)]
                if row == "mean":
                    chosen = list(values.values())
                if chosen:
                    key = (record["fold"], record["seed"])
                    found[key] = found.get(key, 0.0) + sum(chosen)  # of which one point has one
        if row == "mean" and found:
            points = {(r["point"], x) for r in self.records if r["model"] == model for x in self._values(r, series)}
            return {key: total / len(points) for key, total in found.items()}
        return found or None

    def _column(self, column: str) -> tuple[str | None, str]:
        """The method and the series that a column shows."""
        if column.startswith("×"):
            return None, f"{self.panel} {column[1:]}"
        title, _, rest = column.rpartition(", ")
        if rest == "random weights":
            return TITLES.get(title, title), "random"
        return TITLES.get(column, column), self.panel

    def _values(self, record: Record, wanted: str) -> dict[tuple[str, float], float]:
        """What a record has of a series, by label and x; of a run on which nothing was measured, its test error."""
        series = {name: values for name, values in record["series"].items() if name not in CHOICE}
        if not series:
            return {(record["label"], record["x"] or 0.0): record["test_error"]}
        if "operations count" in series:
            kind = "operations" if wanted.startswith("operations") else "milliseconds"
            wanted = f"{kind} {'largest' if self.axis.startswith('largest') else 'count'}"
        for name, values in series.items():
            if name == (wanted or name) or name.endswith(f".{wanted}") or (name, wanted) == ("test_error", ""):
                return {("", x): y for x, y in zip(values["x"], values["y"], strict=True)}
        return {}

    def _is_row(self, record: Record, row: str, label: str, x: float) -> bool:
        if label:
            return label == row
        layers = [name.rpartition(".")[2] for name in record["config"].get("measure", {}).get("layers", [])]
        if row in layers:
            return x == layers.index(row) + 1
        try:
            return isclose(float(row), x, rel_tol=1e-5)
        except ValueError:
            return False


def check_block(page: str, table: Table, records: list[Record]) -> Iterator[Finding]:
    """The cells of a table of `scaleconv report`."""
    block, header = Block(table, records), table.rows[0]
    methods = "ours" in header  # a table with a row for each method
    for number, row in enumerate(table.rows[1:], start=table.line + 1):
        for name, cell in zip(header[1:], row[1:], strict=False):
            column, at = (row[0], "mean") if methods else (name, row[0])
            if change := OF_CHANGE.fullmatch(name):
                if shown := CHANGE.fullmatch(cell):
                    model = row[0] if methods else change[1]
                    yield _check_change(page, number, cell, shown, block.folds(model, at), block.folds(change[2], at))
            elif (shown := CELL.fullmatch(cell)) and (not methods or name == "ours"):
                yield _check_cell(page, number, shown, block.folds(column, at))


def _check_cell(page: str, line: int, shown: re.Match[str], folds: Folds | None) -> Finding:
    if folds is None:
        return Finding(page, line, shown[0], None)
    mean, deviation = fmean(folds.values()), spread(folds)
    right = agrees(shown[1], mean) and (shown[2] is None or (deviation is not None and agrees(shown[2], deviation)))
    return Finding(page, line, shown[0], right, f"{mean:.4f} ± {deviation}")


def _check_change(
    page: str, line: int, cell: str, shown: re.Match[str], ours: Folds | None, theirs: Folds | None
) -> Finding:
    if not ours or not theirs or not (both := ours.keys() & theirs.keys()):
        return Finding(page, line, cell, None)
    change = 100 * (fmean(ours[key] for key in both) / fmean(theirs[key] for key in both) - 1)
    signed = shown[1].replace("+", "") + shown[2]
    return Finding(page, line, cell, agrees(signed, change), f"{change:.3f} %")


def check_loose(page: str, table: Table, known: "Known") -> Iterator[Finding]:
    """The cells of a table that somebody wrote: each must be some group's whose method or label is in its row."""
    if table.before.startswith("Published"):
        return
    header = table.rows[0]
    for number, row in enumerate(table.rows[1:], start=table.line + 1):
        model = TITLES.get(row[0], row[0]) if row else ""
        for name, cell in zip(header[1:], row[1:], strict=False):
            change, shown = OF_CHANGE.fullmatch(name), CELL.fullmatch(cell)
            if change and (percent := CHANGE.fullmatch(cell)):
                pairs = known.pairs.get((model, TITLES.get(change[2], change[2])), [])
                right = any(_check_change(page, number, cell, percent, *pair).right for pair in pairs)
                yield Finding(page, number, cell, right if pairs else None, "of no group of runs")
            elif shown and shown[2] and not PUBLISHED.search(name):
                groups = known.groups.get(model, [])
                right = any(_check_cell(page, number, shown, folds).right for folds in groups)
                yield Finding(page, number, cell, right if groups else None, "of no group of runs")


@dataclass
class Known:
    """Groups of runs that differ in fold and seed alone.

    Attributes:
        groups: errors, accuracies and series, by method and by label.
        pairs: errors of two methods at one point of an item.
    """

    groups: dict[str, list[Folds]]
    pairs: dict[tuple[str, str], list[tuple[Folds, Folds]]]


def know(records: dict[str, list[Record]]) -> Known:
    """Every group of runs in the records."""
    quantities: dict[tuple[str, str, str], dict[str, Folds]] = defaultdict(lambda: defaultdict(dict))
    labels: dict[tuple[str, str, str], str] = {}
    for item, found in records.items():
        for record in found:
            name, key = (item, record["model"], record["point"]), (record["fold"], record["seed"])
            labels[name] = record["label"]
            numbers = {} if record["test_error"] is None else {"error": record["test_error"]}
            for series, values in record["series"].items():
                numbers |= {f"{series} {x}": y for x, y in zip(values["x"], values["y"], strict=True)}
                numbers[series] = fmean(values["y"])
            for quantity, value in numbers.items():
                if isfinite(value):
                    quantities[name][quantity][key] = value
                    quantities[name][f"100 − {quantity}"][key] = 100 - value
    groups: dict[str, list[Folds]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[tuple[Folds, Folds]]] = defaultdict(list)
    for (item, model, point), found_here in quantities.items():
        for title in {model, labels[item, model, point]} - {""}:
            groups[title] += found_here.values()
        for other_item, other, other_point in quantities:
            if (other_item, other_point) == (item, point):
                pair = found_here.get("error"), quantities[item, other, point].get("error")
                if pair[0] and pair[1]:
                    pairs[model, other].append((pair[0], pair[1]))
    return Known(groups, pairs)


def recount(root: Path = ROOT) -> list[Finding]:
    """All cells of all pages."""
    records = read_records(root / "results")
    known = know(records)
    found: list[Finding] = []
    for path in sorted([*root.glob("docs/*.md"), root / "README.md"]):
        for table in read_tables(path.read_text(encoding="utf-8")):
            if table.item in records:
                found += check_block(path.name, table, records[table.item])
            else:
                found += check_loose(path.name, table, known)
    return found


def main() -> int:
    found = recount()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in found:
        kind = {True: "right", False: "wrong", None: "unknown"}[each.right]
        counts[each.page][kind] += 1
        counts["all"][kind] += 1
        if not each.right:
            print(f"{each.page}:{each.line}: {kind}: {each.cell}" + (f", {each.expected}" if each.expected else ""))
    print("page: recomputed, wrong, unknown")
    for page, count in counts.items():
        print(f"{page}: {count['right'] + count['wrong']}, {count['wrong']}, {count['unknown']}")
    return 1 if counts["all"]["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
