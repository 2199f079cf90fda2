"""A table shows every cell whole, whatever the width of the terminal."""

import pytest

from scaleconv.table import Table, terminal_width

HEADER = ("shape", "dtype", "SIConv2d, ms", "/ wide", "memory / Conv2d")
ROWS = [("mnist1", "float32", "8.00", "0.80", "1.50"), ("large512", "bfloat16", "12.5", "–", "2.00")]
TABLE = Table("Forward and backward", HEADER, ROWS, labels=2)


def test_markdown_has_a_line_for_each_row():
    assert TABLE.markdown().splitlines() == [
        "| shape | dtype | SIConv2d, ms | / wide | memory / Conv2d |",
        "| --- | --- | --- | --- | --- |",
        "| mnist1 | float32 | 8.00 | 0.80 | 1.50 |",
        "| large512 | bfloat16 | 12.5 | – | 2.00 |",
    ]


def test_labels_are_aligned_to_the_left_and_numbers_to_the_right():
    assert TABLE.text(80).splitlines() == [
        "Forward and backward",
        "shape     dtype     SIConv2d, ms  / wide  memory / Conv2d",
        "─────────────────────────────────────────────────────────",
        "mnist1    float32           8.00    0.80             1.50",
        "large512  bfloat16          12.5       –             2.00",
    ]
    assert TABLE.text(57) == TABLE.text(80) != TABLE.text(56)  # as wide as its headings


def test_headings_are_wrapped_where_they_do_not_fit():
    assert TABLE.text(50).splitlines()[1:4] == [
        "                    SIConv2d,            memory",
        "shape     dtype            ms  / wide  / Conv2d",
        "───────────────────────────────────────────────",
    ]


@pytest.mark.parametrize("width", [1, 30, 38, 46, 47, 200])
def test_what_does_not_fit_goes_below_with_its_labels_and_nothing_is_cut(width):
    text = TABLE.text(width)
    for cell in (*ROWS[0], *ROWS[1]):
        assert cell in text
    blocks = text.split("\n\n")
    assert all("large512  bfloat16" in block for block in blocks)
    assert len(blocks) == {1: 3, 30: 3, 38: 2, 46: 2}.get(width, 1)
    widest = max(len(line) for block in blocks for line in block.splitlines() if "─" in line)
    assert widest <= max(width, 29)  # the labels and one column are the least


def test_columns_of_words_are_aligned_to_the_left_and_an_error_among_numbers_does_not_turn_them():
    table = Table("", ("part", "from", "ms"), [("train", "a1", "1.0"), ("test", "the package", "no memory")])
    assert table.text(80).splitlines() == [
        "part   from                ms",
        "─────────────────────────────",
        "train  a1                 1.0",
        "test   the package  no memory",
    ]


def test_the_width_is_that_of_the_terminal_and_large_elsewhere(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError))
    assert terminal_width() == 200
    monkeypatch.setenv("COLUMNS", "80")
    assert terminal_width() == 80
