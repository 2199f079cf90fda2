"""The script loading.py: it measures what it says, and its table is that of its record."""

import importlib
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("loading")


def test_a_rate_counts_images_and_not_batches_that_were_ready(script, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def batches():
        for number in itertools.count():
            clock[0] += 0.01 if number > 6 else 0  # those before were decoded ahead
            yield torch.zeros(5)

    assert script.loading_rate(batches(), workers=2, seconds=0.2) == pytest.approx(500)


def test_the_script_writes_its_record_and_shows_it(script, tmp_path, monkeypatch, capsys):
    out = tmp_path / "bench" / "loading.json"
    options = ["--workers", "0", "--images", "8", "--size", "32", "--batch", "2", "--seconds", "0.05"]
    monkeypatch.setattr(sys, "argv", ["loading.py", *options, "--out", str(out)])
    monkeypatch.setattr(script.loading, "KEPT_BYTES", script.loading.KEPT_BYTES)  # which the script changes
    monkeypatch.setattr(script, "VARIANTS", ("plain",))
    script.main()
    record = json.loads(out.read_text())
    ours = record["loading"][0]
    assert (ours["loader"], ours["workers"]) == ("scaleconv", 0)
    assert ours["images_per_second"] > 0
    (taken,) = record["training"]
    ratio = f"{ours['images_per_second'] / taken['images_per_second']:.2f}"
    assert f"| scaleconv | 0 | {ours['images_per_second']:,.0f} | {ratio} |" in capsys.readouterr().out


def test_images_of_the_benchmark_are_as_large_as_photos(script, tmp_path):
    script.write_jpeg(tmp_path / "a.jpg", 0)
    assert 50_000 < (tmp_path / "a.jpg").stat().st_size < 250_000
