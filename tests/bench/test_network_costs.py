"""Whole networks: the rows are of a real epoch and a real step, and plain and converted are the same network."""

import pytest
import torch
from torch import nn

from scaleconv import SIConv2d, convert
from scaleconv.bench import Settings, make_settings, network_costs, run_bench
from scaleconv.bench.network_costs import (
    NETWORKS,
    Step,
    make_depthwise_network,
    make_resnet18,
    measure_epochs,
    measure_steps,
    step_tasks,
)
from scaleconv.bench.session import count_ticks

SMALL = {"repeats": 1, "scales": "1,0.8", "layers": False, "image_size": 32, "batch": 2}
SETTINGS = make_settings("cpu", dtypes="float32", **SMALL)


@pytest.fixture(autouse=True)
def one_batch(monkeypatch):
    monkeypatch.setattr(network_costs, "CPU_BATCHES", 1)


@pytest.fixture
def steps(monkeypatch):
    """Every step that is made."""
    made = []

    class Spy(Step):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.calls = 0
            made.append(self)

        def __call__(self):
            self.calls += 1
            super().__call__()

    monkeypatch.setattr(network_costs, "Step", Spy)
    return made


def output_sizes(network, size):
    """(channels, height, width) after each of its modules."""
    sizes = []
    for layer in network:
        layer.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    network.eval()(torch.rand(1, 3, size, size))
    return sizes


def test_resnet_has_its_shape_and_converts_all_but_the_shortcuts():
    network = make_resnet18()
    layers = [layer for layer in convert(network).modules() if isinstance(layer, SIConv2d)]
    assert len(layers) == 17
    assert sum(isinstance(layer, nn.Conv2d) for layer in network.modules()) == 20
    sizes = output_sizes(network, 64)
    assert sizes[2:5] == [(64, 32, 32), (64, 16, 16), (64, 16, 16)]
    assert sizes[-4:] == [(512, 2, 2), (512, 1, 1), (512,), (1000,)]


def test_the_depthwise_network_converts_its_stem_and_its_depthwise_layers_of_both_sizes_and_strides():
    network = make_depthwise_network()
    stem, *depthwise = (layer for layer in convert(network).modules() if isinstance(layer, SIConv2d))
    assert (stem.in_channels, stem.groups) == (3, 1)
    assert all(layer.groups == layer.in_channels == layer.out_channels for layer in depthwise)
    kinds = [(layer.kernel_size[0], layer.stride[0]) for layer in depthwise]
    assert kinds == [(3, 2), (3, 1), (3, 2), (7, 1), (7, 1), (7, 1), (3, 2), (3, 1), (3, 2), (3, 1)]
    sizes = output_sizes(network, 64)
    assert sizes[5:9] == [(96, 8, 8)] * 4
    assert sizes[-4:] == [(192, 2, 2), (192, 1, 1), (192,), (1000,)]


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_network_has_the_same_weights_every_time(make):
    first, second = make().state_dict(), make().state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_epoch_is_told_from_a_part_of_it(monkeypatch):
    timings = {}
    original = network_costs.time_interleaved

    def spy(workloads, *others, **options):
        timings.update(original(workloads, *others, **options))
        return timings

    monkeypatch.setattr(network_costs, "time_interleaved", spy)
    rows = measure_epochs(SETTINGS, lambda _: None)
    assert [(row.model, row.runs) for row in rows] == [("convnet", 1), ("si_convnet", 1), ("hierarchical", 1)]
    for row in rows:
        assert (row.batches, row.batches_timed, row.partial) == (78, 1, True)
        assert row.seconds == row.seconds_per_run == pytest.approx(0.078 * timings[row.model, 1].median_ms)


