"""A second implementation finds the numbers of all tables in the records; and it finds what is not."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("recount")


def test_it_shares_no_code_with_the_package():
    assert "scaleconv" not in (ROOT / "benchmarks" / "recount.py").read_text().replace("`scaleconv report`", "")


def test_every_number_of_the_tables_is_that_of_the_records(script):
    found = script.recount()
    assert [each for each in found if each.right is False] == []
    assert sum(each.right is True for each in found) > 1000


def record(model, fold, error, label="", series=None, **more):
    known = {"experiment": "e", "seed": 0, "point": label, "x": 1.0, "config": {}, "series": series or {}}
    return {"model": model, "fold": fold, "test_error": error, "label": label, **known, **more}


# Errors of 4 and 6 are 5 ± 1.414 on average, those of 3 and 4 are 3.5 ± 0.707: 30 % less.
TWO = [("convnet", 0, 4.0), ("convnet", 1, 6.0), ("si_convnet", 0, 3.0), ("si_convnet", 1, 4.0)]
CURVES = {"convnet": [4.0, 8.0], "si_convnet": [3.0, 5.0]}  # at scales 0.5 and 1; the means are 6 and 4
PAGES = {
    "methods": (
        [record(*run) for run in TWO],
        """| method | paper | ours | n | error vs ConvNet | p |
| --- | --- | --- | --- | --- | --- |
| ConvNet | 9.99 ± 0.99 | 5.00 ± 1.41 | 2 | – | – |
| SI-ConvNet | – | 3.50 ± 0.71 | 2 | −30.0 % | 0.5 |""",
        3,
    ),
    "points": (
        [record(*run, label="a, b") for run in TWO],
        """**test error (%)**

| what | ConvNet | SI-ConvNet | SI-ConvNet: error vs ConvNet |
| --- | --- | --- | --- |
| a, b | 5.00 ± 1.41 | 3.50 ± 0.71 | −30.0 % |
| mean | 5.00 | 3.50 | −30.0 % |""",
        6,
    ),
    "curves": (
        [
            record(model, fold, 9.0, "near", {"test_error": {"x": [0.5, 1.0], "y": [y - fold for y in CURVES[model]]}})
            for model in CURVES
            for fold in (0, 1)
        ],
        """**near: test error (%), 1 of 2 points**

| scale | ConvNet | SI-ConvNet | SI-ConvNet: error vs ConvNet |
| --- | --- | --- | --- |
| 0.5 | 3.50 ± 0.71 | 2.50 ± 0.71 | −28.6 % |
| mean | 5.50 | 3.50 | −36.4 % |""",
        6,
    ),
}


@pytest.mark.parametrize(("records", "table", "count"), PAGES.values(), ids=PAGES)
def test_cells_are_recomputed_and_each_wrong_one_is_found(script, tmp_path, records, table, count):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    lines = "".join(json.dumps(each) + "\n" for each in records)
    (tmp_path / "results" / "item.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "README.md").write_text("", encoding="utf-8")
    page = f"<!-- begin item -->\nRecords: `item`.\n\n{table}\n<!-- end item -->\n"

    def rights(text):
        (tmp_path / "docs" / "page.md").write_text(text, encoding="utf-8")
        return [each.right for each in script.recount(tmp_path)]

    assert rights(page) == [True] * count
    for shown, other in (
        ("5.00", "5.01"),
        ("3.50", "3.51"),
        ("± 0.71", "± 0.72"),
        ("−30.0", "−30.1"),
        ("−36.4", "+36.4"),
    ):
        if shown in page:
            assert rights(page.replace(shown, other)).count(False) == page.count(shown)
    loose = table.split("\n\n")[-1].replace("| what |", "| method |")
    if "ours" in loose:  # the same numbers in a table that names no records
        assert rights(f"Some text.\n\n{loose}\n") == [True] * count
        assert rights(f"Published elsewhere:\n\n{loose}\n") == []
        assert rights(f"Some text.\n\n{loose.replace('5.00', '5.10')}\n").count(False) == 1
