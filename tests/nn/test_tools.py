"""Tools for networks of plain convolutions: they do the right thing, refuse, or docs/layer.md warns of them."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.ao.quantization import fuse_modules
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.mkldnn import to_mkldnn

from scaleconv import ScaleInvariant, SIConv2d, TIConv2d, convert, rotation

IMAGES = torch.rand(2, 3, 12, 11, generator=torch.Generator().manual_seed(0))
SCALES = (0.7, 1, 1.5)


def network():
    """A convolution and a BatchNorm that has seen something; one of its factors is negative."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.weight.data = torch.tensor([1.0, -2.0, 0.5, 3.0])
    norm.bias.data.normal_()
    return convert(nn.Sequential(nn.Conv2d(3, 4, 3), norm), scales=SCALES).eval()


def test_a_batchnorm_folds_only_where_its_factor_is_positive():
    """The largest of the negated responses is not the negated largest one; the page on the layer warns of it."""
    net = network()
    folded = fuse_conv_bn_eval(*net)
    error = (folded(IMAGES) - net(IMAGES)).abs().amax((0, 2, 3))
    assert type(folded) is SIConv2d
    assert error[1] > 0.1
    assert error[[0, 2, 3]].max() < 1e-5


def test_fx_fusion_leaves_the_layer_and_its_batchnorm_alone():
    net = network()
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


# What a file remembers.


def saved(module):
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def turning(angle):
    return TIConv2d(3, 4, 3, transforms=[rotation(0), rotation(angle)])


LAYERS = [SIConv2d(3, 4, 3, scales=scales) for scales in ((1, 2), (0.5, 1))]
OF_LAYERS = r"trained at scales \(1, 2\) are loaded into a SIConv2d with scales \(0.5, 1\)$"
OTHER_LEVELS = {
    "a layer": (*LAYERS, OF_LAYERS),
    "in a network": (*map(nn.Sequential, LAYERS), OF_LAYERS),
    "transforms": (turning(90), turning(30), "trained with other transforms are loaded into a TIConv2d$"),
    "a pyramid": (
        *(ScaleInvariant(nn.Conv2d(3, 4, 3), scales) for scales in ((1, 2), (1, 3))),
        r"trained at scales \(1, 2\) are loaded into a ScaleInvariant with scales \(1, 3\)$",
    ),
}


@pytest.mark.parametrize("through", [saved, nn.Module.state_dict], ids=["file", "memory"])
@pytest.mark.parametrize(("first", "second", "message"), OTHER_LEVELS.values(), ids=OTHER_LEVELS)
def test_weights_of_other_levels_warn_once_and_load(first, second, message, through):
    second = copy.deepcopy(second)
    with pytest.warns(UserWarning, match=message) as seen:
        second.load_state_dict(through(first))
    assert len(seen) == 1
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


PLAIN = nn.Conv2d(3, 4, 3)
SILENT = {
    "the same scales": (saved(SIConv2d(3, 4, 3, scales=(0.5, 1))), LAYERS[1]),
    "the same transforms": (saved(turning(30)), turning(30)),
    "of a plain layer": (saved(PLAIN), LAYERS[1]),
    "of a plain layer, for transforms": (saved(PLAIN), turning(30)),
    "into a plain layer": (saved(LAYERS[0]), PLAIN),
    "without metadata": (LAYERS[0].state_dict(destination={}), LAYERS[1]),
}


@pytest.mark.parametrize(("state", "layer"), SILENT.values(), ids=SILENT)
def test_other_weights_load_in_silence(state, layer):
    layer = copy.deepcopy(layer)
    layer.load_state_dict(state)  # a warning would be an error
    assert torch.equal(layer.weight, state["weight"])
    assert list(layer.state_dict()) == ["weight", "bias"]
