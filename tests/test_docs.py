"""The documents say what the code does: their examples run, their links lead somewhere."""

import doctest
import json
import re
from pathlib import Path

import pytest

from scaleconv import macs
from scaleconv.cli import app, data_app
from scaleconv.experiments import ITEMS, load_experiment, read_records
from scaleconv.experiments.tables import cells, make_rows

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_sessions_in_the_documents_run(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # of the tables in them
    assert doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS).failed == 0


def test_the_readme_lists_every_command_and_item():
    commands = re.search(r"## Commands\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    named = set(re.findall(r"`scaleconv (data \w+|\w+)", commands))
    groups = ((app, ""), (data_app, "data "))
    assert named == {
        f"{prefix}{each.callback.__name__}" for group, prefix in groups for each in group.registered_commands
    }
    assert {item for item in ITEMS if f"`{item}`" not in commands} == set()


def test_the_code_on_the_first_screen_runs():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    names = {}
    exec(block, names)
    assert names["features"].shape == (8, 64, 56, 56)


def test_the_cost_in_the_readme_is_what_is_counted():
    first, second = macs((1, 1, 28, 28), (36, 1, 7, 7)), macs((1, 36, 11, 11), (64, 36, 5, 5))
    counts = [count.total / cost.conv2d.total for cost in (first, second) for count in (cost.planned, cost.direct)]
    stated = "{:.1f} times the operations of its convolution instead of {:.1f}, the second {:.1f} instead of {:.1f}"
    assert stated.format(*counts) in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", prose)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_results_in_the_readme_are_those_of_the_records():
    experiment = load_experiment("table1")
    rows = make_rows(read_records(ROOT / "results" / "table1"), experiment.paper, experiment.baseline)
    readme = (ROOT / "README.md").read_text()
    for row in rows:
        assert f"| {' | '.join(cells(row))} |" in readme
    (change,) = (row.change for row in rows if row.model == "si_convnet")
    assert f"makes {-change:.0f} % fewer errors" in readme


def test_the_page_on_performance_quotes_its_records():
    page, bench = (ROOT / "docs" / "performance.md").read_text(), ROOT / "results" / "bench"
    rows = {
        (row["shape"], row["dtype"], row["layer"]): row
        for row in json.loads((bench / "h200-layers.json").read_text())["rows"]
    }
    shapes = dict.fromkeys(shape for shape, _, _ in rows)
    assert len(shapes) == 12
    for shape in shapes:
        quoted, between = [], r" \| "
        for dtype in ("float32", "bfloat16"):
            ours, broad = rows[shape, dtype, "si"], rows[shape, dtype, "conv2d_wide"]
            for name, digits in (("graph_both", 2), ("both", 1)):
                quoted.append(rf"{ours[name]['median_ms'] / broad[name]['median_ms']:.{digits}f} \([\d.]+\)")
        assert re.search(rf"\| {shape}: .*\| {between.join(quoted)} \|", page), shape
    networks = json.loads((bench / "h200.json").read_text())["steps"]
    steps = {(row["network"], row["task"], row["dtype"], row["variant"]): row["eager"]["median_ms"] for row in networks}
    for network, title in (("resnet18", "ResNet-18"), ("depthwise", "depthwise")):
        for task in ("training", "inference"):
            for dtype in ("float32", "bfloat16"):
                plain, converted = (steps[network, task, dtype, each] for each in ("plain", "converted"))
                stated = f"| {title} | {task} | {dtype} | {plain:.3g} | {converted:.3g} | {converted / plain:.2f} |"
                assert stated in page
    plain, converted = (
        1_281_167 * 90 * steps["resnet18", "training", "bfloat16", variant] / 32 / 3.6e6
        for variant in ("plain", "converted")
    )
    stated = f"= {plain:.1f} hours | 115,305,030 × {converted / 115_305_030 * 3.6e6:.3g} ms = {converted:.1f} hours |"
    assert stated in (ROOT / "docs" / "scaling.md").read_text()
    tried = json.loads((bench / "h200-tried.json").read_text())
    for model, seconds in tried["table1_epoch_of_six_folds_s"][
        "a stream for each fold, shared 2**24, channels_last"
    ].items():
        assert f" s | {700 * seconds:,.0f} s |" in page, model
