"""The networks: their sizes, and what each computes, against the same written out another way."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from helpers.methods import DENSE, make_method
from scaleconv import SIConv2d
from scaleconv.models import (
    ConvNet,
    FullyConvolutional,
    HierarchicalConvNet,
    MultiColumnConvNet,
    MultiStageConvNet,
    Shape,
    TiledConv2d,
    UNet,
)

WIDE = [2.7 ** (k / 3) for k in range(-2, 4)]
CLASSIFIERS = (
    *("convnet", "hierarchical", "si_convnet", "ensemble"),
    *("tiled", "multi_stage", "multi_column", "augmented"),
)
SMALL = Shape(maps=(3, 4), hidden=12)
SMALL_OPTIONS = {"maps": (3, 4), "hidden": 12}
IMAGES = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_convnet_and_si_convnet_have_the_papers_parameters():
    assert parameters(make_method("convnet")) == parameters(make_method("si_convnet")) == 147_524
    assert parameters(make_method("ensemble")) == 147_524
    assert parameters(make_method("hierarchical")) == 147_524 + 5 * 576 * 150


def test_what_is_not_shared_costs_parameters():
    convolutions = 36 * 50 + 64 * (36 * 25 + 1)
    assert parameters(make_method("tiled")) == 147_524 + 3 * convolutions
    assert parameters(make_method("multi_stage")) == 147_524 + 36 * 9 * 150
    assert parameters(make_method("multi_column")) == 6 * 147_524
    assert parameters(make_method("augmented")) == 147_524


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(("size", "options"), [(28, {}), (40, {"kernel": 9, "scales": WIDE})], ids=[28, 40])
def test_every_network_takes_both_image_sizes(name, size, options):
    assert make_method(name, size, **options)(torch.rand(2, 1, size, size)).shape == (2, 10)


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
    others = {
        name: make_method(name, **SMALL_OPTIONS, scales=(1,))
        for name in CLASSIFIERS
        if name not in ("tiled", "multi_stage")
    }
    for name, network in others.items():
        prefix = {"ensemble": "module.", "multi_column": "columns.0."}.get(name, "")
        network.load_state_dict({prefix + key: value for key, value in plain.state_dict().items()})
        expected = plain(IMAGES).log_softmax(1) if name == "multi_column" else plain(IMAGES)
        torch.testing.assert_close(network(IMAGES), expected)


def test_the_hierarchical_network_concatenates_what_each_scale_gives():
    network = HierarchicalConvNet(shape=SMALL, scales=(0.8, 1, 2))
    parts = []
    for scale, size in ((0.8, 22), (1, 28), (2, 56)):
        centred = (torch.arange(size) - (size - 1) / 2) / scale / 13.5 * (27 / 28)
        grid = torch.stack(torch.meshgrid(centred, centred, indexing="xy"), -1).expand(2, -1, -1, -1)
        level = F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)
        parts.append(F.interpolate(network.stages(level), size=(3, 3), mode="bilinear").flatten(1))
    torch.testing.assert_close(network(IMAGES), network.classifier(torch.cat(parts, 1)), rtol=1e-4, atol=1e-5)


def test_the_ensemble_takes_the_largest_scores_of_rescaled_images():
    network = make_method("ensemble", **SMALL_OPTIONS, scales=(0.8, 1, 2))
    scores = []
    for scale in (0.8, 1, 2):
        theta = torch.tensor([[1 / scale, 0, 0], [0, 1 / scale, 0]]).expand(2, -1, -1)
        grid = F.affine_grid(theta, IMAGES.shape, align_corners=False)
        scores.append(network.module(F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)))
    torch.testing.assert_close(network(IMAGES), torch.stack(scores).amax(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [1, 2, 3])
def test_each_output_of_a_tiled_convolution_has_the_filter_of_its_place_in_the_tile(tile):
    torch.manual_seed(0)
    layer = TiledConv2d(2, 3, 3, tile=tile).double()
    images = torch.rand(2, 2, 9, 8, dtype=torch.float64)
    output = layer(images)
    assert output.shape == (2, 3, 7, 6)
    for row in range(7):
        for column in range(6):
            place = (row % tile) * tile + column % tile
            weight, bias = layer.weight[3 * place : 3 * place + 3], layer.bias[3 * place : 3 * place + 3]
            patch = images[:, :, row : row + 3, column : column + 3]
            expected = torch.einsum("nchw,mchw->nm", patch, weight) + bias
            torch.testing.assert_close(output[:, :, row, column], expected)


def test_every_filter_of_a_tiled_convolution_learns():
    layer = TiledConv2d(1, 2, 3)
    layer(torch.rand(1, 1, 6, 6)).sum().backward()
    assert (layer.weight.grad.abs().sum((1, 2, 3)) > 0).all()
    assert layer.bias.grad.tolist() == [4.0] * 8  # 16 outputs, 4 for each place


def test_the_classifier_of_the_multi_stage_network_sees_both_stages():
    network = MultiStageConvNet(shape=SMALL)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05)
    first = network.stages.pool1(network.stages.conv1(IMAGES).relu())  # (2, 3, 11, 11)
    second = network.stages.pool2(network.stages.conv2(first).relu())  # (2, 4, 3, 3)
    # Three windows that cover eleven pixels: 0 … 3, 3 … 7, 7 … 10.
    ends = [(0, 4), (3, 8), (7, 11)]
    pooled = torch.stack([torch.stack([first[..., a:b, c:d].amax((2, 3)) for c, d in ends], -1) for a, b in ends], -2)
    expected = network.classifier(torch.cat([pooled.flatten(1), second.flatten(1)], 1))
    torch.testing.assert_close(network(IMAGES), expected)


def test_the_columns_of_the_multi_column_network_have_a_scale_each_and_share_nothing():
    torch.manual_seed(0)
    network = MultiColumnConvNet(shape=SMALL, scales=(0.8, 1, 2))
    scores = []
    for scale, column in zip((0.8, 1, 2), network.columns, strict=True):
        theta = torch.tensor([[1 / scale, 0, 0], [0, 1 / scale, 0]]).expand(2, -1, -1)
        grid = F.affine_grid(theta, IMAGES.shape, align_corners=False)
        level = F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)
        scores.append(F.log_softmax(column(level), 1))
    torch.testing.assert_close(network(IMAGES), torch.stack(scores).mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.equal(network.columns[0].stages.conv1.weight, network.columns[1].stages.conv1.weight)


def test_weights_are_gaussian_and_biases_zero():
    torch.manual_seed(0)
    for name in CLASSIFIERS:
        for key, value in make_method(name).state_dict().items():
            if key.endswith("bias"):
                assert value.abs().max() == 0
            elif value.numel() > 1000:
                assert value.std().item() == pytest.approx(0.01 if "conv" in key else 0.1, rel=0.06)


def test_state_dicts_hold_parameters_and_what_norms_have_seen():
    seen = ("running_mean", "running_var", "num_batches_tracked")
    for name in (*CLASSIFIERS, *DENSE):
        network = make_method(name)
        learned = [key for key in network.state_dict() if not key.endswith(seen)]
        assert learned == [key for key, _ in network.named_parameters()]


def test_the_convolution_is_an_argument():
    network = ConvNet(partial(SIConv2d, scales=(1, 1.5)), SMALL)
    assert network.stages.conv2.scales == (1, 1.5)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("size", [(31, 44), (8, 9)])
def test_dense_networks_score_the_digits_and_the_background_at_every_pixel(name, size):
    network = make_method(name, **SMALL_OPTIONS, scales=(0.8, 1, 1.5))
    assert network(torch.rand(2, 1, *size)).shape == (2, 11, *size)
    layers = [module for module in network.modules() if isinstance(module, SIConv2d)]
    assert {layer.scales for layer in layers} == ({(0.8, 1, 1.5)} if name.startswith("si_") else set())


@pytest.mark.parametrize(("kind", "name"), [(FullyConvolutional, "si_fcn"), (UNet, "si_unet")])
def test_at_scale_one_a_dense_network_is_the_plain_one_with_its_weights(kind, name):
    plain, converted = kind(shape=Shape(maps=(3, 4), classes=11)), make_method(name, **SMALL_OPTIONS, scales=(1,))
    converted.load_state_dict(plain.state_dict())
    torch.testing.assert_close(converted(IMAGES), plain(IMAGES))


def test_the_fully_convolutional_network_sees_32_pixels():
    """What changes when one pixel does, with weights that cancel nothing."""
    network = FullyConvolutional(shape=Shape(maps=(1, 1), classes=1)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0.1)
    image = torch.zeros(1, 1, 80, 80)
    seen = torch.autograd.functional.jacobian(lambda x: network(x)[0, 0, 40, 40], image + torch.rand(1, 1, 80, 80))[
        0, 0
    ]
    assert seen.any(0).sum() <= 34


def test_the_unet_keeps_detail_by_its_skips():
    """Without what comes from below, a pixel still reaches its own score, and only its neighbours' scores."""
    torch.manual_seed(0)
    network = UNet(shape=Shape(maps=(2, 3), classes=2))
    with torch.no_grad():
        for parameter in network.bottom.parameters():
            parameter.zero_()
        for parameter in network.down2.parameters():
            parameter.zero_()
        network.down1.conv1.weight.abs_()
    changed = IMAGES.clone()
    changed[:, :, 14, 14] += 1
    rows = (network(changed) - network(IMAGES)).abs().amax((0, 1, 3)).nonzero().flatten().tolist()
    assert 14 in rows
    assert max(rows) - min(rows) <= 8


def test_dense_networks_take_any_number_of_channels():
    assert UNet(shape=Shape(maps=(2, 3), classes=4), channels=3)(torch.rand(1, 3, 16, 16)).shape == (1, 4, 16, 16)
    assert FullyConvolutional(shape=Shape(maps=(2, 3)), channels=3)(torch.rand(1, 3, 9, 9)).shape == (1, 10, 9, 9)


def test_an_image_that_leaves_no_response_is_refused():
    with pytest.raises(ValueError, match=r"`size` \(=12\) must leave at least one response"):
        ConvNet(shape=Shape(size=12))
