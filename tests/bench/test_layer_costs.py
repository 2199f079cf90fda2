"""The layers that are compared are what their names say, and each ends in a row for every setting."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaleconv import SIConv2d
from scaleconv.bench import Settings, layer_costs, make_settings
from scaleconv.bench.layer_costs import check_peer, make_layer, measure_layers
from scaleconv.bench.session import count_ticks
from scaleconv.bench.settings import COMPARED, SHAPES, LayerShape
from scaleconv.metrics import timing
from scaleconv.metrics.timing import LayerPass
from scaleconv.models.direct import DirectSIConv2d

SMALL = LayerShape(2, 3, 9, kernel=3, padding=1, batch=2, cpu_batch=2)
STRIDED_GROUPS = LayerShape(4, 6, 10, kernel=3, padding=1, batch=2, cpu_batch=2, stride=2, groups=2)
SCALES = (0.5, 1.0, 2.0)
TINY = {"shapes": "mnist2", "dtypes": "float32", "repeats": 1, "batch": 1, "end_to_end": False}


class Cropped(nn.Conv2d):
    def forward(self, input):
        return super().forward(input)[..., 1:]


class Pair(nn.Conv2d):
    def forward(self, input):
        return super().forward(input), input


class Unlike(nn.Module):
    def __init__(self, channels):
        super().__init__()


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
    classes = {"Plain": nn.Conv2d, "Cropped": Cropped, "Pair": Pair, "Unlike": Unlike, "Spy": Spy, "Broken": Broken}
    monkeypatch.setitem(sys.modules, "peers", SimpleNamespace(**classes, number=3))


def images(shape=SMALL):
    return torch.rand(2, shape.in_channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))


def test_the_wide_convolution_has_as_many_times_the_maps_as_there_are_scales():
    assert make_layer("conv2d_wide", SMALL, SCALES)(images()).shape == (2, 9, 9, 9)
    wide = make_layer("conv2d_wide", STRIDED_GROUPS, SCALES)
    assert wide(images(STRIDED_GROUPS)).shape == (2, 18, 5, 5)
    assert (wide.stride, wide.groups) == ((2, 2), 2)


@pytest.mark.parametrize("name", [name for name in COMPARED if name != "conv2d_wide"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_compared_layer_has_the_weights_and_the_output_shape_of_the_convolution(name, shape):
    shape = replace(shape, size=min(shape.size, 57))
    plain, layer = make_layer("conv2d", shape, (1.0, 0.5)), make_layer(name, shape, (1.0, 0.5))
    assert torch.equal(layer.weight, plain.weight)
    with torch.no_grad():
        output, expected = layer(images(shape)), plain(images(shape))
    assert output.shape == expected.shape
    assert expected.shape == (2, shape.out_channels, shape.output_size, shape.output_size)


@pytest.mark.parametrize("name", ["direct", "si"])
def test_with_the_scale_one_alone_a_layer_is_the_convolution_strides_and_groups_included(name):
    plain, layer = (make_layer(each, STRIDED_GROUPS, (1.0,)) for each in ("conv2d", name))
    assert isinstance(layer, SIConv2d if name == "si" else DirectSIConv2d)
    assert torch.allclose(layer(images(STRIDED_GROUPS)), plain(images(STRIDED_GROUPS)), atol=1e-6)


def test_a_peer_is_made_with_the_arguments_of_the_convolution():
    layer = make_layer("peers:Plain", STRIDED_GROUPS, SCALES)
    assert repr(layer) == "Conv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2)"
    check_peer("peers:Plain", STRIDED_GROUPS, "cpu")


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("nowhere:Layer", r"`peer` \(=nowhere:Layer\) must name a module that can be imported: No module named"),
        ("peers:Missing", r"`peer` must name a torch.nn.Module of `peers`, got 'Missing'"),
        ("peers:number", r"`peer` must name a torch.nn.Module of `peers`, got 'number'"),
        ("peers:Unlike", r"`peer` \(=peers:Unlike\) must take the arguments of Conv2d .*unexpected keyword"),
        (
            "peers:Cropped",
            r"`peer` \(=peers:Cropped\) must return the shape of Conv2d, \(2, 3, 9, 9\), got \(2, 3, 9, 8",
        ),
        ("peers:Pair", r"`peer` \(=peers:Pair\) must return the shape of Conv2d, \(2, 3, 9, 9\), got tuple"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused(peer, message):
    with pytest.raises(ValueError, match=message):
        check_peer(peer, SMALL, "cpu")


def measure(**others):
    return measure_layers(make_settings("cpu", **{**TINY, **others}), lambda _: None)


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
    captures, timed = [], {}
    monkeypatch.setattr(layer_costs, "captured", lambda call: (captures.append(call), call)[1])
    original = timing.time_interleaved
    monkeypatch.setattr(timing, "time_interleaved", lambda *given: timed.setdefault("times", original(*given)))
    rows = measure(compare="conv2d", peers=("peers:Spy",))
    assert [isinstance(call, LayerPass) for call in captures] == [False, True] * 2  # forward, then both
    for row in rows:
        for field in ("forward", "backward", "both", "graph_forward", "graph_both", "host_both"):
            assert getattr(row, field) is timed["times"][(row.layer, "default"), field]
        assert row.host_both.min_ms > 0
        assert row.host_both.iterations == 1


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


def test_progress_is_reported_as_often_as_announced():
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
