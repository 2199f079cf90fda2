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
from scaleconv.models import TITLES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_sessions_in_the_documents_run(page):
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
    counts = [count.total / cost.conv2d.total for cost in (first, second) for count in (cost.chosen, cost.direct)]
    stated = "{:.1f} times the operations of its convolution instead of {:.1f}, the second {:.1f} instead of {:.1f}"
    assert stated.format(*counts) in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_results_in_the_readme_are_those_of_the_records():
    experiment = load_experiment("table1")
    rows = make_rows(read_records(ROOT / "results" / "table1"), experiment.paper, experiment.baseline)
    readme = (ROOT / "README.md").read_text()
    for row in rows:
        assert f"| {' | '.join(cells(row))} |" in readme


def test_the_page_on_performance_quotes_its_records():
    page, bench = (ROOT / "docs" / "performance.md").read_text(), ROOT / "results" / "bench"
    for row in json.loads((bench / "kernels.json").read_text())["rows"]:
        limits = row["limits_ms"]
        fraction = max(limits.values()) / row["ms"]
        stated = rf"\| {row['shape']} \| {row['dtype']} \|.*\| {limits['products']:.3f} \| {limits['bytes']:.3f} "
        assert re.search(stated + rf"\| {row['ms']:.2f} \| {fraction:.2f} \|", page)
    both = {
        (row["shape"], row["dtype"], row["contender"], row["scales"]): row["both"]["median_ms"]
        for row in json.loads((bench / "h200-graph.json").read_text())["rows"]
    }
    for shape, dtype in {key[:2] for key in both}:
        plain, broad, ours = (both[shape, dtype, each, "default"] for each in ("conv2d", "conv2d_wide", "si"))
        stated = rf"\| {shape} \| {dtype} \| {ours:.2f} \| \**{ours / broad:.2f}\** \| {ours / plain:.1f} \|"
        spread, plainly = both[shape, dtype, "si", "wide"], both[shape, dtype, "direct", "default"]
        assert re.search(stated + rf".*\| {spread / ours:.2f} \| {plainly / ours:.0f} \|", page)
    networks = json.loads((bench / "h200-networks.json").read_text())
    for model in ("convnet", "si_convnet", "hierarchical", "ensemble"):
        records = [record for record in read_records(ROOT / "results" / "table1") if record.model == model]
        seconds = sum(record.seconds / record.runs_together for record in records)
        epochs = {row["model"]: row["seconds"] for row in networks["epochs"] if row["runs"] == len(records)}
        now = f"{700 * epochs[model]:.0f}" if model in epochs else "–"
        assert f"| {TITLES[model]} | {seconds:.0f} | {now} |" in page
    steps = {(row["network"], row["dtype"]): row["step"]["median_ms"] for row in networks["steps"]}
    for dtype in ("float32", "bfloat16"):
        plain, converted = steps["plain", dtype], steps["converted", dtype]
        assert f"| converted | {dtype} | {converted:.1f} | {converted / plain:.1f} |" in page
    for name, said in (("cpu", "takes {:.1f} times as long"), ("cpu-layers", "after the layers, it was {:.1f}")):
        epochs = {row["model"]: row["seconds"] for row in json.loads((bench / f"{name}.json").read_text())["epochs"]}
        assert said.format(epochs["si_convnet"] / epochs["convnet"]) in " ".join(page.split())
