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
from scaleconv.models.convnet import RootPool2d

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


def test_all_networks_have_the_papers_parameters_and_those_that_are_not_shared():
    more = {
        "hierarchical": 5 * 576 * 150,
        "tiled": 3 * (36 * 50 + 64 * (36 * 25 + 1)),
        "multi_stage": 36 * 9 * 150,
        "multi_column": 5 * 147_524,
    }
    assert {name: parameters(make_method(name)) - 147_524 for name in CLASSIFIERS} == dict.fromkeys(
        CLASSIFIERS, 0
    ) | more


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(("size", "options"), [(28, {}), (40, {"kernel": 9, "scales": WIDE})], ids=[28, 40])
def test_every_network_takes_both_image_sizes(name, size, options):
    assert make_method(name, size, **options)(torch.rand(2, 1, size, size)).shape == (2, 10)


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


def test_the_hierarchical_network_concatenates_what_each_scale_gives():
    network = HierarchicalConvNet(shape=SMALL, scales=(0.8, 1, 2))
    parts = []
    for scale, size in ((0.8, 22), (1, 28), (2, 56)):
        centred = (torch.arange(size) - (size - 1) / 2) / scale / 13.5 * (27 / 28)
        grid = torch.stack(torch.meshgrid(centred, centred, indexing="xy"), -1).expand(2, -1, -1, -1)
        level = F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)
        parts.append(F.interpolate(network.stages(level), size=(3, 3), mode="bilinear").flatten(1))
    torch.testing.assert_close(network(IMAGES), network.classifier(torch.cat(parts, 1)), rtol=1e-4, atol=1e-5)


def test_the_levels_of_a_laplacian_pyramid_add_up_to_the_image():
    network = HierarchicalConvNet(shape=SMALL, scales=(1, 0.8, 2), laplacian=True)
    one, small, two = network.levels(IMAGES)
    plain = HierarchicalConvNet(shape=SMALL, scales=(1, 0.8, 2)).levels(IMAGES)
    assert torch.equal(small, plain[1])
    for level, band, below, ratio, size in ((plain[0], one, small, 1.25, 28), (plain[2], two, IMAGES, 2, 56)):
        half = (below.shape[2] - 1) / 2
        centred = (torch.arange(size) - (size - 1) / 2) / ratio / half
        grid = torch.stack(torch.meshgrid(centred, centred, indexing="xy"), -1).expand(2, -1, -1, -1)
        enlarged = F.grid_sample(below, grid, padding_mode="border", align_corners=True)
        torch.testing.assert_close(band + enlarged, level, rtol=1e-4, atol=1e-5)
    assert network(IMAGES).shape == (2, 10)


@pytest.mark.parametrize("name", ["convnet", "tiled"])
def test_square_root_pooling_takes_the_place_of_relu_and_maximum(name):
    torch.manual_seed(0)
    network = make_method(name, pooling="root", **SMALL_OPTIONS)
    x = IMAGES
    for layer, size in ((network.stages.conv1, 2), (network.stages.conv2, 3)):
        x = layer(x)
        padded = F.pad(x, (0, -x.shape[3] % size, 0, -x.shape[2] % size))
        windows = padded.unfold(2, size, size).unfold(3, size, size)  # (N, M, h, w, size, size)
        x = windows.square().sum((4, 5)).sqrt()
    torch.testing.assert_close(network(IMAGES), network.classifier(x.flatten(1)))
    with pytest.raises(ValueError, match="`pooling` must be one of 'max', 'root', got 'sum'"):
        ConvNet(pooling="sum")


