"""An explanation says what the network computed: its prediction, its winners, and the responses behind them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d, convert, explain
from scaleconv.ops import si_conv2d

IMAGE = torch.rand(2, 19, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network(**changes):
    torch.manual_seed(1)
    layer = SIConv2d(2, 4, 3, dtype=torch.float64, **{"scales": (0.7, 1, 1.5), "padding": 1, **changes})
    return nn.Sequential(layer, nn.ReLU(), nn.Dropout(), nn.AdaptiveMaxPool2d(1), nn.Flatten())


def test_prediction_and_confidence_are_those_of_the_network():
    model = network().eval()
    found = explain(model, IMAGE)
    scores = model(IMAGE.unsqueeze(0)).softmax(1)[0]
    assert found.prediction == scores.argmax()
    assert found.confidence == scores.max()


def test_where_every_pixel_has_a_label_prediction_and_confidence_are_maps():
    found = explain(network()[:2], IMAGE)
    assert found.prediction.shape == found.confidence.shape == (19, 24)


@pytest.mark.parametrize(
    "changes",
    [{}, {"padding": "same"}, {"stride": 2, "bias": False}, {"groups": 2}, {"antialias": True}, {"dilation": 2}],
    ids=str,
)
def test_the_aligned_responses_of_the_levels_compete_to_the_output_of_the_strongest_channel(changes):
    """Read by `grid_sample` where the docstring of `si_conv2d` says that output p reads them."""
    layer = network(**changes)[0]
    view = explain(nn.Sequential(layer), IMAGE).layers["0"]
    assert view.channel == view.output.flatten(1).amax(1).argmax()
    competing = []
    for level in view.levels:
        sizes = zip(IMAGE.shape[1:], level.image.shape[1:], level.response.shape, view.output.shape[1:], strict=True)
        coordinates, covered = [], []
        for axis, (length, size, responses, outputs) in enumerate(sizes):
            pad = 1 if layer.padding == "same" else layer.padding[axis]
            r, t = layer.dilation[axis] * 2 / 2 - pad, layer.stride[axis]
            place = t * torch.arange(outputs, dtype=torch.float64) + r - (length - 1) / 2
            v = (level.scale * place + (size - 1) / 2 - r) / t
            coordinates.append((2 * v + 1) / responses - 1)
            covered.append((v >= -0.5 - 1e-6) & (v <= responses - 0.5 + 1e-6))
        y, x = torch.meshgrid(*coordinates, indexing="ij")
        aligned = F.grid_sample(
            level.response[None, None], torch.stack([x, y], -1)[None], padding_mode="border", align_corners=False
        )[0, 0]
        competing.append(aligned.masked_fill(~(covered[0][:, None] & covered[1]), -torch.inf))
    best, winner = torch.stack(competing).max(0)
    torch.testing.assert_close(best, view.output[view.channel])
    assert torch.equal(winner, view.winner[view.channel].long())


def test_the_winning_scale_is_that_of_the_strongest_channel_at_each_position():
    layer = network()[0]
    view = explain(nn.Sequential(layer), IMAGE).layers["0"]
    output, winner = si_conv2d(IMAGE, layer.weight, layer.bias, padding=1, scales=layer.scales, return_winner=True)
    for y in range(19):
        for x in range(24):
            expected = layer.scales[winner[output[:, y, x].argmax(), y, x]]
            assert view.winning_scale[y, x].item() == pytest.approx(expected)
    assert torch.equal(view.strength, output.amax(0))
    assert len(view.winning_scale.unique()) == 3


def test_a_layer_that_extends_its_input_is_explained_with_the_extension():
    layer = network(padding_mode="reflect")[0]
    view = explain(nn.Sequential(layer), IMAGE).layers["0"]
    torch.testing.assert_close(view.output, layer(IMAGE))
    assert view.levels[1].image.shape == (2, 21, 26)


def test_layers_come_by_name_and_the_network_is_left_as_it_was():
    model = convert(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.Conv2d(3, 2, 3)), nn.BatchNorm2d(2))).double()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert list(explain(model, IMAGE).layers) == ["0", "1.0"]
    assert [module.training for module in model] == [True, False, True]
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "image", "error", "words"),
    [
        (nn.Conv2d(2, 2, 3), IMAGE, ValueError, r"`model` \(=Conv2d\) must hold an SIConv2d"),
        (network(), IMAGE[:1], ValueError, r"`image` channels \(=1\) must be those of the network \(=2\)"),
        (
            network(),
            IMAGE.expand(3, -1, -1, -1),
            ValueError,
            r"`image` must be \(C, H, W\) .* got shape \(3, 2, 19, 24\)",
        ),
        (network(), "photo.png", TypeError, "`image` must be a tensor, got str"),
        (F.conv2d, IMAGE, TypeError, "`model` must be a torch.nn.Module"),
    ],
)
def test_what_cannot_be_explained_is_refused_by_name(model, image, error, words):
    with pytest.raises(error, match=words):
        explain(model, image)
