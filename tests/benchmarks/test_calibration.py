"""The scripts calibration.py and networks.py: parts do not overlap, tables show the records, the page quotes them."""

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from scaleconv import SIConv2d

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "networks.md").read_text()


@pytest.fixture(params=["calibration", "networks"])
def script(request, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module(request.param)


calibration = pytest.mark.parametrize("script", ["calibration"], indirect=True)
networks = pytest.mark.parametrize("script", ["networks"], indirect=True)


@calibration
def test_no_digit_is_in_two_parts(script):
    (train, labels), unlabelled, (test, answers) = script.load_parts("cpu")
    assert (len(train), len(labels), len(unlabelled), len(test), len(answers)) == (7000, 7000, 1000, 2000, 2000)
    images = torch.cat([train, unlabelled, test]).flatten(1)
    assert len(images.unique(dim=0)) == 10_000
    larger = script.load_parts("cpu", 2.0, 40)[2]
    assert larger[0].shape[-2:] == (40, 40)
    assert torch.equal(larger[1], answers)


@calibration
@pytest.mark.parametrize(("name", "convolutions"), [("resnet7", 7), ("resnet13-bn", 13), ("resnet19", 19)])
def test_networks_have_as_many_convolutions_as_their_name_says(script, name, convolutions):
    network = script.convert(script.make_network(name, 0))
    assert sum(isinstance(layer, SIConv2d) for layer in network.modules()) == convolutions
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules()) == name.endswith("-bn")


@calibration
def test_tables_are_means_over_seeds(script):
    def row(seed, how, accuracy, scale=1.0):
        return {"network": "a", "seed": seed, "how": how, "scale": scale, "accuracy": accuracy}

    rows = [row(0, "plain", 98.0), row(1, "plain", 96.0), row(0, "calibrated", 97.0), row(1, "calibrated", 94.0)]
    table = script.correction_table(rows)
    assert table.header == ("network", "n", "plain", "calibrated", "lost")
    assert table.rows == [("a", "2", "97.0", "95.5", "1.5")]


@calibration
def test_what_fine_tuning_gains_is_paired_by_seed(script):
    rows = [
        {"network": "a", "seed": seed, "how": how, "scale": scale, "accuracy": accuracy}
        for seed, first in ((2, 80.0), (0, 90.0), (1, 85.0))
        for scale in script.SCALES
        for how, accuracy in (
            ("plain", 99.0),
            ("plain, fine-tuned at 1", first),
            ("calibrated, fine-tuned at 1", first - seed - 1),
        )
    ]
    plain, calibrated = script.fine_tuning_table(rows).rows
    assert plain == ("a", "3", "plain, fine-tuned at 1", *["85.0 ± 5.0"] * 7)
    assert calibrated == ("a", "3", "calibrated, fine-tuned at 1", *["−2.0 [−4.5, +0.5]"] * 7)
    alone = script.fine_tuning_table([row for row in rows if row["seed"] == 1]).rows
    assert alone == [(*plain[:1], "1", plain[2], *["85.0"] * 7), ("a", "1", calibrated[2], *["−2.0"] * 7)]


@calibration
@pytest.mark.parametrize(
    ("record", "part"),
    [("calibration", "corrections"), ("calibration-h200", "fine_tuning"), ("calibration", "few_images")],
)
def test_the_page_quotes_the_records(script, record, part):
    rows = json.loads((ROOT / "results" / "bench" / f"{record}.json").read_text())[part]
    assert script.TABLES[part](rows).markdown() in PAGE


@networks
def test_the_page_quotes_time_and_memory(script):
    rows = json.loads((ROOT / "results" / "bench" / "cpu-shapes.json").read_text())["rows"]
    assert [row["network"] for row in rows] == list(script.ARCHITECTURES)
    assert [row["network"] for row in rows if script.markdown_row(row) not in PAGE] == []


@networks
def test_a_row_has_both_networks_and_their_ratios(script, monkeypatch):
    monkeypatch.setattr(script, "ProcessPoolExecutor", lambda count, _: ThreadPoolExecutor(count))  # imports nothing
    row = script.measure("VGG-11", width=2, batch=2, size=32, repeats=1)
    row |= {f"memory_{variant}_mib": 3.0 for variant in script.VARIANTS}  # so small a network needs less than its step
    assert all(value > 0 for key, value in row.items() if key.endswith("_ms"))
    cells = script.markdown_row(row).split(" | ")
    assert len(cells) == 10
    assert cells[3] == f"{row['inference_converted_ms'] / row['inference_plain_ms']:.1f}"