def test_square_root_pooling_has_a_finite_derivative_where_nothing_responds():
    input = torch.zeros(1, 1, 4, 4, requires_grad=True)
    RootPool2d(2)(input).sum().backward()
    assert input.grad.abs().max() == 0


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
        grid = F.affine_grid(torch.eye(2, 3).expand(2, -1, -1) / scale, IMAGES.shape, align_corners=False)
        level = F.grid_sample(IMAGES, grid, padding_mode="border", align_corners=False)
        scores.append(F.log_softmax(column(level), 1))
    torch.testing.assert_close(network(IMAGES), torch.stack(scores).mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.equal(network.columns[0].stages.conv1.weight, network.columns[1].stages.conv1.weight)


def test_independent_columns_are_given_one_by_one_in_training_alone():
    torch.manual_seed(0)
    network = MultiColumnConvNet(shape=SMALL, scales=(0.8, 1, 2), independent=True)
    each = network.train()(IMAGES)
    assert each.shape == (3, 2, 10)
    torch.testing.assert_close(each[1], F.log_softmax(network.columns[1](IMAGES), 1))
    torch.testing.assert_close(network.eval()(IMAGES), each.mean(0))


def test_weights_are_gaussian_and_biases_zero():
    torch.manual_seed(0)
    for name in CLASSIFIERS:
        for key, value in make_method(name).state_dict().items():
            if key.endswith("bias"):
                assert value.abs().max() == 0
            elif value.numel() > 1000:
                assert value.std().item() == pytest.approx(0.01 if "conv" in key else 0.1, rel=0.06)
    for key, value in make_method("unet").named_parameters():
        if key.endswith("bias"):
            assert value.abs().max() == 0
        elif value.numel() > 1000:
            assert value.std().item() == pytest.approx((2 / value[0].numel()) ** 0.5, rel=0.06)


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


def by_hand(network):
    """Convolution of a layer by its name, padded to the same size, and ReLU; norms have seen nothing yet."""
    values = network.eval().state_dict()
    return lambda x, name: F.conv2d(x, values[f"{name}.weight"], values.get(f"{name}.bias"), padding="same").relu()


def test_the_fully_convolutional_network_computes_what_is_written_out_by_hand():
    network = FullyConvolutional(shape=Shape(maps=(3, 4), kernel=7, classes=5))
    convolve, images = by_hand(network), torch.rand(2, 1, 19, 26)
    x = F.max_pool2d(F.pad(convolve(images, "stages.conv1"), (0, 0, 0, 1)), 2)
    for name in ("conv2", "conv3", "conv4"):
        x = convolve(x, f"stages.{name}")
    expected = F.interpolate(network.scores(x), (19, 26), mode="bilinear", align_corners=False)
    torch.testing.assert_close(network(images), expected, rtol=1e-3, atol=1e-4)  # of the 1e-5 in four norms


def test_the_unet_computes_what_is_written_out_by_hand():
    network = UNet(shape=Shape(maps=(3, 4), classes=5))
    convolve, images = by_hand(network), torch.rand(2, 1, 19, 26)

    def block(name, x, below=None):
        if below is not None:
            x = torch.cat([F.interpolate(below, x.shape[2:], mode="bilinear", align_corners=False), x], 1)
        return convolve(convolve(x, f"{name}.conv1"), f"{name}.conv2")

    full = block("down1", images)
    half = block("down2", F.max_pool2d(full, 2))
    quarter = block("bottom", F.max_pool2d(half, 2))
    expected = network.scores(block("up1", full, block("up2", half, quarter)))
    torch.testing.assert_close(network(images), expected)


@pytest.mark.parametrize("kind", [UNet, FullyConvolutional])
def test_dense_networks_take_the_channels_of_their_shape_or_those_given(kind):
    for network in (kind(shape=Shape(maps=(2, 3), channels=3)), kind(shape=Shape(maps=(2, 3)), channels=3)):
        assert network(torch.rand(1, 3, 16, 9)).shape == (1, 10, 16, 9)


def test_an_image_that_leaves_no_response_is_refused():
    with pytest.raises(ValueError, match=r"`size` \(=12\) must leave at least one response"):
        ConvNet(shape=Shape(size=12))