def test_every_network_is_trained_and_evaluated_plain_and_converted(steps):
    rows = measure_steps(SETTINGS, lambda _: None)
    kinds = [(row.network, row.variant, row.task, row.batch, row.size) for row in rows]
    tasks = [("training", 2), ("inference", 1), ("inference", 8)]
    assert kinds == [
        (network, variant, task, batch, 32)
        for network in ("resnet18", "depthwise")
        for task, batch in tasks
        for variant in ("plain", "converted")
    ]
    for row in rows:
        assert (row.error, row.memory, row.graph) == (None, None, None)
        assert row.eager.median_ms > 0
    kinds = {(type(step.network[0]).__name__, getattr(step.network[0], "scales", None)) for step in steps}
    assert kinds == {("Conv2d", None), ("SIConv2d", (1, 0.8))}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_training_changes_the_weights_and_inference_leaves_everything_as_it_was(make):
    fresh = make().state_dict()
    for task, changes in (("training", True), ("inference", False)):
        step = Step(make(), task, 2, 32, "float32", "contiguous", "cpu")
        needed = []
        step.network[-1].register_forward_hook(lambda _, __, output, needed=needed: needed.append(output.requires_grad))
        step()
        after = step.network.state_dict()
        assert any(not torch.equal(fresh[key], after[key]) for key in fresh) is changes
        assert needed == [changes]


def test_bfloat16_is_autocast():
    step = Step(make_resnet18(), "training", 2, 32, "bfloat16", "channels_last", "cpu")
    seen = []
    step.network[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    step()
    assert seen == [torch.bfloat16]
    assert step.network[0].weight.dtype == torch.float32
    assert step.images.is_contiguous(memory_format=torch.channels_last)


def test_batches_are_those_of_the_device():
    assert step_tasks(make_settings("cpu")) == [("training", 2), ("inference", 1), ("inference", 8)]
    assert step_tasks(Settings("cuda")) == [("training", 32), ("inference", 1)]


def test_on_a_gpu_a_training_step_is_also_a_graph(monkeypatch, steps, stand_ins):
    """The graph is a stand-in on the CPU; which step it holds is real."""
    monkeypatch.setattr(Settings, "on_gpu", True)
    graphs = []
    monkeypatch.setattr(network_costs, "captured", lambda step: (graphs.append(step), step)[1])
    rows = measure_steps(SETTINGS, lambda _: None)
    assert [row.task for row in rows if row.graph] == ["training"] * 4
    assert [row.task for row in rows if not row.graph] == ["inference"] * 4
    assert all(row.eager for row in rows)
    assert len(graphs) == 4
    assert all(step.calls > 1 for step in graphs)


def test_a_network_that_fails_leaves_a_row_that_says_so_and_the_others_go_on(monkeypatch, stand_ins):
    def refuse(*_, **__):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(network_costs, "convert", refuse)
    rows = measure_steps(SETTINGS, lambda _: None)
    for row in rows:
        failed = row.variant == "converted"
        assert row.error == ("RuntimeError: out of" if failed else None)
        assert (row.eager is None) is failed


def test_a_bench_of_networks_alone_has_no_layers_and_as_many_ticks_as_announced(stand_ins):
    settings = make_settings("cpu", dtypes="float32,bfloat16", **SMALL)
    ticks = []
    result = run_bench(settings, ticks.append)
    assert (len(result.rows), len(result.epochs), len(result.steps)) == (0, 3, 24)
    assert len(ticks) == count_ticks(settings) == 13
    assert result.environment["torch"] == torch.__version__


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_runs_are_trained_together_in_whole_epochs():
    precision = torch.get_float32_matmul_precision()
    rows = measure_epochs(make_settings("cuda", repeats=1), lambda _: None)
    assert [row.runs for row in rows] == [1, 1, 1, 6, 6, 6]
    assert not any(row.partial for row in rows)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_graphs_train_and_memory_is_measured(monkeypatch):
    captured, graphs = network_costs.captured, []
    monkeypatch.setattr(network_costs, "captured", lambda step: (graphs.append(step), captured(step))[1])
    rows = measure_steps(make_settings("cuda", dtypes="float32,bfloat16", **SMALL | {"image_size": 64}), lambda _: None)
    assert [(row.error, row.graph is None) for row in rows] == [(None, row.task == "inference") for row in rows]
    assert all(row.memory.peak_mib > row.memory.held_mib > 0 for row in rows)
    assert len(graphs) == 8
    assert all(p.isfinite().all() for step in graphs for p in step.network.parameters())
