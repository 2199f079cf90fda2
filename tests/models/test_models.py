"""The networks: their sizes, and what each computes, against the same written out another way."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from scaleconv import DEFAULT_SCALES, SIConv2d
from scaleconv.models import TITLES, ConvNet, HierarchicalConvNet, PyramidEnsemble, Shape, make_model

WIDE = [2.7 ** (k / 3) for k in range(-2, 4)]
SMALL = Shape(maps=(3, 4), hidden=12)
IMAGES = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_convnet_and_si_convnet_have_the_papers_parameters():
    assert parameters(make_model("convnet")) == parameters(make_model("si_convnet")) == 147_524
    assert parameters(make_model("ensemble")) == 147_524
    assert parameters(make_model("hierarchical")) == 147_524 + 5 * 576 * 150


@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize(("shape", "scales"), [(Shape(), DEFAULT_SCALES), (Shape(kernel=9, size=40), WIDE)], ids=str)
def test_every_network_takes_both_image_sizes(name, shape, scales):
    network = make_model(name, shape, scales)
    assert network(torch.rand(2, 1, shape.size, shape.size)).shape == (2, 10)


def test_pooling_rounds_up():
    assert ConvNet().stages(IMAGES).shape == (2, 64, 3, 3)


@pytest.mark.parametrize("size", range(17, 41))
@pytest.mark.parametrize("kernel", [5, 7, 9])
def test_the_classifier_fits_whatever_the_stages_leave(size, kernel):
    network = ConvNet(shape=Shape(maps=(1, 1), size=size, kernel=kernel))
    assert network(torch.rand(1, 1, size, size)).shape == (1, 10)


def test_the_convnet_computes_what_is_written_out_by_hand():
    network = ConvNet(shape=SMALL)
    values = network.state_dict()
    x = F.max_pool2d(F.conv2d(IMAGES, values["stages.conv1.weight"], values["stages.conv1.bias"]).relu(), 2, 2)
    x = F.conv2d(x, values["stages.conv2.weight"], values["stages.conv2.bias"]).relu()  # (2, 4, 7, 7)
    x = F.max_pool2d(F.pad(x, (0, 2, 0, 2), value=-torch.inf), 3, 3)
    x = F.linear(x.flatten(1), values["classifier.fc1.weight"], values["classifier.fc1.bias"]).relu()
    expected = F.linear(x, values["classifier.fc2.weight"], values["classifier.fc2.bias"])
    torch.testing.assert_close(network(IMAGES), expected)


def test_at_scale_one_every_network_is_the_convnet():
    plain = ConvNet(shape=SMALL)
    others = {name: make_model(name, SMALL, (1,)) for name in TITLES}
    for name, network in others.items():
        prefix = "network." if name == "ensemble" else ""
        network.load_state_dict({prefix + key: value for key, value in plain.state_dict().items()})
        torch.testing.assert_close(network(IMAGES), plain(IMAGES))


def test_the_hierarchical_network_concatenates_what_each_scale_gives():
    network = HierarchicalConvNet(shape=SMALL, scales=(0.8, 1, 2))
    parts = []
    for scale, size in ((0.8, 22), (1, 28), (2, 56)):
        centred = (torch.arange(size) - (size - 1) / 2) / scale / 13.5 * (27 / 28)
        grid = torch.stack(torch.meshgrid(centred, centred, indexing="xy"), -1).expand(2, -1, -1, -1)
        level = F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)
        parts.append(F.interpolate(network.stages(level), size=(3, 3), mode="bilinear").flatten(1))
    torch.testing.assert_close(network(IMAGES), network.classifier(torch.cat(parts, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_the_ensemble_pools_the_scores_of_rescaled_images(pool):
    network = PyramidEnsemble(shape=SMALL, scales=(0.8, 1, 2), pool=pool)
    scores = []
    for scale in (0.8, 1, 2):
        theta = torch.tensor([[1 / scale, 0, 0], [0, 1 / scale, 0]]).expand(2, -1, -1)
        grid = F.affine_grid(theta, IMAGES.shape, align_corners=False)
        scores.append(network.network(F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)))
    stacked = torch.stack(scores)
    expected = stacked.max(0).values if pool == "max" else stacked.mean(0)
    torch.testing.assert_close(network(IMAGES), expected, rtol=1e-4, atol=1e-5)


def test_weights_are_gaussian_and_biases_zero():
    torch.manual_seed(0)
    for name in TITLES:
        for key, value in make_model(name).state_dict().items():
            if key.endswith("bias"):
                assert value.abs().max() == 0
            elif value.numel() > 1000:
                assert value.std().item() == pytest.approx(0.01 if "conv" in key else 0.1, rel=0.06)


def test_state_dicts_hold_parameters_only():
    for name in TITLES:
        network = make_model(name)
        assert list(network.state_dict()) == [key for key, _ in network.named_parameters()]


def test_the_convolution_is_an_argument():
    network = ConvNet(partial(SIConv2d, scales=(1, 1.5)), SMALL)
    assert network.stages.conv2.scales == (1, 1.5)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`name` must be one of .*, got 'resnet'"):
        make_model("resnet")
    with pytest.raises(ValueError, match=r"`size` \(=12\) must leave at least one response"):
        ConvNet(shape=Shape(size=12))
    with pytest.raises(ValueError, match="`pool` must be 'max' or 'mean', got 'sum'"):
        PyramidEnsemble(pool="sum")
