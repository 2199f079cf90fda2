"""Whole networks: the rows are of a real epoch and a real step, and plain and converted are the same network."""

import pytest
import torch

from scaleconv import SIConv2d, convert
from scaleconv.bench import make_settings, networks, run_bench
from scaleconv.bench.networks import measure_epochs, measure_steps
from scaleconv.bench.resnet import make_resnet18
from scaleconv.bench.runner import count_ticks

SETTINGS = make_settings("cpu", dtypes="float32,bfloat16", repeats=1, scales="1,0.8", layers=False)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(networks, "CPU_BATCHES", 1)
    monkeypatch.setattr(networks, "CPU_RESNET_IMAGES", (2, 32))


def test_resnet_has_its_shape_and_converts_all_but_the_shortcuts():
    network = make_resnet18()
    layers = [layer for layer in convert(network).modules() if isinstance(layer, SIConv2d)]
    assert len(layers) == 17
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in network.modules()) == 20
    sizes = []
    for layer in network:
        layer.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    network.eval()(torch.rand(1, 3, 64, 64))
    assert sizes[2:5] == [(64, 32, 32), (64, 16, 16), (64, 16, 16)]
    assert sizes[-4:] == [(512, 2, 2), (512, 1, 1), (512,), (1000,)]


def test_an_epoch_is_told_from_a_part_of_it(monkeypatch):
    timings = {}
    original = networks.time_in_turns

    def spy(works, *others, **options):
        timings.update(original(works, *others, **options))
        return timings

    monkeypatch.setattr(networks, "time_in_turns", spy)
    rows = measure_epochs(SETTINGS, lambda _: None)
    assert [(row.model, row.runs) for row in rows] == [("convnet", 1), ("si_convnet", 1), ("hierarchical", 1)]
    for row in rows:
        assert (row.batches, row.batches_timed, row.partial) == (78, 1, True)
        assert row.seconds == row.seconds_per_run == pytest.approx(0.078 * timings[row.model, 1].median_ms)


def test_steps_learn_in_turns_plain_and_converted(monkeypatch):
    made = []
    original = networks._Step

    def spy(*arguments):
        made.append(original(*arguments))
        return made[-1]

    monkeypatch.setattr(networks, "_Step", spy)
    rows = measure_steps(SETTINGS, lambda _: None)
    kinds = [(row.network, row.dtype, row.layout, row.batch, row.size) for row in rows]
    setting = ("contiguous", 2, 32)
    assert kinds == [(name, dtype, *setting) for dtype in ("float32", "bfloat16") for name in ("plain", "converted")]
    assert all(row.step.median_ms > 0 and row.memory is None for row in rows)
    fresh = make_resnet18()[0].weight
    assert {type(step.network[0]).__name__ for step in made} == {"Conv2d", "SIConv2d"}
    assert all(getattr(step.network[0], "scales", (1, 0.8)) == (1, 0.8) for step in made)
    assert sum(not torch.equal(step.network[0].weight, fresh) for step in made) == 4


def test_bfloat16_is_autocast():
    step = networks._Step(make_resnet18(), 2, 32, "bfloat16", "channels_last", "cpu")
    seen = []
    step.network[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    step()
    assert seen == [torch.bfloat16]
    assert step.network[0].weight.dtype == torch.float32


def test_a_bench_of_networks_alone_has_no_layers_and_as_many_ticks_as_announced():
    ticks = []
    result = run_bench(SETTINGS, ticks.append)
    assert (len(result.rows), len(result.epochs), len(result.steps)) == (0, 3, 4)
    assert len(ticks) == count_ticks(SETTINGS) == 3
    assert result.environment["torch"] == torch.__version__


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_runs_are_trained_together_in_whole_epochs():
    precision = torch.get_float32_matmul_precision()
    rows = measure_epochs(make_settings("cuda", repeats=1), lambda _: None)
    assert [row.runs for row in rows] == [1, 1, 1, 6, 6, 6]
    assert not any(row.partial for row in rows)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_step_may_be_a_graph(monkeypatch):
    monkeypatch.setattr(networks, "RESNET_IMAGES", (2, 64))
    steps, capture = [], networks.captured
    monkeypatch.setattr(networks, "captured", lambda step: (steps.append(step), capture(step))[1])
    rows = measure_steps(make_settings("cuda", repeats=1, dtypes="float32", graph=True), lambda _: None)
    assert [row.network for row in rows] == ["plain", "converted"]
    assert len(steps) == 2
    assert all(p.isfinite().all() for step in steps for p in step.network.parameters())
