"""What pages say about photographs is what the records say."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOO_FEW = "CIFAR-10, 1,000 images"  # where nothing is gained, as the pages say


@pytest.fixture
def gains(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gains")


def of_resnets(gains, measure):
    """What a ResNet gains on each set, by the title of the set."""
    rows = [row for row in gains.measured(gains.CHOSEN) if row.against == "plain"]
    return {row.name.removesuffix(", ResNet"): gains.gain(row, measure) for row in rows}


def test_tables_of_the_page_are_those_of_the_records(gains):
    page = (ROOT / "docs" / "photographs.md").read_text()
    assert [name for name, table in gains.blocks().items() if f"\n{table}\n" not in page] == []


@pytest.mark.parametrize("page", ["README.md", "docs/photographs.md"])
def test_gains_that_are_quoted_are_the_least_and_the_most(gains, page):
    found = [of_resnets(gains, measure) for measure in (gains.at_one, gains.over_scales)]
    few = [some.pop(TOO_FEW) for some in found]
    assert all(each.low < 0 < each.high for each in few)
    assert re.search(r"1,000 training\s+images", (ROOT / page).read_text())
    least, most = ([round(end(each.mean for each in some.values()), 1) for some in found] for end in (min, max))
    pattern = r"([\d.]+)\s+to\s+([\d.]+)\s+points\s+at\s+scale\s+1\s+and\s+([\d.]+)\s+to\s+([\d.]+)"
    quoted = [float(number) for number in re.search(pattern, (ROOT / page).read_text()).groups()]
    assert quoted == [least[0], most[0], least[1], most[1]]


def test_the_guide_has_the_gain_of_every_set(gains):
    at_one, over_scales = (of_resnets(gains, measure) for measure in (gains.at_one, gains.over_scales))
    rows = [f"| {name} | {gains.points(at_one[name])} | {gains.points(over_scales[name])} |" for name in at_one]
    assert [row for row in rows if row not in (ROOT / "docs" / "guide.md").read_text()] == []
    assert len(rows) == 6
