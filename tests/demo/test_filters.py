"""One filter under many transforms: levels are those of the layer, and a pattern is found at its scale and turn."""

import pytest
import torch

from scaleconv import TIConv2d, rotation, scaling
from scaleconv.demo import filters
from scaleconv.ops.levels import level_size, rescale


@pytest.mark.parametrize("scale", [0.5, 0.63, 1.0, 1.59, 2.0])
def test_a_level_of_a_scale_is_that_of_the_layer(scale):
    images = torch.rand(2, 3, 20, 31, dtype=torch.float64)
    expected = rescale(images, scale, level_size(images.shape[2:], scale))
    torch.testing.assert_close(filters.transformed(images, scaling(scale)), expected)


def disc(side, radius):
    place = torch.arange(side) - (side - 1) / 2
    return (radius + 0.5 - torch.hypot(place[:, None], place)).clamp(0, 1)  # half of it at the radius


def winner_at_the_centre(found, decode):
    """By its colour there, whatever the brightness."""
    shown = decode(found["winners"])
    colour = torch.tensor(shown[shown.shape[0] // 2, shown.shape[1] // 2]).float()
    assert colour.max() > 0
    known = torch.tensor([list(bytes.fromhex(entry["colour"][1:])) for entry in found["legend"]]).float()
    return found["legend"][int((known / known.norm(dim=1, keepdim=True) @ colour).argmax())]["name"]


@pytest.mark.parametrize(("scale", "winner"), [(2 ** (-1 / 3), "×1.3"), (1.0, "×1"), (2.0, "×0.5")])
def test_a_pattern_is_found_by_the_level_that_undoes_its_scale(scale, winner, decode):
    found = filters.of_patch(disc(9, 3), disc(65, 3 * scale), "scale")
    assert winner_at_the_centre(found, decode) == winner


@pytest.mark.parametrize(("degrees", "winner"), [(0, "0°"), (90, "270°"), (180, "180°"), (270, "90°")])
def test_a_pattern_is_found_by_the_level_that_undoes_its_turn(degrees, winner, decode):
    patch, image = torch.zeros(9, 9), torch.zeros(41, 41)
    patch[1:8, 1:3] = patch[6:8, 1:7] = 1  # an L
    image[16:25, 16:25] = torch.rot90(patch, degrees // 90)
    assert winner_at_the_centre(filters.of_patch(patch, image, "rotation"), decode) == winner


def test_the_filters_of_every_convolution_are_offered(pairs):
    layers = filters.find_layers(pairs)
    assert list(layers) == [
        *(f"{network}.conv{number}" for network in ("ConvNet", "SI-ConvNet") for number in (1, 2)),
        *(f"{network}.conv{number}" for network in ("FCN", "SI-FCN") for number in (1, 2, 3, 4)),
    ]
    assert [layer.filters for layer in layers.values()] == [3, 4, 3, 4, 3, 4, 4, 4, 3, 4, 4, 4]


@pytest.mark.parametrize("by", ["scale", "rotation"])
@pytest.mark.parametrize("name", ["ConvNet.conv1", "SI-FCN.conv3"])
def test_a_filter_of_a_network_sees_what_its_layer_sees(pairs, by, name, decode):
    layer, image = filters.find_layers(pairs)[name], torch.rand(40, 33)
    found = filters.of_network(layer, 2, image, by)
    convolution = layer.convolution
    transforms = filters.TRANSFORMS[by].values()
    same = TIConv2d(convolution.in_channels, 1, convolution.kernel_size, padding="same", transforms=transforms)
    with torch.no_grad():
        same.weight.copy_(convolution.weight[2:3])
        same.bias.copy_(torch.zeros(1) if convolution.bias is None else convolution.bias[2:3])
        given = layer.before((image - image.mean())[None, None])
        output, winner = same(given, return_winner=True)
    assert found["channels"] == convolution.in_channels
    assert decode(found["output"]).shape[:2] == tuple(output.shape[2:])
    shares = [float((winner == place).float().mean()) for place in range(len(found["legend"]))]
    assert [entry["share"] for entry in found["legend"]] == pytest.approx(shares)
    assert (
        found["levels"][list(filters.TRANSFORMS[by].values()).index(rotation(0))]["peak"] <= float(output.max()) + 1e-5
    )
