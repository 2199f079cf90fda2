"""One command makes every table and figure of the documents from records, and leaves the prose alone."""

from pathlib import Path

import pytest

from command import refused
from made_records import record
from scaleconv.experiments import ITEMS, load_item, read_records
from scaleconv.experiments.pages import find_folder, write_pages
from scaleconv.experiments.records import write_record
from scaleconv.experiments.report import markdown

ROOT = Path(__file__).parents[2]
PAGE = "prose\n<!-- begin claims -->\nwhat stood there\n<!-- end claims -->\n" + "".join(
    f"## {item}\n<!-- begin {item} -->\n<!-- end {item} -->\nmore prose\n" for item in ITEMS
)


@pytest.fixture
def tree(tmp_path):
    for fold in (0, 1):
        for model, error in (("convnet", 4.0), ("si_convnet", 3.0)):
            write_record(_made(tmp_path / "results" / "table1-100"), record(model, fold, error))
            write_record(_made(tmp_path / "results" / "fig4a"), record(model, fold, error, "maps36", 1.0, "36, 64"))
            write_record(_made(tmp_path / "results" / "fig4b-quick"), record(model, fold, error, "train250", 250.0))
    (_made(tmp_path / "docs") / "reproduction.md").write_text(PAGE)
    return tmp_path


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_the_page_is_filled_between_its_markers_and_twice_gives_the_same(tree, run):
    code, output, errors = run("report")
    assert (code, errors) == (0, "")
    page = (tree / "docs" / "reproduction.md").read_text()
    assert "| SI-ConvNet | 3.13 ± 0.19 | 3.00 ± 0.00 | 2 | 25.0 %" in page
    assert "| 36, 64 | 4.00 | 3.00 | 25.0 % |" in page
    assert "Records: `table1-100`." in page
    assert page.count("No records yet.") == len(ITEMS) - 2  # the small version of fig4b is none of the paper's size
    assert page.count("more prose") == len(ITEMS)
    assert "what stood there" not in page
    assert "| table1 | SI-ConvNet 10 % under ConvNet | 25.0 % | yes |" in page
    assert "| fig4a | SI-ConvNet below ConvNet at every point | below at 1 of 1" in page
    figures = {path.name for path in (tree / "docs" / "figures").iterdir()}
    assert figures == {"table1.png", "table1.svg", "fig4a.png", "fig4a.svg"}
    assert "docs/figures/fig4a.svg" in output.splitlines()
    assert (tree / "results" / "fig4a" / "table.csv").is_file()
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    run("report")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_small_versions_are_shown_when_asked_for(tree):
    write_pages(tree / "results", tree / "docs", "quick")
    assert "| 250 | 4.00 | 3.00 | 25.0 % |" in (tree / "docs" / "reproduction.md").read_text()


def test_a_page_without_a_marker_is_one_line(tree, run):
    page = tree / "docs" / "reproduction.md"
    page.write_text(PAGE.replace("<!-- end fig5a -->", ""))
    refused(run("report"), "reproduction.md must have the markers", "<!-- begin fig5a -->")
    page.unlink()
    refused(run("report"), "reproduction.md")


def test_the_folder_with_records_is_found_by_its_beginning(tree):
    results = tree / "results"
    assert find_folder(results, "fig4a") == results / "fig4a"
    assert find_folder(results, "table1") == results / "table1-100"
    assert find_folder(results, "fig5a") is None
    assert find_folder(results, "fig4b") == results / "fig4b-quick"
    assert find_folder(results, "fig4b", small=False) is None


def test_the_page_of_this_repository_says_what_its_records_say():
    """Made by `scaleconv report`; whoever adds records runs it again."""
    page = (ROOT / "docs" / "reproduction.md").read_text()
    for item in ITEMS:
        folder = find_folder(ROOT / "results", item, small=False)
        if folder is not None:
            assert markdown(load_item(item), read_records(folder)).strip() in page
            assert (ROOT / "docs" / "figures" / f"{item}.svg").is_file()
