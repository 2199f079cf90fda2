"""The passes that are timed are forward and backward of the layer, and every layer ends in a row."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaleconv.bench import Settings, layers, make_settings, timing
from scaleconv.bench.layers import Pass, measure_layers
from scaleconv.bench.runner import count_ticks

TINY = {"shapes": "mnist2", "dtypes": "float32", "repeats": 1, "batch": 1, "end_to_end": False}


def measure(**others):
    return measure_layers(make_settings("cpu", **{**TINY, **others}), lambda _: None)


@pytest.fixture
def conv_pass():
    torch.manual_seed(0)
    return Pass(nn.Conv2d(2, 3, 3), torch.rand(2, 2, 5, 5), torch.contiguous_format)


def test_gradients_are_those_of_autograd_the_input_included(conv_pass):
    weight, bias, images = conv_pass.both()
    layer, inputs = conv_pass.layer, conv_pass.images
    (layer(inputs) * conv_pass.grad).sum().backward()
    for mine, theirs in ((weight, layer.weight), (bias, layer.bias), (images, inputs)):
        assert torch.allclose(mine, theirs.grad, atol=1e-5)
    assert layer.weight.grad is not weight


def test_the_gradient_of_the_output_is_fixed_and_random(conv_pass):
    again = Pass(conv_pass.layer, conv_pass.images, torch.contiguous_format)
    assert torch.equal(conv_pass.grad, again.grad)
    assert conv_pass.grad.std() > 0.5


def test_backward_alone_runs_no_forward_while_it_is_timed(conv_pass):
    calls = []
    conv_pass.layer.register_forward_hook(lambda *_: calls.append("forward"))
    conv_pass.images.register_hook(lambda _: calls.append("backward"))
    run = conv_pass.workloads(graphs=False)["backward"](2)
    assert calls == ["forward"] * 2
    run()
    assert calls == ["forward"] * 2 + ["backward"] * 2


def test_every_layer_is_measured_in_every_setting():
    rows = measure(dtypes="float32,bfloat16", layouts=("contiguous,channels_last",), compare="conv2d,si")
    kinds = [(row.dtype, row.layout, row.layer, row.scales) for row in rows]
    variants = [("conv2d", "default"), ("si", "default"), ("si", "wide")]
    pairs = [(dtype, layout) for dtype in ("float32", "bfloat16") for layout in ("contiguous", "channels_last")]
    assert kinds == [(*pair, *variant) for pair in pairs for variant in variants]
    for row in rows:
        assert (row.shape, row.batch, row.memory, row.error) == ("mnist2", 1, None, None)
        assert (row.graph_forward, row.graph_both, row.host_both) == (None, None, None)
        assert min(timing.min_ms for timing in (row.forward, row.backward, row.both)) > 0


def test_on_a_gpu_eager_calls_graphs_and_the_host_are_timed_in_one_run(monkeypatch):
    """The graphs and the device are stand-ins on the CPU; what belongs to which field is real."""
    monkeypatch.setattr(Settings, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    captures = []
    monkeypatch.setattr(layers, "captured", lambda call: (captures.append(call.__name__), call)[1])
    timed = {}
    monkeypatch.setattr(
        layers, "time_interleaved", lambda *given: timed.setdefault("device", timing.time_interleaved(*given))
    )
    monkeypatch.setattr(layers, "time_host", lambda *given: timed.setdefault("host", timing.time_host(*given)))
    rows = measure(compare="conv2d", peers=("peers:Spy",))
    assert captures == ["forward", "both"] * 2
    for row in rows:
        key = (row.layer, "default")
        for field in ("forward", "backward", "both", "graph_forward", "graph_both"):
            assert getattr(row, field) is timed["device"][key, field]
        assert row.host_both is timed["host"][key]
        assert row.host_both.min_ms > 0


class Spy(nn.Conv2d):
    """Notes what it is given."""

    seen: list = []  # noqa: RUF012

    def forward(self, input):
        last = input.is_contiguous(memory_format=torch.channels_last)
        self.seen.append((input.dtype, self.weight.dtype, last, input.requires_grad))
        return super().forward(input)


class Broken(nn.Conv2d):
    def forward(self, input):
        if input.dtype == torch.bfloat16:
            raise RuntimeError("no such\nkernel")
        return super().forward(input)


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    monkeypatch.setattr(Spy, "seen", [])
    monkeypatch.setitem(sys.modules, "peers", SimpleNamespace(Spy=Spy, Broken=Broken))


def test_dtype_and_layout_reach_the_layer_and_the_input_needs_a_gradient():
    setting = {"dtypes": "bfloat16", "layouts": ("channels_last",), "compare": "conv2d", "peers": ("peers:Spy",)}
    measure(**setting)
    assert Spy.seen[-1] == (torch.bfloat16, torch.bfloat16, True, True)
    measure(**setting | {"dtypes": "float32", "layouts": ("contiguous",)})
    assert Spy.seen[-1] == (torch.float32, torch.float32, False, True)


def test_what_fails_leaves_a_row_that_says_so_and_the_others_go_on():
    rows = measure(dtypes="float32,bfloat16", compare="conv2d", peers=("peers:Broken",))
    by_kind = {(row.layer, row.dtype): row for row in rows}
    failed = by_kind["peers:Broken", "bfloat16"]
    assert (failed.error, failed.forward, failed.both) == ("RuntimeError: no such", None, None)
    del by_kind["peers:Broken", "bfloat16"]
    assert len(by_kind) == 3
    assert all(row.both and not row.error for row in by_kind.values())


def test_as_many_ticks_as_announced():
    settings = make_settings("cpu", **{**TINY, "repeats": 2, "compare": "conv2d", "shapes": "mnist2,res14"})
    ticks = []
    measure_layers(settings, ticks.append)
    assert ticks == ["mnist2, float32, contiguous"] * 2 + ["res14, float32, contiguous"] * 2
    assert count_ticks(settings) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_memory_graphs_and_host_are_measured():
    rows = measure_layers(make_settings("cuda", **TINY), lambda _: None)
    for row in rows:
        assert row.error is None
        assert row.memory.peak_mib > row.memory.held_mib > 0
        fields = (row.forward, row.backward, row.both, row.graph_forward, row.graph_both, row.host_both)
        assert min(timing.min_ms for timing in fields) > 0
        assert row.graph_forward.median_ms < row.graph_both.median_ms
