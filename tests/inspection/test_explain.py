"""An explanation says what the network computed: its prediction, its winners, and the responses behind them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d, convert, explain
from scaleconv.drawing import scale_colours
from scaleconv.ops import si_conv2d

IMAGE = torch.rand(2, 19, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network(**changes):
    torch.manual_seed(1)
    layer = SIConv2d(2, 4, 3, dtype=torch.float64, **{"scales": (0.7, 1, 1.5), "padding": 1, **changes})
    return nn.Sequential(layer, nn.ReLU(), nn.Dropout(), nn.AdaptiveMaxPool2d(1), nn.Flatten())


@pytest.mark.parametrize("layers", [5, 2], ids=["a label", "a label for every pixel"])
def test_prediction_and_confidence_are_those_of_the_network(layers):
    model = network().eval()[:layers]
    found = explain(model, IMAGE)
    scores = model(IMAGE.unsqueeze(0)).softmax(1)[0]
    assert torch.equal(found.prediction, scores.argmax(0))
    assert torch.equal(found.confidence, scores.amax(0))


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


@pytest.mark.parametrize(("size", "kernel"), [((8, 40), (7, 3)), ((40, 8), (3, 7))], ids=["low", "narrow"])
def test_a_level_that_is_too_small_for_the_kernel_on_one_axis_takes_no_part(size, kernel):
    layer = SIConv2d(1, 2, kernel, scales=(0.5, 0.9, 1, 2))
    view = explain(layer, torch.rand(1, *size)).layers[""]
    assert [level.scale for level in view.levels] == [0.9, 1, 2]


class Standardised(nn.Conv2d):
    """As timm's `StdConv2d`, which standardises its weight, and `Conv2dSame`, which pads its input."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(F.pad(x, (2, 0, 1, 1)), weight, self.bias, padding=(0, 1))


def test_levels_of_a_layer_that_prepares_input_and_weight_are_those_of_what_it_prepared():
    torch.manual_seed(2)
    layer = convert(Standardised(2, 4, 3, dtype=torch.float64), scales=(0.7, 1, 1.5))
    view = explain(layer, IMAGE).layers[""]
    channel = slice(view.channel, view.channel + 1)
    prepared = F.pad(IMAGE, (2, 0, 1, 1))
    weight = (layer.weight - layer.weight.mean((1, 2, 3), keepdim=True))[channel]
    plain = F.conv2d(prepared, weight, layer.bias[channel], padding=(0, 1))[0]
    torch.testing.assert_close(view.levels[1].response, plain)
    assert torch.equal(view.levels[1].image, prepared)
    assert bool((view.output[view.channel] >= plain - 1e-9).all())


def test_a_network_that_rearranges_its_channels_is_explained():
    """The first convolution sees four times as many channels as the image has."""
    found = explain(nn.Sequential(nn.PixelUnshuffle(2), SIConv2d(4, 3, 3)), torch.rand(1, 12, 12))
    assert found.prediction.shape == (4, 4)


def test_an_error_of_the_network_itself_is_passed_on():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = SIConv2d(2, 2, 3)

        def forward(self, x):
            raise ValueError("nothing works today")

    with pytest.raises(ValueError, match="nothing works today"):
        explain(Broken(), IMAGE)
    with pytest.raises(ValueError, match="nothing works today"):  # whatever channels `call` gives to the network
        explain(Broken(), IMAGE[:1], call=lambda model, batch: model(batch))


def test_the_table_has_the_shares_of_the_positions():
    layer = network()[0]
    found = explain(nn.Sequential(layer, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()), IMAGE)
    lines = str(found).splitlines()
    score = float(found.confidence)
    assert lines[0] == (
        f"Class {int(found.prediction)}, confidence {100 * score:.1f} %; positions won by each scale, percent"
    )
    assert lines[1].split() == ["layer", "output", "strongest", "channel", "0.7", "1", "1.5"]
    output, winner = si_conv2d(IMAGE, layer.weight, layer.bias, padding=1, scales=layer.scales, return_winner=True)
    strongest = winner.gather(0, output.argmax(0, keepdim=True))
    shares = [f"{100 * float((strongest == place).double().mean()):.1f}" for place in range(3)]
    assert lines[3].split() == ["0", "4", "×", "19", "×", "24", str(found.layers["0"].channel), *shares]


def test_the_picture_has_the_image_and_the_winning_scale_of_each_layer_dimmed_by_its_response():
    model = convert(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)), include="*", scales=(0.5, 1, 1.5)
    ).double()
    found = explain(model, torch.cat([IMAGE, 3 + IMAGE[:1]]))
    image, classes, first, last, bar = found.plot().axes
    titles = [axis.get_title() for axis in (image, classes, first, last)]
    assert titles == ["image", "predicted classes", "0", "2"]
    assert torch.equal(torch.tensor(classes.images[0].get_array()).long(), found.prediction)
    colours = torch.tensor(image.images[0].get_array())
    torch.testing.assert_close(
        colours[..., 2], ((3 + IMAGE[0] - IMAGE.min()) / (3 + IMAGE[0].max() - IMAGE.min())).float()
    )
    for axis, name in ((first, "0"), (last, "2")):
        view, drawn = found.layers[name], axis.images[0]
        torch.testing.assert_close(torch.tensor(drawn.get_array()), view.winning_scale.log2(), check_dtype=False)
        assert drawn.get_clim() == (-1, 1)
        assert [drawn.cmap(drawn.norm(log2)) for log2 in (-1.0, 0.0)] == scale_colours([0.5, 1])
        alpha, strength = torch.tensor(drawn.get_alpha()), view.strength
        assert alpha[strength == strength.max()].item() == 1
        assert bool((alpha[strength <= strength.median()] == 0).all())
        assert 0 < alpha[strength == strength.flatten().sort().values[-5]].item() < 1
        assert axis.get_facecolor() == (0, 0, 0, 1)
    assert [text.get_text() for text in bar.get_yticklabels()] == ["0.5", "1", "1.5"]


def test_the_picture_of_one_class_says_which():
    found = explain(network(), IMAGE)
    title = found.plot().axes[0].get_title()
    assert title == f"Class {int(found.prediction)}, confidence {100 * float(found.confidence):.1f} %"
    grey = network()[0]
    assert len(explain(nn.Sequential(grey), IMAGE).plot().axes) == 4


@pytest.mark.parametrize(
    ("model", "image", "error", "words"),
    [
        (network(), IMAGE[:1], ValueError, r"`image` channels \(=1\) must be those of the network \(=2\)"),
        (
            network(),
            IMAGE.expand(3, -1, -1, -1),
            ValueError,
            r"`image` must be \(C, H, W\) .* got shape \(3, 2, 19, 24\)",
        ),
        (network(), "photo.png", TypeError, "`image` must be a tensor, got str"),
    ],
)
def test_what_cannot_be_explained_is_refused_by_name(model, image, error, words):
    with pytest.raises(error, match=words):
        explain(model, image)
