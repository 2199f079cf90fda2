"""A layer exported for one size: few nodes, constants for coordinates, the numbers of eager and of nested loops."""

import ast
import warnings

import pytest
import torch
from torch import nn
from torch.export import Dim

from helpers import reference
from helpers.loops import aligned_by_loops, random, tensors_of
from helpers.tolerance import TOLERANCE, assert_close
from scaleconv import DEFAULT_SCALES, SIConv1d, SIConv2d, TIConv2d, affine, convert, scaling, si_conv2d
from scaleconv.ops import fixed_size

MOST_NODES = 60
RESAMPLING = {"MatMul", "Conv", "Reshape", "Pad", "Where", "ReduceMax", "Max"}
PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "scales": DEFAULT_SCALES}
# weight, size of the image, what is not plain; every axis different
CASES = {
    "padded": ((4, 3, 3, 3), (12, 11), {"padding": (1, 1)}),
    "no padding": ((3, 2, 3, 2), (9, 12), {}),
    "many channels": ((16, 16, 3, 3), (7, 6), {"padding": (1, 1)}),
    "stride": ((4, 3, 3, 3), (13, 12), {"stride": (2, 2), "padding": (1, 0)}),
    "uneven stride": ((2, 16, 3, 3), (11, 12), {"stride": (1, 3), "padding": (1, 1)}),
    "dilation": ((3, 2, 3, 3), (13, 12), {"dilation": (2, 1), "padding": (2, 1)}),
    "groups": ((4, 2, 3, 3), (12, 9), {"groups": 2, "padding": (1, 1)}),
    "depthwise": ((4, 1, 3, 3), (12, 13), {"groups": 4, "padding": (1, 1)}),
    "antialias": ((3, 2, 3, 3), (12, 11), {"padding": (1, 1), "antialias": True}),
    "1×1": ((3, 2, 1, 1), (9, 8), {"stride": (2, 1)}),
    "5×5": ((2, 2, 5, 5), (14, 13), {"padding": "same"}),
    "7×7": ((3, 2, 7, 7), (17, 16), {"stride": (2, 2), "padding": (3, 3)}),
    "even kernel": ((2, 16, 2, 4), (8, 9), {"padding": "same"}),
    "levels drop out": ((3, 2, 3, 3), (4, 3), {}),
    "one output": ((3, 2, 3, 3), (3, 3), {"stride": (2, 2)}),
    "two scales": ((3, 2, 3, 3), (9, 8), {"scales": (1.0, 1.7)}),
    "other order": ((3, 2, 3, 3), (9, 8), {"scales": (2.0, 0.7, 1.0, 1.5), "padding": (1, 1)}),
}


class Layer(nn.Module):
    """A call of `si_conv2d` with its weight and bias."""

    def __init__(self, weight, bias, return_winner=False, **call):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.call = call | {"return_winner": return_winner}

    def forward(self, images):
        return si_conv2d(images, self.weight, self.bias, **self.call)


def case(name, return_winner=False, dtype=torch.float32):
    """The layer, its images, and the aligned responses of every scale by nested loops in float64."""
    weight_shape, size, other = CASES[name]
    call = PLAIN | other
    tensors = tensors_of((2, weight_shape[1] * call["groups"], *size), weight_shape, dtype=dtype)
    aligned = aligned_by_loops(*(tensor.double() for tensor in tensors), **call)
    return Layer(*tensors[1:], return_winner, **call).eval(), tensors[0], aligned


def operations(program):
    """The names of the operations of an exported program, without overloads."""
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return [getattr(target, "overloadpacket", target).__name__ for target in called]


