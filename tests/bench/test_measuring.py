"""What is measured is what its name says: layers, networks, operations; and each ends in a row for every setting."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, SIConv2d, timing
from scaleconv.bench import Settings, layer_costs, make_settings, network_costs, operations, run_bench
from scaleconv.bench.layer_costs import check_peer, make_layer, measure_layers
from scaleconv.bench.network_costs import Step, make_network, measure_steps, step_tasks
from scaleconv.bench.operations import Layer, count_operations, formula, measure_sweeps, sweep_scales
from scaleconv.bench.session import count_ticks
from scaleconv.bench.shapes import LayerShape
from scaleconv.models import DirectSIConv2d
from scaleconv.ops import custom_op
from scaleconv.ops.call import make_call
from scaleconv.timing import LayerPass, Timing

SMALL = LayerShape(2, 3, 9, kernel=3, padding=1, batch=2, cpu_batch=2)
STRIDED_GROUPS = LayerShape(4, 6, 10, kernel=3, padding=1, batch=2, cpu_batch=2, stride=2, groups=2)
TINY = {"shapes": "mnist2", "dtypes": "float32", "repeats": 2, "batch": 1, "scales": "1,0.8", "image_size": 32}
FIRST = Layer("layer1", "first", 1, 36, 28, 7, input_grad=False)
SECOND = Layer("layer2", "second", 36, 64, 11, 5)


@pytest.fixture
def clock(monkeypatch):
    """In place of the clock: every workload is run once, and takes as many ms as were asked for before it."""
    asked = []

    def fixed(workloads, device, repeats, tick=lambda: None):
        found = {}
        for key, workload in workloads.items():
            workload.prepare(1)()
            asked.append((key, workload.host, repeats))
            found[key] = Timing(len(asked), 0.5, 99, 1)
        for _ in range(repeats):
            tick()
        return found

    monkeypatch.setattr(timing, "time_interleaved", fixed)
    monkeypatch.setattr(operations, "time_interleaved", fixed)
    return asked


def images(shape=SMALL):
    return torch.rand(2, shape.in_channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [SMALL, STRIDED_GROUPS], ids=["small", "strided groups"])
def test_the_compared_layers_have_the_weights_and_the_output_of_the_convolution(shape):
    plain, wide, direct, si = (make_layer(name, shape, (1.0,)) for name in ("conv2d", "conv2d_wide", "direct", "si"))
    expected = F.conv2d(images(shape), plain.weight, plain.bias, shape.stride, shape.padding, 1, shape.groups)
    assert expected.shape[2:] == (shape.output_size, shape.output_size)
    for layer, kind in ((plain, nn.Conv2d), (wide, nn.Conv2d), (direct, DirectSIConv2d), (si, SIConv2d)):
        assert type(layer) is kind
        assert torch.allclose(layer(images(shape)), expected, atol=1e-6)
    assert make_layer("conv2d_wide", shape, (0.5, 1, 2))(images(shape)).shape[1] == 3 * shape.out_channels
    assert all(make_layer(name, shape, (0.5, 1)).scales == (0.5, 1) for name in ("direct", "si"))


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("nowhere:Layer", r"`peer` \(=nowhere:Layer\) must name a module that can be imported: No module named"),
        ("peers:Missing", r"`peer` must name a torch.nn.Module of `peers`, got 'Missing'"),
        ("peers:Unlike", r"`peer` \(=peers:Unlike\) must take the arguments of Conv2d .*unexpected keyword"),
        ("peers:Shorter", r"must return the shape of Conv2d, \(2, 6, 5, 5\), got \(2, 6, 5, 4"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused(peer, message):
    check_peer("peers:Plain", STRIDED_GROUPS, "cpu")
    with pytest.raises(ValueError, match=message):
        check_peer(peer, STRIDED_GROUPS, "cpu")


def test_every_layer_has_a_row_in_every_setting_and_what_fails_says_so(clock):
    settings = make_settings(
        "cpu", **TINY | {"dtypes": "float32,bfloat16"}, compare="si,conv2d", peers=("peers:Broken",), end_to_end=False
    )
    ticks = []
    rows = measure_layers(settings, ticks.append)
    layers = [("si", "default"), ("si", "wide"), ("conv2d", "default"), ("peers:Broken", "default")]
    kinds = [(row.shape, row.dtype, row.layout, row.batch, row.layer, row.scales) for row in rows]
    assert kinds == [
        ("mnist2", dtype, "contiguous", 1, *layer) for dtype in ("float32", "bfloat16") for layer in layers
    ]
    found = [[row.forward.median_ms, row.backward.median_ms, row.both.median_ms] for row in rows[:-1]]
    assert found == [[n, n + 1, n + 2] for n in range(1, 20, 3)]
    assert (rows[-1].error, rows[-1].forward, rows[-1].both) == ("RuntimeError: no such", None, None)
    assert {(row.error, row.memory, row.graph_both, row.host_both) for row in rows[:-1]} == {(None, None, None, None)}
    assert ticks == ["mnist2, float32, contiguous"] * 2 + ["mnist2, bfloat16, contiguous"] * 2
    assert count_ticks(settings) == 4


def test_dtype_layout_and_scales_reach_the_layer_whose_input_needs_a_gradient(clock, monkeypatch):
    made = []
    monkeypatch.setattr(layer_costs, "LayerPass", lambda *given: (made.append(given), LayerPass(*given))[1])
    settings = {"dtypes": "bfloat16", "layouts": ("channels_last",), "compare": "si", "batch": 3}
    measure_layers(make_settings("cpu", **TINY | settings, end_to_end=False), lambda _: None)
    assert [layer.scales for layer, *_ in made] == [(1, 0.8), (1, 0.8**2)] * 2  # alone, then together
    for layer, given, layout in made:
        assert (given.dtype, layer.weight.dtype, layout) == (torch.bfloat16, torch.bfloat16, torch.channels_last)
        assert given.is_contiguous(memory_format=torch.channels_last)
        assert (given.shape, given.requires_grad) == ((3, 36, 11, 11), True)


def test_on_a_gpu_eager_calls_graphs_and_the_host_are_timed_in_one_run(clock, monkeypatch):
    """The graphs are stand-ins on the CPU; what belongs to which field is real."""
    monkeypatch.setattr(Settings, "on_gpu", True)
    captures = []
    monkeypatch.setattr(layer_costs, "captured", lambda call: (captures.append(call), call)[1])
    settings = Settings("cpu", shapes=("mnist2",), dtypes=("float32",), compare=("conv2d",), batch=1)
    (row,) = measure_layers(settings, lambda _: None)
    assert [isinstance(call, LayerPass) for call in captures] == [False, True]  # forward, then both
    fields = ("forward", "backward", "both", "graph_forward", "graph_both", "host_both")
    assert [getattr(row, field).median_ms for field in fields] == [1, 2, 3, 4, 5, 6]
    assert [host for _, host, _ in clock] == [False] * 5 + [True]


def converted_layers(network):
    return [layer for layer in network.modules() if isinstance(layer, SIConv2d)]


def scales_of(network, variant):
    return [layer.scales for layer in converted_layers(make_network(network, variant, (1.0, 0.8)))]


def test_networks_have_their_layers_and_the_same_weights_every_time():
    layers = converted_layers(make_network("depthwise", "converted", (1.0,)))
    first, last = [(3, 2, 128), (3, 1, 96), (3, 2, 96)], [(3, 2, 384), (3, 1, 640), (3, 2, 640), (3, 1, 768)]
    kinds = [(layer.kernel_size[0], layer.stride[0], layer.groups) for layer in layers]
    assert kinds == [(3, 2, 1), *first, *[(7, 1, 96)] * 3, *last]
    assert scales_of("resnet18", "converted") == [(1.0, 0.8)] * 17
    assert scales_of("paper", "si_convnet") == [(1.0, 0.8)] * 2
    assert scales_of("paper", "convnet") == scales_of("resnet18", "plain") == []
    assert type(make_network("paper", "hierarchical", (1.0,))).__name__ == "HierarchicalConvNet"
    plain, converted = (make_network("depthwise", variant, (1.0,)).eval() for variant in ("plain", "converted"))
    given = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(converted(given), plain(given), rtol=1e-4, atol=1e-5)


def small_network(channels=3):
    return nn.Sequential(nn.Conv2d(channels, 10, 3), nn.BatchNorm2d(10), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture
def stand_ins(monkeypatch):
    """Small networks, where the rows are tested; the converted ones fail."""

    def make(network, variant, scales):
        if variant == "converted":
            raise RuntimeError("out of\nmemory")
        return small_network(1 if network == "paper" else 3)

    monkeypatch.setattr(network_costs, "make_network", make)


def test_a_training_step_moves_the_weights_against_the_gradient_and_inference_leaves_everything():
    for task in ("training", "inference"):
        torch.manual_seed(0)
        network = small_network()
        before = {key: value.clone() for key, value in network.state_dict().items()}
        step = Step(network, task, torch.rand(4, 3, 8, 8), "float32", "channels_last")
        F.cross_entropy(network(step.images), torch.arange(4)).backward()
        slope = network[0].weight.grad.clone()
        network.load_state_dict(before)
        step()
        moved = 0.01 * slope if task == "training" else 0  # the first step of SGD has no momentum yet
        assert torch.allclose(network[0].weight, before["0.weight"] - moved, atol=1e-7)
        assert torch.equal(network[1].running_mean, before["1.running_mean"]) is (task == "inference")
        assert step.images.is_contiguous(memory_format=torch.channels_last)


def test_bfloat16_is_autocast():
    step = Step(small_network(), "training", torch.rand(2, 3, 8, 8), "bfloat16", "contiguous")
    assert step.logits().dtype == torch.bfloat16
    assert {parameter.dtype for parameter in step.network.parameters()} == {torch.float32}


def test_batches_are_those_of_the_device():
    cpu, gpu, given = Settings(), Settings("cuda"), Settings("cuda", batch=5)
    assert step_tasks(cpu, "resnet18") == [("training", 2), ("inference", 1), ("inference", 8)]
    assert step_tasks(gpu, "depthwise") == [("training", 32), ("inference", 1)]
    assert [step_tasks(each, "paper")[0] for each in (cpu, gpu, given)] == [("training", n) for n in (128, 128, 5)]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_network_has_a_row_for_every_variant_and_task(clock, stand_ins, monkeypatch, on_gpu):
    monkeypatch.setattr(Settings, "on_gpu", on_gpu)
    monkeypatch.setattr(network_costs, "captured", lambda step: step)
    settings, ticks = Settings("cpu", dtypes=("float32",), batch=2, image_size=32, repeats=2), []
    rows = measure_steps(settings, ticks.append)
    tasks = [("training", 2), ("inference", 1), *([] if on_gpu else [("inference", 8)])]
    expected = [
        (network, variant, *task, 28 if network == "paper" else 32)
        for network in ("resnet18", "depthwise", "paper")
        for task in tasks
        for variant in (("convnet", "si_convnet", "hierarchical") if network == "paper" else ("plain", "converted"))
    ]
    assert [(row.network, row.variant, row.task, row.batch, row.size) for row in rows] == expected
    times = iter(range(1, 100))
    for row in rows:
        measured = row.variant != "converted"
        assert row.error == (None if measured else "RuntimeError: out of")
        assert (row.eager and row.eager.median_ms) == (next(times) if measured else None)
        assert (row.graph and row.graph.median_ms) == (next(times) if measured and on_gpu else None)
    assert ticks[:3] == ["resnet18, training", "resnet18, training", "resnet18, inference"]
    both = ("contiguous", "channels_last")
    only_networks = Settings("cpu", dtypes=("float32", "bfloat16"), layouts=both, layers=False, repeats=2)
    assert (len(ticks), count_ticks(only_networks)) == (6 * len(tasks), 24 * len(tasks))


def test_a_bench_measures_the_parts_that_are_asked_for(clock, stand_ins):
    result = run_bench(make_settings("cpu", **TINY, compare="conv2d"))
    assert (len(result.rows), len(result.steps)) == (1, 21)
    assert result.environment["torch"] == torch.__version__
    assert run_bench(make_settings("cpu", **TINY, compare="conv2d", end_to_end=False)).steps == []
    assert run_bench(make_settings("cpu", **TINY, layers=False)).rows == []


def test_the_formula_is_the_sum_of_the_squares_of_the_scales_which_a_sweep_varies():
    assert formula(DEFAULT_SCALES) == pytest.approx(sum(scale**2 for scale in DEFAULT_SCALES))
    assert (formula([1.0]), formula([1.0, 3.0])) == (1, pytest.approx(10))
    assert sweep_scales("largest", 8.0) == pytest.approx((0.25, 0.5, 1, 2, 4, 8))
    assert sweep_scales("count", 3) == pytest.approx((1, 2**0.5, 2))
    assert sweep_scales("count", 1) == (1,)


@pytest.mark.parametrize(("device", "factors"), [("cpu", (7.5, 6.7)), ("NVIDIA H200", (6.5, 12.1))])
def test_operations_are_those_of_the_device_that_is_timed(device, factors):
    """As docs/reproduction.md has them; on a GPU the second layer is faster with more operations."""
    counted = [count_operations("si_conv2d", layer, 128, DEFAULT_SCALES, device) for layer in (FIRST, SECOND)]
    assert tuple(round(factor, 1) for factor in counted) == factors


def test_operations_are_responses_and_resampling_in_units_of_the_plain_layer():
    """Responses of each level, for 22² of the plain layer; the resampling of pixels and responses comes on top."""
    planned, whole = (22**2 + 16**2 + 11**2 + 29**2 + 36**2 + 22**2), (22**2 + 16**2 + 11**2 + 29**2 + 38**2 + 50**2)
    for method, responses, resampling in (("si_conv2d", planned, 0.31), ("direct", whole, 0.38), ("conv2d", 22**2, 0)):
        counted = count_operations(method, FIRST, 1, DEFAULT_SCALES, "cpu")
        assert counted - responses / 22**2 == pytest.approx(resampling, abs=0.005)


def test_sweeps_count_and_time_every_call_and_a_first_layer_needs_no_gradient_of_its_input(clock, monkeypatch):
    passes = []

    class Spy(LayerPass):
        def __call__(self):
            grads = super().__call__()
            passes.append((type(self.layer).__name__, tuple(self.images.shape[:2]), len(grads)))
            return grads

    monkeypatch.setattr(operations, "LayerPass", Spy)
    sweeps = {"largest": (2.0,), "count": (1, 3)}
    found = measure_sweeps("conv2d", FIRST, 3, sweeps, "cpu", 4)
    assert found["operations count"] == {1.0: 1.0, 3.0: 1.0}
    assert (found["milliseconds largest"], found["milliseconds count"]) == ({2.0: 1}, {1.0: 2, 3.0: 3})
    assert clock == [("conv2d", False, 4)] * 3
    measure_sweeps("si_conv2d", SECOND, 3, {"count": (2,)}, "cpu", 4)
    measure_sweeps("direct", SECOND, 3, {"count": (2,)}, "cpu", 4)
    kinds = [("Conv2d", (3, 1), 2)] * 3 + [("SIConv2d", (3, 36), 3), ("DirectSIConv2d", (3, 36), 3)]
    assert passes == kinds  # images, and gradients: weight, bias and, of the second layer, input
    assert measure_sweeps("formula", FIRST, 3, {"count": (2,)}, "cpu", 4) == {"operations count": {2.0: 5}}
    assert SECOND.parameters == sum(p.numel() for p in nn.Conv2d(36, 64, 5).parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_graphs_host_and_memory_are_measured():
    result = run_bench(make_settings("cuda", **TINY | {"batch": 2}))
    for row in (*result.rows, *result.steps):
        assert row.error is None
        assert row.memory.peak_mib > row.memory.held_mib
    assert all(row.host_both and row.graph_forward.median_ms < row.graph_both.median_ms for row in result.rows)
    assert all(row.graph for row in result.steps)


def test_a_case_of_the_ablation_has_plans_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    layers, found = importlib.import_module("layers"), []
    calls = [make_call((channels, 40, 40), (64, channels, 3, 3), padding=1) for channels in (8, 64)]

    def plan():
        found.append({canvas.form for call in calls for canvas in custom_op.make_plan(call, 64, False).canvases})

    plan()
    for case in (("no strided form", ""), ("no im2col", "cpu")):
        layers.without(layers.CASES[case], plan)()
    assert found == [{"dense", "strided", "im2col"}, {"dense", "im2col"}, {"dense", "strided"}]
