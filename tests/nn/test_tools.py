"""Tools for networks of plain convolutions: they do the right thing, refuse, or docs/layer.md warns of them."""

import io
import warnings

import pytest
import torch
from torch import nn
from torch.ao.quantization import fuse_modules
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.mkldnn import to_mkldnn

from helpers.tolerance import assert_close
from scaleconv import ScaleInvariant, SIConv2d, TIConv2d, convert, rotation, si_conv2d

IMAGES = torch.rand(2, 3, 12, 11, generator=torch.Generator().manual_seed(0))
SCALES = (0.7, 1, 1.5)


def network(factors=(1.0, 2.0, 0.5, 3.0)):
    """A convolution and a BatchNorm that has seen something, as in a trained network."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.weight.data = torch.tensor(factors)
    norm.bias.data.normal_()
    return convert(nn.Sequential(nn.Conv2d(3, 4, 3), norm), scales=SCALES).eval()


def test_a_batchnorm_folds_exactly_if_its_factors_are_positive():
    net = network()
    folded = fuse_conv_bn_eval(*net)
    assert type(folded) is SIConv2d
    assert_close(folded(IMAGES), net(IMAGES))


def test_a_batchnorm_with_a_negative_factor_does_not_fold():
    """The largest of the negated responses is not the negated largest one; the page on the layer warns of it."""
    net = network((1.0, -2.0, 0.5, 3.0))
    error = (fuse_conv_bn_eval(*net)(IMAGES) - net(IMAGES)).abs().amax((0, 2, 3))
    assert error[1] > 0.1
    assert error[[0, 2, 3]].max() < 1e-5


def test_fx_fusion_leaves_the_layer_and_its_batchnorm_alone():
    net = network((1.0, -2.0, 0.5, 3.0))
    fused = fuse(net)
    assert torch.equal(fused(IMAGES), net(IMAGES))
    assert any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuse_modules_refuses_the_layer():
    with pytest.raises((AssertionError, NotImplementedError), match="fuse"):
        fuse_modules(network(), [["0", "1"]])


def test_to_mkldnn_is_known_to_drop_the_scales():
    """PyTorch asks the layer nothing before it takes its weights; the page on the layer warns of it."""
    assert type(to_mkldnn(SIConv2d(3, 4, 3))).__name__ == "MkldnnConv2d"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "module",
    [network(), ScaleInvariant(nn.Conv2d(3, 4, 3)), TIConv2d(3, 4, 3, transforms=[rotation(0), rotation(90)])],
    ids=["layer", "pyramid", "rotations"],
)
def test_torch_jit_script_is_refused_by_one_message(module):
    with pytest.raises(RuntimeError, match=r"torch.jit.script cannot take \w+; use torch.export.export or torch.comp"):
        torch.jit.script(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "leave",
    [torch.jit.trace, lambda net, images: torch.onnx.export(net, (images,), io.BytesIO(), dynamo=False)],
    ids=["trace", "onnx"],
)
@pytest.mark.parametrize("module", [network(), ScaleInvariant(nn.Conv2d(3, 4, 3))], ids=["layer", "pyramid"])
def test_torch_jit_trace_and_the_old_onnx_exporter_are_refused_by_one_message(module, leave):
    with pytest.raises(RuntimeError, match=r"torch.jit.trace and torch.onnx.export\(dynamo=False\) cannot take"):
        leave(module, IMAGES)


@pytest.mark.parametrize("inner", [False, True])
def test_a_symbolic_trace_keeps_the_call_as_one_node(inner):
    layer = SIConv2d(3, 4, 3, scales=SCALES)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU()) if inner else layer)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [si_conv2d]
    expected = layer(IMAGES)
    assert torch.equal(traced(IMAGES), expected.relu() if inner else expected)


# What a file remembers.


def saved(module):
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


MESSAGE = r"trained at scales \(1, 2\) are loaded into a SIConv2d with scales \(0.5, 1\)"


@pytest.mark.parametrize("through", [saved, lambda module: module.state_dict()], ids=["file", "memory"])
@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential], ids=["alone", "in a network"])
def test_weights_of_other_scales_warn_and_load(through, wrap):
    first, second = (wrap(SIConv2d(3, 4, 3, scales=scales)) for scales in ((1, 2), (0.5, 1)))
    with pytest.warns(UserWarning, match=MESSAGE) as seen:
        second.load_state_dict(through(first))
    assert len(seen) == 1
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_many_layers_of_other_scales_warn_once():
    first, second = (
        nn.Sequential(*(SIConv2d(3, 3, 3, scales=scales) for _ in range(4))) for scales in ((1, 2), (0.5, 1))
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        second.load_state_dict(first.state_dict())
    assert len(seen) == 1


def test_weights_of_other_transforms_warn():
    layers = [TIConv2d(3, 4, 3, transforms=[rotation(0), rotation(angle)]) for angle in (90, 30, 30)]
    with pytest.warns(UserWarning, match="trained with other transforms are loaded into a TIConv2d"):
        layers[1].load_state_dict(saved(layers[0]))
    layers[1].load_state_dict(saved(layers[2]))  # a warning would be an error
    layers[1].load_state_dict(saved(nn.Conv2d(3, 4, 3)))


def test_a_pyramid_of_other_scales_warns():
    first, second = (ScaleInvariant(nn.Conv2d(3, 4, 3), scales) for scales in ((1, 2), (1, 3)))
    with pytest.warns(UserWarning, match=r"\(1, 2\) are loaded into a ScaleInvariant with scales \(1, 3\)"):
        second.load_state_dict(saved(first))


@pytest.mark.parametrize(
    "state",
    [
        saved(SIConv2d(3, 4, 3, scales=(0.5, 1))),
        saved(nn.Conv2d(3, 4, 3)),
        dict(SIConv2d(3, 4, 3, scales=(1, 2)).state_dict()),
    ],
    ids=["the same scales", "a plain Conv2d", "a dictionary without metadata"],
)
def test_other_weights_load_in_silence(state):
    layer = SIConv2d(3, 4, 3, scales=(0.5, 1))
    layer.load_state_dict(state)  # a warning would be an error
    assert torch.equal(layer.weight, state["weight"])
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_a_plain_convolution_loads_the_weights():
    plain, layer = nn.Conv2d(3, 4, 3), SIConv2d(3, 4, 3)
    plain.load_state_dict(saved(layer))
    assert torch.equal(plain.weight, layer.weight)
    assert torch.equal(plain.bias, layer.bias)


def test_state_may_be_gathered_in_a_plain_dictionary():
    layer = SIConv2d(3, 4, 3)
    assert list(layer.state_dict(destination={})) == ["weight", "bias"]