class Together(nn.Module):
    """Many layers, each with images of its own: one export takes less time than many."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, images):
        return [layer(batch) for layer, batch in zip(self.layers, images, strict=True)]


def run_onnx(layers, images, dynamic=None):
    """The types of the ONNX nodes of each layer, and what ONNX Runtime computes, result by result."""
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    examples = [torch.zeros(3, *each.shape[1:]) for each in images] if dynamic else images
    with warnings.catch_warnings(action="ignore"):  # raised inside the exporter
        network = Together(layers).eval()
        program = torch.onnx.export(network, (examples,), dynamo=True, dynamic_shapes=dynamic, verbose=False)
    nodes = [[] for _ in layers]
    for node in program.model.graph:
        _, scope, *_ = ast.literal_eval(node.metadata_props["pkg.torch.onnx.name_scopes"])
        nodes[int(scope.removeprefix("layers."))].append(node.op_type)
    model, options = program.model_proto.SerializeToString(), {"providers": ["CPUExecutionProvider"]}
    session = onnxruntime.InferenceSession(model, **options)
    named = zip(session.get_inputs(), images, strict=True)
    found = session.run(None, {entry.name: each.numpy() for entry, each in named})
    return nodes, [torch.from_numpy(each) for each in found]


IN_ONNX = [name for name in CASES if name not in ("uneven stride", "groups", "5×5", "two scales")]


@pytest.fixture(scope="module")
def exported():
    """Of some cases, and of the last with its winner: the types of its ONNX nodes, and what ONNX Runtime computes."""
    made = [*map(case, IN_ONNX), case(IN_ONNX[-1], return_winner=True)]
    layers, images, _ = zip(*made, strict=True)
    nodes, found = run_onnx(layers, list(images))
    return {name: (nodes[number], *found[number : number + 3]) for number, name in enumerate(IN_ONNX)}


def assert_same_winner(winner, aligned, dtype):
    """Where the two strongest levels are further apart than rounding."""
    clear = reference.gap(aligned) > 10 * TOLERANCE[dtype] * max(1.0, abs(aligned[aligned > -torch.inf]).max())
    assert clear.mean() > 0.9
    assert (winner.numpy()[clear] == aligned.argmax(0)[clear]).all()


@pytest.mark.parametrize("name", IN_ONNX)
def test_onnx_has_few_nodes_and_the_numbers_of_eager_and_of_loops(exported, name):
    nodes, output, *_ = exported[name]
    layer, images, aligned = case(name)
    assert 0 < len(nodes) <= MOST_NODES
    assert set(nodes) <= RESAMPLING
    assert_close(output, layer(images).detach())
    assert_close(output, torch.from_numpy(aligned.max(0)), torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_an_exported_program_has_the_output_and_winner_of_loops(name):
    layer, images, aligned = case(name, return_winner=True, dtype=torch.float64)
    output, winner = torch.export.export(layer, (images,)).module()(images)
    alone = torch.export.export(case(name, dtype=torch.float64)[0], (images,))
    assert len(operations(alone)) <= MOST_NODES
    assert_close(alone.module()(images), output)
    assert_close(output, torch.from_numpy(aligned.max(0)))
    assert_same_winner(winner, aligned, torch.float64)
    assert torch.equal(winner, layer(images)[1])


def test_onnx_runtime_finds_the_winner_of_loops(exported):
    _, _, output, winner = exported[IN_ONNX[-1]]
    aligned = case(IN_ONNX[-1])[2]
    assert_close(output, torch.from_numpy(aligned.max(0)), torch.float32)
    assert winner.dtype == torch.uint8
    assert_same_winner(winner, aligned, torch.float32)


def test_onnx_of_one_size_takes_any_batch_and_has_no_more_nodes(exported):
    names = ["padded", "many channels"]
    layers, images, _ = zip(*map(case, names), strict=True)
    nodes, found = run_onnx(layers, list(images), ([{0: Dim("batch")} for _ in names],))
    assert nodes == [exported[name][0] for name in names]
    for output, layer, batch in zip(found, layers, images, strict=True):
        assert_close(output, layer(batch).detach())


@pytest.mark.parametrize("name", ["padded", "many channels", "other order"])
def test_a_tie_goes_to_the_scale_listed_first(name):
    layer, images, _ = case(name, return_winner=True)
    images[:, :, 2:9] = 0  # where no level sees anything else, all are equal to the bias
    winner, expected = (found(images)[1] for found in (torch.export.export(layer, (images,)).module(), layer))
    assert torch.equal(winner[:, :, 5:6, 2:4], torch.zeros_like(winner[:, :, 5:6, 2:4]))
    assert torch.equal(winner, expected)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["padded", "many channels"])
def test_a_graph_of_one_size_computes_no_coordinates(name, strict):
    layer, images, _ = case(name)
    program = torch.export.export(layer, (images,), strict=strict)
    assert set(operations(program)) <= {"conv2d", "matmul", "reshape", "pad", "where", "amax", "maximum"}
    assert all(constant.dtype in (torch.float32, torch.bool) for constant in program.constants.values())
    assert_close(program.module()(images), layer(images).detach())


@pytest.mark.parametrize("name", ["padded", "many channels"])
def test_one_graph_of_one_size_takes_any_batch(name):
    layer, images, _ = case(name)
    program = torch.export.export(layer, (images,), dynamic_shapes=({0: Dim("batch")},))
    assert "matmul" in operations(program)
    for batch in (0, 1, 5):
        others = random(batch, *images.shape[1:], seed=1, dtype=torch.float32)
        assert_close(program.module()(others), layer(others).detach())


@pytest.mark.parametrize("strict", [False, True])
def test_a_free_height_keeps_the_graph_for_all_sizes(strict):
    layer, images, _ = case("two scales")
    shapes = ({2: Dim("height", min=8)},)
    program = torch.export.export(layer, (images,), dynamic_shapes=shapes, strict=strict)
    assert "matmul" not in operations(program)
    for height in (8, 13):
        others = random(2, 2, height, 8, dtype=torch.float32)
        assert_close(program.module()(others), layer(others).detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["padded", "many channels", "stride"])
def test_types_of_half_the_size_have_constants_of_their_own(name, dtype):
    layer, images, aligned = case(name, dtype=dtype)
    program = torch.export.export(layer, (images,))
    assert {constant.dtype for constant in program.constants.values()} - {torch.bool} == {dtype}
    assert_close(program.module()(images), torch.from_numpy(aligned.max(0)), dtype)


def test_layers_that_are_alike_share_their_constants():
    network = nn.Sequential(*(SIConv2d(3, 3, 3, padding=1) for _ in range(3))).eval()
    images = random(1, 3, 12, 11, dtype=torch.float32)
    programs = [torch.export.export(layers, (images,)) for layers in (network[:1], network)]
    first, every = ({constant.data_ptr() for constant in program.constants.values()} for program in programs)
    assert len(every) == len(first) == len(programs[1].constants)


def test_both_ways_are_taken_and_agree(monkeypatch):
    layer, images, aligned = case("many channels", dtype=torch.float64)
    counts = {}
    for worth in (0.0, 100.0):
        monkeypatch.setattr(fixed_size, "WORTH", worth)
        program = torch.export.export(layer, (images,))
        assert_close(program.module()(images), torch.from_numpy(aligned.max(0)))
        counts[worth] = operations(program).count("conv2d")
    assert counts == {0.0: len(DEFAULT_SCALES), 100.0: 2}


@pytest.mark.parametrize("border", ["zeros", "clamp", "reflect"])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_unequal_and_mirrored_scales_are_exported_in_the_same_way(interpolation, border):
    transforms = [scaling(1), scaling(0.7, 1.5), affine(((-1, 0), (0, 1.2))), scaling(2)]
    reading = {"interpolation": interpolation, "border": border}
    layer = TIConv2d(2, 3, 3, padding=1, transforms=transforms, **reading).double().eval()
    images = random(2, 2, 9, 8)
    program = torch.export.export(layer, (images,))
    assert "matmul" in operations(program)
    assert_close(program.module()(images), layer(images).detach())


def test_signals_are_exported_in_the_same_way():
    layer, signals = SIConv1d(2, 3, 5, stride=2, padding=2).double().eval(), random(2, 2, 21)
    program = torch.export.export(layer, (signals,))
    assert "matmul" in operations(program)
    assert_close(program.module()(signals), layer(signals).detach())


@pytest.mark.parametrize("name", ["padded", "many channels"])
def test_a_nan_reaches_its_image_and_no_other(name):
    """Within its image it spreads further than in eager: a matrix multiplies by its zeros, too."""
    layer, images, _ = case(name)
    images[1, 0, 2, 2] = torch.nan
    output, expected = torch.export.export(layer, (images,)).module()(images), layer(images)
    assert output[1][expected[1].isnan()].isnan().all()
    assert_close(output[0], expected[0])


def test_constants_made_in_inference_mode_serve_training():
    network = convert(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())).eval()
    images = random(2, 3, 12, 13, dtype=torch.float32)
    with torch.inference_mode():
        assert_close(torch.export.export(network, (images,)).module()(images), network(images))
    module = torch.export.export(network, (images,)).module()
    module(images).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_autocast_is_exported():
    layer, images, _ = case("padded")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output, expected = torch.export.export(layer, (images,)).module()(images), layer(images)
    assert output.dtype == expected.dtype == torch.bfloat16
    assert_close(output, expected)
